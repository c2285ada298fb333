"""The real training step, or the real search, compiled for given devices."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from transformer_jax.errors import UserError
from transformer_jax.nn.fused_attention import Choice, noted_choices
from transformer_jax.nn.int8 import weights_as
from transformer_jax.nn.ops import product_dtype
from transformer_jax.parallel import sharding
from transformer_jax.parallel.sharding import ROWS, ParallelConfig, make_mesh, row_shards, slice_of
from transformer_jax.runs import build
from transformer_jax.runs.config import Settings
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.tasks.translation import Translation
from transformer_jax.tools.plan.mesh_search import Sizes
from transformer_jax.training.profiling import step_products

_NO_ROOM = "RESOURCE_EXHAUSTED"


class DoesNotFitError(Exception):
    """The compiler says, in its own words, that the devices have too little memory.

    Attributes:
      mesh: of the devices.
      held: bytes on each device, by what they are, as `Program.held`.
    """

    def __init__(self, message: str, mesh: Mesh, held: dict[str, int]):
        super().__init__(message)
        self.mesh, self.held = mesh, held


@dataclasses.dataclass(frozen=True)
class Program:
    """What was compiled.

    Attributes:
      compiled: one program, or several that run one after another.
      engine: "pmap" or "jit".
      mesh: its devices.
      dtype: of the products.
      parameters: number of the model's.
      held: bytes on each device, by what they are.
      flops: of the model, in all devices together.
      tokens: that the model reads in a step, or that the search writes.
      loops: how often a loop of unknown length runs at most.
      attention: what computes it, and why.
    """

    compiled: tuple[jax.stages.Compiled, ...]
    engine: str
    mesh: Mesh
    dtype: str
    parameters: int
    held: dict[str, int]
    flops: int | None
    tokens: int
    loops: int = 1
    attention: tuple[Choice, ...] = ()


def training_step(settings: Settings, devices: Sequence[jax.Device]) -> Program:
    """The step that `train` runs on such devices.

    Raises:
      UserError: the config, or its mesh on these devices, is impossible.
      DoesNotFitError: the compiler found no room.
    """
    with platform.compiling_for(devices[0]):
        task = _task(settings)
        engine = build.build_engine(settings, devices)
        _, step, init_state = build.build_training(settings, task, engine)
        state = build.abstract_state(settings, init_state, engine.mesh)
        rows = build.batch_rows(settings, task, engine.row_shards)
        batch = batch_shapes(task.lengths, rows)
        held = {
            "parameters": _held(state.params),
            "optimizer": _held((state.opt_state, state.live)),
            "batch": sum(x.size * 4 for x in batch.values()) // engine.row_shards,
        }
        with noted_choices() as attention:
            compiled = _compiled(
                lambda: engine.compile(step, state, batch).executable, engine.mesh, held
            )
        read = sum(task.lengths[side] for side in task.read)
        return Program(
            compiled=(compiled,),
            engine="jit" if engine.axis_name is None else "pmap",
            mesh=engine.mesh,
            dtype=product_dtype(settings.model.dtype).name,
            parameters=_count(state.params),
            held=held,
            flops=step_products(task, state.params, batch).flops,
            tokens=rows * read,
            attention=tuple(attention),
        )


def search(settings: Settings, devices: Sequence[jax.Device]) -> Program:
    """The search of a batch of the longest inputs for the longest outputs, as `predict` runs it.

    Raises:
      UserError: the config's task does not search, or its mesh is impossible on these devices.
      DoesNotFitError: the compiler found no room.
    """
    with platform.compiling_for(devices[0]):
        task = _task(settings)
        mesh = _as_user_error(lambda: make_mesh(settings.parallel, devices))
        plain = jax.eval_shape(task.init, jax.random.key(0))
        count = _count(plain)
        params = jax.eval_shape(functools.partial(weights_as, settings.decode.weights), plain)
        params = _as_user_error(lambda: sharding.add_shardings(params, mesh))
        shards = row_shards(mesh)
        rows = -(-settings.decode.batch_size // shards) * shards
        by_rows = NamedSharding(mesh, ROWS)

        def tokens(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((rows, *shape), jnp.int32, sharding=by_rows)

        if isinstance(task, Translation):
            lowered, length = _source_search(settings, task, params, tokens)
        elif isinstance(task, LanguageModeling):
            lowered, length = _continuation(settings, task, params, tokens)
        else:
            raise UserError(f"plan --decode: task {settings.task.name} searches for no outputs")
        held = {"parameters": _held(params)}
        return Program(
            compiled=tuple(_compiled(one.compile, mesh, held) for one in lowered),
            engine="jit",
            mesh=mesh,
            dtype=product_dtype(settings.model.dtype).name,
            parameters=count,
            held=held,
            flops=None,
            tokens=rows * length,
            loops=length,
        )


def _source_search(
    settings: Settings, task: Translation, params: Any, tokens: Callable[..., Any]
) -> tuple[list[jax.stages.Lowered], int]:
    source = settings.data.max_source_length
    length = source + settings.decode.max_extra_length
    arrays = {
        "source": tokens(source),
        "prompt": tokens(1),
        **{name: tokens() for name in ("source_lengths", "prompt_lengths", "limits", "numbers")},
    }
    return [task.search.compiled.lower(params, arrays, settings.decode, length)], length


def _continuation(
    settings: Settings, task: LanguageModeling, params: Any, tokens: Callable[..., Any]
) -> tuple[list[jax.stages.Lowered], int]:
    """Prefilling prompts of half the context, and drawing what follows them."""
    continuation: Any = task.drawing
    prompt = task.max_length // 2
    length = min(settings.decode.max_extra_length, task.max_length - prompt)
    named = {name: tokens() for name in ("lengths", "limits", "numbers", "samples")}
    ended = jax.ShapeDtypeStruct(named["limits"].shape, bool, sharding=named["limits"].sharding)
    arrays = {"prompt": tokens(prompt), "ended": ended} | named
    method = continuation.search(settings.decode)
    begin = functools.partial(continuation.begin, search=method)
    samples = jax.eval_shape(begin, params, arrays, seed=0, drawn=0)
    return [
        continuation.begin.lower(params, arrays, search=method, seed=0, drawn=0),
        continuation.extend.lower(params, samples, search=method, length=length),
    ], length


def sizes(settings: Settings, devices: Sequence[jax.Device]) -> Sizes:
    """What a search for meshes must know of a config."""
    task = _task(settings)
    plain = dataclasses.replace(settings, parallel=ParallelConfig(engine="jit"))
    engine = build.build_engine(plain, devices[:1])
    _, _, init_state = build.build_training(plain, task, engine)
    state = build.abstract_state(plain, init_state, engine.mesh)
    return Sizes(
        devices=len(devices),
        local=len([one for one in devices if slice_of(one) == slice_of(devices[0])]),
        state=_held((state.params, state.opt_state, state.live)),
        rows=build.batch_rows(settings, task),
        d_model=settings.model.d_model,
        heads=settings.model.key_value_heads,
    )


def micro_batches(settings: Settings, mesh: Mesh) -> int:
    """Parts of a batch that its step on a mesh takes one after another."""
    return build.micro_batches(settings, _task(settings), row_shards(mesh))


def rows_at_once(settings: Settings, mesh: Mesh) -> int:
    """Rows of a micro-batch on each device."""
    shards = row_shards(mesh)
    whole = build.batch_rows(settings, _task(settings), shards)
    return whole // micro_batches(settings, mesh) // shards


def _task(settings: Settings) -> Task:
    return build.build_task(settings, build.assumed_vocab_sizes(settings), tokenizers=None)


def _compiled(
    compile_: Callable[[], jax.stages.Compiled], mesh: Mesh, held: dict[str, int]
) -> jax.stages.Compiled:
    try:
        return compile_()
    except jax.errors.JaxRuntimeError as error:
        if _NO_ROOM in str(error):
            raise DoesNotFitError(str(error), mesh, held) from error
        axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
        raise UserError(
            f"plan: the compiler fails on this step with {axes}: {str(error).splitlines()[0]}; "
            "another mesh, or model.scan_layers, may do"
        ) from error


def _as_user_error(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        raise UserError(f"config.parallel: {error}") from error


def _count(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _held(tree: Any) -> int:
    """Bytes that each device holds of a tree of abstract arrays with their shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
