# SPDX-License-Identifier: Apache-2.0
"""The folder of one checkpoint: its items and how they are read.

`params` (parameters), `training` (the rest of the state: step, optimizer moments, random key),
`data` (the state of the data iterator) and `provenance` (what the run is based on) are separate
items, so that parameters can be read alone. `metrics` (the score) is added after the saved step has
been evaluated. The arrays of an item are stored flat, by their path in the tree
("encoder/layer_0/attention/query/kernel"): the files depend on neither Flax nor optax, and messages
can name what does not fit.
"""

import contextlib
import errno
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from transformer_jax.checkpoints import manifest
from transformer_jax.errors import UserError, reason_of
from transformer_jax.nn.parameters import map_named, named_leaves, parameter_at
from transformer_jax.parallel import hosts
from transformer_jax.runtime.files import parse_json, read_regular, remove, write_atomic

# Orbax logs its progress, and its failures with tracebacks, through absl. Here failures are raised
# as one line, so nothing of Orbax needs to reach stderr.
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)

ITEMS = ("params", "training", "data", "metrics", "provenance")
PARAMS, TRAINING, DATA, METRICS, PROVENANCE = ITEMS

_SCORE = f"{METRICS}/{METRICS}"  # the file that holds the JSON of the item
_LEAST_READ_AT_ONCE = 1 << 26  # bytes
_STEP = re.compile("0|[1-9][0-9]{0,14}")  # as Orbax writes it
_OTHER_VOCABULARY = " (model.vocab_multiple, which pads the vocabulary, or the vocabulary differs)"

Leaves = dict[str, Any]
"""Arrays, or their shapes, by their path in the tree."""


def participants(name: str | None = None) -> ocp.options.MultiprocessingOptions:
    """The processes that Orbax reads and writes with: all of the job, or this one alone.

    All wait for each other, except within `hosts.single_process`.

    Args:
      name: distinguishes this operation from others that run at the same time.
    """
    only = {jax.process_index()} if hosts.num_processes() == 1 else None
    return ocp.options.MultiprocessingOptions(active_processes=only, barrier_sync_key_prefix=name)


def step_folders(directory: Path) -> dict[int, Path]:
    """The folders of finished steps, ascending. (Orbax commits by renaming to the bare step.)"""
    if not directory.is_dir():
        return {}
    folders = {int(path.name): path for path in directory.iterdir() if _STEP.fullmatch(path.name)}
    return dict(sorted(folders.items()))


def fill(tree: Any, leaves: Leaves) -> Any:
    """The inverse of `named_leaves`: `tree` with these leaves."""
    return map_named(lambda name, _: leaves[name], tree)


def split_state(state: Any) -> tuple[Leaves, Leaves]:
    """Returns (leaves of `state.params`, by their path in it; all other leaves of the state)."""
    prefix = PARAMS + "/"
    leaves = named_leaves(state)
    inside = {name for name in leaves if name.startswith(prefix)}
    params = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name in inside}
    return params, {name: leaf for name, leaf in leaves.items() if name not in inside}


def join_state(state: Any, params: Leaves, training: Leaves) -> Any:
    """The inverse of `split_state`: `state` with these leaves."""
    return fill(state, training | {f"{PARAMS}/{name}": leaf for name, leaf in params.items()})


def saved_arrays(folder: Path, item: str) -> Leaves:
    """Shapes and dtypes of the saved arrays of an item; UserError if they cannot be read."""
    reader = ocp.StandardCheckpointer(multiprocessing_options=participants())
    with _reading(folder / item), reader:
        return dict(reader.metadata(folder / item).item_metadata.items())


def read_arrays(
    folder: Path, item: str, abstract: Leaves, fresh: Mapping[str, float] | None = None
) -> Leaves:
    """Reads the arrays of an item.

    Args:
      item: one of `ITEMS`.
      abstract: shapes and dtypes. A leaf with a sharding gives an array with this sharding, a NumPy
        array gives a NumPy array, anything else an array on the first local device.
      fresh: optional arrays: filled with this value if they are not saved, ignored if they are
        saved but not in `abstract`.

    Raises:
      UserError: it cannot be read, or the saved names, shapes or dtypes differ from `abstract`.
    """
    fresh = fresh or {}
    saved = saved_arrays(folder, item)
    # Optional arrays may be missing in the checkpoint or here: options of training have changed.
    missing = {name: leaf for name, leaf in abstract.items() if name in fresh and name not in saved}
    wanted = {name: leaf for name, leaf in abstract.items() if name not in missing}
    required = {name: leaf for name, leaf in saved.items() if name in wanted or name not in fresh}
    require_fit(folder / item, required, wanted)
    filled = {name: _filled(_target(leaf), fresh[name]) for name, leaf in missing.items()}
    return read_some_arrays(folder, item, wanted) | filled


