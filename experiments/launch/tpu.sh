#!/bin/bash
# Any command on all hosts of a Cloud TPU slice:
#
#   experiments/launch/tpu.sh NAME ZONE \
#     train --config=configs/wmt14_en_de_base.py --workdir=gs://BUCKET/runs/wmt14
#
# Each host needs the repository in ~/transformer_jax, set up with `make setup EXTRAS=tpu,gcs`. The
# workdir is a bucket, or a folder on a file system that all hosts share (Filestore).
# After a maintenance event, or another stop with status 75, the same command continues.
set -euo pipefail
name=$1 zone=$2
shift 2
printf -v words '%q ' "$@"
exec gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
  --command="cd transformer_jax && exec .venv/bin/python -m transformer_jax $words --distributed"
