# SPDX-License-Identifier: Apache-2.0
"""Files of the user: lines of text, documents, pairs, tables and trees."""
