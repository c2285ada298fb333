"""The folder of one checkpoint: its items and how they are read.

`params` (parameters), `training` (the rest of the state: step, optimizer moments, random key),
`data` (where the data iterator stands) and `metrics` (the score) are separate items, so that
parameters can be read alone. The arrays of an item are stored flat, by their path in the tree
("encoder/layer_0/attention/query/kernel"): the files know nothing of Flax or optax, and what does
not fit can be named.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from transformer_jax.errors import UserError

# Orbax reports its doings, and its failures with tracebacks, through absl's logger. What goes wrong
# is raised here as one line, so nothing of Orbax's needs to reach stderr.
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)

PARAMS, TRAINING, DATA, METRICS = ITEMS = ("params", "training", "data", "metrics")

Leaves = dict[str, Any]  # path in the tree -> array


def step_folders(directory: Path) -> dict[int, Path]:
    """The folders of finished steps, ascending. (Orbax names a folder by its step to commit it.)"""
    if not directory.is_dir():
        return {}
    folders = {int(path.name): path for path in directory.iterdir() if path.name.isdecimal()}
    return dict(sorted(folders.items()))


def named_leaves(tree: Any) -> Leaves:
    """The leaves of `tree` by their path in it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def fill(tree: Any, leaves: Leaves) -> Any:
    """The inverse of `named_leaves`: `tree` with `leaves` in the place of its own."""
    return jax.tree.unflatten(
        jax.tree.structure(tree), [leaves[name] for name in named_leaves(tree)]
    )


def split_state(state: Any) -> tuple[Leaves, Leaves]:
    """The leaves of the state's `params`, by their path below it, and all its other leaves."""
    prefix = PARAMS + "/"
    leaves = named_leaves(state)
    inside = {name for name in leaves if name.startswith(prefix)}
    params = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name in inside}
    return params, {name: leaf for name, leaf in leaves.items() if name not in inside}


def join_state(state: Any, params: Leaves, training: Leaves) -> Any:
    """The inverse of `split_state`: `state` with these leaves."""
    return fill(state, training | {f"{PARAMS}/{name}": leaf for name, leaf in params.items()})


def saved_arrays(folder: Path, item: str) -> Leaves:
    """Shapes and dtypes of one item's arrays, as they were saved; UserError if unreadable."""
    with _reading(folder / item), ocp.StandardCheckpointer() as reader:
        return dict(reader.metadata(folder / item).item_metadata.items())


def read_arrays(folder: Path, item: str, abstract: Leaves) -> Leaves:
    """Reads one item's arrays onto the shardings of `abstract` (default: the first local device).

    Raises:
        UserError: the stored names, shapes or dtypes are not those of `abstract`, or unreadable.
    """
    _require_fit(folder / item, saved_arrays(folder, item), abstract)
    return read_some_arrays(folder, item, abstract)


def read_some_arrays(folder: Path, item: str, abstract: Leaves) -> Leaves:
    """As `read_arrays`, of arrays known to be saved so; what else there is stays unread."""
    targets = {name: _target(leaf) for name, leaf in abstract.items()}
    arguments = ocp.args.PyTreeRestore(
        targets,
        restore_args=ocp.checkpoint_utils.construct_restore_args(targets),
        partial_restore=True,
    )
    with _reading(folder / item), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(folder / item, arguments)


def read_data(folder: Path) -> Any:
    """Reads the state of the data iterator (it was JSON: tuples have become lists)."""
    with _reading(folder / DATA):
        return ocp.JsonCheckpointHandler().restore(folder / DATA)


def read_score(folder: Path) -> float | None:
    """Reads the score (higher is better); None if the step was saved without one."""
    if not (folder / METRICS).is_dir():
        return None
    with _reading(folder / METRICS):
        return float(ocp.JsonCheckpointHandler(METRICS).restore(folder / METRICS)["score"])


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Files whose manifest fits may hold anything all the same: one line for whatever comes."""
    try:
        yield
    except Exception as error:  # of several libraries below
        reason = (str(error) or repr(error)).splitlines()[0][:200]
        raise UserError(f"{path} cannot be read: {reason}; take another checkpoint") from error


def misfits(saved: Leaves, wanted: Leaves) -> list[str]:
    """What is saved of another shape or dtype than wanted, a text for each."""
    return [
        f"{name} is saved as {_describe(saved[name])}, expected {_describe(wanted[name])}"
        for name in wanted
        if name in saved and _describe(saved[name]) != _describe(wanted[name])
    ]


def _require_fit(path: Path, saved: Leaves, wanted: Leaves) -> None:
    problems = [f"{name} is not saved" for name in wanted if name not in saved]
    problems += [f"{name} is saved but not expected" for name in saved if name not in wanted]
    problems += misfits(saved, wanted)
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise UserError(
            f"{path} does not fit: {'; '.join(problems[:3])}{more}; "
            "configure model and optimizer as they were when it was saved"
        )


def _describe(leaf: Any) -> str:
    return f"{jnp.dtype(leaf.dtype)}{list(leaf.shape)}"


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    # Without an explicit sharding Orbax asks for the very devices that the array was saved from.
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
