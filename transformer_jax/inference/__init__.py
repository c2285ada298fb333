# SPDX-License-Identifier: Apache-2.0
"""Inference with a trained model: padded batches, searches, text generation and scoring."""
