# SPDX-License-Identifier: Apache-2.0
"""Measures how much time the KV cache saves in generation; the tokens must be the same.

    python experiments/generation_cache.py --workdir=runs/shakespeare --tokens=512

Continues prompts of different lengths, also beyond the context, with and without the cache. Prints
one JSON object; exit status 1 if the tokens differ. Compilation is not timed.
"""

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp

import transformer_jax as tj
from transformer_jax.inference.generation import Output, TokenGenerator
from transformer_jax.models import apply_model
from transformer_jax.models.patches import WrappedModel


class UncachedModel(WrappedModel):
    """A decoder-only model that computes the keys and values of all tokens at every step."""

    def apply(self, variables: Any, *inputs: Any, method: Any = "__call__", **named: Any) -> Any:
        if method == "prefill":
            prompt, lengths, slots = inputs
            rows = jnp.pad(prompt, ((0, 0), (0, slots - prompt.shape[1])))
            return self._logits_after(variables, rows, lengths), (), (rows, lengths)
        if method == "decode_step":
            tokens, _, (rows, lengths) = inputs
            rows = rows.at[jnp.arange(len(rows)), lengths].set(tokens)
            return self._logits_after(variables, rows, lengths + 1), (rows, lengths + 1)
        return self.model.apply(variables, *inputs, method=method, **named)

    def _logits_after(self, variables: Any, rows: jax.Array, lengths: jax.Array) -> jax.Array:
        """Logits [B, V] of the token after the first `lengths` tokens of each row."""
        positions = jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
        segment_ids = (positions < lengths[:, None]).astype(jnp.int32)
        logits = apply_model(self.model, variables["params"], rows, positions, segment_ids)
        return jnp.take_along_axis(logits, lengths[:, None, None] - 1, axis=1)[:, 0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, help="of a language model")
    parser.add_argument("--tokens", type=int, default=512, help="drawn after each prompt")
    parser.add_argument("--prompts", type=int, default=8)
    args = parser.parse_args()
    run = tj.load(args.workdir)
    options = {"temperature": 1.0, "max_extra_length": args.tokens}
    decode = dataclasses.replace(run.settings.decode, **options)
    context = run.task.max_length
    text = "What is it that they say? " * context
    tokenizer = run.tokenizer["text"]
    tokens, specials = tokenizer.encode(text), tokenizer.specials
    lengths = [1 + i * context // args.prompts for i in range(args.prompts)]
    prompts = [[specials.first, *tokens[:length]] for length in lengths]
    seconds, drawn = {}, {}
    for name, model in (("cached", run.model), ("uncached", UncachedModel(run.model))):
        engine = TokenGenerator(model, context, specials)
        for _ in range(2):  # the first run compiles
            start = time.perf_counter()
            outputs = [Output(prompt, i, 0) for i, prompt in enumerate(prompts)]
            for _ in engine.generate(run.params, outputs, decode):
                pass
            seconds[name] = time.perf_counter() - start
        drawn[name] = [output.tokens for output in outputs]
        print(f"{name}: {seconds[name]:.2f} s", file=sys.stderr)
    same = drawn["cached"] == drawn["uncached"]
    count = sum(map(len, drawn["cached"]))
    speeds = {f"{name}_tokens_per_s": round(count / s) for name, s in seconds.items()}
    report = {"same_tokens": same, "prompts": len(prompts), "tokens": count, **speeds}
    print(json.dumps({**report, "context": context}))
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
