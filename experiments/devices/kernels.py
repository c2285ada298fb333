# SPDX-License-Identifier: Apache-2.0
"""Time of each kernel of a training step, from a trace of JAX's profiler."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.profiler import ProfileData

from experiments.benchmarks.where_time_goes import readable
from experiments.devices.check import Check
from transformer_jax.tools.benchmark import TrainingProgram

TRACED_STEPS = 3
SHOWN = 20  # kernels in the results
PLACES = {
    "cpu": ("/host:CPU", ""),
    "gpu": ("/device:GPU:0", "Stream"),
    "tpu": ("/device:TPU:0", "XLA Ops"),
}
"""Platform -> the plane of its first device in a trace, and how the lines of kernels begin."""
GROUPS = {
    "attention kernel": r"cudnn|fmha|flash|sdpa|splash",
    "loss": r"logits|eval_jaxpr|while/body",
    "embedding": r"embed",
    "feed-forward": r"feed_forward/",
    "projections": r"_project|query|/output|keys_values",
    "attention, rest": r"attention\.",
    "dropout": r"dropout",
    "norm": r"norm",
}
"""Group -> pattern of a kernel's name or of its place in the model; the first match counts."""
PRODUCT = r"gemm|cutlass|nvjet|matmul|dot|sm90_xmma|cublas"


class Kernel(NamedTuple):
    """An execution of a kernel, in nanoseconds."""

    name: str
    scope: str
    start: float
    duration: float


def profile(check: Check, program: TrainingProgram, batch: Mapping[str, np.ndarray]) -> None:
    """Records where the time of a step goes, by group and for the most expensive kernels; all
    kernels are in OUT/kernels_PART.txt. If the profiler fails, only this result is lost."""
    with check.attempt("profile"):
        kernels = traced_kernels(program, batch)
        times, counts, groups = Counter(), Counter(), Counter()
        for kernel in kernels:
            ms = kernel.duration / 1e6 / TRACED_STEPS
            key = f"{re.sub(r'[.\d_]+$', '', kernel.name)[:58]:60s} {readable(kernel.scope)}"
            times[key] += ms
            counts[key] += 1 / TRACED_STEPS
            groups[group_of(kernel)] += ms
        span = max(k.start + k.duration for k in kernels) - min(k.start for k in kernels)
        step_ms = span / 1e6 / TRACED_STEPS
        values = {"step_ms": step_ms, "busy_ms": times.total(), "kernels": counts.total()}
        idle_pct = 100 * (1 - times.total() / step_ms)  # negative where kernels run in parallel
        check.record("profile", **values, idle_pct=idle_pct)
        check.record("groups, ms", **dict(groups.most_common(14)))
        lines = [f"{ms:8.3f} ms  {counts[key]:6.1f} x  {key}" for key, ms in times.most_common()]
        (check.out / f"kernels_{check.part}.txt").write_text("\n".join(lines))
        for line in lines[:SHOWN]:
            check.record("kernel", says=line)


def traced_kernels(program: TrainingProgram, batch: Mapping[str, np.ndarray]) -> list[Kernel]:
    """Traces some steps. ValueError if the trace has no kernels."""
    text = program.step.executable.as_text()
    scopes = dict(re.findall(r'%([\w.\-]+) = [^\n]*?op_name="([^"]*)"', text))
    jax.block_until_ready(program.run(batch))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(TRACED_STEPS):
                sums = program.run(batch)
            jax.block_until_ready(sums)
        (path,) = Path(folder).rglob("*.xplane.pb")
        kernels = list(read_kernels(path, scopes))
    if not kernels:
        raise ValueError("the trace has no kernels")
    return kernels


def read_kernels(path: Path, scopes: Mapping[str, str]) -> Iterator[Kernel]:
    """Kernels of the first device; `scopes`: operation of the program -> its place in the model."""
    platform = jax.devices()[0].platform
    plane_name, line_start = PLACES[platform]
    for plane in ProfileData.from_file(str(path)).planes:
        if plane.name != plane_name:
            continue
        for line in plane.lines:
            if not line.name.startswith(line_start):
                continue
            for event in line.events:
                stats = {key: value for key, value in event.stats if key}
                operation = str(stats.get("hlo_op") or event.name)
                # A CPU's threads have other events too, and loops contain their operations.
                if platform == "cpu" and ("hlo_op" not in stats or operation.startswith("while")):
                    continue
                scope = str(stats.get("tf_op") or scopes.get(operation, ""))
                yield Kernel(event.name, scope, event.start_ns, event.duration_ns)


def group_of(kernel: Kernel) -> str:
    """Part of the model that a kernel belongs to, and whether it is a matrix product."""
    if re.search(r"[Mm]emcpy|[Mm]emset", kernel.name):
        return "copies"
    kind = "products" if re.search(PRODUCT, kernel.name) else "rest"
    for group, pattern in GROUPS.items():
        if re.search(pattern, f"{kernel.name} {kernel.scope}"):
            return group if group == "attention kernel" else f"{group}: {kind}"
    return f"optimizer and other: {kind}"
