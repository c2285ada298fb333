# SPDX-License-Identifier: Apache-2.0
"""Activations of a model for one example: attention, and the residual stream with its logit lens.

L layers, H heads, G heads of keys and values, T queries or tokens, S keys, K key size of a head,
D model, V vocabulary.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_jax.errors import UserError
from transformer_jax.inference.batches import unpad
from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.lab.analysis.attention_page import attention_page
from transformer_jax.lab.analysis.pages import frame
from transformer_jax.models import apply_model
from transformer_jax.models.classifier import body_config
from transformer_jax.nn.hooks import HookPoint, intercept_activations, matches_pattern
from transformer_jax.nn.transformer import MergedBlock, block_class
from transformer_jax.parallel.sharding import place_like, round_up_rows
from transformer_jax.runs.run import Run
from transformer_jax.runtime import platform
from transformer_jax.summary import Summarized, shape
from transformer_jax.tasks.interface import Prediction
from transformer_jax.tokenization import Labels, Tokenizer

LOGITS = "logits"
"""Name of the model's output among the collected activations."""


def collect(
    model: Any, params: Any, reading: ModelInputs, patterns: Sequence[str]
) -> dict[str, np.ndarray]:
    """Activations by path in one pass, float32, without batch axis and padding.

    Args:
      model: a Flax module that takes `reading.inputs`.
      params: its parameters, on the devices that compute.
      patterns: patterns of hook points (`nn.hooks`), such as "**.weights". The model's output is
        always included, as `LOGITS`.
    """
    program, axes = _program(model, tuple(patterns))
    rows = round_up_rows(1, params)
    inputs = jax.tree.map(lambda x: np.repeat(x, rows, axis=0), reading.inputs)
    # The first call traces the program, which fills `axes`.
    activations = unpad(program(params, place_like(params, inputs)), 1)
    return {path: _cut(path, value[0], axes, reading) for path, value in activations.items()}


@contextlib.contextmanager
def keep_activations(
    patterns: Sequence[str], axes: dict[str, tuple[str, ...]]
) -> Iterator[dict[str, jax.Array]]:
    """Context that gathers the activations of a model by path, and their axes in `axes`."""
    activations: dict[str, jax.Array] = {}

    def keep(point: HookPoint, x: jax.Array) -> jax.Array:
        axes[point.path] = point.axes
        activations[point.path] = x
        return x

    def matches(path: str) -> bool:
        return any(matches_pattern(pattern, path) for pattern in patterns)

    with intercept_activations(keep, matches):
        yield activations


@functools.lru_cache(maxsize=16)
def _program(
    model: Any, patterns: tuple[str, ...]
) -> tuple[Callable[..., dict[str, jax.Array]], dict[str, tuple[str, ...]]]:
    """Compiles (params, inputs) -> activations; tracing it fills the second result, their axes."""
    axes: dict[str, tuple[str, ...]] = {LOGITS: ("position",)}

    def collected(params: Any, inputs: Sequence[jax.Array]) -> dict[str, jax.Array]:
        with keep_activations(patterns, axes) as activations:
            logits = apply_model(model, params, *inputs)
        activations |= {LOGITS: logits}
        return jax.tree.map(lambda x: x.astype(jnp.float32), activations)

    return jax.jit(collected, compiler_options=platform.compiler_options()), axes


def _cut(
    path: str, value: np.ndarray, axes: dict[str, tuple[str, ...]], reading: ModelInputs
) -> np.ndarray:
    """Removes padding from an activation."""
    for i, axis in enumerate(axes[path]):
        if axis in ("position", "query", "key"):
            # A classifier's logits are of one position, whatever the number of tokens.
            tokens = np.arange(value.shape[i])[: len(reading.tokens[stack_of(path, axis, reading)])]
            source, target = reading.inputs[0].shape[1], reading.inputs[-3].shape[1]
            if "encoder" in reading.tokens and value.shape[i] == target + source:
                # In a merged block the keys of the source follow those of the target.
                tokens = np.r_[tokens, target : target + len(reading.tokens["encoder"])]
            value = np.take(value, tokens, axis=i)
    return value


