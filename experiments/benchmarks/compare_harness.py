# SPDX-License-Identifier: Apache-2.0
"""Compares the lm-evaluation-harness on a run with the harness on its export.

    python -m transformer_jax export --workdir=RUN --format=hf --to=EXPORTED
    python -m experiments.benchmarks.compare_harness --items=TEXT --model=RUN --output=ours.json
    python experiments/benchmarks/compare_harness.py --items=TEXT --model=EXPORTED \\
        --output=theirs.json --beside=ours.json

The first environment needs this project and lm-eval, the second PyTorch, transformers and lm-eval.
For the first lines of TEXT with at least 8 words: scores the second half given the first, scores
the whole line, continues the first half, and scores that continuation. A folder with checkpoints is
a run; transformers loads any other one.
"""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=Path, required=True, help="a file of text")
    parser.add_argument("--count", type=int, default=50, help="lines of it")
    parser.add_argument("--words", type=int, default=40, help="of an item, at most")
    parser.add_argument("--tokens", type=int, default=8, help="that are generated, at most")
    parser.add_argument("--model", type=Path, required=True, help="a run, or an exported folder")
    parser.add_argument("--output", type=Path, required=True, help="what was found, as JSON")
    parser.add_argument("--beside", type=Path, help="another output, to compare with")
    args = parser.parse_args()
    lines = [line.split()[: args.words] for line in args.items.read_text().splitlines()]
    halves = [
        (" ".join(words[: len(words) // 2]), " " + " ".join(words[len(words) // 2 :]))
        for words in lines
        if len(words) >= min(8, args.words)
    ][: args.count]
    if (args.model / "checkpoints").is_dir():
        model = rolling = _run(args.model)
    else:
        model, rolling = _exported(args.model, begins=True), _exported(args.model, begins=False)
    options = {"until": ["."], "max_gen_toks": args.tokens, "do_sample": False}
    found = {
        "loglikelihood": model.loglikelihood([_request(*pair) for pair in halves]),
        "rolling": rolling.loglikelihood_rolling([_request("".join(pair)) for pair in halves]),
        "generated": model.generate_until([_request(first, dict(options)) for first, _ in halves]),
    }
    greedy = [
        _request(first, text)
        for (first, _), text in zip(halves, found["generated"], strict=True)
        if text
    ]
    found["loglikelihood"] += model.loglikelihood(greedy)  # of continuations that are mostly greedy
    args.output.write_text(json.dumps(found, indent=1))
    if args.beside:
        _compare(json.loads(args.output.read_text()), json.loads(args.beside.read_text()))


def _run(workdir: Path) -> Any:
    import transformer_jax as tj
    from experiments.harness import RunInHarness

    run = tj.load(workdir).with_config({"model.dtype": "float32"})
    return RunInHarness(run)


def _exported(folder: Path, begins: bool) -> Any:
    """Loads the export as the harness's own model. `begins` holds for texts that are scored or
    continued; in rolling texts the harness would count the begin-of-text token too."""
    from lm_eval.models.huggingface import HFLM

    flags = {"device": "cpu", "dtype": "float32", "batch_size": 1, "add_bos_token": begins}
    return HFLM(pretrained=str(folder), **flags)


def _request(*args: Any) -> Any:
    return SimpleNamespace(args=args, arguments=args, request_type="", task_name="", doc_id=0)


def _compare(found: dict[str, Any], other: dict[str, Any]) -> None:
    """Prints the largest differences, and how many texts and greedy flags are equal."""
    count = len(found["generated"])
    pairs = list(zip(found["loglikelihood"], other["loglikelihood"], strict=True))
    rolling = zip(found["rolling"], other["rolling"], strict=True)
    same = zip(found["generated"], other["generated"], strict=True)
    print("loglikelihood: at most", max(abs(one[0] - two[0]) for one, two in pairs), "nats apart")
    alike = sum(one[1] == two[1] for one, two in pairs)
    print("greedy marks alike:", alike, "of", len(pairs), "set:", sum(one[1] for one, _ in pairs))
    print("rolling: at most", max(abs(one - two) for one, two in rolling), "nats apart")
    print("generated alike:", sum(one == two for one, two in same), "of", count)


if __name__ == "__main__":
    main()
