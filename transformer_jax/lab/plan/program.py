# SPDX-License-Identifier: Apache-2.0
"""Compiles the training step or the search of a config for given devices."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from transformer_jax.errors import UserError, reason_of, user_errors
from transformer_jax.lab.plan.mesh_search import SearchSizes
from transformer_jax.models.classifier import body_config
from transformer_jax.nn.fused_attention import record_kernel_choices
from transformer_jax.nn.int8 import convert_weights
from transformer_jax.nn.layers import count_active, count_parameters
from transformer_jax.nn.ops import product_dtype
from transformer_jax.parallel import sharding
from transformer_jax.runs import build
from transformer_jax.runs.frozen import planned_teacher
from transformer_jax.runs.settings import Settings
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.tasks.translation import Translation
from transformer_jax.training.profiling import step_products


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled training step or search.

    Attributes:
      compiled: one executable, or several that run one after another; none if they do not fit.
      refusal: the compiler's message that the devices have too little memory; empty if they fit.
      mesh: of the devices.
      held: bytes on each device of "parameters", "optimizer" and "batch", as far as there are any.
      flops: of the model, on all devices together; None for a search.
      tokens: that the model reads in a step, or that the search writes.
      facts: "engine" ("pmap" or "jit"), "dtype" of products, "attention" (kernels that were chosen,
        with the reasons), "parameters", "active_parameters" (those that a token uses) and "cache"
        (`cache_size`).
      loops: most runs of a loop of unknown length.
    """

    compiled: Sequence[jax.stages.Compiled]
    refusal: str
    mesh: Mesh
    held: dict[str, int]
    flops: int | None
    tokens: int
    facts: dict[str, Any]
    loops: int = 1


class AbstractTraining:
    """A training step whose arrays are shapes, dtypes and shardings.

    Attributes:
      engine: divides state and batch among the devices.
      step: the pure training step.
      rows: of the batch, over all devices.
    """

    def __init__(self, settings: Settings, devices: Sequence[jax.Device] | None = None):
        """Builds the training step of a config for `devices`, or for those of this machine.

        Raises:
          UserError: the config, or its mesh on these devices, is impossible.
        """
        self.settings = settings
        self.task = build.build_untokenized_task(settings, planned_teacher(settings))
        self.engine = build.build_engine(settings, devices)
        _, self.step, init_state = build.build_training(settings, self.task, self.engine)
        self.state = build.abstract_state(settings, init_state, self.engine.mesh)
        self.rows = build.batch_rows(settings, self.task, self.engine.row_shards)
        self.batch = batch_shapes(self.task.lengths, self.rows)

    def compile(self) -> jax.stages.Compiled:
        """Compiles the step."""
        return self.engine.compile(self.step, self.state, self.batch).executable

    def model_flops(self) -> int:
        """FLOPs of the model's products in a step, on all devices together."""
        frozen = self.settings.optimizer.frozen
        return step_products(self.task, self.state, self.batch, frozen).flops


def memory_of(compiled: jax.stages.Compiled) -> tuple[int, int]:
    """Bytes that an executable needs on a device: its temporaries, and all together at the peak."""
    stats: Any = compiled.memory_analysis()
    peak = (
        stats.argument_size_in_bytes
        + stats.temp_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.generated_code_size_in_bytes
    )
    return stats.temp_size_in_bytes, peak


def compile_training_step(settings: Settings, devices: Sequence[jax.Device]) -> Program:
    """Compiles the training step.

    Raises:
      UserError: the config, or its mesh on these devices, is impossible.
    """
    same_bits = platform.reproducible(settings.train.reproducible)
    with platform.compiling_for(devices[0]), same_bits:
        training = AbstractTraining(settings, devices)
        task = training.task
        engine = training.engine
        state = training.state
        held = {
            "parameters": sharding.bytes_per_device((state.params, state.frozen)),
            "optimizer": sharding.bytes_per_device((state.opt_state, state.live)),
            "batch": sum(4 * x.size for x in training.batch.values()) // engine.row_shards,  # int32
        }
        with record_kernel_choices() as attention:
            compiled, refusal = _compile([training.compile], engine.mesh)
        return Program(
            compiled,
            refusal,
            engine.mesh,
            held,
            flops=training.model_flops(),
            tokens=training.rows * sum(task.lengths[side] for side in task.read),
            facts=_facts(settings, task, state.params)
            | {"engine": "jit" if engine.axis_name is None else "pmap"}
            | {"attention": [str(choice) for choice in attention]},
        )


