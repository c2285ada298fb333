"""What is accepted has an effect: fields that nothing in the rest of a config reads are refused.

Entries of registries say with `reads` what they read of the fields that others of their registry do
without: an architecture its own kinds of layers, an optimizer its momenta, a data set its files.
With `ignores` an entry says what it does without, and all others read unless they say so too.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.inference.config import searches_of
from transformer_jax.ranges import shown
from transformer_jax.registry import Registry
from transformer_jax.runs.choices import CHOICES


def refuse_unread(values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises UserError where one of the fields `names` is not read by what `values` choose.

    Args:
      values: of all fields, {"section.field": value}.
      names: those that were set.
    """
    unread = unread_fields(values)
    for name in names:
        if name in unread:
            raise UserError(
                f"config.{name} is {shown(values[name])}, but {unread[name]}; leave it out"
            )


def unread_fields(values: Mapping[str, Any]) -> dict[str, str]:
    """The fields that do nothing in a config, each with what does not read it."""
    unread = {}
    for chooser, registry in CHOICES.items():
        chosen = [registry[name] for name in _chosen(chooser, values) if name in registry]
        named = _named(registry)
        for field in _optional(registry) if chosen else ():
            if not any(_reads(entry, field, named) for entry in chosen):
                said = "none" if values[chooser] is None else repr(values[chooser])
                others = _readers(registry, field, named)
                unread[field] = f"{chooser} {said} does not read it ({others} would)"
    return unread


def _chosen(chooser: str, values: Mapping[str, Any]) -> list[str]:
    """The entries that a field names, several for `data.name`; those that stand for none."""
    if chooser == "decode.search":
        own = (values[f"decode.{name}"] for name in ("search", "temperature", "beam_size"))
        return searches_of(*own)
    return [] if values[chooser] is None else values[chooser].split(",")


def _named(registry: Registry[Any]) -> set[str]:
    """The fields that some entries of a registry say that they read."""
    return {field for entry in registry.values() for field in getattr(entry, "reads", None) or ()}


def _optional(registry: Registry[Any]) -> set[str]:
    """Those, and the fields that some entries say that they ignore."""
    ignored = {field for entry in registry.values() for field in getattr(entry, "ignores", ())}
    return _named(registry) | ignored


def _reads(entry: Any, field: str, named: Collection[str]) -> bool:
    """Whether an entry reads a field; of those that entries name, one that names any reads only its
    own."""
    own = getattr(entry, "reads", None)
    ignored = field in getattr(entry, "ignores", ())
    return not ignored and (own is None or field in own or field not in named)


def _readers(registry: Registry[Any], field: str, named: Collection[str]) -> str:
    """Names of the entries that say that they read a field, a few of them if they are many; of one
    that some ignore, those that do not."""
    entries = registry.items()
    names = [name for name, entry in entries if field in (getattr(entry, "reads", None) or ())]
    if field not in named:
        names = [name for name, entry in entries if _reads(entry, field, named)]
    return ", ".join(names[:4] + ["..."] * (len(names) > 4))
