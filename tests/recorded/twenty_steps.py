# SPDX-License-Identifier: Apache-2.0
"""Trains five shrunk configs for twenty steps and prints their numbers as JSON.

    python tests/recorded/twenty_steps.py --devices=one|mesh --folder=DIR

The tests call it in their own process, and the campaigns start it for a mesh, which trains one
config. It uses only the notebook's interface, so that it runs on any version of the package. The
text is generated here; products are in float32. `numbers.json` beside this file has the recorded
output; to record it again, see `test_numbers.py`.
"""

import argparse
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PARALLEL = {
    "one": {"parallel.engine": "jit"},
    "mesh": {"parallel.engine": "jit", "parallel.fsdp": 2, "parallel.tensor": 2},
}
DEVICES = {"one": 1, "mesh": 4}
ON_A_MESH = ("windowed",)
"""Configs recorded on four devices."""

SMALL = {"model.d_model": 32, "model.d_ff": 64, "model.dtype": "float32", "train.num_steps": 20}
SMALL |= {"optimizer.warmup_steps": 5, "eval.every_steps": 20, "checkpoint.every_steps": 20}
SMALL |= {"logging.every_steps": 1, "decode.batch_size": 4}
LINES = ["the old dog sees a river", "a small bird finds the house", "green apples"]
VOCABULARY = (
    "the a old small green red dog bird cat river house tree stone apple apples king sees finds"
    " takes gives likes to from under over and but slowly never here there"
)


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of three to nine words, drawn."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(VOCABULARY.split(), rng.integers(3, 10))) for _ in range(count)]


def write_text(folder: Path) -> None:
    """Pairs, plain text and trees; a target is its source backwards, a tag a word's length."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate({"train": 300, "valid": 20, "dev": 20}.items()):
        drawn = sentences(count, seed)
        backwards = [" ".join(reversed(line.split())).upper() for line in drawn]
        trees = [
            f"(TOP {' '.join(f'(L{len(word)} {word})' for word in line.split())})" for line in drawn
        ]
        named = {f"{split}.en": drawn, f"{split}.de": backwards, f"{split}.trees": trees}
        for name, lines in named.items():
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
    (folder / "input.txt").write_text("".join(f"{line}, ok.\n" for line in sentences(400, seed=3)))


def experiments(text: Path) -> dict[str, tuple[str, dict]]:
    """Config file of each experiment, and its changes to it."""
    some, short = {"eval.num_examples": 2}, {"decode.max_extra_length": 6}
    pairs = {
        **some,
        **short,
        "decode.num_outputs": 3,  # as below, so that the evaluation is the same program
        "data.name": "parallel_text",
        "tokenizer.vocab_size": 120,
        "train.tokens_per_batch": 192,
        **{
            f"data.{split}_{side}": str(text / f"{split}.{language}")
            for split in ("train", "valid")
            for side, language in (("source", "en"), ("target", "de"))
        },
    }
    one_layer = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    stack = {"model.num_layers": 1, "train.tokens_per_batch": 512}
    plain = {"data.name": "text", "data.documents": "line", "data.packing": "together"}
    plain |= {"data.train_text": str(text / "train.en"), "data.valid_text": str(text / "valid.en")}
    tags = {"tokenizer.vocab_size": 100, "data.dir": str(text), "data.max_length": 64}
    variant = {"model.norm_placement": "sandwich", "model.num_heads": 4, "decode.beam_size": 3}
    variant |= {"model.num_key_value_heads": 2, "model.attention_window": 8}
    variant |= {"model.attention_bias": "all"}
    return {
        "quickstart": ("quickstart", pairs | one_layer),
        "tiny_shakespeare_cpu": ("tiny_shakespeare_cpu", stack | short | {"data.dir": str(text)}),
        "bert_small": ("bert_small", stack | plain | {"tokenizer.vocab_size": 100}),
        "pos_gum": ("pos_gum", stack | some | tags),
        "windowed": ("quickstart", pairs | one_layer | variant),
    }


def numbers(name: str, file: str, changes: dict, folder: Path) -> dict:
    """Losses and gradient norms of each step, the validation's loss, and outputs with scores."""
    import transformer_jax as tj

    config = tj.config(Path(__file__).parents[2] / "configs" / f"{file}.py", SMALL | changes)
    run = tj.train(config, folder / name)
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    train = [record for record in records if record["split"] == "train"]
    texts = [f"{line} [MASK]" for line in LINES] if name == "bert_small" else LINES
    options = {} if name == "pos_gum" else {"num_outputs": 3}  # words have one tag each
    options |= {"temperature": 1.0, "seed": 1} if name == "tiny_shakespeare_cpu" else {}
    found = [output for outputs in run.n_best(texts, **options) for output in outputs]
    return {
        "train_loss": [record["train_loss"] for record in train],
        "grad_norm": [record["grad_norm"] for record in train],
        "valid_train_loss": records[-1]["train_loss"],
        "valid_loss": records[-1]["loss"],
        "outputs": [output.text for output in found],
        "scores": [output.score for output in found],
    }


def numbers_on(devices: str, folder: Path, names: Sequence[str]) -> dict[str, dict]:
    """The numbers of configs on these devices."""
    write_text(folder / "text")
    return {
        name: numbers(name, file, changes | PARALLEL[devices], folder / devices)
        for name, (file, changes) in experiments(folder / "text").items()
        if name in names
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", choices=DEVICES, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    count = DEVICES[args.devices]
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    )
    logging.getLogger("absl").setLevel(logging.ERROR)
    names = ON_A_MESH if args.devices == "mesh" else [*experiments(args.folder)]
    print(json.dumps(numbers_on(args.devices, args.folder, names), indent=1))


if __name__ == "__main__":
    main()
