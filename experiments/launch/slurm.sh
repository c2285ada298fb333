#!/bin/bash
# Any command on many nodes under Slurm; one process on each node uses all of its GPUs:
#
#   sbatch --nodes=4 --gpus-per-node=8 experiments/launch/slurm.sh \
#     train --config=configs/wmt14_en_de_base.py --workdir=/shared/runs/wmt14
#
# Run it in the repository after `make setup`, on a file system that all nodes share. Two minutes
# before the time limit, and when it is preempted, the job saves and stops (75). Then, and where a
# process was lost, it is queued again and continues from the last checkpoint, RESTARTS times at
# most (50); with --nodes=2-4 on fewer nodes, if need be.
#SBATCH --job-name=transformer_jax
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

# Here and not above, where it would make of --nodes=2-4 the fewest, 2.
srun --ntasks-per-node=1 --kill-on-bad-exit=1 .venv/bin/python -m transformer_jax "$@" --distributed
status=$?
case $status in
  0 | 1 | 2 | 130) ;;  # no other start would help
  *) if [ "${SLURM_RESTART_COUNT:-0}" -lt "${RESTARTS:-50}" ]; then scontrol requeue "$SLURM_JOB_ID"; fi ;;
esac
exit "$status"
