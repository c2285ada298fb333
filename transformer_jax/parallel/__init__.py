"""Training on many devices and in many processes."""
