"""Training: state, optimizer and schedules, the step, the loop, evaluation, profiling."""
