"""Batches: windows of running text, loss masks, order, packing, workers and the token cache."""
