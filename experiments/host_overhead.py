# SPDX-License-Identifier: Apache-2.0
"""Measures the host time of a training step: everything outside the compiled call.

    python experiments/host_overhead.py --config=configs/multi30k_en_de.py --steps=300 \\
      --config.model.d_model=64

Trains with the real data, loop and log, but waits for the end of each compiled call, so that no
host work overlaps with the device. The time between two calls goes to the next batch, its transfer
to the devices, the metrics, the log and the progress bar. Set config fields as for `train`; a small
model is enough. Prints one JSON object, times in ms.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from unittest import mock

import jax

import transformer_jax as tj
from transformer_jax.cli.parser import take_overrides
from transformer_jax.cli.terminal import log_to_stderr

WARM_UP = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--steps", type=int, default=300)
    words, fields = take_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    log_to_stderr()
    never = args.steps + 1
    fields |= {"train.num_steps": args.steps, "eval.every_steps": never}
    config = tj.config(args.config, fields | {"checkpoint.every_steps": never})
    calls = timed_calls(config)[WARM_UP : args.steps]
    inside = [end - start for start, end in calls]
    outside = [start - end for (_, end), (start, _) in zip(calls, calls[1:], strict=False)]
    report = {"devices": jax.device_count(), "steps": len(outside), "call_ms": summary(inside)}
    print(json.dumps(report | {"host_ms": summary(outside)}))
    return 0


def timed_calls(config) -> list[tuple[float, float]]:
    """(start, end) in seconds of each call of a compiled program while `config` trains."""
    calls = []
    call = jax.stages.Compiled.__call__

    def timed(compiled, *args):
        start = time.perf_counter()
        outputs = jax.block_until_ready(call(compiled, *args))
        calls.append((start, time.perf_counter()))
        return outputs

    with (
        tempfile.TemporaryDirectory() as workdir,
        mock.patch.object(jax.stages.Compiled, "__call__", timed),
    ):
        tj.train(config, workdir)
    return calls


def summary(seconds: list[float]) -> dict[str, float]:
    """Median, mean and the 99th percentile, in milliseconds."""
    last = statistics.quantiles(seconds, n=100)[-1]
    metrics = {"median": statistics.median(seconds), "mean": statistics.mean(seconds), "p99": last}
    return {name: round(1e3 * value, 3) for name, value in metrics.items()}


if __name__ == "__main__":
    sys.exit(main())
