# SPDX-License-Identifier: Apache-2.0
"""Report of `make quickstart`: BLEU of the run and of a dictionary, translations, and pages that
show the model's attention and computation.

python -m experiments.quickstart --workdir=runs/quickstart
"""

import argparse
import json
import sys
from pathlib import Path

import transformer_jax as tj
from experiments.grammar.dictionary import dictionary_translate
from transformer_jax.analysis.pages.attention_page import attention_page
from transformer_jax.analysis.walk.walking import walk_page
from transformer_jax.data.sources import open_split
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.run import Run
from transformer_jax.scoring.text import score_translations

SPLITS = {"test": "unseen sentences", "test_combinations": "unseen combinations of words"}
NUM_SHOWN = 3
EXAMPLE = "YOUR CAT IS A LOVELY CAT"
"""Example of the walk: its words are not in the grammar, so the tokenizer splits them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    workdir = Path(parser.parse_args().workdir)
    run = tj.load(workdir)
    for split, meaning in SPLITS.items():
        report(run, split, meaning)
    write_pages(run)


def report(run: Run, split: str, meaning: str) -> None:
    """Prints the scores of one split and its first translations."""
    examples = open_split(read_settings(run.config).data, split)
    metrics = run.evaluate(split=split)
    by_dictionary = score_translations(
        [dictionary_translate(example["source"]) for example in examples],
        [example["target"] for example in examples],
    )
    print(f"\n{split}: {len(examples)} {meaning}")
    print(f"  BLEU {metrics['bleu']:5.1f}  the model's")
    print(f"  BLEU {by_dictionary['bleu']:5.1f}  of a word-for-word dictionary")
    print(f"  {metrics['signature']}")
    path = run.workdir / "predictions" / f"{split}-{run.step}.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines()[:NUM_SHOWN]:
        shown = json.loads(line)
        print(f"    English    {shown['source']}\n    model      {shown['output']}")
        print(f"    reference  {shown['target']}")


def write_pages(run: Run) -> None:
    """Writes the attention page of the first translation and the walk; prints their paths."""
    first = open_split(read_settings(run.config).data, "test")[0]["source"]
    attention = run.attention(first, also=("queries", "keys"))
    shown = attention_page(attention, title=first, beams=run.beam_tree(first).as_json())
    walked = walk_page(run.walk(EXAMPLE), title=EXAMPLE)
    folder = run.workdir / "pages"
    folder.mkdir(exist_ok=True)
    print()
    for name, html, what in (
        ("attention", shown, "attention of the first translation"),
        ("walk", walked, f"“{EXAMPLE}” through the model, step by step"),
    ):
        path = folder / f"{name}.html"
        path.write_text(html, encoding="utf-8")
        print(f"{path}  {what}")


if __name__ == "__main__":
    try:
        main()
    except tj.UserError as error:
        sys.exit(f"error: {error}")
