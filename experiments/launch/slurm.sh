#!/bin/bash
# Any command on many nodes under Slurm; one process on each node uses all of its GPUs:
#
#   sbatch --nodes=4 --gpus-per-node=8 experiments/launch/slurm.sh \
#     train --config=configs/wmt14_en_de_base.py --workdir=/shared/runs/wmt14
#
# Run it in the repository after `make setup`, on a file system that all nodes share. Two minutes
# before the time limit, and when it is preempted, the job saves and stops. Requeued, it continues.
#SBATCH --job-name=transformer_jax
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

srun --kill-on-bad-exit=1 .venv/bin/python -m transformer_jax "$@" --distributed
status=$?
if [ "$status" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$status"
