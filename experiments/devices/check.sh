#!/bin/bash
# Runs a check on a machine without a network, from the packages in .gpu/ (pack.sh), in the
# project's folder:   bash .gpu/check.sh first|second|PART...
set -euo pipefail
python=${PYTHON:-python3}
seconds=${SECONDS_IN_ALL:-470}
if [[ " $* " != *" --dry "* ]]; then
  site=$(mktemp -d)
  "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" \
    .gpu/wheels/*.whl
  export PYTHONPATH=$site
fi
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-/tmp/check_cache}
exec "$python" -m experiments.devices --data=.gpu/data --tokenizer=.gpu/tokenizer \
  --out="${OUT:-runs/devices}" --seconds="$seconds" "$@"
