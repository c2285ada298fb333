# SPDX-License-Identifier: Apache-2.0
"""Sweeps: experiments of several configs and seeds, and their tables."""
