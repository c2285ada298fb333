# SPDX-License-Identifier: Apache-2.0
"""Logs: metrics.jsonl, TensorBoard, Weights & Biases, and progress on stderr."""
