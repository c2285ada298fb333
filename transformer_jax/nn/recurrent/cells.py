# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells LSTM, GRU and RNN (`model.cell`).

A cell's state is a tuple of arrays; the first is its output h. The projection of its inputs does
not depend on the state, so `project` computes it for all tokens of a row in one product.

N rows, T tokens, I size of an input, F size of the feedback, G gates, H size of the state.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.nn.config import TransformerConfig, activation_dtype
from transformer_jax.nn.linear import Linear
from transformer_jax.registry import Registry

type State = tuple[Array, ...]
"""Arrays [N, H]; the first is h."""


class Cell(nn.Module):
    """Base class of cells, with W x + b for each gate, and V f for feedback.

    Attributes:
      inputs: I.
      size: H.
      feedback_size: size F of a vector f that each step gets as another input; 0: none.
    """

    config: TransformerConfig
    inputs: int
    size: int
    feedback_size: int = 0

    gates: ClassVar[int]
    recurrent_gates: ClassVar[int]  # with a term U h of their own

    def setup(self) -> None:
        c = self.config
        gates = (self.gates, self.size)
        self.input = Linear((self.inputs,), gates, False, c, c.kernel_std)
        recurrent = (self.recurrent_gates, self.size)
        self.recurrent = Linear((self.size,), recurrent, False, c, c.kernel_std)
        self.gate_biases = self.param("gate_biases", self._initial_biases, gates)
        if self.feedback_size:
            self.feedback = Linear((self.feedback_size,), gates, False, c, c.kernel_std)

    def _initial_biases(self, key: Array, shape: tuple[int, ...]) -> Float[Array, "G H"]:
        return jnp.zeros(shape)

    def zeros(self, rows: int) -> State:
        """The state before the first token."""
        return (jnp.zeros((rows, self.size), activation_dtype(self.config)),)

    def project(self, x: Float[Array, "N T I"]) -> Float[Array, "N T G H"]:
        """Computes W x + b for all tokens."""
        return self.input(x) + self.gate_biases.astype(activation_dtype(self.config))

    def step(
        self,
        state: State,
        projected: Float[Array, "N G H"],
        feedback: Float[Array, "N F"] | None = None,
    ) -> State:
        """State after one more token, projected by `project`."""
        if feedback is not None:
            projected += self.feedback(feedback)
        return self.update(state, projected)

    def update(self, state: State, projected: Float[Array, "N G H"]) -> State:
        """State after one more token, from the sum of all terms that do not depend on the state."""
        raise NotImplementedError

    def _output(self, h: Float[Array, "N H"]) -> Float[Array, "N H"]:
        return h.astype(activation_dtype(self.config))


class LSTM(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), as Zaremba et al. 2014 write it:

        i, f, o = sigmoid(W x + U h + b)
        g = tanh(W x + U h + b)
        c' = f c + i g
        h' = o tanh(c')

    where each of i, f, o and g has its own W, U and b. The initial b is 1 for f, so that the forget
    gate starts open (Jozefowicz et al. 2015), and 0 otherwise.
    """

    gates: ClassVar[int] = 4
    recurrent_gates: ClassVar[int] = 4

    def _initial_biases(self, key: Array, shape: tuple[int, ...]) -> Float[Array, "G H"]:
        return jnp.zeros(shape).at[1].set(1.0)

    def zeros(self, rows: int) -> State:
        return *super().zeros(rows), jnp.zeros((rows, self.size))  # c is float32

    def update(self, state: State, projected: Float[Array, "N 4 H"]) -> State:
        h, c = state
        i, f, o, g = jnp.unstack((projected + self.recurrent(h)).astype(c.dtype), axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return self._output(jax.nn.sigmoid(o) * jnp.tanh(c)), c


class GRU(Cell):
    """Gated recurrent unit (Cho et al. 2014), in the notation of Bahdanau et al. 2015, A.1.1:

        r, z = sigmoid(W x + U h + b)
        g = tanh(W x + U (r h) + b)
        h' = (1 - z) h + z g

    where each of r, z and g has its own W, U and b.
    """

    gates: ClassVar[int] = 3
    recurrent_gates: ClassVar[int] = 2

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.candidate = Linear((self.size,), (self.size,), False, c, c.kernel_std)

    def update(self, state: State, projected: Float[Array, "N 3 H"]) -> State:
        (h,) = state
        gates = (projected[:, :2] + self.recurrent(h)).astype(jnp.float32)
        r, z = jnp.unstack(jax.nn.sigmoid(gates), axis=1)
        candidate = projected[:, 2] + self.candidate(self._output(r * h))
        g = jnp.tanh(candidate.astype(jnp.float32))
        return (self._output((1 - z) * h + z * g),)


class RNN(Cell):
    """Simple recurrent network (Elman 1990), the cell without gates:

    h' = tanh(W x + U h + b)
    """

    gates: ClassVar[int] = 1
    recurrent_gates: ClassVar[int] = 1

    def update(self, state: State, projected: Float[Array, "N 1 H"]) -> State:
        (h,) = state
        total = (projected + self.recurrent(h)).astype(jnp.float32)
        return (self._output(jnp.tanh(total[:, 0])),)


CELLS: Registry[type[Cell]] = Registry("model.cell", {"lstm": LSTM, "gru": GRU, "rnn": RNN})


def pure_method(module: Any, method: str) -> Callable[..., Any]:
    """Method of a bound module as a pure function, for `jax.lax.scan`.

    The module must have its parameters already; the function has no rng streams.
    """
    params = module.variables["params"]
    unbound = module.clone(parent=None, name=None)

    def call(*args: Any) -> Any:
        return unbound.apply({"params": params}, *args, method=method)

    return call
