"""The vocabularies of a run: learned from its training examples, or taken over from another run."""

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from transformer_jax.data.files.blocks import TextBlocks
from transformer_jax.errors import UserError
from transformer_jax.runs.build import task_kind
from transformer_jax.runs.config import Settings
from transformer_jax.runs.workdir import TOKENIZER, workdir_path
from transformer_jax.tasks.interface import TaskKind
from transformer_jax.tokenization import (
    Symbols,
    Tokenizers,
    copy_tokenizers,
    load_tokenizers,
    train_tokenizers,
)

_SAMPLED_BYTES = 2**28
"""Of text in blocks, from which a tokenizer learns."""


def build_tokenizers(
    settings: Settings, directory: Path, examples: Sequence[dict[str, str]]
) -> Tokenizers:
    """The tokenizers in `directory`; where there are none, they are first trained on the examples,
    or copied from the run that this one starts from, and stored there."""
    if directory.exists():
        return load_tokenizers(directory)
    kind = task_kind(settings)
    _check_examples(settings, kind, examples[0])
    if isinstance(examples, TextBlocks):
        examples = examples.sample(_SAMPLED_BYTES)
    listed: dict[str, Iterable[str] | Symbols] = {
        side: itertools.chain.from_iterable(split(example[side]) for example in examples)
        for side, split in kind.labels.items()
    }
    for side, symbols_of in kind.symbols.items():
        parts = (example[side] for example in examples)
        listed[side] = Symbols(sorted(symbols_of(settings.task, parts)))
    if settings.train.init_from:
        source = workdir_path(settings.train.init_from) / TOKENIZER
        return copy_tokenizers(source, directory, listed, kind.texts)
    texts = {side: _texts(examples, parts) for side, parts in kind.texts.items()}
    return train_tokenizers(settings.tokenizer, texts, directory, listed)


def _check_examples(settings: Settings, kind: TaskKind, example: Mapping[str, str]) -> None:
    wanted = {parts[0] for parts in kind.texts.values()} | {*kind.labels, *kind.symbols}
    if not wanted <= set(example):
        raise UserError(
            f"task {settings.task.name} reads {' and '.join(sorted(wanted))}, but the examples of "
            f"{settings.data.name} have {' and '.join(sorted(example))}; choose another data.name"
        )


def _texts(examples: Sequence[Mapping[str, str]], parts: Sequence[str]) -> Iterator[str]:
    """The lines of these parts of all examples, with their line ends."""
    for example in examples:
        for part in parts:
            yield from io.StringIO(example.get(part, ""), newline="\n")
