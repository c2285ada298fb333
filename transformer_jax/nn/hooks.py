# SPDX-License-Identifier: Apache-2.0
"""Hook points: named values inside a model, which callers can read or change.

The path of a module, such as "encoder.layer_0" or "decoder.layer_1.cross_attention", names its
output; a suffix names a value inside it:

    STACK.input                    embedded tokens, the stack's input
    STACK                          the stack's output, after the final norm
    STACK.layer_I                  residual stream after a layer
    ....self_attention             sublayer's output before the residual; also cross_attention
    ....self_attention.input       sublayer's input, after the norm if that comes first
    ....self_attention.queries     [head, query, feature], after rotation; also keys, values
    ....self_attention.logit_bias  [head, query, key], added to the scaled products by positions
    ....self_attention.weights     [head, query, key]
    ....self_attention.heads       [head, query, feature], outputs of the heads
    ....feed_forward               sublayer's output; also feed_forward.input
    ....feed_forward.hidden        [position, neuron], after the activation
    ...._residual                  residual stream after a sublayer
    ..._positions                  embedded tokens plus positions; ..._positions.input without them

Values without axes here are [position, feature]; every array has a leading batch axis. A recurrent
encoder has `encoder`, `encoder.input` and the outputs of its layers; a recurrent decoder has
`decoder.cross_attention.weights`, which is read-only.

In a pattern, * matches anything between two dots and ** matches anything.
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
from transformer_jax.nn.masks import positions_in_segments
from transformer_jax.nn.positions import PositionEncoding
from transformer_jax.nn.recurrent.attention import SourceAttention
from transformer_jax.nn.recurrent.decoder import RecurrentDecoder
from transformer_jax.nn.recurrent.encoder import RecurrentEncoder, RecurrentLayer
from transformer_jax.nn.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer, Residual

STREAM = ("position", "feature")
HEADS = ("head", "position", "feature")
WEIGHTS = ("head", "query", "key")


@dataclasses.dataclass(frozen=True)
class HookPoint:
    """A named value inside a model.

    Attributes:
      path: its name.
      axes: names of its axes after the batch axis.
      positions: for each axis that counts tokens, their positions [B, T] in their sentences.
      off_value: value that remains if it is switched off (`models.patches`).
      read_only: the model has used the value already, so that a change has no effect.
    """

    path: str
    axes: tuple[str, ...]
    positions: Mapping[str, Int[Array, "B T"]]
    off_value: Any = 0.0
    read_only: bool = False


Change = Callable[[HookPoint, Array], Array]
"""(hook point, value [B, *axes]) -> new value of the same shape."""

_ENTRIES = (Encoder, Decoder, PositionEncoding, RecurrentEncoder, RecurrentDecoder)
"""Modules whose hook points are not inside an enclosing stack."""


def matches_pattern(pattern: str, path: str) -> bool:
    """Returns True if the path of a hook point matches a pattern."""
    parts = re.split(r"(\*\*?)", pattern)
    wildcards = {"*": "[^.]*", "**": ".*"}
    expression = "".join(wildcards.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, path) is not None


def intercept_activations(
    change: Change, wanted: Callable[[str], bool] = lambda path: True
) -> contextlib.AbstractContextManager[None]:
    """Context: inside, models pass the value at each wanted hook point through `change`.

    Attention whose weights are wanted is computed by the plain function, on whole rows. Stacked
    layers (`nn.layer_scan`) have no hook points.

    Args:
      change: reads a value, and returns it or another one.
      wanted: selects hook points by their paths.
    """
    return nn.intercept_methods(_Interceptor(change, wanted))


class _Interceptor:
    """Interceptor of all methods of all modules, for `nn.intercept_methods`."""

    def __init__(self, change: Change, wanted: Callable[[str], bool]) -> None:
        self._change, self._wanted = change, wanted
        self._stacks: dict[str, Array] = {}  # token positions [N, T] of each stack
        # Positions of queries and keys, by the path of the attention.
        self._attention_positions: dict[str, tuple[Array, Array]] = {}
        self._current_attention = ""  # path of the attention that is being computed

    def __call__(self, method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        module, path = context.module, ".".join(context.module.path)
        is_entry = isinstance(module, _ENTRIES)
        if not is_entry and not any(path.startswith(f"{stack}.") for stack in self._stacks):
            return method(*args, **kwargs)
        match module, context.method_name:
            case Encoder() | Decoder(), "__call__":
                self._stacks[path] = args[1].positions
                args = self._with_input(path, args, self._stacks[path])
                return self._on_result(path, method(*args, **kwargs), self._stacks[path])
            case RecurrentEncoder(), "__call__":
                self._stacks[path] = positions_in_segments(args[1])
                args = self._with_input(path, args, self._stacks[path])
                return self._on_result(path, method(*args, **kwargs), self._stacks[path])
            case RecurrentDecoder(), "__call__":
                self._stacks[path] = positions_in_segments(args[3])
            case RecurrentLayer(), "__call__":
                return self._on_result(path, method(*args, **kwargs), self._stack_of(path))
            case SourceAttention(), "weigh":
                return self._hook(f"{path}.weights", WEIGHTS, args[0], {}, read_only=True)
            case EncoderLayer() | DecoderLayer(), "__call__":
                result = method(*args, **kwargs)
                return self._on_result(path, result, self._stack_of(path), off_value=args[0])
            case MultiHeadAttention(), "self_attend" | "cross_attend":
                args = self._with_input(path, args, self._stack_of(path))
                return method(*args, **kwargs)
            case MultiHeadAttention(), "attend":
                return self._attend(path, method, args, kwargs)
            case MultiHeadAttention(), "needs_inputs":
                return any(self._wanted(f"{path}.{of}") for of in ("queries", "keys", "values"))
            case MultiHeadAttention(), "needs_weights":
                wanted = self._wanted(f"{path}.weights") or self._wanted(f"{path}.logit_bias")
                return method(*args, **kwargs) or wanted
            case MultiHeadAttention(), "weigh":
                query, key = self._attention_positions[path]
                positions = {"query": query, "key": key}
                return self._hook(f"{path}.weights", WEIGHTS, method(*args, **kwargs), positions)
            case MultiHeadAttention(), "combine":
                heads = method(*args, **kwargs)
                return self._on_heads(f"{path}.heads", heads, self._attention_positions[path][0])
            case FeedForward(), "__call__":
                args = self._with_input(path, args, self._stack_of(path))
                return self._on_result(path, method(*args, **kwargs), self._stack_of(path))
            case Linear(), "__call__" if path.endswith("feed_forward.outer"):
                path = path.replace(".outer", ".hidden")
                positions = {"position": self._stack_of(path)}
                hidden = self._hook(path, ("position", "neuron"), args[0], positions)
                return method(hidden, *args[1:], **kwargs)
            case Residual(), "after":
                return self._on_result(path, method(*args, **kwargs), self._stack_of(path))
            case PositionEncoding(), "embed":
                args = self._with_input(path, args, args[1])
                return self._on_result(path, method(*args, **kwargs), args[1])
            case PositionEncoding(), "logit_bias" if self._current_attention:
                return self._on_logit_bias(method(*args, **kwargs))
        return method(*args, **kwargs)

    def _attend(self, path: str, method: Callable, args: tuple, kwargs: dict) -> Any:
        """Hook points of an attention's queries, keys and values, and of its output."""
        inputs: AttentionInputs = args[0]
        query, key = inputs.query_positions, inputs.key_positions
        if query is None or key is None:  # cross-attention
            rows = inputs.query.shape[:2]
            query, key = self._stack_of(path).reshape(rows), self._source_positions(inputs.key)
        self._attention_positions[path], self._current_attention = (query, key), path
        inputs = inputs.replace(
            query=self._on_heads(f"{path}.queries", inputs.query, query),
            key=self._on_heads(f"{path}.keys", inputs.key, key),
            value=self._on_heads(f"{path}.values", inputs.value, key),
        )
        result = method(inputs, *args[1:], **kwargs)
        self._current_attention = ""
        return self._on_result(path, result, query)

    def _on_logit_bias(self, bias: Array | None) -> Array | None:
        """Hook point of the bias in the attention that is being computed."""
        if bias is None:
            return None
        query, key = self._attention_positions[self._current_attention]
        positions = {"query": query, "key": key}
        return self._hook(f"{self._current_attention}.logit_bias", WEIGHTS, bias, positions)

    def _source_positions(self, key: Array) -> Array:
        """Positions of the source tokens. A search does not call the encoder, and its rows are one
        sentence each, so that positions are the indices of keys."""
        slots = jnp.broadcast_to(jnp.arange(key.shape[1]), key.shape[:2])
        return self._stacks.get("encoder", slots)

    def _stack_of(self, path: str) -> Array:
        return next(self._stacks[stack] for stack in self._stacks if path.startswith(f"{stack}."))

    def _with_input(self, path: str, args: tuple, positions: Array) -> tuple:
        x = self._hook(f"{path}.input", STREAM, args[0], {"position": positions})
        return x, *args[1:]

    def _on_result(self, path: str, result: Any, positions: Array, off_value: Any = 0.0) -> Any:
        """Hook point of a module's output, which may be the first element of a tuple."""
        x = result[0] if isinstance(result, tuple) else result
        x = self._hook(path, STREAM, x, {"position": positions}, off_value)
        return (x, *result[1:]) if isinstance(result, tuple) else x

    def _on_heads(self, path: str, x: Array, positions: Array) -> Array:
        """Hook point of x [B, T, H, K], as [B, H, T, K]."""
        x = self._hook(path, HEADS, x.swapaxes(1, 2), {"position": positions})
        return x.swapaxes(1, 2)

    def _hook(
        self,
        path: str,
        axes: tuple[str, ...],
        x: Array,
        positions: Mapping[str, Array],
        off_value: Any = 0.0,
        read_only: bool = False,
    ) -> Array:
        if not self._wanted(path):
            return x
        return self._change(HookPoint(path, axes, positions, off_value, read_only), x).astype(
            x.dtype
        )
