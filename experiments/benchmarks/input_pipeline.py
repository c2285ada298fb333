"""How many tokens a second the input pipeline delivers without a model.

    python experiments/benchmarks/input_pipeline.py --config=configs/multi30k_en_de.py --batches=200

Trains the config's tokenizer, then reads, tokenizes and packs batches as training would, and drops
them. Fields of the config are set as for `train`. Prints one JSON object; padding does not count.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import transformer_jax as tj
from transformer_jax.cli.messages import log_to_stderr
from transformer_jax.cli.parser import take_overrides
from transformer_jax.data.sources import open_split
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.train import batches_of
from transformer_jax.tokenization import load_tokenizers

WARM_UP = 20  # batches; more than are packed ahead


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--batches", type=int, default=200)
    words, fields = take_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    log_to_stderr()
    settings = read_settings(tj.config(args.config, fields))
    examples = open_split(settings.data, "train")
    with tempfile.TemporaryDirectory() as folder:
        build.build_tokenizers(settings, Path(folder) / "tokenizer", examples)
        tokenizers = load_tokenizers(Path(folder) / "tokenizer")
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    batches = batches_of(settings, task, examples, build.batch_rows(settings, task))
    for _ in range(WARM_UP):
        next(batches)
    start, tokens = time.perf_counter(), 0
    for _ in range(args.batches):
        batch = next(batches)
        tokens += sum(int((batch[f"{side}_segment_ids"] > 0).sum()) for side in task.read)
    seconds = time.perf_counter() - start
    print(json.dumps({"tokens_per_s": round(tokens / seconds), "tokens": tokens}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
