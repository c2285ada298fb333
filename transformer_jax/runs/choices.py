"""The one place that lists the names that each field of the config may take."""

from typing import Any

from transformer_jax.data.sources import SOURCES
from transformer_jax.inference.config import SEARCHES
from transformer_jax.models import MODELS
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.nn.positions.rotary import SCALINGS
from transformer_jax.nn.recurrent.cells import CELLS
from transformer_jax.registry import Registry
from transformer_jax.scoring import METRICS
from transformer_jax.tasks import TASKS
from transformer_jax.tokenization.config import TOKENIZERS
from transformer_jax.training.optimizer import OPTIMIZERS
from transformer_jax.training.schedules import SCHEDULES

_REGISTRIES: tuple[Registry[Any], ...] = (
    TASKS,
    METRICS,
    MODELS,
    POSITIONS,
    SCALINGS,
    ACTIVATIONS,
    NORMS,
    CELLS,
    TOKENIZERS,
    SOURCES,
    OPTIMIZERS,
    SCHEDULES,
    SEARCHES,
)

CHOICES: dict[str, Registry[Any]] = {registry.field: registry for registry in _REGISTRIES}
"""Config field, "section.field" -> the registry of what it may name."""
