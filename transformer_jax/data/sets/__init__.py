"""Named sets: public ones, the embedded one, and those of TensorFlow Datasets."""
