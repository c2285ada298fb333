"""What `make quickstart` shows of the trained run: BLEU beside a dictionary's, and translations.

python -m experiments.quickstart --workdir=runs/quickstart
"""

import argparse
import json
import sys
from pathlib import Path

import transformer_jax as tj
from experiments.grammar.dictionary import dictionary_translate
from transformer_jax.data.sources import open_split
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.run import Run
from transformer_jax.scoring.bleu import score_translations

SPLITS = {"test": "unseen sentences", "test_combinations": "unseen combinations of words"}
NUM_SHOWN = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    workdir = Path(parser.parse_args().workdir)
    run = tj.load(workdir)
    for split, meaning in SPLITS.items():
        report(run, split, meaning)


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


if __name__ == "__main__":
    try:
        main()
    except tj.UserError as error:
        sys.exit(f"error: {error}")
