# SPDX-License-Identifier: Apache-2.0
"""Claims about equal models, decided on trained runs: how often they are said to differ.

    python experiments/equal_claims.py --text=input.txt

Trains small character language models, 24 for each claim, that differ only in their seeds, all in
programs over many seeds. Twelve are one row of a claim, and twelve the other one. `decide_claim`
then decides that the first row is better. In a second round each loss of the first row is lower by
exactly the smallest difference of interest, so that "does not hold" is the error. Welch's test
compares all seeds of both rows, as `compare` does.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax.lab.evidence.claims import Claim, decide_claim
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.scoring.statistics import over_seeds

LENGTH, BATCH, STEPS, SEEDS = 16, 4, 30, 12
AT_ONCE = 120
SMALLEST = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--claims", type=int, default=60)
    args = parser.parse_args()
    text = np.frombuffer(args.text.read_bytes()[:200_000], np.uint8)
    start = time.process_time()
    losses = train_losses(text, args.claims * 2 * SEEDS).reshape(args.claims, 2, SEEDS)
    deviation = losses.std(2, ddof=1).mean()
    print(f"{losses.size} runs, loss {losses.mean():.3f}, deviation over seeds {deviation:.3f}")
    held = [verdict(*rows) for rows in losses].count("holds")
    print(f'{held} of {args.claims} claims without a difference: "holds"')
    refused = [verdict(a - SMALLEST, b) for a, b in losses].count("does not hold")
    print(f'{refused} of {args.claims} claims with the smallest difference: "does not hold"')
    found = [over_seeds(a.tolist(), b.tolist()).is_significant for a, b in losses]
    print(f"{sum(found)} of {args.claims} differ by Welch's test over {SEEDS} seeds of each")
    print(f"{time.process_time() - start:.0f} s of CPU")


def train_losses(text: np.ndarray, count: int) -> np.ndarray:
    """Validation losses of models that are trained with seeds 0, 1, ..., count - 1."""
    symbols, tokens = np.unique(text, return_inverse=True)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_layers": 1, "dropout_rate": 0.0}
    config = TransformerConfig(vocab_size=len(symbols) + 1, **sizes, dtype="float32")
    model = DecoderOnly(config)
    split = len(tokens) * 9 // 10
    train, valid = jnp.asarray(tokens[:split] + 1), jnp.asarray(tokens[split:] + 1)
    valid = valid[: 64 * (LENGTH + 1)].reshape(64, LENGTH + 1)
    optimizer = optax.adam(1e-2)

    def loss_of(params, rows):
        logits = model.apply({"params": params}, rows[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()

    def trained(seed):
        init_key, data_key = jax.random.split(jax.random.key(seed))
        params = model.init(init_key, valid[:1, :-1])["params"]

        def step(state, key):
            params, moments = state
            starts = jax.random.randint(key, (BATCH, 1), 0, split - LENGTH - 1)
            gradient = jax.grad(loss_of)(params, train[starts + jnp.arange(LENGTH + 1)])
            updates, moments = optimizer.update(gradient, moments)
            return (optax.apply_updates(params, updates), moments), None

        keys = jax.random.split(data_key, STEPS)
        (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), keys)
        return loss_of(params, valid)

    program = jax.jit(jax.vmap(trained))
    found = []
    for start in range(0, count, AT_ONCE):
        found.append(np.asarray(program(jnp.arange(start, start + AT_ONCE))))
        print(f"trained {min(count, start + AT_ONCE)} of {count}", file=sys.stderr)
    return np.concatenate(found)[:count].astype(float)


def verdict(first: np.ndarray, second: np.ndarray) -> str:
    """Verdict of the claim that the first row has lower losses."""
    claim = Claim(
        "Equal models differ.",
        {"first": {}, "second": {}},
        experiment=lambda seed: (first[seed], second[seed]),
        smallest=SMALLEST,
    )
    with tempfile.TemporaryDirectory() as folder:
        return decide_claim(claim, Path(folder, "claim")).record["verdict"]


if __name__ == "__main__":
    main()
