# SPDX-License-Identifier: Apache-2.0
"""Data sets by name: public ones, the shipped one, and those of TFDS and Hugging Face."""
