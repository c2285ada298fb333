# SPDX-License-Identifier: Apache-2.0
"""Pages that show a model's internals: single HTML files that need no network."""
