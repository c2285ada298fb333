"""From text to batches: sources of examples, packing into rows, the input pipeline."""
