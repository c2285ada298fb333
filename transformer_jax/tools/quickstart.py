# SPDX-License-Identifier: Apache-2.0
"""The quick start: trains the embedded task and reports BLEU of the run and of a dictionary,
translations, and pages that show the model's attention and computation.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.data.sets.embedded import translate_word_for_word
from transformer_jax.data.sources import open_split
from transformer_jax.lab.analysis.attention_page import attention_page
from transformer_jax.lab.analysis.pages import inspect_command
from transformer_jax.lab.analysis.walk import walk_page
from transformer_jax.runs.config import resolve_file
from transformer_jax.runs.run import Run
from transformer_jax.runs.train import train
from transformer_jax.runs.workdir import read_predictions
from transformer_jax.runtime.files import write_atomic
from transformer_jax.scoring.text import score_translations

CONFIG = "quickstart"
SPLITS = {"test": "unseen sentences", "test_combinations": "unseen combinations of words"}
NUM_SHOWN = 3
EXAMPLE = "A happy man carried my white table."
"""Example of the pages, of the split "test". German has its verb at the end."""


def quickstart(workdir: str | Path, overrides: Mapping[str, Any]) -> Iterator[str]:
    """Trains the shipped config `quickstart` and writes pages; yields the lines of the report.

    If it is interrupted, the same call continues the training; after it, it only reports.
    """
    run = train(resolve_file(CONFIG, overrides), workdir)
    for split, meaning in SPLITS.items():
        yield from report(run, split, meaning)
    yield from write_pages(run)


def report(run: Run, split: str, meaning: str) -> Iterator[str]:
    """Scores one split; yields the scores and the first translations."""
    examples = open_split(run.settings.data, split)
    metrics = run.evaluate(split=split)
    by_dictionary = score_translations(
        [translate_word_for_word(example["source"]) for example in examples],
        [example["target"] for example in examples],
    )
    yield f"\n{split}: {len(examples)} {meaning}"
    yield f"  BLEU {metrics['bleu']:5.1f}  the model's"
    yield f"  BLEU {by_dictionary['bleu']:5.1f}  of a word-for-word dictionary"
    yield f"  {metrics['signature']}"
    for prediction in read_predictions(run.workdir, split).records[:NUM_SHOWN]:
        yield f"    English    {prediction['source']}"
        yield f"    model      {prediction['output']}"
        yield f"    reference  {prediction['target']}"


def write_pages(run: Run) -> Iterator[str]:
    """Writes the attention page and the walk of `EXAMPLE`; yields their paths."""
    attention = run.attention(EXAMPLE, also=("queries", "keys"))
    attention_html = attention_page(
        attention,
        title=EXAMPLE,
        beams=run.beam_tree(EXAMPLE).as_json(),
        command=inspect_command(run.workdir),
    )
    walk_html = walk_page(run.walk(EXAMPLE), EXAMPLE, inspect_command(run.workdir, "--walk"))
    folder = run.workdir / "pages"
    folder.mkdir(exist_ok=True)
    yield ""
    for name, html, description in (
        ("attention", attention_html, f"attention of “{EXAMPLE}”"),
        ("walk", walk_html, f"“{EXAMPLE}” through the model, step by step"),
    ):
        path = folder / f"{name}.html"
        write_atomic(path, html)
        yield f"{path}  {description}"
