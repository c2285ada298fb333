"""Recurrent cells: one step of LSTM and GRU, by the names that `model.cell` takes.

A cell's state is a tuple of arrays, of which the first is its output h. What it makes of its inputs
does not depend on the state, so `project` computes that for all tokens of a row in one product.

N rows, T tokens, I size of an input, G gates, H size of the state.
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
    """What all cells have: W x + b for each gate, and for what is fed back V f.

    Attributes:
      config: of the model.
      inputs: I.
      size: H.
      fed: size of a vector f that each step is given besides; 0: there is none.
    """

    config: TransformerConfig
    inputs: int
    size: int
    fed: int = 0

    gates: ClassVar[int]

    def setup(self) -> None:
        gates, c = (self.gates, self.size), self.config
        self.input = Linear((self.inputs,), gates, False, c, c.kernel_std)
        self.gate_biases = self.param("gate_biases", self._fresh_biases, gates)
        if self.fed:
            self.feedback = Linear((self.fed,), gates, False, c, c.kernel_std)

    def _fresh_biases(self, key: Array, shape: tuple[int, ...]) -> Float[Array, "G H"]:
        return jnp.zeros(shape)

    def zeros(self, rows: int) -> State:
        """The state before the first token."""
        raise NotImplementedError

    def project(self, x: Float[Array, "N T I"]) -> Float[Array, "N T G H"]:
        """W x + b."""
        return self.input(x) + self.gate_biases.astype(activation_dtype(self.config))

    def step(
        self, state: State, projected: Float[Array, "N G H"], fed: Float[Array, "N F"] | None = None
    ) -> State:
        """The state behind one more token, of which `project` was given x."""
        if fed is not None:
            projected += self.feedback(fed)
        return self.update(state, projected)

    def update(self, state: State, projected: Float[Array, "N G H"]) -> State:
        """Likewise, from all that does not depend on the state."""
        raise NotImplementedError

    def _output(self, h: Float[Array, "N H"]) -> Float[Array, "N H"]:
        return h.astype(activation_dtype(self.config))


class LSTM(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), as Zaremba et al. 2014 write it:

        i, f, o = sigmoid(W x + U h + b)
        g = tanh(W x + U h + b)
        c' = f c + i g
        h' = o tanh(c')

    where each of i, f, o and g has its own W, U and b. A fresh b is 1 for f, which is open at first
    (Jozefowicz et al. 2015), and else 0.
    """

    gates: ClassVar[int] = 4

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.recurrent = Linear((self.size,), (self.gates, self.size), False, c, c.kernel_std)

    def _fresh_biases(self, key: Array, shape: tuple[int, ...]) -> Float[Array, "G H"]:
        return jnp.zeros(shape).at[1].set(1.0)

    def zeros(self, rows: int) -> State:
        h = jnp.zeros((rows, self.size), activation_dtype(self.config))
        return h, jnp.zeros((rows, self.size))

    def update(self, state: State, projected: Float[Array, "N 4 H"]) -> State:
        h, c = state
        i, f, o, g = jnp.unstack((projected + self.recurrent(h)).astype(c.dtype), axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return self._output(jax.nn.sigmoid(o) * jnp.tanh(c)), c


class GRU(Cell):
    """The gated recurrent unit (Cho et al. 2014), in the letters of Bahdanau et al. 2015, A.1.1:

        r, z = sigmoid(W x + U h + b)
        g = tanh(W x + U (r h) + b)
        h' = (1 - z) h + z g

    where each of r, z and g has its own W, U and b.
    """

    gates: ClassVar[int] = 3

    def setup(self) -> None:
        super().setup()
        c = self.config
        self.recurrent = Linear((self.size,), (2, self.size), False, c, c.kernel_std)
        self.candidate = Linear((self.size,), (self.size,), False, c, c.kernel_std)

    def zeros(self, rows: int) -> State:
        return (jnp.zeros((rows, self.size), activation_dtype(self.config)),)

    def update(self, state: State, projected: Float[Array, "N 3 H"]) -> State:
        (h,) = state
        gates = (projected[:, :2] + self.recurrent(h)).astype(jnp.float32)
        r, z = jnp.unstack(jax.nn.sigmoid(gates), axis=1)
        candidate = projected[:, 2] + self.candidate(self._output(r * h))
        g = jnp.tanh(candidate.astype(jnp.float32))
        return (self._output((1 - z) * h + z * g),)


CELLS: Registry[type[Cell]] = Registry("model.cell", {"lstm": LSTM, "gru": GRU})


def alone(module: Any, method: str) -> Callable[..., Any]:
    """A method of a bound module as a pure function, which a `jax.lax.scan` may call. The module's
    parameters must be there; it has no rng streams."""
    params, unbound = module.variables["params"], module.clone(parent=None, name=None)

    def call(*args: Any) -> Any:
        return unbound.apply({"params": params}, *args, method=method)

    return call
