"""The recurrent encoder: layers of cells that read packed rows in one direction or in both.

B batch, S source tokens, T target tokens, G gates, H size of a direction's state, D model.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.recurrent.cells import Cell, State, alone

DIRECTIONS = {"both": ("forward", "backward"), "forward": ("forward",), "backward": ("backward",)}
"""The directions that a layer reads in, by the names that `model.encoder_direction` takes."""


class RecurrentLayer(nn.Module):
    """A cell for each direction; their outputs stand side by side.

    Attributes:
      config: of the model.
      cell: a class of `CELLS`.
      directions: "forward", "backward" or both, which share the width D of the layer.
    """

    config: TransformerConfig
    cell: type[Cell]
    directions: tuple[str, ...]

    def setup(self) -> None:
        width = self.config.d_model
        size = width // len(self.directions)
        self.cells = [self.cell(self.config, width, size, name=name) for name in self.directions]

    def __call__(
        self, x: Float[Array, "B S D"], segment_ids: Int[Array, "B S"]
    ) -> tuple[Float[Array, "B S D"], tuple[State, ...]]:
        """The outputs, and for each direction its states [B, S, H] behind every token.

        Each sentence of a packed row is read by itself, from zeros.
        """
        bounds = {"forward": first_tokens(segment_ids), "backward": last_tokens(segment_ids)}
        states = tuple(
            _states(cell, x, bounds[direction], reverse=direction == "backward")
            for cell, direction in zip(self.cells, self.directions, strict=True)
        )
        return jnp.concatenate([state[0] for state in states], axis=-1), states


def _states(
    cell: Cell, x: Float[Array, "B S D"], restarts: Bool[Array, "B S"], reverse: bool
) -> State:
    """The states [B, S, H] behind each token; `restarts` is True where a sentence is begun."""
    projected = cell.project(x)
    fresh = cell.zeros(len(x))
    if cell.is_initializing():
        cell.step(fresh, projected[:, 0])
    step = alone(cell, "step")

    def read(state: State, token: tuple[Array, Array]) -> tuple[State, State]:
        projected, restart = token
        state = step(where_rows(restart, fresh, state), projected)
        return state, state

    tokens = jax.tree.map(swapped, (projected, restarts))
    _, states = jax.lax.scan(read, fresh, tokens, reverse=reverse)
    return jax.tree.map(swapped, states)


class RecurrentEncoder(nn.Module):
    """A stack of layers, with dropout on what each of them reads (Zaremba et al. 2014).

    Attributes:
      config: of the model.
      cell: a class of `CELLS`.
      num_layers: of the stack.
      direction: a name of `DIRECTIONS`.
    """

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
        self.dropout = Dropout(self.config.dropout_rate, self.config.dropout_bits)

    def __call__(
        self, x: Float[Array, "B S D"], segment_ids: Int[Array, "B S"], deterministic: bool
    ) -> tuple[Float[Array, "B S D"], list[tuple[State, ...]]]:
        """Embedded tokens, on which dropout was done, -> features, and each layer's states."""
        states = []
        for i, layer in enumerate(self.layers):
            x = self.dropout(x, deterministic) if i else x
            x, of_layer = layer(x, segment_ids)
            states.append(of_layer)
        return x, states

    def final_states(
        self,
        states: list[tuple[State, ...]],
        segment_ids: Int[Array, "B S"],
        wanted: Int[Array, "B T"],
    ) -> tuple[State, ...]:
        """The state [B, T, D] in which each layer has read the sentences with the `wanted` segment
        ids: that behind the last token of those that read forward, and behind the first of those
        that read backward, side by side."""
        of_sentence = (segment_ids[:, None] == wanted[:, :, None]) & (wanted > 0)[:, :, None]
        bounds = {"forward": last_tokens(segment_ids), "backward": first_tokens(segment_ids)}
        places = [
            (of_sentence & bounds[name][:, None]).argmax(-1)[:, :, None]
            for name in DIRECTIONS[self.direction]
        ]

        def final(*of_directions: Float[Array, "B S H"]) -> Float[Array, "B T D"]:
            found = map(lambda x, at: jnp.take_along_axis(x, at, axis=1), of_directions, places)
            return jnp.concatenate(list(found), axis=-1)

        return tuple(jax.tree.map(final, *of_layer) for of_layer in states)


def first_tokens(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Where a sentence of a packed row begins; padding counts as a sentence."""
    before = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    return segment_ids != before


def last_tokens(segment_ids: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Where one ends."""
    return first_tokens(segment_ids[:, ::-1])[:, ::-1]


def positions_in_segments(segment_ids: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Of each token, from 0 in its sentence."""
    place = jnp.broadcast_to(jnp.arange(segment_ids.shape[1]), segment_ids.shape)
    firsts = jnp.where(first_tokens(segment_ids), place, 0)
    return place - jax.lax.cummax(firsts, axis=1)


def where_rows[T](rows: Bool[Array, " N"], new: T, old: T) -> T:
    """The new state in some rows, the old one in the others."""
    states: T = jax.tree.map(lambda new, old: jnp.where(rows[:, None], new, old), new, old)
    return states


def swapped(x: Array) -> Array:
    """[B, T, ...] <-> [T, B, ...], the order in which a scan takes and gives tokens."""
    return jnp.swapaxes(x, 0, 1)
