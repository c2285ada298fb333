# SPDX-License-Identifier: Apache-2.0
"""Tables of the errors of a classifier or tagger."""

from dataclasses import dataclass

import pandas as pd

from transformer_jax.errors import UserError
from transformer_jax.runs.evaluate import evaluator_of
from transformer_jax.runs.run import Run
from transformer_jax.scoring.errors import confusion, decisions, worst_errors

_SHOWN = 20
_STYLE = "display: flex; flex-wrap: wrap; gap: 2em; align-items: flex-start"


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
        return f'<p>{self._title}</p><div style="{_STYLE}">{parts}</div>'

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
