"""Training: the state, the optimizer, the step, the loop, checkpoints and logs."""
