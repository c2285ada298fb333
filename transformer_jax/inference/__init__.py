"""Inference with a trained model: padded batches, searches, text generation and scoring."""
