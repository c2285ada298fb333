"""What is accepted has an effect: fields that nothing in the rest of a config reads are refused.

Entries of registries say with `reads` what they read of the fields that others of their registry do
without: an architecture its own kinds of layers, an optimizer its momenta, a data set its files.
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
        if not chosen or any(_reads(entry) is None for entry in chosen):
            continue
        read = {field for entry in chosen for field in _reads(entry) or ()}
        for field in _optional(registry) - read:
            said = "none" if values[chooser] is None else repr(values[chooser])
            unread[field] = f"{chooser} {said} does not read it ({_readers(registry, field)} would)"
    return unread


def _chosen(chooser: str, values: Mapping[str, Any]) -> list[str]:
    """The entries that a field names, several for `data.name`; those that stand for none."""
    if chooser == "decode.search":
        own = (values[f"decode.{name}"] for name in ("search", "temperature", "beam_size"))
        return searches_of(*own)
    return [] if values[chooser] is None else values[chooser].split(",")


def _reads(entry: Any) -> Collection[str] | None:
    """What an entry says that it reads; None: all fields."""
    return getattr(entry, "reads", None)


def _readers(registry: Registry[Any], field: str) -> str:
    """Names of the entries that read a field, a few of them if they are many."""
    names = [name for name, entry in registry.items() if field in (_reads(entry) or ())]
    return ", ".join(names[:4] + ["..."] * (len(names) > 4))


def _optional(registry: Registry[Any]) -> set[str]:
    """The fields that some entries of a registry read."""
    return {field for entry in registry.values() for field in _reads(entry) or ()}
