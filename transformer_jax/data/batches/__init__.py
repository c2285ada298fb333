"""From examples to batches: tokens in windows, rows packed, streams that resume."""
