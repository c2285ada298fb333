# SPDX-License-Identifier: Apache-2.0
"""Looking inside a trained model: what it attends to, what it holds, and what a part of it does.

This package is above `runs`, which does not know it: importing it gives `Run` the methods of
`METHODS_OF_RUN`. They import what they compute with when they are called, so that a training or a
prediction does not.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.runs.evaluate import selection_metric
from transformer_jax.runs.run import Run
from transformer_jax.runs.workdir import read_metrics

if TYPE_CHECKING:
    import numpy as np
    from jax.typing import ArrayLike

    from transformer_jax.lab.analysis.activations import Attention, Hidden
    from transformer_jax.lab.analysis.importance import Importance
    from transformer_jax.lab.analysis.patch_grid import Measure
    from transformer_jax.lab.analysis.tables import Errors, Tokens
    from transformer_jax.lab.analysis.walk import Walk
    from transformer_jax.lab.audit import Audit
    from transformer_jax.lab.pictures.style import Picture


def attention(
    run: Run, source: str, target: str | None = None, also: Collection[str] = ()
) -> "Attention":
    """Attention weights of every layer and head, for one example.

    Args:
      source: the example, as for `predict`.
      target: the target of a task on pairs; None: the run's own output. Of a classifier or
        tagger, the gold label, or the words' gold tags, with spaces between.
      also: other activations to collect: "queries", "keys", "values", "heads", "stream".
    """
    from transformer_jax.lab.analysis import activations

    reading = run.model_inputs(source, target)
    return activations.attention(run.model, run.params, reading, also, run.tokenizer.outputs)


def hidden(run: Run, source: str, target: str | None = None) -> "Hidden":
    """The residual stream after each layer and its logit lens; arguments of `attention`."""
    from transformer_jax.lab.analysis import activations

    return activations.hidden(run.model, run.params, run.model_inputs(source, target))


def grid_of_patches(
    run: Run,
    source: str,
    target: str | None,
    pattern: str,
    change: "ArrayLike",
    measure: "Measure | None" = None,
) -> "np.ndarray":
    """Measures [L, T] of the example with each position of each hook point changed in turn, in one
    program; `source` and `target` as of `attention`, the others of `analysis.patch_grid`."""
    from transformer_jax.lab.analysis import patch_grid as grid

    reading = run.model_inputs(source, target)
    points = run.hook_points
    return grid.patch_grid(run.model, run.params, reading, points, pattern, change, measure)


def walk_through(run: Run, source: str, target: str | None = None) -> "Walk":
    """The computation of one example step by step (`analysis.walk`); arguments of `attention`."""
    from transformer_jax.lab.analysis.walk import walk

    reading = run.model_inputs(source, target)
    return walk(run.model, run.params, reading, run.tokenizer.outputs)


def head_importance(run: Run, split: str = "valid", by: str = "gradient") -> "Importance":
    """Importance of each head for the loss of a split (`analysis.importance`)."""
    from transformer_jax.lab.analysis import importance

    return importance.head_importance(run, split, by)


def errors(run: Run, split: str = "valid") -> "Errors":
    """The wrong decisions of a classifier or tagger on a split, and their confusion."""
    from transformer_jax.lab.analysis.tables import errors

    return errors(run, split)


def tokens(run: Run, text: str, *others: str | Path) -> "Tokens":
    """The pieces and ids of a text by the tokenizers of a run, beside those of other runs or
    published tokenizers (`analysis.tables`)."""
    from transformer_jax.lab.analysis.tables import compare_tokens, open_tokenizers, text_tokenizers

    tokenizers = text_tokenizers(run.tokenizer, run.workdir.name)
    for other in others:
        tokenizers |= open_tokenizers(other)
    return compare_tokens(text, tokenizers)


def plot(run: Run) -> "Picture":
    """The curves of loss, score and learning rate; UserError if nothing was recorded."""
    from transformer_jax.lab.pictures import draw_curves

    selected_by = selection_metric(run.settings, run.task).removeprefix("-")
    return draw_curves({run.workdir.name: [read_metrics(run.workdir)]}, (selected_by,))


def audit(
    run: Run,
    segments: int = 1,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> "Audit":
    """Checks the digests of a run and trains drawn segments of it again; arguments as of
    `lab.audit.audit`."""
    from transformer_jax.lab.audit import audit

    return audit(run.workdir, overrides=overrides, segments=segments, seed=seed)


METHODS_OF_RUN = {
    "audit": audit,
    "attention": attention,
    "hidden": hidden,
    "patch_grid": grid_of_patches,
    "walk": walk_through,
    "head_importance": head_importance,
    "errors": errors,
    "tokens": tokens,
    "plot": plot,
}

for _name, _method in METHODS_OF_RUN.items():
    setattr(Run, _name, _method)
