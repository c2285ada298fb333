#!/bin/bash
# Collects in .gpu/ what a GPU machine without a network needs besides the project's folder:
#
#   bash experiments/devices/pack.sh DATA        in the project's folder, after `make setup`
#
# DATA has the folders multi30k and tatoeba_de_en. On that machine: bash .gpu/check.sh first
set -euo pipefail
data=${1:?usage: $0 DATA}
python=${PYTHON:-.venv/bin/python}
version=${PYTHON_THERE:-3.12}
mkdir -p .gpu/wheels .gpu/data
cp "$(dirname "${BASH_SOURCE[0]}")/check.sh" .gpu/
# What images with JAX and PyTorch lack, then what they may have in an older version.
packages=(grain array-record portpicker ml-collections argcomplete beartype)
packages+=(flax optax orbax-checkpoint sentencepiece)
platforms=()
for name in 2_28 2_27 2_24 2_17 2014; do
  platforms+=(--platform "manylinux${name/#2_/_2_}_x86_64")
done
for package in "${packages[@]}"; do
  pin=$(sed -n "s/^\($package==[^ ;]*\).*/\1/p" requirements.txt)
  "$python" -m pip download -q --no-deps --only-binary=:all: --python-version "$version" \
    --implementation cp "${platforms[@]}" -d .gpu/wheels "$pin"
done
for name in multi30k tatoeba_de_en; do cp -rL --no-preserve=mode "$data/$name" .gpu/data/; done
# Trained here, because it takes half a minute.
JAX_PLATFORMS=cpu TRANSFORMER_JAX_DATA=.gpu/data "$python" -c 'from pathlib import Path
from experiments.devices.parts.base import open_text
open_text(Path(".gpu/tokenizer"))'
du -sh .gpu