def read_some_arrays(folder: Path, item: str, abstract: Leaves) -> Leaves:
    """Reads the arrays of an item that `abstract` names, which are known to fit."""
    targets = {name: _target(leaf) for name, leaf in abstract.items()}
    arguments = ocp.args.PyTreeRestore(
        targets,
        restore_args=ocp.checkpoint_utils.construct_restore_args(targets),
        partial_restore=True,
    )
    sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in abstract.values()]
    # Orbax would read all arrays at once, and hold each three times meanwhile. It refuses an array
    # that is as large as the limit.
    at_once = max(max(sizes, default=0) + 1, sum(sizes) // 16, _LEAST_READ_AT_ONCE)
    handler = ocp.PyTreeCheckpointHandler(
        restore_concurrent_gb=at_once / 1e9, multiprocessing_options=participants()
    )
    reader = ocp.Checkpointer(handler, multiprocessing_options=participants())
    with _reading(folder / item), reader:
        return reader.restore(folder / item, arguments)


def read_data(folder: Path) -> Any:
    """Reads the state of the data iterator; stored as JSON, so tuples come back as lists."""
    with _reading(folder / DATA):
        return ocp.JsonCheckpointHandler().restore(folder / DATA)


def read_score(folder: Path) -> float | None:
    """Reads the score, higher is better; None if the step has none."""
    if not os.path.lexists(folder / _SCORE):
        return None
    with _reading(folder / METRICS):
        return float(parse_json(read_regular(folder / _SCORE))["score"])


def write_score(folder: Path, score: float) -> None:
    """Adds the score to the folder of a finished step, or leaves it intact if killed meanwhile.

    Raises:
      OSError: it cannot be written; the folder is a link.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(folder))
    remove(folder / METRICS)
    (folder / METRICS).mkdir()
    write_atomic(folder / _SCORE, json.dumps({"score": score}))
    manifest.add_file(folder, _SCORE)


def read_provenance(folder: Path) -> dict[str, str]:
    """Reads what the run is based on; empty if the step was saved without it."""
    if not (folder / PROVENANCE).is_dir():
        return {}
    with _reading(folder / PROVENANCE):
        return dict(ocp.JsonCheckpointHandler().restore(folder / PROVENANCE))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns any error into a UserError of one line: even intact files may hold anything."""
    try:
        yield
    except Exception as error:  # Orbax raises the errors of several libraries
        raise UserError(
            f"{path} cannot be read: {reason_of(error)}; take another checkpoint"
        ) from error


def misfits(saved: Leaves, wanted: Leaves) -> list[str]:
    """Describes each array that is saved with another shape or dtype than wanted."""
    problems = []
    for name, leaf in wanted.items():
        if name in saved and _describe(saved[name]) != _describe(leaf):
            hint = _OTHER_VOCABULARY if differ_in_rows(name, saved[name], leaf) else ""
            described = f"{_describe(saved[name])}, expected {_describe(leaf)}{hint}"
            problems.append(f"{name} is saved as {described}")
    return problems


def differ_in_rows(name: str, saved: Any, wanted: Any) -> bool:
    """Returns True if two shapes of a parameter differ only in rows of a vocabulary."""
    axes = getattr(parameter_at(name), "axes", ())
    if len(axes) != len(saved.shape) or saved.shape == wanted.shape:
        return False
    sizes = zip(axes, saved.shape, wanted.shape, strict=False)  # ranks may differ
    return all(a == b for axis, a, b in sizes if axis != "vocab")


class MisfitError(UserError):
    """Saved arrays are of another model, or of another optimizer."""


def require_fit(path: Path, saved: Leaves, wanted: Leaves) -> None:
    """Raises MisfitError if names, shapes or dtypes of saved arrays are not those wanted."""
    problems = [f"{name} is not saved" for name in wanted if name not in saved]
    problems += [f"{name} is saved but not expected" for name in saved if name not in wanted]
    problems += misfits(saved, wanted)
    if problems:
        raise MisfitError(
            f"{path} does not fit: {first_few(problems)}; "
            "configure model and optimizer as they were when it was saved"
        )


def first_few(problems: list[str]) -> str:
    """The first three problems, and the number of the others."""
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more


def _describe(leaf: Any) -> str:
    return f"{jnp.dtype(leaf.dtype)}{list(leaf.shape)}"


def _filled(target: jax.ShapeDtypeStruct | np.ndarray, value: float) -> jax.Array | np.ndarray:
    array = np.full(target.shape, value, target.dtype)
    return array if isinstance(target, np.ndarray) else jax.device_put(array, target.sharding)


def _target(leaf: Any) -> jax.ShapeDtypeStruct | np.ndarray:
    if isinstance(leaf, np.ndarray):
        return leaf
    # Without an explicit sharding Orbax asks for the devices that the array was saved from.
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
