# SPDX-License-Identifier: Apache-2.0
"""Cost of a training step or a search on devices that are not here."""
