# SPDX-License-Identifier: Apache-2.0
"""Batches: windows of running text, loss masks, order, packing, workers and the token cache."""
