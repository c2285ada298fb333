# SPDX-License-Identifier: Apache-2.0
"""Training on many devices and in many processes."""
