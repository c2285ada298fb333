# SPDX-License-Identifier: Apache-2.0
"""A run: its config, its parts, how it is trained and loaded, and what can be done with it."""
