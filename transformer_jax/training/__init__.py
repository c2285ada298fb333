# SPDX-License-Identifier: Apache-2.0
"""Training: state, optimizer and schedules, the step, the loop, evaluation, profiling."""
