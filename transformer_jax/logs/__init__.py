"""Logs: metrics.jsonl, TensorBoard, Weights & Biases, and progress on stderr."""
