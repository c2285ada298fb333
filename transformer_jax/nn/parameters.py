# SPDX-License-Identifier: Apache-2.0
"""Table of parameters: the kind and the axes of the array at each path.

Optimizers, `nn.int8` and `parallel.sharding` read it. Paths are an interface: checkpoints and
imported weights rely on them.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax

KINDS = (
    *("embedding", "vectors", "matrix", "matrices", "head", "bias", "scale", "counter"),
    "average",
)

SIDE_GRADIENT = 2.0**-60
"""Factor of the gradients that carry counts, so that the norm of all gradients stays the same."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """Kind and axes of the parameters whose paths end in the same way.

    Attributes:
      end: regular expression of the end of the path.
      kind: "embedding" (of tokens), "vectors" (of positions, distances, token types), "matrix" (a
        linear map within the model), "matrices" (several such maps, numbered by the first axis),
        "head" (a linear map to classes), "bias", "scale" (of a norm), "counter" (each update
        changes an element by 1, against the sign of its gradient) or "average" (each update moves
        an element towards what its gradient carries, times -`SIDE_GRADIENT`).
      axes: a name for each axis: "model" (the residual stream), "vocab", "heads", "hidden" (of the
        feed-forward network), "experts", "state" (of a recurrent layer, never sharded, because its
        matrices are needed at every token), or what the axis counts.
    """

    end: str
    kind: str
    axes: tuple[str, ...]
    input_axes: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}, not one of {', '.join(KINDS)}")

    @property
    def is_linear(self) -> bool:
        return self.kind in ("matrix", "head")

    @property
    def decays(self) -> bool:
        """Returns True if weight decay applies."""
        return self.kind not in ("bias", "scale", "counter", "average")


PARAMETERS = [
    Parameter(r"(embedding|projection)/table", "embedding", ("vocab", "model")),
    Parameter(r"positions/table", "vectors", ("positions", "model")),
    Parameter(r"positions/bucket_biases", "bias", ("buckets", "heads")),
    Parameter(r"relation/(keys|values)", "vectors", ("distances", "size")),
    Parameter(r"token_types", "vectors", ("types", "model")),
    Parameter(r"(query|key|value)/kernel", "matrix", ("model", "heads", "size")),
    Parameter(r"(query|key|value)/bias", "bias", ("heads", "size")),
    Parameter(r"norm_(query|key)/scale", "scale", ("size",)),
    Parameter(r"output/kernel", "matrix", ("heads", "size", "model"), input_axes=2),
    Parameter(r"(inner|gate)/kernel", "matrix", ("model", "hidden")),
    Parameter(r"(inner|gate)/bias", "bias", ("hidden",)),
    Parameter(r"outer/kernel", "matrix", ("hidden", "model")),
    Parameter(r"(output|outer)/bias", "bias", ("model",)),
    Parameter(r"input/kernel", "matrix", ("model", "gates", "features")),
    Parameter(r"(recurrent|feedback)/kernel", "matrix", ("state", "gates", "features")),
    Parameter(r"(candidate|state|centre|attended)/kernel", "matrix", ("state", "features")),
    Parameter(r"gate_biases", "bias", ("gates", "features")),
    Parameter(r"source/kernel", "matrix", ("model", "features")),
    Parameter(r"(centre_)?energy", "vectors", ("features",)),
    Parameter(r"maxout/kernel", "matrix", ("model", "features", "pieces")),
    Parameter(r"maxout/bias", "bias", ("features", "pieces")),
    Parameter(r"(transform|pooler)/kernel", "matrix", ("model", "features")),
    Parameter(r"(transform|pooler)/bias", "bias", ("model",)),
    Parameter(r"(prediction_head/bias|logits_bias)", "bias", ("vocab",)),
    Parameter(r"classifier/kernel", "head", ("model", "classes")),
    Parameter(r"classifier/bias", "bias", ("classes",)),
    Parameter(r"kernel/down", "matrix", ("model", "rank")),
    Parameter(r"kernel/up", "matrix", ("rank", "model")),
    Parameter(r"norm(_before|_after)?/scale", "scale", ("model",)),
    Parameter(r"norm(_before|_after)?/bias", "bias", ("model",)),
    Parameter(r"norm(_before|_after)?/averages", "average", ("moments", "model")),
]
"""Every parameter of every model matches one entry. A user's component appends its own entries; a
parameter without an entry does not decay and is replicated on every device."""


def named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves of a tree by their path in it, such as "encoder/layer_0/feed_forward/inner/kernel"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def map_named(function: Callable[..., Any], tree: Any, *more: Any) -> Any:
    """Maps `function(path, leaf, ...)` over trees, with the paths of `named_leaves`."""

    def call(path: Any, *leaves: Any) -> Any:
        return function(jax.tree_util.keystr(path, simple=True, separator="/"), *leaves)

    return jax.tree_util.tree_map_with_path(call, tree, *more)


def parameters_at(path: str) -> list[Parameter]:
    """All entries that match the end of a path."""
    return [parameter for parameter in PARAMETERS if re.search(rf"(^|_|/){parameter.end}$", path)]


def parameter_at(path: str) -> Parameter | None:
    """Last entry that matches a path, such as "decoder/layer_0/feed_forward/inner/kernel"; None if
    no entry does. A user's file that is loaded again thus replaces its entries."""
    return next(reversed(parameters_at(path)), None)


def describe_unlisted(params: Any) -> str | None:
    """Names the arrays of a tree that no entry describes, or one with another number of axes, and
    what that means; None if there are none."""
    unlisted = []
    for name, leaf in named_leaves(params).items():
        parameter = parameter_at(name)
        if parameter is None:
            unlisted.append(f"{name} {list(leaf.shape)} has no row")
        elif len(parameter.axes) != leaf.ndim:
            unlisted.append(f"{name} {list(leaf.shape)} has a row with {len(parameter.axes)} axes")
    if not unlisted:
        return None
    more = f" (and {len(unlisted) - 1} more)" if unlisted[1:] else ""
    return (
        f"{unlisted[0]} in the table of parameters{more}: each device holds a copy, and without a "
        "row there is no weight decay; add it to `parameters` of its class"
    )
