# SPDX-License-Identifier: Apache-2.0
"""Writes docs/mistakes.md, the mistakes that the checks find, from the table of the package.

    python docs/write_mistakes.py

Curves are experiments/results/mistakes/NAME.json, which `python experiments/mistakes.py` writes.
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from transformer_jax.lab.mistakes.engine import MISTAKES, Mistake

PAGE = Path(__file__).with_name("mistakes.md")
CURVES = PAGE.parents[1] / "experiments" / "results" / "mistakes"

INTRODUCTION = """\
# Find my mistake

You wrote attention, a mask or a loss yourself, in NumPy, JAX or PyTorch, and the model does not
learn. Give the function to its check:

```python
import transformer_jax as tj

tj.check_attention(my_attention)
```

    check_attention: softmax_axis (layout: [batch, heads, time, depth])
      softmax_axis: the softmax is not over the keys
        evidence  differs by 0.6 from the right result, by 0.0e+00 from this one
        change    softmax over the last axis of scores [..., queries, keys]
        source    https://github.com/PetrochukM/PyTorch-NLP/issues/2

{checks}

A check draws inputs, calls the function in each usual layout (heads apart or together, batch or
time first, a mask that shows, hides or is added) and compares with a reference in NumPy. If none
is equal, it compares with references that are wrong, each in one way that is listed below, then in
two. The answer has `right`, `layout` and `mistakes`. What a name does not tell is asked for:
whether True in a mask shows or hides a key, the steps of warm-up inside a schedule.

"Right" means equal to the reference to 2e-4 on the inputs that were drawn, and one number to 1e-5;
in half precision to two of its roundings (0.016 in bfloat16), and one number to half a rounding.
A parameter is recognized by its name; wrap a function that has others. A call that takes longer
than 30 s ends the check (`seconds=`; its thread is left behind), and so does a function that
changes its arguments. The check runs where the function runs: a module of PyTorch has to be on
the CPU.

Each mistake has an address, such as [`#softmax_axis`](#softmax_axis). Some were trained, with the
mistake and without: {setting}.
The mean over {seeds} seeds has its 95% interval, in nats;
`python experiments/mistakes.py --workdir=runs/mistakes` trains them.

A mistake of your own is a row of `transformer_jax/lab/mistakes/table.toml` with an option that
makes the reference wrong, and the line of the reference that reads the option.

The notebook [`find_my_mistake`](../experiments/notebooks/find_my_mistake.ipynb) mends three wrong
functions. For a component of this package, [`verify`](extending.md#prove-it) does the same.
"""

CHECKS = {
    "attention": "`fn(q, k, v, mask)`; `fn(x, wq, wk, wv, wo, num_heads)`; a module of PyTorch; "
    "`fn(q, k_cache, v_cache, index)`",
    "mask": "`fn(length)`, `fn(tokens, pad)`, `fn(lengths, max_length)`",
    "positions": "`fn(length, d_model)`, `fn(x)` that adds or rotates, `fn(tokens, embedding)`",
    "loss": "`fn(logits, labels)`, with a mask, a padding id or smoothing",
    "schedule": "`fn(step)`, `fn(step, d_model, warmup)`",
    "model": "`fn(tokens)`; layers `fn(x, gamma, beta)`, `fn(x, sublayer, norm)`, "
    "`fn(x, mask)`, `fn(x, rate, training)`",
    "training": "`fn(tokens, bos)`, `fn(losses, counts)`, `fn(gradients)`, "
    "`fn(params, batches, grad_fn, lr)`",
    "search": "`fn(model, bos, eos, max_length, beams)`",
}

PARTS = {
    "attention": "Attention", "properties": "Rows and axes of masks", "mask": "Masks",
    "positions": "Positions", "rotary": "Rotary positions", "length": "Long inputs",
    "embedding": "Embeddings", "norm": "Norms", "pool": "Means over time",
    "residual": "Residuals", "dropout": "Dropout",
    "model": "Whole models", "loss": "Losses", "schedule": "Schedules", "batch": "Batches",
    "average": "Averages", "accumulation": "Accumulated gradients", "search": "Searches",
}  # fmt: skip
FOUND_BY = {
    "properties": "a mask hides all keys, or has the axes that a docstring tells",
    "length": "600 positions are asked for",
    "dropout": "ones are given, in training and at evaluation",
    "model": "an input is changed, and the outputs that change are looked at",
}


def section(mistake: Mistake, curves: dict[str, dict[str, Any]]) -> str:
    """A mistake's heading, what it is, what it looks like, and its losses where it was trained."""
    address, _, place = mistake.source.partition(" ")
    source = mistake.source
    if source.startswith("https:"):
        source = f"[{place or address.split('/', 2)[2]}]({address})"
    lines = [
        f"### {mistake.name}",
        "",
        f"{mistake.title[0].upper()}{mistake.title[1:]}. What it looks like: {mistake.looks}.",
        f"Change: {mistake.change}. See {source}.",
    ]
    if mistake.name in curves:
        pairs = zip(curves[mistake.name]["losses"], curves["none"]["losses"], strict=True)
        lines += [
            "",
            f"![Loss with and without](../experiments/results/mistakes/{mistake.name}.png)",
            "",
            "| step | loss with it | loss without |",
            "|---|---|---|",
        ]
        for step, ((loss, half), (right, half_right)) in zip(
            curves["none"]["steps"], pairs, strict=True
        ):
            lines.append(f"| {step} | {loss:.3f} ± {half:.3f} | {right:.3f} ± {half_right:.3f} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    rows = [f"| `tj.check_{name}` | {functions} |" for name, functions in CHECKS.items()]
    checks = "\n".join(["| check | functions |", "| --- | --- |", *rows])
    records = [json.loads(path.read_text()) for path in sorted(CURVES.glob("*.json"))]
    curves = {record["name"]: record for record in records}
    parts = [INTRODUCTION.replace("{checks}", checks)]
    parts[0] = parts[0].replace("{setting}", curves["none"]["setting"])
    parts[0] = parts[0].replace("{seeds}", str(curves["none"]["seeds"]))
    for name, mistakes in groupby(MISTAKES.values(), lambda mistake: mistake.about):
        how = FOUND_BY.get(name, "the output equals that of a reference with the mistake")
        parts += [f"## {PARTS[name]}\n\nFound when {how}.\n"]
        parts += [section(mistake, curves) for mistake in mistakes]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
