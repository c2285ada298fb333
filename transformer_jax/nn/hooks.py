"""Places: what a model computes, by name, to be looked at or changed from outside.

A module's path names its output, as "encoder.layer_0" or "decoder.layer_1.cross_attention"; a name
behind it what stands inside:

    STACK.input                  embedded tokens, as the stack takes them
    STACK                        its output, after the last norm
    STACK.layer_I                the residual stream after a layer
    ....self_attention           a sublayer's output, before it is added; also cross_attention
    ....self_attention.input     what the sublayer reads, after the norm that may stand before it
    ....self_attention.queries   [head, query, feature], as they meet keys; also keys, values
    ....self_attention.logit_bias  [head, query, key], what positions add to scaled products
    ....self_attention.weights   [head, query, key]
    ....self_attention.heads     [head, query, feature], the heads' outputs
    ....feed_forward             the sublayer's output; feed_forward.input likewise
    ....feed_forward.hidden      [position, neuron], after the activation
    ...._residual                the residual stream after a sublayer
    ..._positions                embedded tokens with what the positions add; ..._positions.input

A recurrent encoder has `encoder`, its input and its layers' outputs; a recurrent decoder has
`decoder.cross_attention.weights`, which are fixed.

All others are [position, feature]. Arrays are led by the batch: B rows. In a pattern of places *
stands for anything between two dots, ** for anything.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Int

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.positions import PositionEncoding
from transformer_jax.nn.recurrent.attention import SourceAttention
from transformer_jax.nn.recurrent.decoder import RecurrentDecoder
from transformer_jax.nn.recurrent.encoder import (
    RecurrentEncoder,
    RecurrentLayer,
    positions_in_segments,
)
from transformer_jax.nn.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer, Residual

STREAM = ("position", "feature")
HEADS = ("head", "position", "feature")
WEIGHTS = ("head", "query", "key")


@dataclasses.dataclass(frozen=True)
class HookPoint:
    """Where a value stands.

    Attributes:
      path: its name.
      axes: what each axis behind the batch counts.
      positions: for the axes that count tokens, the position [B, T] of each in its sentence.
      off: what remains where it is switched off.
      fixed: the value can be looked at, and has been used already: another has no effect.
    """

    path: str
    axes: tuple[str, ...]
    positions: Mapping[str, Int[Array, "B T"]]
    off: Any = 0.0
    fixed: bool = False


Change = Callable[[HookPoint, Array], Array]

_BEGIN = (Encoder, Decoder, PositionEncoding, RecurrentEncoder, RecurrentDecoder)
"""Modules with places that stand in no stack."""


def matches(pattern: str, path: str) -> bool:
    """Whether a place is one of a pattern's."""
    parts = re.split(r"(\*\*?)", pattern)
    meant = {"*": "[^.]*", "**": ".*"}
    expression = "".join(meant.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, path) is not None


def intercept_activations(
    change: Change, wanted: Callable[[str], bool] = lambda path: True
) -> contextlib.AbstractContextManager[None]:
    """A context: in models applied inside it, the value [B, *axes] at each wanted place passes
    through `change`. Attention whose weights are wanted is computed plainly, whole rows at once.

    Stacked layers (`nn.layer_scan`) have no places.
    """
    return nn.intercept_methods(_Interceptor(change, wanted))


