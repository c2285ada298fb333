# SPDX-License-Identifier: Apache-2.0
"""Training steps on packed rows of random tokens: compiled, timed, and compared."""

import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from experiments.devices.check import Check
from experiments.devices.kernels import profile
from transformer_jax.nn.fused_attention import record_kernel_choices
from transformer_jax.nn.ops import product_dtype
from transformer_jax.runs import build
from transformer_jax.runs.config import resolve_file
from transformer_jax.runtime import platform
from transformer_jax.tools import benchmark
from transformer_jax.tools.benchmark import TrainingProgram, median_seconds

BASE = "wmt14_en_de_base"
BIG = "wmt14_en_de_big"
GPT2 = "gpt2_124m"
TINY = {
    "model.d_model": 32,
    "model.d_ff": 64,
    "model.num_heads": 2,
    "tokenizer.vocab_size": 800,
    "train.tokens_per_batch": 128,
}
TINY_PAIRS = TINY | {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "data.max_source_length": 32,
    "data.max_target_length": 32,
}
TINY_GPT = TINY | {"model.num_layers": 2, "model.max_length": 64, "data.max_length": 64}
SIZES = {
    BASE: {},  # 96 rows of 256 + 256 tokens
    BIG: {"train.tokens_per_batch": 24_576},  # as base
    GPT2: {"train.tokens_per_batch": 16_384, "train.accumulation_steps": 1},  # 16 rows of 1,024
}
"""Changes of each config that make one batch fit a GPU."""
TINY_SIZES = {BASE: TINY_PAIRS, BIG: TINY_PAIRS, GPT2: TINY_GPT | {"train.accumulation_steps": 1}}
COMPARED_STEPS = 20
LARGEST_GAP = 0.03  # of losses in bfloat16 with fused and plain attention, in nats per token


def compile_config(
    check: Check, name: str, changes: Mapping[str, Any], xla: Mapping[str, Any] | None = None
) -> TrainingProgram:
    """Compiles the training step of a config with changed fields and options of XLA."""
    sizes = TINY_SIZES if check.dry else SIZES
    settings = resolve_file(name, sizes[name] | changes)
    task = build.build_untokenized_task(settings)
    rows = build.batch_rows(settings, task)
    options = platform.compiler_options() | (xla or {})
    with (
        mock.patch.object(platform, "compiler_options", lambda: options),
        record_kernel_choices() as choices,
    ):
        program = benchmark.compile_training(settings, task, rows, task.lengths)
    attention = "; ".join(map(str, choices))
    check.record(
        "compiled", config=name, attention=attention, compile_s=program.compile_s, **changes
    )
    return program