def stack_of(path: str, axis: str, reading: ModelInputs) -> str:
    """Stack whose tokens an axis of the activation of a path counts."""
    if "cross_attention" in path and (axis == "key" or path.endswith((".keys", ".values"))):
        return "encoder"
    first = path.partition(".")[0].replace("source_positions", "encoder")
    return first if first in reading.tokens else reading.last_stack


NUM_TOKENS = 5
"""Number of tokens kept for each position of a model that predicts tokens; of labels, all are."""


class Predicted(NamedTuple):
    """Prediction at a position, or for the whole text.

    Attributes:
      position: position in the last stack; None: the whole text.
      outputs: likeliest tokens or labels with their probabilities, best first.
      gold: the right label, if it is given.
    """

    position: int | None
    outputs: tuple[Prediction, ...]
    gold: str | None = None


class Predictions(NamedTuple):
    """Predictions for an example; `kind` is "next token", "masked token" or "label"."""

    kind: str
    by_position: tuple[Predicted, ...]


def find_predictions(
    reading: ModelInputs, logits: np.ndarray, outputs: Tokenizer | Labels
) -> Predictions:
    """Predictions from logits of the last stack [T, V], or of a text classifier [1, C]."""
    tokens = reading.tokens[reading.last_stack]
    positions: Sequence[int | None]  # at which the task reads the output
    if isinstance(outputs, Labels):
        kind = "label"
        positions = [None] if reading.labeled is None else reading.labeled
    elif reading.last_stack == "decoder":
        kind = "next token"
        positions = range(len(tokens))
    else:
        kind = "masked token"
        positions = [i for i, token in enumerate(tokens) if token == outputs.specials.mask]
    gold: Sequence[str | None] = reading.gold or [None] * len(positions)
    probabilities = np.asarray(jax.nn.softmax(logits))
    predictions = (
        Predicted(position, _likeliest(probabilities[position or 0], outputs), label)
        for position, label in zip(positions, gold, strict=True)
    )
    return Predictions(kind, tuple(predictions))


def _likeliest(probabilities: np.ndarray, outputs: Tokenizer | Labels) -> tuple[Prediction, ...]:
    best = np.argsort(-probabilities, kind="stable")  # of equal ones, the lower id first
    if not isinstance(outputs, Labels):
        best = best[:NUM_TOKENS]
    return tuple(map(Prediction, names_of(outputs, best.tolist()), probabilities[best].tolist()))


def names_of(outputs: Tokenizer | Labels, ids: Sequence[int]) -> list[str]:
    """Pieces of predicted tokens, or names of predicted labels."""
    if isinstance(outputs, Labels):
        return [outputs.names[i] for i in ids]
    return outputs.pieces(ids)


KINDS: Mapping[str, tuple[str, str]] = {
    "encoder": ("encoder", "encoder"),
    "decoder": ("decoder", "decoder"),
    "cross": ("decoder", "encoder"),
}
"""Kinds of attention, each with the stack of its queries and the stack of its keys."""
MERGED = "decoder and encoder"
"""Keys of a decoder whose blocks attend to its past and to the source in one softmax."""


@dataclasses.dataclass(frozen=True, repr=False)
class _Example(Summarized):
    texts: Mapping[str, str]
    tokens: Mapping[str, Sequence[str]]

    def summary(self) -> Mapping[str, Any]:
        """The texts, and the number of tokens of each stack."""
        counts = {f'tokens["{stack}"]': len(pieces) for stack, pieces in self.tokens.items()}
        return {**self.texts, **counts}


