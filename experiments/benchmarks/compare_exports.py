# SPDX-License-Identifier: Apache-2.0
"""Compares the outputs of an exported run in transformers with those of the run.

In the environment of tests/interop/make_fixtures.py:

    python experiments/benchmarks/compare_exports.py WHAT --model=DIR --lines=FILE --outputs=FILE

WHAT is translate, continue or fill. `outputs` is the output of `predict --format=jsonl` for the
lines: translations with `--beam_size=4 --length_penalty=power --alpha=1`, continuations of 40
tokens with `--top_k=1 --max_extra_length=40`, fillings of lines with one [MASK]. Prints how many
lines agree, and those that do not. A run whose products are bfloat16 differs now and then; float32
does not.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers

MORE = 50  # tokens that a translation may be longer than its source (decode.max_extra_length)
CONTINUED = 40


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("translate", "continue", "fill"))
    for name in ("model", "lines", "outputs"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    lines = Path(args.lines).read_text(encoding="utf-8").splitlines()
    outputs = Path(args.outputs).read_text(encoding="utf-8").splitlines()
    ours = [json.loads(line)["outputs"][0]["text"] for line in outputs]
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    compute = {"translate": translations, "continue": continuations, "fill": fillings}[args.what]
    with torch.no_grad():
        theirs = compute(args.model, tokenizer, lines)
    differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    for i in differing:
        print(f"line {i + 1}\n  run:      {ours[i]}\n  exported: {theirs[i]}")
    print(f"{len(lines) - len(differing)} of {len(lines)} agree")
    return bool(differing)


def translations(directory, tokenizer, lines):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory).eval()
    banned = [i for i in tokenizer.all_special_ids if i != tokenizer.eos_token_id]
    outputs = []
    for line in lines:
        inputs = {"input_ids": tokenizer(line, return_tensors="pt")["input_ids"]}
        found = model.generate(
            **inputs,
            num_beams=4,
            length_penalty=1.0,
            early_stopping="never",
            suppress_tokens=banned,
            max_new_tokens=inputs["input_ids"].shape[1] + MORE,
        )
        outputs.append(tokenizer.decode(found[0], skip_special_tokens=True))
    return outputs


def continuations(directory, tokenizer, lines):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    banned = [i for i in tokenizer.all_special_ids if i != tokenizer.eos_token_id]
    outputs = []
    for line in lines:
        ids = tokenizer(line, return_tensors="pt")["input_ids"]
        found = model.generate(
            ids, do_sample=False, num_beams=1, suppress_tokens=banned, max_new_tokens=CONTINUED
        )
        drawn = found[0, ids.shape[1] :]
        outputs.append(tokenizer.decode(drawn, skip_special_tokens=True))
    return outputs


def fillings(directory, tokenizer, lines):
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
    special, outputs = tokenizer.all_special_ids, []
    for line in lines:
        inputs = tokenizer(line, return_tensors="pt")
        logits = model(**inputs).logits[0]
        place = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0, 0]
        logits[:, special] = -torch.inf
        piece = tokenizer.convert_ids_to_tokens(int(logits[place].argmax()))
        outputs.append(line.replace(tokenizer.mask_token, piece.removeprefix("##"), 1))
    return outputs


if __name__ == "__main__":
    sys.exit(main())
