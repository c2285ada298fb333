# SPDX-License-Identifier: Apache-2.0
"""Costs of a config on this machine: sizes and memory of its training step (`train --dry_run`), and
benchmarks of the step and of the search on random tokens."""

import dataclasses
import math
import re
import resource
import statistics
import sys
import time
import timeit
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data.sources import find_sets
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.generation import Output
from transformer_jax.lab.plan.program import AbstractTraining, memory_of
from transformer_jax.lab.plan.target import GIB
from transformer_jax.models.patches import WrappedModel
from transformer_jax.nn.int8 import convert_weights
from transformer_jax.nn.layers import count_parameters
from transformer_jax.nn.ops import product_dtype
from transformer_jax.nn.parameters import named_leaves
from transformer_jax.parallel.engines import CompiledStep, Rows
from transformer_jax.parallel.first_state import create_state
from transformer_jax.parallel.sharding import row_shards
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.frozen import planned_teacher
from transformer_jax.runs.run import decode_options
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.train import limit_kept_memory, require_room
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.tasks.translation import Translation
from transformer_jax.training.profiling import step_bytes, step_products

_WARM_UP_STEPS = 3


def train(
    config: Settings | ConfigDict,
    batch_size: int = 32,
    source_length: int | None = None,
    target_length: int | None = None,
    steps: int = 20,
) -> dict[str, Any]:
    """Times the training step on full rows; tokens_per_s counts the tokens that the model reads.

    Args:
      config: of the run; gradient accumulation is disabled.
      source_length: tokens of a source row, for tasks of pairs (default: 32).
      target_length: tokens of a target row, for tasks of pairs (default: 32).
      steps: number of steps to take the median of.

    Raises:
      UserError: the rows do not divide among the devices, or lengths are given for another task.
    """
    settings = read_settings(config)
    task = build.build_untokenized_task(settings, planned_teacher(settings))
    lengths = _row_lengths(task, source_length, target_length)
    program = compile_training(settings, task, batch_size, lengths)
    sizes = build.assumed_vocab_sizes(settings)
    # Features without a vocabulary of their own have tokens of a text.
    text_size = max(sizes[side] for side in build.task_kind(settings).texts)
    batch = _random_batch(lengths, batch_size, dict.fromkeys(lengths, text_size) | sizes)
    seconds = median_seconds(lambda: jax.block_until_ready(program.run(batch)), steps)
    tokens = batch_size * sum(lengths[side] for side in task.read)
    params = program.abstract.model_params
    return _report(settings, params, seconds, tokens, program.step.executable, program.compile_s)


@dataclasses.dataclass
class TrainingProgram:
    """A compiled training step with the state that it changes.

    Attributes:
      step: compiled for batches of `rows` rows.
      state: in the engine's form; each step replaces it.
      abstract: shapes of the first state, in the portable form.
      rows: rows of a batch.
      flops: of the model in a step (`training.profiling.step_products`).
      compile_s: seconds that the compilation took.
    """

    task: Task
    step: CompiledStep
    state: Any
    abstract: Any
    rows: int
    flops: int
    compile_s: float

    def run(self, batch: Rows) -> dict[str, jax.Array]:
        """Takes one step; returns its sums without waiting for them."""
        self.state, sums = self.step(self.state, batch)
        return sums


def compile_training(
    settings: Settings, task: Task, rows: int, lengths: Mapping[str, int]
) -> TrainingProgram:
    """Compiles the training step of a config and draws its first state.

    Args:
      settings: of the run; gradient accumulation is disabled.
      rows: rows of a batch.
      lengths: tokens of a row by feature.

    Raises:
      UserError: the rows do not divide among the devices, or the step has no room there.
    """
    whole = dataclasses.replace(settings.train, accumulation_steps=1, rows_per_device=None)
    settings = dataclasses.replace(settings, train=whole)
    engine = build.build_engine(settings)
    _, train_step, init_state = build.build_training(settings, task, engine)
    abstract = build.abstract_state(settings, init_state, engine.mesh)
    state = engine.from_portable(create_state(init_state, settings.seed, abstract))
    if rows % row_shards(engine.mesh):
        raise UserError(
            f"--batch_size {rows} does not divide among {row_shards(engine.mesh)} devices"
        )
    shapes = batch_shapes(lengths, rows)
    products = step_products(task, abstract, shapes, settings.optimizer.frozen)
    require_room(settings, abstract, engine, products.largest)
    start = time.perf_counter()
    with platform.reproducible(settings.train.reproducible):
        step = engine.compile(train_step, abstract, shapes)
    step.compiling.result()
    compile_s = time.perf_counter() - start
    limit_kept_memory(step_bytes(step))
    return TrainingProgram(task, step, state, abstract, rows, products.flops, compile_s)


