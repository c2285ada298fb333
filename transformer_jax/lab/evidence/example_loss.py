# SPDX-License-Identifier: Apache-2.0
"""Loss per example: the bits that a run needs for each reference of a split, a byte.

A model that tokenizes text without loss gives it a probability whatever its tokens are, so that
bits per byte compare runs with different tokenizers, too.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.runs.config import override
from transformer_jax.runs.load import load
from transformer_jax.runs.outside import open_data
from transformer_jax.runs.run import Run
from transformer_jax.runs.user_modules import Modules
from transformer_jax.scoring.significance import PairedScores
from transformer_jax.scoring.statistics import over_examples


def compare_losses(
    folders: Mapping[str, Path],
    split: str,
    same_tokens: bool,
    modules: Modules = (),
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, PairedScores]:
    """Tests of each run against the first, over the examples of a split.

    Args:
      folders: name -> workdir of one seed.
      split: split of the runs' data.
      same_tokens: the runs have the same tokenizers.
      overrides: places of the data, {"data.field": value}.

    Raises:
      UserError: a run cannot score references, its split has other examples, or the tokenizers
        differ and one of them changes a text.
    """
    first_examples: list[Any] = []
    losses: dict[str, list[float]] = {}
    for name, folder in folders.items():
        run = load(folder, modules=modules)
        examples = list(open_data(override(run.settings, overrides or {}), split))
        if losses and examples != first_examples:
            first = next(iter(losses))
            raise UserError(
                f"compare: {first} and {name} have other examples in {split} "
                f"({len(first_examples)} and {len(examples)}); give them the same data"
            )
        first_examples = examples
        sources, targets, side = _pairs(run, examples, split)
        if not same_tokens:
            _require_lossless(run, side, targets, name)
        losses[name] = _bits_per_byte(run, sources, targets)
    (_, base), *others = losses.items()
    return {name: _test(base, values) for name, values in others}


def _pairs(run: Run, examples: Sequence[Any], split: str) -> tuple[list[str], list[str], str]:
    """Sources, references, and the side of the references."""
    for source, target in (("source", "target"), (None, "text")):
        have_target = (isinstance(example, Mapping) and target in example for example in examples)
        if examples and all(have_target):
            sources = [example[source] if source else "" for example in examples]
            return sources, [example[target] for example in examples], target
    raise UserError(
        f"compare: the examples of {split} have no reference texts, so that a run of task "
        f"{run.settings.task.name} has no loss per example; leave --loss out"
    )


def _require_lossless(run: Run, side: str, texts: Sequence[str], name: str) -> None:
    tokenizer = run.tokenizer.text(side)
    for number, text in enumerate(texts, 1):
        if tokenizer.decode(tokenizer.encode(text)) != text:
            raise UserError(
                f"compare: the runs have other tokenizers, and that of {name} changes text (such "
                f"as example {number}), so that its loss is that of another text; leave --loss out"
            )


def _bits_per_byte(run: Run, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
    scores = run.score(sources, targets)  # nats
    sizes = (max(1, len(target.encode())) for target in targets)  # an empty text counts as a byte
    return [-score / math.log(2) / size for score, size in zip(scores, sizes, strict=True)]


def _test(first: Sequence[float], second: Sequence[float]) -> PairedScores:
    test = over_examples(first, second)
    return PairedScores(
        metric="bits per byte",
        first=sum(first) / len(first),
        second=sum(second) / len(second),
        p=test.p,
        test=f"{test.test}, {len(first)} examples",
        interval=(test.low, test.high),
    )