@dataclasses.dataclass(frozen=True, repr=False)
class Attention(_Example):
    """Attention of one example in every layer and head.

    Attributes:
      texts: input and output text by name: "source" and "target", or "text".
      tokens: pieces of the tokens by stack: "encoder", "decoder". Those of both are the keys of
        blocks `MERGED`.
      values: collected activations by path, without batch axis, such as
        "encoder.layer_0.self_attention.weights" [H, T, S].
      predictions: predictions of the model at its last stack, if they were asked for.
    """

    values: Mapping[str, np.ndarray]
    predictions: Predictions | None = None

    @property
    def kinds(self) -> list[str]:
        """Kinds of attention that the model has, of `KINDS`."""
        return [kind for kind in KINDS if self._modules(kind)]

    def weights(self, kind: str) -> Float[np.ndarray, "L H T S"]:
        """Attention weights of a kind; each row sums to 1, and masked keys have 0."""
        return self.of(kind, "weights")

    def of(self, kind: str, what: str) -> np.ndarray:
        """Activations of all layers, [L, ...].

        Args:
          kind: kind of attention, of `KINDS`.
          what: "weights" [L, H, T, S] or, if collected, "queries" [L, H, T, K], "keys"
            [L, G, S, K], "values" [L, G, S, V] or "heads" [L, H, T, V], the outputs of the heads.

        Raises:
          KeyError: these were not collected.
          ValueError: the layers have different numbers G of heads; see `by_layer`.
        """
        return np.stack(self.by_layer(kind, what))

    def by_layer(self, kind: str, what: str) -> list[np.ndarray]:
        """Activations of each layer; arguments of `of`, KeyError if these were not collected."""
        paths = [f"{module}.{what}" for module in self._modules(kind).values()]
        if not paths or paths[0] not in self.values:
            raise KeyError(f"no {what} of {kind} attention; there are {', '.join(self.values)}")
        return [self.values[path] for path in paths]

    def layers(self, kind: str) -> list[int]:
        """Numbers of the layers that have attention of a kind; others, such as linear attention,
        have no weights."""
        return list(self._modules(kind))

    def _modules(self, kind: str) -> dict[int, str]:
        """Number of each layer that has weights -> path of its attention. A stack that attends once
        (recurrent decoder) is layer 0."""
        name = "cross_attention" if kind == "cross" else "self_attention"
        path = re.compile(rf"({KINDS[kind][0]}(?:\.layer_(\d+))?\.{name})\.weights")
        matches = filter(None, map(path.fullmatch, self.values))
        return dict(sorted((int(match[2] or 0), match[1]) for match in matches))

    def stacks(self, kind: str) -> tuple[str, str]:
        """Names in `tokens` of the queries and of the keys."""
        queries, keys = KINDS[kind]
        return queries, MERGED if kind == "decoder" and MERGED in self.tokens else keys

    def summary(self) -> Mapping[str, Any]:
        """The texts, the number of tokens, and the shape of each kind of weights."""
        kinds = {f'weights("{kind}")': shape(self.weights(kind)) for kind in self.kinds}
        return {**super().summary(), **kinds}

    def _repr_html_(self) -> str:
        title = next(iter(self.texts.values()), "Attention")
        return frame(attention_page(self, title))


ALSO: Mapping[str, tuple[str, ...]] = {
    **{name: (f"**.{name}",) for name in ("queries", "keys", "values", "heads")},
    "stream": ("*.input", "*.residual", "*.layer_*"),
}
"""Activations that can be collected besides the weights, with their patterns."""


def attention(
    run: Run, source: str, target: str | None = None, also: Collection[str] = ()
) -> Attention:
    """Attention weights of every layer and head, for one example.

    Args:
      source: the example, as for `predict`.
      target: the target of a task on pairs; None: the run's own output. Of a classifier or
        tagger, the gold label, or the words' gold tags, with spaces between.
      also: other activations to collect: "queries", "keys", "values", "heads", "stream", the
        residual stream.

    Raises:
      UserError: a name is not in `ALSO`, or the model has no attention.
    """
    unknown = sorted(set(also) - ALSO.keys())
    if unknown:
        raise UserError(f"attention: also has {unknown[0]!r}; choose from {', '.join(ALSO)}")
    patterns = ("**.weights", *(pattern for name in sorted(also) for pattern in ALSO[name]))
    reading = run.model_inputs(source, target)
    values = collect(run.model, run.params, reading, patterns)
    predictions = find_predictions(reading, values[LOGITS], run.tokenizer.outputs)
    pieces = reading.pieces
    if "encoder" in pieces and issubclass(block_class(body_config(run.model)), MergedBlock):
        pieces = {MERGED: [*pieces["decoder"], *pieces["encoder"]], **pieces}
    collected = Attention(reading.texts, pieces, values, predictions)
    if not collected.kinds:
        raise UserError("attention: this run's model has no layer with attention weights")
    return collected


