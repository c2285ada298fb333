# SPDX-License-Identifier: Apache-2.0
"""A session in a notebook: what is printed by each of twelve typical cells."""

import transformer_jax as tj
from transformer_jax.summary import MOST_LINES

CELLS = [
    "config = tj.config(path, changes)\nconfig",
    "tj.read_data(config, 'train')",
    "run",
    "run.tokenizer",
    "run.tokenizer['source']",
    "run.records.tail(3)[['step', 'split', 'loss']]",
    "run.score(sources, targets)",
    "run.model",
    "{name: array.shape for name, array in run.batch(sources, targets).items()}",
    "next(run.batches('valid')).labels.shape",
    "run.hidden(sources[0], targets[0])",
    "run.attention(sources[0], targets[0])",
]


def transcript(namespace):
    """The text that each cell shows; a cell's last line is an expression."""
    found = {}
    for cell in CELLS:
        *statements, last = cell.split("\n")
        exec("\n".join(statements), namespace)
        found[cell] = repr(eval(last, namespace))
    return found


def test_each_cell_of_a_session_shows_at_most_twelve_lines(trained, tiny):
    given = {"tj": tj, "path": "quickstart", "changes": tiny, "run": trained}
    given |= {"sources": ["A dog runs."], "targets": ["Ein Hund läuft."]}
    shown = transcript(given)
    assert {cell: text for cell, text in shown.items() if text.count("\n") >= MOST_LINES} == {}
