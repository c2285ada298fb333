# SPDX-License-Identifier: Apache-2.0
"""Looking inside a run: its attention, hidden states, walk and head importance.

These functions are above `runs`. Methods of `Run` import this module when they are called, so that
training never loads it.
"""

from collections.abc import Collection

from transformer_jax.analysis import activations, importance
from transformer_jax.analysis.activations import Attention, Hidden
from transformer_jax.analysis.importance import Importance
from transformer_jax.analysis.walk import Walk
from transformer_jax.analysis.walk import walk as walk_through
from transformer_jax.runs.run import Run

__all__ = ["Attention", "Hidden", "Importance", "Walk"]


def attention(
    run: Run, source: str, target: str | None = None, also: Collection[str] = ()
) -> Attention:
    """Attention of every layer and head; arguments of `Run.attention`."""
    reading = run.model_inputs(source, target)
    return activations.attention(run.model, run.params, reading, also, run.tokenizer.outputs)


def hidden(run: Run, source: str, target: str | None = None) -> Hidden:
    """Residual stream after each layer, and its logit lens; arguments of `Run.hidden`."""
    return activations.hidden(run.model, run.params, run.model_inputs(source, target))


def walk(run: Run, source: str, target: str | None = None) -> Walk:
    """An example through the model, step by step; arguments of `Run.walk`."""
    reading = run.model_inputs(source, target)
    return walk_through(run.model, run.params, reading, run.tokenizer.outputs)


def head_importance(run: Run, split: str = "valid", by: str = "gradient") -> Importance:
    """Importance of each head for the loss of a split; arguments of `Run.head_importance`."""
    return importance.head_importance(run.settings, run.task, run.params, run.frozen, split, by)