def compile_search(settings: Settings, devices: Sequence[jax.Device]) -> Program:
    """Compiles the search of a batch: longest inputs, longest outputs, as `predict` runs it.

    Raises:
      UserError: the config's task does not search, or its mesh is impossible on these devices.
    """
    with platform.compiling_for(devices[0]):
        task = build.build_untokenized_task(settings)
        plain = jax.eval_shape(task.init, jax.random.key(0))
        params = jax.eval_shape(functools.partial(convert_weights, settings.decode.weights), plain)
        with user_errors("config.parallel"):
            mesh = sharding.make_mesh(settings.parallel, devices)
            params = sharding.add_shardings(params, mesh)
        lowered, rows, length = lower_search(settings, task, params, mesh)
        if not lowered:
            raise UserError(f"plan --decode: task {settings.task.name} searches for no outputs")
        compiled, refusal = _compile([part.compile for part in lowered], mesh)
        return Program(
            compiled,
            refusal,
            mesh,
            held={"parameters": sharding.bytes_per_device(params)},
            flops=None,
            tokens=rows * length,
            # Parameters without the scales of converted weights.
            facts=_facts(settings, task, plain) | {"engine": "jit", "attention": []},
            loops=length,
        )


def _facts(settings: Settings, task: Task, params: Any) -> dict[str, Any]:
    return {
        "dtype": product_dtype(settings.model.dtype).name,
        "parameters": count_parameters(params),
        "active_parameters": count_active(body_config(task.model), params),
        "cache": cache_size(task),
    }


def lower_search(
    settings: Settings, task: Task, params: Any, mesh: Mesh
) -> tuple[list[jax.stages.Lowered], int, int]:
    """Lowers the search of a batch as `predict` runs it: longest inputs, longest outputs; of a
    language model, prompts of half the context, and the generation after them.

    Returns:
      The programs that run one after another, none for a task that does not search; the rows of
      the batch; and the length of the outputs.
    """
    shards = sharding.row_shards(mesh)
    rows = -(-settings.decode.batch_size // shards) * shards  # the next multiple
    by_rows = NamedSharding(mesh, sharding.ROWS)

    def tokens(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype, sharding=by_rows)

    if isinstance(task, Translation):
        source = settings.data.max_source_length
        length = source + settings.decode.max_extra_length
        names = ("source_lengths", "prompt_lengths", "limits", "numbers")
        arrays = {"source": tokens(source), "prompt": tokens(1)}
        arrays |= {name: tokens() for name in names}
        return [task.search.compiled.lower(params, arrays, settings.decode, length)], rows, length
    if not isinstance(task, LanguageModeling):
        return [], rows, 0
    continuation: Any = task.token_generator
    prompt = task.max_length // 2
    length = min(settings.decode.max_extra_length, task.max_length - prompt)
    arrays = {"prompt": tokens(prompt), "ended": tokens(dtype=jnp.bool_)}
    arrays |= {name: tokens() for name in ("lengths", "limits", "numbers", "samples")}
    method = continuation.search(settings.decode)
    slots = continuation.num_slots(prompt, settings.decode)
    begin = functools.partial(continuation.begin, search=method, slots=slots)
    options = {"seed": 0, "drawn": 0}
    samples = jax.eval_shape(begin, params, arrays, **options)
    lowered = [
        continuation.begin.lower(params, arrays, search=method, slots=slots, **options),
        continuation.extend.lower(params, samples, search=method, length=length),
    ]
    return lowered, rows, length


def cache_size(task: Task) -> dict[str, int] | None:
    """Size of the decoding state of one sequence of the longest length, its "tokens" and "bytes";
    None for a model that does not decode."""
    length = max(task.lengths.values())
    measure = getattr(task.model, "state_bytes", None)
    if measure is None:
        return None
    try:
        return {"tokens": length, "bytes": measure(length)}
    except UserError:  # a layer without a cache
        return None


def search_sizes(settings: Settings, devices: Sequence[jax.Device]) -> SearchSizes:
    """Sizes of a config that limit the meshes to try; `expert` and `sequence` are kept."""
    parallel = settings.parallel
    undivided = dataclasses.replace(settings, parallel=sharding.ParallelConfig(engine="jit"))
    training = AbstractTraining(undivided, devices[:1])
    state = training.state
    slices = list(map(sharding.slice_of, devices))
    return SearchSizes(
        devices=len(devices) // (parallel.expert * parallel.sequence),
        local=slices.count(slices[0]),
        state=sharding.bytes_per_device((state.params, state.opt_state, state.live)),
        rows=training.rows // parallel.expert,
        d_model=settings.model.d_model,
        heads=settings.model.key_value_heads,
    )


def micro_batches(settings: Settings, mesh: Mesh) -> tuple[int, int]:
    """Number of micro-batches in a training step, and rows of each on a device."""
    task = build.build_untokenized_task(settings)
    shards = sharding.row_shards(mesh)
    count = build.micro_batches(settings, task, shards)
    return count, build.batch_rows(settings, task, shards) // count // shards


def _compile(
    programs: Sequence[Callable[[], jax.stages.Compiled]], mesh: Mesh
) -> tuple[list[jax.stages.Compiled], str]:
    """`Program.compiled` and `Program.refusal`."""
    try:
        return [compile_program() for compile_program in programs], ""
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            return [], str(error)
        axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
        raise UserError(
            f"plan: the compiler fails on this step with {axes}: {reason_of(error)}; "
            "another mesh, or model.scan_layers, may do"
        ) from error
