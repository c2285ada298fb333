# SPDX-License-Identifier: Apache-2.0
"""Recurrent encoder: layers of cells that read packed rows in one direction or in both.

B batch, S source tokens, T target tokens, G gates, H size of a direction's state, D model.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.masks import first_tokens
from transformer_jax.nn.recurrent.cells import Cell, State, pure_method

Features = Float[Array, "B S D"]
SegmentIds = Int[Array, "B S"]

LayerStates = list[tuple[State, ...]]
"""States of each layer and direction after every token, [B, S, H]."""

DIRECTIONS = {"both": ("forward", "backward"), "forward": ("forward",), "backward": ("backward",)}
"""Directions in which a layer reads, by the name in `model.encoder_direction`."""


class RecurrentLayer(nn.Module):
    """One cell for each direction, with concatenated outputs.

    Attributes:
      directions: "forward", "backward" or both; two directions have D / 2 features each.
    """

    config: TransformerConfig
    cell: type[Cell]
    directions: tuple[str, ...]

    def setup(self) -> None:
        width = self.config.d_model
        size = width // len(self.directions)
        self.cells = [self.cell(self.config, width, size, name=name) for name in self.directions]

    def __call__(self, x: Features, segment_ids: SegmentIds) -> tuple[Features, tuple[State, ...]]:
        """Reads packed rows, from zeros in each sentence; returns the outputs, and the states of
        each direction after every token, [B, S, H]."""
        restarts = {"forward": first_tokens(segment_ids), "backward": last_tokens(segment_ids)}
        states = tuple(
            _states(cell, x, restarts[direction], reverse=direction == "backward")
            for cell, direction in zip(self.cells, self.directions, strict=True)
        )
        return jnp.concatenate([state[0] for state in states], axis=-1), states


def _states(cell: Cell, x: Features, restarts: Bool[Array, "B S"], reverse: bool) -> State:
    """States [B, S, H] after each token; `restarts` is True where the cell enters a sentence."""
    projected = cell.project(x)
    initial = cell.zeros(len(x))
    if cell.is_initializing():
        cell.step(initial, projected[:, 0])
    step = pure_method(cell, "step")

    def read(state: State, token: tuple[Array, Array]) -> tuple[State, State]:
        projected, restart = token
        state = step(select_rows(restart, initial, state), projected)
        return state, state

    tokens = jax.tree.map(swap_time, (projected, restarts))
    _, states = jax.lax.scan(read, initial, tokens, reverse=reverse)
    return jax.tree.map(swap_time, states)


class RecurrentEncoder(nn.Module):
    """Stack of recurrent layers, with dropout on their inputs (Zaremba et al. 2014)."""

    config: TransformerConfig
    cell: type[Cell]
    num_layers: int
    direction: str

    def setup(self) -> None:
        directions = DIRECTIONS[self.direction]
        self.layers = [
            RecurrentLayer(self.config, self.cell, directions, name=f"layer_{i}")
            for i in range(self.num_layers)
        ]
        self.dropout = Dropout.of(self.config, "dropout_rate")

    def __call__(
        self, x: Features, segment_ids: SegmentIds, deterministic: bool
    ) -> tuple[Features, LayerStates]:
        """Computes features of embedded tokens (after dropout), and the states of each layer."""
        states = []
        for i, layer in enumerate(self.layers):
            x = self.dropout(x, deterministic) if i else x
            x, layer_states = layer(x, segment_ids)
            states.append(layer_states)
        return x, states

    def final_states(
        self, states: LayerStates, segment_ids: SegmentIds, wanted: Int[Array, "B T"]
    ) -> tuple[State, ...]:
        """Final state [B, T, D] of each layer for the sentences with the `wanted` segment ids.

        A forward cell ends at the last token of a sentence, a backward cell at the first; their
        states are concatenated.
        """
        in_sentence = (segment_ids[:, None] == wanted[:, :, None]) & (wanted > 0)[:, :, None]
        ends = {"forward": last_tokens(segment_ids), "backward": first_tokens(segment_ids)}
        end_indices = [
            (in_sentence & ends[name][:, None]).argmax(-1)[:, :, None]
            for name in DIRECTIONS[self.direction]
        ]

        def final(*directions: Float[Array, "B S H"]) -> Float[Array, "B T D"]:
            last = [
                jnp.take_along_axis(outputs, indices, axis=1)
                for outputs, indices in zip(directions, end_indices, strict=True)
            ]
            return jnp.concatenate(last, axis=-1)

        return tuple(jax.tree.map(final, *layer_states) for layer_states in states)


def last_tokens(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """True at the last token of each sentence in packed rows, and at the last padding token."""
    return first_tokens(segment_ids[:, ::-1])[:, ::-1]


def select_rows[T](rows: Bool[Array, " N"], new: T, old: T) -> T:
    """Takes the new state where `rows` is True, the old one elsewhere."""
    return jax.tree.map(lambda new, old: jnp.where(rows[:, None], new, old), new, old)


def swap_time(x: Array) -> Array:
    """Transposes [B, T, ...] to [T, B, ...], the layout of a scan over tokens, or back."""
    return jnp.swapaxes(x, 0, 1)