class _Interceptor:
    """What `nn.intercept_methods` calls around every method of every module."""

    def __init__(self, change: Change, wanted: Callable[[str], bool]) -> None:
        self._change, self._wanted = change, wanted
        self._stacks: dict[str, Array] = {}  # positions [N, T] of the tokens in each stack
        self._tokens: dict[str, tuple[Array, Array]] = {}  # of an attention's queries and keys
        self._attending = ""  # the path of the attention at work

    def __call__(self, method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        module, path = context.module, ".".join(context.module.path)
        begins = isinstance(module, _BEGIN)
        if not begins and not any(path.startswith(f"{stack}.") for stack in self._stacks):
            return method(*args, **kwargs)
        match module, context.method_name:
            case Encoder() | Decoder(), "__call__":
                self._stacks[path] = args[1].positions
                args = self._with_input(path, args, self._stacks[path])
                return self._of_result(path, method(*args, **kwargs), self._stacks[path])
            case RecurrentEncoder(), "__call__":
                self._stacks[path] = positions_in_segments(args[1])
                args = self._with_input(path, args, self._stacks[path])
                return self._of_result(path, method(*args, **kwargs), self._stacks[path])
            case RecurrentDecoder(), "__call__":
                self._stacks[path] = positions_in_segments(args[3])
            case RecurrentLayer(), "__call__":
                return self._of_result(path, method(*args, **kwargs), self._stack_of(path))
            case SourceAttention(), "weigh":
                return self._at(f"{path}.weights", WEIGHTS, args[0], {}, fixed=True)
            case EncoderLayer() | DecoderLayer(), "__call__":
                result = method(*args, **kwargs)
                return self._of_result(path, result, self._stack_of(path), off=args[0])
            case MultiHeadAttention(), "self_attend" | "cross_attend":
                args = self._with_input(path, args, self._stack_of(path))
                return method(*args, **kwargs)
            case MultiHeadAttention(), "attend":
                return self._attend(path, method, args, kwargs)
            case MultiHeadAttention(), "weights_are_wanted":
                wanted = self._wanted(f"{path}.weights") or self._wanted(f"{path}.logit_bias")
                return method(*args, **kwargs) or wanted
            case MultiHeadAttention(), "weigh":
                query, key = self._tokens[path]
                positions = {"query": query, "key": key}
                return self._at(f"{path}.weights", WEIGHTS, method(*args, **kwargs), positions)
            case MultiHeadAttention(), "combine":
                heads = method(*args, **kwargs)
                return self._of_heads(f"{path}.heads", heads, self._tokens[path][0])
            case FeedForward(), "__call__":
                args = self._with_input(path, args, self._stack_of(path))
                return self._of_result(path, method(*args, **kwargs), self._stack_of(path))
            case Linear(), "__call__" if path.endswith("feed_forward.outer"):
                path = path.replace(".outer", ".hidden")
                positions = {"position": self._stack_of(path)}
                hidden = self._at(path, ("position", "neuron"), args[0], positions)
                return method(hidden, *args[1:], **kwargs)
            case Residual(), "after":
                return self._of_result(path, method(*args, **kwargs), self._stack_of(path))
            case PositionEncoding(), "embed":
                args = self._with_input(path, args, args[1])
                return self._of_result(path, method(*args, **kwargs), args[1])
            case PositionEncoding(), "logit_bias" if self._attending:
                return self._logit_bias(method(*args, **kwargs))
        return method(*args, **kwargs)

    def _attend(self, path: str, method: Callable, args: tuple, kwargs: dict) -> Any:
        """Attention: queries, keys and values on their way in, and what comes out."""
        inputs: AttentionInputs = args[0]
        query, key = inputs.query_positions, inputs.key_positions
        if query is None or key is None:  # attention to the encoder
            rows = inputs.query.shape[:2]
            query, key = self._stack_of(path).reshape(rows), self._source(inputs.key)
        self._tokens[path], self._attending = (query, key), path
        inputs = inputs.replace(
            query=self._of_heads(f"{path}.queries", inputs.query, query),
            key=self._of_heads(f"{path}.keys", inputs.key, key),
            value=self._of_heads(f"{path}.values", inputs.value, key),
        )
        result = method(inputs, *args[1:], **kwargs)
        self._attending = ""
        return self._of_result(path, result, query)

    def _logit_bias(self, bias: Array | None) -> Array | None:
        """What the positions add in the attention that is at work."""
        if bias is None:
            return None
        query, key = self._tokens[self._attending]
        positions = {"query": query, "key": key}
        return self._at(f"{self._attending}.logit_bias", WEIGHTS, bias, positions)

    def _source(self, key: Array) -> Array:
        """Positions of the encoder's output; in a search, where each row is one sentence, and the
        encoder is not called, those of its slots."""
        slots = jnp.broadcast_to(jnp.arange(key.shape[1]), key.shape[:2])
        return self._stacks.get("encoder", slots)

    def _stack_of(self, path: str) -> Array:
        return next(self._stacks[stack] for stack in self._stacks if path.startswith(f"{stack}."))

    def _with_input(self, path: str, args: tuple, positions: Array) -> tuple:
        x = self._at(f"{path}.input", STREAM, args[0], {"position": positions})
        return x, *args[1:]

    def _of_result(self, path: str, result: Any, positions: Array, off: Any = 0.0) -> Any:
        """A module's output, which may stand first in a tuple."""
        x = result[0] if isinstance(result, tuple) else result
        x = self._at(path, STREAM, x, {"position": positions}, off)
        return (x, *result[1:]) if isinstance(result, tuple) else x

    def _of_heads(self, path: str, x: Array, positions: Array) -> Array:
        """[B, T, H, K], seen as [B, H, T, K]."""
        x = self._at(path, HEADS, x.swapaxes(1, 2), {"position": positions})
        return x.swapaxes(1, 2)

    def _at(
        self,
        path: str,
        axes: tuple[str, ...],
        x: Array,
        positions: Mapping[str, Array],
        off: Any = 0.0,
        fixed: bool = False,
    ) -> Array:
        if not self._wanted(path):
            return x
        return self._change(HookPoint(path, axes, positions, off, fixed), x).astype(x.dtype)
