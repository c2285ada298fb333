# SPDX-License-Identifier: Apache-2.0
"""The quick start: trains the embedded task and reports BLEU of the run and of a dictionary,
translations, and pages that show the model's attention and computation.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.analysis.pages.attention_page import attention_page
from transformer_jax.analysis.walk.walking import walk_page
from transformer_jax.data.sets.embedded import translate_word_for_word
from transformer_jax.data.sources import open_split
from transformer_jax.runs.config import load_config, read_settings
from transformer_jax.runs.run import Run
from transformer_jax.runs.train import train
from transformer_jax.runtime.files import write_atomic
from transformer_jax.scoring.text import score_translations

CONFIG = "quickstart"
SPLITS = {"test": "unseen sentences", "test_combinations": "unseen combinations of words"}
NUM_SHOWN = 3
EXAMPLE = "YOUR CAT IS A LOVELY CAT"
"""Example of the walk: its words are not in the grammar, so the tokenizer splits them."""


def quickstart(workdir: str | Path, overrides: Mapping[str, Any]) -> Iterator[str]:
    """Trains the shipped config `quickstart` and writes pages; yields the lines of the report.

    If it is interrupted, the same call continues the training; after it, it only reports.
    """
    run = train(load_config(CONFIG, overrides), workdir)
    for split, meaning in SPLITS.items():
        yield from report(run, split, meaning)
    yield from write_pages(run)


def report(run: Run, split: str, meaning: str) -> Iterator[str]:
    """Scores one split; yields the scores and the first translations."""
    examples = open_split(read_settings(run.config).data, split)
    metrics = run.evaluate(split=split)
    by_dictionary = score_translations(
        [translate_word_for_word(example["source"]) for example in examples],
        [example["target"] for example in examples],
    )
    yield f"\n{split}: {len(examples)} {meaning}"
    yield f"  BLEU {metrics['bleu']:5.1f}  the model's"
    yield f"  BLEU {by_dictionary['bleu']:5.1f}  of a word-for-word dictionary"
    yield f"  {metrics['signature']}"
    path = run.workdir / "predictions" / f"{split}-{run.step}.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines()[:NUM_SHOWN]:
        shown = json.loads(line)
        yield f"    English    {shown['source']}"
        yield f"    model      {shown['output']}"
        yield f"    reference  {shown['target']}"


def write_pages(run: Run) -> Iterator[str]:
    """Writes the attention page of the first translation and the walk; yields their paths."""
    first = open_split(read_settings(run.config).data, "test")[0]["source"]
    attention = run.attention(first, also=("queries", "keys"))
    shown = attention_page(attention, title=first, beams=run.beam_tree(first).as_json())
    walked = walk_page(run.walk(EXAMPLE), title=EXAMPLE)
    folder = run.workdir / "pages"
    folder.mkdir(exist_ok=True)
    yield ""
    for name, html, what in (
        ("attention", shown, "attention of the first translation"),
        ("walk", walked, f"“{EXAMPLE}” through the model, step by step"),
    ):
        path = folder / f"{name}.html"
        write_atomic(path, html)
        yield f"{path}  {what}"
