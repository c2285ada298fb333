# SPDX-License-Identifier: Apache-2.0
"""Table 1 of "Attention Is All You Need", measured: the cost of a layer by sequence length.

    python experiments/complexity.py --output=complexity

Time and memory of one layer, forward and backward, on one sequence of n vectors of size d:
self-attention (the paper's order n^2 d), self-attention restricted to a window of r (r n d), a
convolution with a kernel of k (k n d^2) and a recurrence (n d^2; an LSTM, Hochreiter and
Schmidhuber 1997). Prints the table with the exponents of n that the longest sequences show beside
each order, and writes OUTPUT.csv and OUTPUT.png.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import pandas as pd

from transformer_jax.lab.pictures.style import add_legend, grid, save_figure, styled
from transformer_jax.nn.attention import MultiHeadAttention, Sequences
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import PositionEncoding

WINDOW, KERNEL, HEADS = 64, 3, 4
ORDERS = {
    "self-attention": "n^2 d",
    f"self-attention, r = {WINDOW}": "r n d",
    f"convolution, k = {KERNEL}": "k n d^2",
    "recurrence, LSTM": "n d^2",
}
FIELDS = ("layer", "n", "milliseconds", "mebibytes")


class SelfAttention(nn.Module):
    """Multi-head self-attention of x [B, T, D], over the whole sequence or within a window."""

    d_model: int
    window: int | None = None

    @nn.compact
    def __call__(self, x):
        config = TransformerConfig(
            d_model=self.d_model, num_heads=HEADS, attention_window=self.window
        )
        positions = jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2])
        everything = jnp.ones((x.shape[0], 1, x.shape[1], x.shape[1]), bool)
        attention = MultiHeadAttention(config)
        sequences = Sequences(PositionEncoding(config), positions, everything)
        return attention.self_attend(x, sequences, True)[0]


def layers(d_model: int) -> dict[str, nn.Module]:
    """One layer of each kind, keyed by the names of ORDERS."""
    attention = (SelfAttention(d_model), SelfAttention(d_model, WINDOW))
    others = (nn.Conv(d_model, (KERNEL,)), nn.RNN(nn.OptimizedLSTMCell(d_model)))
    return dict(zip(ORDERS, (*attention, *others), strict=True))


def measure(layer: nn.Module, length: int, d_model: int) -> tuple[float, float]:
    """Milliseconds of a step, and mebibytes of memory that it needs besides its arguments."""
    x = jax.random.normal(jax.random.key(0), (1, length, d_model))
    params = layer.init(jax.random.key(1), x)
    step = jax.jit(jax.grad(lambda params, x: (layer.apply(params, x) ** 2).sum(), (0, 1)))
    step = step.lower(params, x).compile()
    seconds = statistics.median(timed(lambda: jax.block_until_ready(step(params, x))))
    return 1e3 * seconds, step.memory_analysis().temp_size_in_bytes / 2**20


def timed(run: Callable[[], object], least: float = 0.3) -> list[float]:
    """Seconds of each run: at least five runs, and at least `least` seconds in total."""
    run()
    found = []
    while len(found) < 5 or sum(found) < least:
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found


def exponent(points: list[tuple[int, float]]) -> float:
    """The exponent of n between the longest sequence and one a quarter as long."""
    (n, a), (m, b) = points[-3], points[-1]
    return math.log(b / a) / math.log(m / n)


@styled
def draw(rows: list[dict], output: Path) -> None:
    """Draws time and memory over n, on logarithmic axes."""
    figure, panels = grid(panels=2)
    for ax, name in zip(panels, FIELDS[2:], strict=True):
        for layer in ORDERS:
            of_layer = [row for row in rows if row["layer"] == layer]
            ns, values = [row["n"] for row in of_layer], [row[name] for row in of_layer]
            ax.loglog(ns, values, marker="o", ms=4, label=f"{layer}: {ORDERS[layer]}")
        ax.set(ylabel=f"{name}, forward and backward", xlabel="n, positions")
    add_legend(figure, ax.lines)
    save_figure(figure, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--output", default="complexity")
    parser.add_argument("--d_model", type=int, default=128)
    parser.add_argument("--longest", type=int, default=4096)
    args = parser.parse_args()
    lengths = [2**k for k in range(6, args.longest.bit_length())]
    rows = []
    for name, layer in layers(args.d_model).items():
        for length in lengths:
            found = measure(layer, length, args.d_model)
            rows.append(dict(zip(FIELDS, (name, length, *found), strict=True)))
            print(f"{name}, n = {length}: {found[0]:.2f} ms", file=sys.stderr)
    pd.DataFrame(rows).to_csv(f"{args.output}.csv", index=False)
    draw(rows, Path(f"{args.output}.png"))
    print(f"{'layer':28}{'order':>10}{'time ~ n^':>12}{'memory ~ n^':>14}")
    for name, order in ORDERS.items():
        of_layer = [row for row in rows if row["layer"] == name]
        powers = [exponent([(row["n"], row[field]) for row in of_layer]) for field in FIELDS[2:]]
        print(f"{name:28}{order:>10}{powers[0]:12.2f}{powers[1]:14.2f}")


if __name__ == "__main__":
    main()