def decode(
    config: Settings | ConfigDict,
    batch_size: int = 64,
    source_length: int = 24,
    beam_size: int | None = None,
    output_length: int = 32,
    steps: int = 5,
) -> dict[str, Any]:
    """Times the search for outputs of exactly `output_length` tokens.

    tokens_per_s counts one output a sentence or prompt.

    Args:
      config: of a translation or a language model.
      batch_size: sentences or prompts.
      source_length: tokens of each.
      beam_size: instead of the config's.
      output_length: tokens of each output.
      steps: number of searches to take the median of.

    Raises:
      UserError: the config's task is another, or the options are impossible.
    """
    settings = read_settings(config)
    task = build.build_untokenized_task(settings)
    if not isinstance(task, Translation | LanguageModeling):
        raise UserError(
            "benchmark decode: the config's task must be translation or language_modeling"
        )
    sizes_of_search = {"batch_size": batch_size} | ({"beam_size": beam_size} if beam_size else {})
    options = decode_options(settings.decode, task, "predict", sizes_of_search)
    params = jax.jit(task.init)(jax.random.key(settings.seed))
    params = convert_weights(options.weights, params)
    sizes = build.assumed_vocab_sizes(settings)
    text_size = max(sizes[side] for side in build.task_kind(settings).texts)
    lengths = {"source": source_length}
    sources = _random_batch(lengths, batch_size, {"source": text_size})["source"]
    start = time.perf_counter()
    if isinstance(task, Translation):
        run = _translation_search(task, params, sources, options, output_length)
    else:
        run = _generation(task, params, sources, options, output_length)
    compile_s = time.perf_counter() - start
    seconds = median_seconds(run, steps)
    report = _report(settings, params, seconds, batch_size * output_length, None, compile_s)
    return {"beam_size": options.beam_size, "weights": options.weights} | report


_STEPS_OF_SEARCHES = ("prefill", "prefill_hidden", "decode_step", "decode_step_hidden")


class EndlessModel(WrappedModel):
    """A model whose outputs reach their limits."""

    def __init__(self, model: Any, eos: int) -> None:
        super().__init__(model)
        self.eos = eos

    def apply(self, *args: Any, method: Any = "__call__", **named: Any) -> Any:
        result = self.model.apply(*args, method=method, **named)
        if method not in _STEPS_OF_SEARCHES:
            return result
        logits, *rest = result
        return logits.at[..., self.eos].set(-jnp.inf), *rest


def _translation_search(
    task: Translation, params: Any, sources: np.ndarray, options: DecodeConfig, output_length: int
) -> Callable[[], None]:
    """Compiles the search for outputs of sources [B, S]."""
    batch_size, source_length = sources.shape
    longest_output = dataclasses.replace(options, max_extra_length=output_length)
    task.search.check(source_length, longest_output)

    def column(value: int) -> np.ndarray:
        return np.full(batch_size, value, np.int32)

    arrays = {
        "source": sources,
        "source_lengths": column(source_length),
        "prompt": column(task.search.specials.start)[:, None],
        "prompt_lengths": column(1),
        "limits": column(output_length),
        "numbers": np.arange(batch_size, dtype=np.int32),
    }
    endless: Any = EndlessModel(task.model, task.search.specials.eos)
    program = dataclasses.replace(task.search, model=endless).compiled
    search = program.lower(params, arrays, options, output_length).compile()
    return lambda: jax.block_until_ready(search(params, arrays))


