"""Where metrics go: metrics.jsonl, TensorBoard, Weights & Biases, and the progress on stderr."""