@dataclasses.dataclass(frozen=True, repr=False)
class Hidden(_Example):
    """Hidden states of one example, layer by layer.

    Attributes:
      texts: input and output text by name, as in `Attention`.
      tokens: pieces of the tokens by stack, as in `Attention`.
      streams: by stack [L + 1, T, ..., D]: embedded tokens as they enter the residual stream, then
        the stream after each layer.
      lens: logit lens [L + 1, T, V]: log P of the next token (masked models: of the token itself)
        if the last stack ended at that layer, i.e. its stream through the final norm and the output
        matrix. The last row is the model's own prediction. Of a classifier [L + 1, 1, C]: log P of
        the classes.
    """

    streams: Mapping[str, Float[np.ndarray, "L1 T ... D"]]
    lens: Float[np.ndarray, "L1 T V"]

    def summary(self) -> Mapping[str, Any]:
        """The texts, the number of tokens, and the shape of each array."""
        streams = {f'streams["{name}"]': shape(array) for name, array in self.streams.items()}
        return {**super().summary(), **streams, "lens": shape(self.lens)}


def hidden(run: Run, source: str, target: str | None = None) -> Hidden:
    """The residual stream after each layer and its logit lens; arguments of `attention`.

    Raises:
      UserError: a stack has no residual stream (recurrent models).
    """
    reading = run.model_inputs(source, target)
    params = run.params
    activations = collect(run.model, params, reading, ALSO["stream"])
    streams = {stack: _stack_stream(activations, stack) for stack in reading.tokens}
    # One row for each depth, with the stream there in place of the last layer's output.
    last_streams = streams[reading.last_stack]
    depth, length, *features = last_streams.shape
    rows = round_up_rows(depth, params)
    width = reading.inputs[-2].shape[1]  # a classifier's last input is its texts, not a row
    padded = np.zeros((rows, width, *features), last_streams.dtype)
    padded[:depth, :length] = last_streams
    inputs = [np.repeat(x, rows, axis=0) for x in reading.inputs]
    program = _hidden_program(run.model, f"{reading.last_stack}.layer_{depth - 2}")
    logits = unpad(program(params, *place_like(params, (padded, inputs))), depth)[:, :length]
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    return Hidden(reading.texts, reading.pieces, streams, log_probs)


def _stack_stream(activations: Mapping[str, np.ndarray], stack: str) -> np.ndarray:
    if f"{stack}.input" not in activations:
        raise UserError(f"hidden: this model's {stack} has no residual stream")
    # A stream of another shape than the embedded tokens, such as one of several residuals, begins
    # at a hook point of its own.
    first = f"{stack}.residual" if f"{stack}.residual" in activations else f"{stack}.input"
    streams = [activations[first]]
    while (path := f"{stack}.layer_{len(streams) - 1}") in activations:
        streams.append(activations[path])
    return np.stack(streams)


@functools.lru_cache(maxsize=16)
def _hidden_program(model: Any, path: str) -> Callable[..., jax.Array]:
    def logits(params: Any, streams: jax.Array, inputs: Sequence[jax.Array]) -> jax.Array:
        with intercept_activations(lambda point, x: streams, lambda point: point == path):
            return apply_model(model, params, *inputs).astype(jnp.float32)

    return jax.jit(logits, compiler_options=platform.compiler_options())
