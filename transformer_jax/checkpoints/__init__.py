# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: written whole or not at all, compared with their checksums when read."""