def _generation(
    task: LanguageModeling,
    params: Any,
    prompts: np.ndarray,
    options: DecodeConfig,
    output_length: int,
) -> Callable[[], None]:
    """Compiles the continuation of prompts [B, P]."""
    # No token ends an output: every output has the same length.
    specials = dataclasses.replace(task.token_generator.specials, eos=-1, ends=())
    generator = dataclasses.replace(task.token_generator, specials=specials)
    decode = dataclasses.replace(options, max_extra_length=output_length)

    def run() -> None:
        outputs = [Output(prompt, number, 0) for number, prompt in enumerate(prompts.tolist())]
        for _ in generator.generate(params, outputs, decode):
            pass

    run()  # compiles
    return run


def _row_lengths(task: Task, source: int | None, target: int | None) -> dict[str, int]:
    if isinstance(task, Translation):
        return {"source": source or 32, "target": target or 32}
    if source or target:
        raise UserError(
            "--source_length and --target_length are for tasks of pairs; set config.data.max_length"
        )
    return dict(task.lengths)


def _random_batch(
    lengths: dict[str, int], rows: int, vocab_sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """Packed rows without padding, each one sequence of random tokens."""
    rng = np.random.default_rng(0)
    batch = {}
    for feature, length in lengths.items():
        shape = (rows, length)
        batch[feature] = rng.integers(0, vocab_sizes[feature], shape, np.int32)
        batch[f"{feature}_segment_ids"] = np.ones(shape, np.int32)
        batch[f"{feature}_positions"] = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    return batch


def median_seconds(run: Callable[[], Any], times: int) -> float:
    """Median seconds of a call that waits for its results, after some that warm up."""
    seconds = timeit.repeat(run, number=1, repeat=_WARM_UP_STEPS + times)
    return statistics.median(seconds[_WARM_UP_STEPS:])


def _report(
    settings: Settings, params: Any, seconds: float, tokens: int, compiled: Any, compile_s: float
) -> dict[str, Any]:
    """The measures. `compiled` has the FLOPs; None for searches, because XLA counts the body of a
    loop once, however often it runs."""
    device = jax.devices()[0]
    flops = compiled and (compiled.cost_analysis() or {}).get("flops")
    return {
        "device": device.device_kind,
        "jax": jax.__version__,
        "dtype": product_dtype(settings.model.dtype).name,
        "parameters": count_parameters(params),
        "step_ms": round(1e3 * seconds, 2),
        "tokens_per_s": round(tokens / seconds),
        "flops_per_s": flops and round(flops / seconds),
        "compile_s": round(compile_s, 1),
        "peak_memory_mb": _peak_memory(device) >> 20,
    }


def _peak_memory(device: jax.Device) -> int:
    """Peak bytes of the device if it counts them, otherwise of the process."""
    stats = device.memory_stats() or {}
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return stats.get("peak_bytes_in_use", process)


def describe(settings: Settings) -> str:
    """Text with the arrays of a batch, the parameters and, last, a summary.

    Parameters of the same name and shape in several layers are one line, with their number.

    Raises:
      UserError: the config cannot be used on the devices that are here.
    """
    find_sets(settings.data.name)  # the data are not read here, but their sets must exist
    training = AbstractTraining(settings)
    _, peak = memory_of(training.compile())
    params = training.state.params
    devices = training.engine.mesh.devices.flatten()
    most = " at most, by the size of the data" if settings.train.scale_to_data else ""
    tokens = f"{settings.train.tokens_per_batch:,} tokens"
    if any("source" in name for name in training.batch):
        tokens += " of the source and as many of the target"
    summary = {
        "task": f"{settings.task.name} on {settings.data.name}",
        "model": settings.model.architecture,
        "parameters": f"{count_parameters(params):,}",
        "batch": f"{training.rows} rows, at most {tokens}",
        "steps": f"{settings.train.num_steps:,}{most}",
        "devices": f"{devices.size} ({devices[0].device_kind})",
        "memory of a step": f"{peak / GIB:.2f} GiB a device (state, batch and temporaries)",
    }
    counts = Counter(
        (re.sub(r"\d+", "*", path), leaf.shape) for path, leaf in named_leaves(params).items()
    )
    lines = [f"batch {name:58}{x.shape!s:>18}" for name, x in training.batch.items()]
    for (name, shape), count in counts.items():
        times = f"{count} x {shape}" if count > 1 else str(shape)
        lines.append(f"{name:64}{times:>18}{count * math.prod(shape):>14,}")
    lines.append("")
    lines += [f"{name:17} {value}" for name, value in summary.items()]
    return "\n".join(lines)
