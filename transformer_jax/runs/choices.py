"""The one place that lists the names that each field of the config may take."""

from typing import Any

from transformer_jax.nn.positions import POSITIONS
from transformer_jax.registry import Registry

_REGISTRIES: tuple[Registry[Any], ...] = (POSITIONS,)

CHOICES: dict[str, Registry[Any]] = {registry.field: registry for registry in _REGISTRIES}
"""Config field, "section.field" -> the registry of what it may name."""
