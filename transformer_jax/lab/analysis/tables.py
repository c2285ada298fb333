# SPDX-License-Identifier: Apache-2.0
"""Tables for notebooks: errors of a classifier or tagger, and a text as tokenizers see it; and the
curves of a run."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from transformer_jax.errors import UserError
from transformer_jax.runs.evaluate import evaluator_of, selection_metric
from transformer_jax.runs.run import Run
from transformer_jax.runs.workdir import TOKENIZER, fetch_files, read_metrics
from transformer_jax.scoring.errors import confusion, decisions, worst_errors
from transformer_jax.tokenization import (
    Labels,
    SymbolTokenizer,
    Tokenizer,
    Tokenizers,
    load_tokenizers,
)
from transformer_jax.tokenization.published import PublishedTokenizer, import_tokenizer

if TYPE_CHECKING:
    from transformer_jax.lab.pictures.style import Picture

_SHOWN = 20
_SIDE_BY_SIDE = "display: flex; flex-wrap: wrap; gap: 2em; align-items: flex-start"
_PIECE = "border: 1px solid currentColor; border-radius: 3px; padding: 0 2px; margin: 1px"
_UNKNOWN = f"{_PIECE}; background: #d55e00; color: white"


@dataclass(frozen=True, repr=False)
class Errors:
    """Wrong decisions of a run; a notebook shows both tables beside each other.

    Attributes:
      table: a row per text (of a tagger: word) and wrong label, the most frequent first and of
        equally frequent ones those that the model was surest of; columns text, expected, predicted,
        probability (of a tagger: NaN) and times, how often it occurs.
      confusion: counts, a row per expected and a column per predicted label.
    """

    table: pd.DataFrame
    confusion: pd.DataFrame

    def __repr__(self) -> str:
        tables = (self.table.head(_SHOWN), self.confusion)
        return "\n\n".join([self._title, *(table.to_string() for table in tables)])

    def _repr_html_(self) -> str:
        tables = (self.table.head(_SHOWN), self.confusion)
        parts = "".join(f"<div>{table.to_html()}</div>" for table in tables)
        return f'<p>{self._title}</p><div style="{_SIDE_BY_SIDE}">{parts}</div>'

    @property
    def _title(self) -> str:
        wrong = int(self.table["times"].sum())
        title = f"{wrong:,} of {int(self.confusion.to_numpy().sum()):,} are wrong"
        hidden = len(self.table) - _SHOWN
        return f"{title}; {hidden:,} more rows are in .table" if hidden > 0 else title


def errors(run: Run, split: str = "valid") -> Errors:
    """Decisions of a run on a split that differ from the labels.

    Raises:
      UserError: the split cannot be read, or the task has no labels.
    """
    options = run.settings.decode
    _, evaluator, _ = evaluator_of(run.settings, run.task, options, split, None, None)
    examples = evaluator.decoded_examples
    if not {"label", "tags"} & {*(examples[0] if len(examples) else ())}:
        raise UserError("errors: only classifiers and taggers have labels that are right or wrong")
    _, outputs = evaluator(run.params, run.frozen)
    decided = decisions(
        {**example, "output": output.text, "score": output.score}
        for example, output in zip(examples, outputs, strict=True)
    )
    labels, counts = confusion(decided)
    names = ["text", "expected", "predicted", "probability", "times"]
    table = pd.DataFrame(worst_errors(decided), columns=names)
    rows = pd.Index(labels, name="expected")
    return Errors(table, pd.DataFrame(counts, rows, pd.Index(labels, name="predicted")))


@dataclass(frozen=True, repr=False)
class Tokens:
    """A text by several tokenizers; a notebook shows each piece in a box, unknown ones in red.

    Attributes:
      text: the text.
      pieces, ids: name of a tokenizer -> the vocabulary entry and the id of each token.
      table: a row per tokenizer: its number of tokens, how many are unknown, the characters per
        token, and the size of its vocabulary.
    """

    text: str
    pieces: Mapping[str, Sequence[str]]
    ids: Mapping[str, Sequence[int]]
    table: pd.DataFrame
    _unknown_ids: Mapping[str, int | None]

    def __repr__(self) -> str:
        lines = [self.table.to_string()]
        for name, pieces in self.pieces.items():
            lines += ["", f"{name}: {' '.join(pieces)}", " ".join(map(str, self.ids[name]))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for name, pieces in self.pieces.items():
            boxes = []
            for piece, i in zip(pieces, self.ids[name], strict=True):
                style = _UNKNOWN if i == self._unknown_ids[name] else _PIECE
                boxes.append(f'<span style="{style}" title="{i}">{html.escape(piece)}</span>')
            rows.append(f"<p>{html.escape(name)}<br>{' '.join(boxes)}</p>")
        return self.table.to_html() + "".join(rows)


def compare_tokens(text: str, tokenizers: Mapping[str, Tokenizer]) -> Tokens:
    """The tokens of a text by each tokenizer, without special tokens around them."""
    ids = {name: tokenizer.encode(text) for name, tokenizer in tokenizers.items()}
    rows = {
        name: {
            "tokens": len(ids[name]),
            "unknown": tokenizer.count_unknown(ids[name]),
            "characters per token": round(len(text) / max(1, len(ids[name])), 2),
            "vocabulary": tokenizer.vocab_size,
        }
        for name, tokenizer in tokenizers.items()
    }
    return Tokens(
        text,
        {name: tokenizer.pieces(ids[name]) for name, tokenizer in tokenizers.items()},
        ids,
        pd.DataFrame.from_dict(rows, orient="index"),
        {name: tokenizer.specials.unk for name, tokenizer in tokenizers.items()},
    )


def tokens(run: Run, text: str, *others: str | Path) -> Tokens:
    """The pieces and ids of a text by the tokenizers of a run, beside those of other runs or
    published tokenizers."""
    tokenizers = text_tokenizers(run.tokenizer, run.workdir.name)
    for other in others:
        tokenizers |= open_tokenizers(other)
    return compare_tokens(text, tokenizers)


def open_tokenizers(path: str | Path) -> dict[str, Tokenizer]:
    """The tokenizers of text of a run (its workdir), or the published one in a file or folder, by
    name; one that several sides share is named once.

    Raises:
      UserError: there is none, or it is damaged.
    """
    local = fetch_files(path, (TOKENIZER,))
    if (local / TOKENIZER).is_dir():
        return text_tokenizers(load_tokenizers(local / TOKENIZER), str(path))
    return {str(path): PublishedTokenizer(import_tokenizer(local, "text"))}


def text_tokenizers(tokenizers: Tokenizers, name: str) -> dict[str, Tokenizer]:
    """The tokenizers of the sides of text, by `name` and, if they differ, side."""
    by_side = {
        side: tokenizer
        for side, tokenizer in tokenizers.sides.items()
        if not isinstance(tokenizer, Labels | SymbolTokenizer)
    }
    if len({id(tokenizer) for tokenizer in by_side.values()}) == 1:
        return {name: next(iter(by_side.values()))}
    return {f"{name} ({side})": tokenizer for side, tokenizer in by_side.items()}


def plot(run: Run) -> "Picture":
    """The curves of loss, score and learning rate; UserError if nothing was recorded."""
    from transformer_jax.lab.pictures import draw_curves

    selected_by = selection_metric(run.settings, run.task).removeprefix("-")
    return draw_curves({run.workdir.name: [read_metrics(run.workdir)]}, (selected_by,))
