# SPDX-License-Identifier: Apache-2.0
"""Finds the mistake in a Transformer's part that a user wrote, in NumPy, JAX or PyTorch.

Each check calls the user's function on drawn inputs, in the layouts that are common, and compares
with a reference of NumPy and with the same reference with a known mistake.
"""
