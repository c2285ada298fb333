# SPDX-License-Identifier: Apache-2.0
"""Evidence: whether one model is better than another, decided by a test."""
