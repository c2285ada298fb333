# SPDX-License-Identifier: Apache-2.0
"""Measures the constraint of the parser's search: share of valid trees, and speed.

    python experiments/constrained_parsing.py --config=configs/parse_gum.py --config.data.dir=FOLDER

Parses the first sentences of the validation split greedily with an untrained model of the config,
with the constraint (each output must be a tree over the input words) and without. Outputs end at
the end token or the length limit. --workdir=RUN uses the model of a run instead. Prints one JSON
object. Set config fields as for `train`.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

import transformer_jax as tj
from transformer_jax.cli.parser import take_overrides
from transformer_jax.data.sources import open_split
from transformer_jax.inference.seq2seq_search import Seq2SeqSearch
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.tasks.parsing import Parsing
from transformer_jax.trees import parse_tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--workdir")
    parser.add_argument("--sentences", type=int, default=1000)
    words, fields = take_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    if args.workdir:
        run = tj.load(args.workdir)
        task, params, settings = run.task, run.params, run.settings
    else:
        task, params, settings = untrained(args.config, fields)
    decode = dataclasses.replace(settings.decode, beam_size=1, num_outputs=1)
    lines = [one["source"] for one in open_split(settings.data, "valid")[: args.sentences]]

    outputs = [found[0].text for found in task.predict(params, lines, decode)]
    pairs = zip(outputs, lines, strict=True)
    whole = sum(parse_tree(tree).words() == line.split(" ") for tree, line in pairs)
    parts = [part for line in lines for part in task.parts(line)]
    requests = [task.tree_codec.request(part, number) for number, part in enumerate(parts)]
    report = {"sentences": len(lines), "trees_over_their_words": whole}
    free = Seq2SeqSearch(task.model, task.search.specials)
    for name, search in (("constrained", task.search), ("free", free)):
        search.find_all(params, requests, decode)  # compiles
        start = time.perf_counter()
        found = search.find_all(params, requests, decode)
        seconds = time.perf_counter() - start
        tokens = sum(int((row != search.specials.pad).sum()) for row, _ in found)
        speeds = {"sentences_per_s": len(requests) / seconds, "tokens_per_s": tokens / seconds}
        report[name] = speeds | {"tokens": tokens}
    print(json.dumps(report))


def untrained(config: str, fields: dict[str, str]) -> tuple[Parsing, Any, Any]:
    """Builds an untrained parser of a config, with the vocabularies of its training split."""
    settings = read_settings(tj.config(config, fields))
    with tempfile.TemporaryDirectory() as folder:
        examples = open_split(settings.data, "train")
        tokenizers = build_tokenizers(settings, Path(folder) / "tokenizer", examples)
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    return task, jax.jit(task.init)(jax.random.key(settings.seed)), settings


if __name__ == "__main__":
    main()