def packed_batch(
    lengths: Mapping[str, int],
    rows: int,
    vocab_size: int,
    sentences: tuple[int, int] = (4, 24),
    padding: float = 0.02,
) -> dict[str, np.ndarray]:
    """Draws rows of random tokens, packed as in training.

    Args:
      lengths: tokens of a row by feature; multiples of the smallest.
      rows: rows of the batch.
      vocab_size: tokens are smaller.
      sentences: shortest and longest sentence, in tokens of the shortest row.
      padding: mean share at the end of a row.
    """
    rng = np.random.default_rng(0)
    shortest = min(lengths.values())
    starts = np.cumsum(rng.integers(sentences[0], sentences[1] + 1, (rows, shortest)), axis=1)
    places = np.arange(shortest)
    begun = np.sum(starts[:, None, :] <= places[:, None], axis=2)  # sentences before each token
    row_ends = shortest - rng.integers(1, 2 + int(2 * padding * shortest), rows)
    segments = np.where(places < row_ends[:, None], begun + 1, 0).astype(np.int32)
    batch = {}
    for feature, length in lengths.items():
        # A longer row has the same sentences, each longer by the same factor.
        ids = np.repeat(segments, length // shortest, axis=1)
        is_first = np.diff(ids, axis=1, prepend=-1) != 0
        index = np.arange(length)
        first_index = np.maximum.accumulate(np.where(is_first, index, 0), axis=1)
        tokens = rng.integers(4, vocab_size, ids.shape)
        batch[feature] = np.where(ids > 0, tokens, 0).astype(np.int32)
        batch[f"{feature}_segment_ids"] = ids
        batch[f"{feature}_positions"] = np.where(ids > 0, index - first_index, 0).astype(np.int32)
    return batch


def batch_of(check: Check, program: TrainingProgram) -> dict[str, np.ndarray]:
    """Draws a batch of a program's shape. Its tokens are in every vocabulary of these configs."""
    lengths = program.task.lengths
    sentences = (4, 24) if len(lengths) > 1 else (20, 900)  # of pairs, or paragraphs
    return packed_batch(lengths, program.rows, 800 if check.dry else 32_000, sentences)


def first_losses(
    program: TrainingProgram, batch: Mapping[str, np.ndarray], count: int
) -> list[float]:
    """Losses in nats per token of the next steps, all on one batch."""
    steps = [jax.device_get(program.run(batch)) for _ in range(count)]
    return [float(sums["loss"] / sums["weight"]) for sums in steps]


def measure(check: Check, config: str) -> tuple[TrainingProgram, list[float], float]:
    """Records the speed of a config's step, alone and in a loop, and its profile.

    Returns:
      the program, the losses of its first steps, and the milliseconds of a step alone.
    """
    program = compile_config(check, config, {})
    batch = batch_of(check, program)
    first_state = jax.tree.map(jnp.copy, program.state)
    losses = first_losses(program, batch, COMPARED_STEPS)
    program.state = first_state
    same = first_losses(program, batch, 5) == losses[:5]
    check.record("the same five steps again", equal_to_the_bit=same)
    alone_ms = time_step(check, "step alone", program, batch)
    time_loop(check, "loop, batches ready", program, itertools.repeat(batch), alone_ms)
    profile(check, program, batch)
    return program, losses, alone_ms


def compare_with_plain(check: Check, config: str, losses: list[float]) -> None:
    """Records whether plain attention gives the same losses, up to rounding, and its speed."""
    program = compile_config(check, config, {"model.attention": "plain"})
    batch = batch_of(check, program)
    exact = first_losses(program, batch, COMPARED_STEPS)
    check_losses(check, "losses against plain attention", losses, exact, LARGEST_GAP)
    time_step(check, "step alone, plain attention", program, batch)


def check_losses(
    check: Check, label: str, losses: list[float], exact: list[float], largest: float
) -> None:
    """Records whether the losses of two trainings differ by less than `largest` in each step."""
    gaps = [abs(loss - other) for loss, other in zip(losses, exact, strict=True)]
    is_near = all(gap < largest for gap in gaps)  # False for NaN
    gap = float(np.max(gaps))
    check.record(label, ok=is_near, gap=gap, first=losses[0], last=losses[-1])


def time_step(
    check: Check, label: str, program: TrainingProgram, batch: Mapping[str, np.ndarray]
) -> float:
    """Records and returns the median milliseconds of a step that is waited for."""
    seconds = median_seconds(
        lambda: jax.block_until_ready(program.run(batch)), 2 if check.dry else 20
    )
    tokens = program.rows * sum(program.task.lengths.values())
    values = {"step_ms": 1e3 * seconds, "tokens_per_s": round(tokens / seconds)}
    peak = platform.peak_flops(jax.devices()[0], product_dtype("auto"))
    if peak is not None:
        values["mfu_pct"] = 100 * program.flops / (seconds * peak * jax.device_count())
    memory = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in memory:  # the highest of this process so far
        values["peak_gib"] = memory["peak_bytes_in_use"] / 2**30
    check.record(label, **values)
    return 1e3 * seconds


def time_loop(
    check: Check,
    label: str,
    program: TrainingProgram,
    batches: Iterator[Mapping[str, np.ndarray]],
    alone_ms: float,
) -> None:
    """Records the milliseconds of a step in a loop like that of training, which reads the sums of
    each step two steps later, and the share of the time that it waits for batches."""
    steps = 3 if check.dry else 50
    warm_up = 2 if check.dry else 10
    pending: deque[dict[str, jax.Array]] = deque()
    waited = 0.0
    for step in range(warm_up + steps):
        if step == warm_up:
            start = time.perf_counter()
            waited = 0.0
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        pending.append(program.run(batch))
        if len(pending) > 2:
            jax.device_get(pending.popleft())
    jax.block_until_ready(program.state)
    total = time.perf_counter() - start
    step_ms = 1e3 * total / steps
    more = step_ms - alone_ms
    check.record(label, step_ms=step_ms, share_data=waited / total, more_than_alone_ms=more)
