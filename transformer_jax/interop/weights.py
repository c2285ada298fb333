"""Between the tensors of a published model and the arrays of ours, by the links of its family."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.interop.families import Family
from transformer_jax.interop.links import Link
from transformer_jax.interop.tensors import Tensors
from transformer_jax.nn.config import TransformerConfig

_OLD_NAMES = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))
"""As TensorFlow named the arrays of norms, and the first published models still do."""
_ZERO = "logits_bias"


@dataclasses.dataclass(frozen=True)
class Found:
    """Which tensor holds which of our arrays.

    Attributes:
      tensors: of the directory.
      places: path of an array of ours -> its link, and the tensor's name in the directory.
      new: arrays that no tensor holds, of a head that the published model has not.
      left_out: tensors that no array of ours is, and none need be.
    """

    tensors: Tensors
    places: Mapping[str, tuple[Link, str]]
    new: Sequence[str]
    left_out: Sequence[str]

    def read(self, ours: str, shape: Sequence[int]) -> np.ndarray:
        """One of our arrays, float32."""
        link, name = self.places[ours]
        return np.ascontiguousarray(link.taken(self.tensors.read(name), shape))


def find(
    family: Family, model: TransformerConfig, leaves: Mapping[str, Any], tensors: Tensors
) -> Found:
    """Looks for all arrays of a model.

    Args:
      family: of the published model.
      model: the options that follow from its config.json.
      leaves: path -> shape (`.shape`) of each array of ours.
      tensors: of the published model.

    Raises:
      UserError: a tensor is missing, has another shape or is none of this model, or copies of one
        matrix differ.
    """
    names = _current_names(family, tensors)
    links = {link.ours: link for link in family.links(model) if link.ours in leaves}
    places: dict[str, tuple[Link, str]] = {}
    used, missing = set[str](), []
    for ours, leaf in leaves.items():
        present = [name for name in links[ours].theirs if name in names]
        if not present:
            missing.append(ours)
            continue
        used.update(present)
        actual = [names[name] for name in present]
        places[ours] = (links[ours], actual[0])
        _check_shape(links[ours], leaf.shape, actual[0], tensors)
        _check_copies(actual, tensors)
    new = _new(missing, links, leaves)
    others = [name for name in names if name not in used]
    left_out = [name for name in others if re.fullmatch(family.left_out, name)]
    if extra := [names[name] for name in others if name not in left_out]:
        raise UserError(
            f"{tensors.file_of(extra[0])} holds {extra[0]}, and a {family.model_type} model with "
            f"this config.json has no such tensor{_more(extra)}"
        )
    return Found(tensors, places, new, [names[name] for name in left_out])


def stored(
    family: Family, model: TransformerConfig, leaves: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The tensors of a model by the names that the family has for them."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    for link in family.links(model):
        if link.ours in leaves:
            array = link.stored(np.asarray(leaves[link.ours], np.float32))
            parts.setdefault(link.theirs[0], {})[link.part[0]] = array
    joined = {
        name: np.ascontiguousarray(np.concatenate([by_place[i] for i in sorted(by_place)], axis=-1))
        for name, by_place in parts.items()
    }
    return joined | dict(family.computed(model))


def _current_names(family: Family, tensors: Tensors) -> dict[str, str]:
    """The name that the family has today for each tensor -> the one in the directory."""
    names = {}
    bare = not any(name.startswith(family.prefix) for name in tensors)
    for name in tensors:
        current = f"{family.prefix}{name}" if bare else name
        for old, new in _OLD_NAMES:
            current = re.sub(old, new, current)
        names[current] = name
    return names


def _check_shape(link: Link, shape: Sequence[int], name: str, tensors: Tensors) -> None:
    tensors.require_weights(name)
    expected = link.stored_shape(shape)
    if tensors[name] != expected:
        raise UserError(
            f"{tensors.file_of(name)}: {name} has the shape {list(tensors[name])}; by config.json "
            f"it must be {list(expected)}"
        )


def _check_copies(names: Sequence[str], tensors: Tensors) -> None:
    """Raises UserError where a tied matrix is stored several times, and not alike."""
    for name in names[1:]:
        if not np.array_equal(tensors.read(name), tensors.read(names[0])):
            raise UserError(
                f"{tensors.file_of(name)}: {name} differs from {names[0]}, and by config.json they "
                "are one matrix"
            )


def _new(missing: Sequence[str], links: Mapping[str, Link], leaves: Mapping[str, Any]) -> list[str]:
    """The arrays that are missing, if they may be: the whole of a head, and the bias of logits,
    which is 0 where a file has none; UserError otherwise."""
    head = {ours for ours in leaves if ours.startswith("prediction_head/")}
    may_miss = {_ZERO} | (head if head <= set(missing) else set())
    if lost := [ours for ours in missing if ours not in may_miss]:
        raise UserError(
            f"the weights have no tensor {links[lost[0]].theirs[0]}, which config.json asks for "
            f"({lost[0]}){_more(lost)}"
        )
    return list(missing)


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
