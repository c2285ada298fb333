# SPDX-License-Identifier: Apache-2.0
"""Compares the outputs of a run with those of its export in CTranslate2.

    python experiments/benchmarks/compare_ctranslate2.py --workdir=RUN --model=DIR --lines=FILE

Translates with beam search (4 beams, scores divided by length), or continues each line greedily by
40 tokens. Prints the lines that differ, and the number that agree.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import ctranslate2

import transformer_jax as tj

CONTINUED = 40
PATIENCE = (
    4  # CTranslate2 stops when patience * 4 outputs are finished, the run when none can improve
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    for name in ("workdir", "model", "lines"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    run, lines = tj.load(args.workdir), Path(args.lines).read_text().splitlines()
    if "target" in run.tokenizer.sides:
        ours = run.predict(lines, beam_size=4, length_penalty="power", alpha=1.0)
        theirs = translations(run, args.model, lines)
    else:
        search = {"top_k": 1} if run.settings.decode.temperature else {"search": "greedy"}
        ours = run.predict(lines, max_extra_length=CONTINUED, **search)
        theirs = continuations(run, args.model, lines)
    differing = [i for i in range(len(lines)) if ours[i] != theirs[i]]
    for i in differing:
        print(f"line {i + 1}\n  run:         {ours[i]!r}\n  CTranslate2: {theirs[i]!r}")
    print(f"{len(lines) - len(differing)} of {len(lines)} agree")
    return int(bool(differing))


def translations(run: Any, directory: str, lines: list[str]) -> list[str]:
    source, target = run.tokenizer.text("source"), run.tokenizer.text("target")
    translator = ctranslate2.Translator(directory)
    tokens = [source.pieces(source.encode(line)) for line in lines]
    names = {piece: i for i, piece in enumerate(target.pieces(range(target.vocab_size)))}
    outputs = []
    for row in tokens:  # each has its own length limit
        (found,) = translator.translate_batch(
            [row],
            beam_size=4,
            length_penalty=1.0,
            patience=PATIENCE,
            max_decoding_length=len(row) + 1 + run.settings.decode.max_extra_length,
            suppress_sequences=[[piece] for piece in target.pieces(target.specials.banned)],
        )
        outputs.append(target.decode([names[piece] for piece in found.hypotheses[0]]))
    return outputs


def continuations(run: Any, directory: str, lines: list[str]) -> list[str]:
    text = run.tokenizer.text("text")
    generator = ctranslate2.Generator(directory)
    names = {piece: i for i, piece in enumerate(text.pieces(range(text.vocab_size)))}
    outputs = []
    for line in lines:
        prompt = text.pieces([text.specials.first, *text.encode(line)])
        (found,) = generator.generate_batch(
            [prompt],
            max_length=CONTINUED,
            include_prompt_in_result=False,
            suppress_sequences=[[piece] for piece in text.pieces(text.specials.banned)],
        )
        outputs.append(text.decode([names[piece] for piece in found.sequences[0]]))
    return outputs


if __name__ == "__main__":
    sys.exit(main())
