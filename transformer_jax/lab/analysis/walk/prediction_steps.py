# SPDX-License-Identifier: Apache-2.0
"""Steps from the last features to a prediction: logits, the most likely outputs, and decoding.

Decoding feeds the text token by token to the model's `prefill` and `decode_step`, with its cache.
H heads, G heads of keys and values, L slots, K key size of a head, S source tokens, V vocabulary.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import softmax

from transformer_jax.inference.batches import unpad
from transformer_jax.lab.analysis.activations import LOGITS, keep_activations, names_of
from transformer_jax.lab.analysis.walk.step import Axis, Part, Trace, WalkStep, quoted
from transformer_jax.models import apply_method, apply_model
from transformer_jax.models.classifier import TextClassifier, TokenClassifier
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.layers import attention_class
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import place_like, round_up_rows
from transformer_jax.runtime import platform
from transformer_jax.tokenization import Labels

NUM_SHOWN = 5
"""Number of outputs in a table."""


def prediction_steps(trace: Trace) -> Iterator[WalkStep]:
    """Steps from the last features to the most likely outputs."""
    stack = trace.reading.last_stack
    ids = np.array(trace.reading.tokens[stack])
    logits = trace.values[LOGITS]
    part = trace.part(stack, "prediction")
    if isinstance(trace.model, TextClassifier):
        yield _table(part, "classes", logits[0], "for the text")
        return
    if isinstance(trace.model, TokenClassifier):
        for i, row in enumerate(logits):
            token = part.inside(f"token {i}", i)
            yield _table(token, "classes", row, f"for {token.token}", code=TokenClassifier.__call__)
        return
    if "prediction_head" in trace.params:  # BERT's, between the last layer and the embeddings
        program = jax.jit(lambda p, x: apply_model(trace.model, p, *x, method="unprojected").x)
        features = np.asarray(hosts.to_host(program(trace.params, trace.reading.inputs)))
        features = features[0, : len(ids)]  # without padding
        yield part.vectors("prediction_head", features, activation=trace.config.activation)
    yield _logits_step(part)
    if stack == "decoder":
        yield _table(part, "next", logits[-1], f"after {trace.token(stack, len(ids) - 1)}")
    elif not isinstance(trace.outputs, Labels):
        for i in np.flatnonzero(ids == trace.outputs.specials.mask).tolist():
            masked = part.inside(f"place {i}", i)
            place = f"at position {i}, which is {masked.token}"
            yield _table(masked, "filled", logits[i], place)


def _table(
    part: Part, kind: str, logits: np.ndarray, place: str, more: str = "", code: Any = None
) -> WalkStep:
    """The most likely outputs with logit and probability [N, 2].

    Args:
      logits: [V].
      place: location of the prediction, a part of a sentence.
      more: further sentences.
      code: as of `Part.step`.
    """
    probabilities = softmax(logits.astype(np.float64))
    best = np.argsort(-probabilities, kind="stable")[:NUM_SHOWN]
    names = tuple(names_of(part.trace.outputs, best.tolist()))
    values = np.stack([logits[best], probabilities[best]], axis=1)
    axes = (Axis("candidate", names), Axis("number", ("logit", "probability")))
    words = {"count": len(logits), "best": quoted(names[0]), "place": place, "more": more}
    return part.step(kind, values, axes, (0, 1), code=code, **words)


def _logits_step(part: Part) -> WalkStep:
    trace = part.trace
    c = trace.config
    logits = trace.values[LOGITS]
    tied = c.tie_embeddings in ("all", "target")
    formula = f"x {'E' if tied else 'U'}^T"
    if c.scale_logits:
        formula = f"({formula})/√(d_model)"
    if c.logits_bias or "prediction_head" in trace.params:
        formula += " + c"
    if c.final_logit_cap:
        formula = f"k tanh(({formula})/k)"
    best = int(logits[part.index].argmax())
    matrix = "rows of the embedding matrix E again" if tied else "rows of an output matrix U"
    names = names_of(trace.outputs, range(logits.shape[1]))
    words = {"formula": f"z = {formula}", "matrix": matrix, "best": quoted(names[best])}
    axis = Axis("vocabulary entry", tuple(names))
    return part.vectors("logits", logits, axis, [best], **words)


def decoding_steps(trace: Trace) -> Iterator[WalkStep]:
    """Steps for each token that the decoder reads; none if the model does not generate."""
    if not hasattr(trace.model, "decode_step") or trace.reading.last_stack != "decoder":
        return
    decoding = trace.part("decoder", "decoding")
    for index, (logits, state, weights) in enumerate(_decode(trace)):
        token = quoted(trace.reading.pieces["decoder"][index])
        part = decoding.inside(f"token {index}, {token}", index)
        layers = range(len(state))
        classes = [attention_class(trace.config.of_layer(i)) for i in layers]
        with_keys = [i for i in layers if classes[i] is MultiHeadAttention]
        if with_keys:
            keys = unpad(state[with_keys[0]], 1).keys[0, :, :, 0]
            yield _cache_step(part, keys.astype(np.float32), with_keys)
        num_source = len(trace.reading.tokens.get("encoder", ()))
        # Of the slots of a cache, those that are filled.
        for kind, name, num_keys in (("past", "self", index + 1), ("source", "cross", num_source)):
            paths = [f"decoder.layer_{i}.{name}_attention.weights" for i in layers]
            by_layer = [weights[path][0, :, 0, :num_keys] for path in paths if path in weights]
            if by_layer:
                yield _weights_step(part, kind, np.stack(by_layer))
        yield _table(part, "next", logits, f"after {token}", _continuation(trace, index, logits))


def _decode(trace: Trace) -> Iterator[tuple[np.ndarray, Sequence[Any], dict[str, np.ndarray]]]:
    """Feeds the decoder's tokens to the model one at a time, with its cache.

    Yields:
      For each token the logits [V] of the next one, the state of each layer, and attention weights
      [1, H, 1, S] by path.
    """
    tokens = trace.reading.tokens["decoder"]
    inputs = trace.reading.inputs
    rows = round_up_rows(1, trace.params)

    def on_devices(*values: Any) -> Any:
        return place_like(trace.params, tuple(np.repeat(value, rows, axis=0) for value in values))

    # A prefix of one token, and its length; before them the source, and its length.
    prompt: tuple[np.ndarray, ...] = (np.array([tokens[:1]], np.int32), np.ones(1, np.int32))
    if "encoder" in trace.reading.tokens:
        prompt = (inputs[0], np.array([len(trace.reading.tokens["encoder"])], np.int32), *prompt)
    slots = inputs[-1].shape[1]
    prefill = _program(trace.model, "prefill", slots)
    (logits, memory, state), weights = prefill(trace.params, *on_devices(*prompt))
    yield unpad(logits, 1)[0].astype(np.float32), state, unpad(weights, 1)
    decode_step = _program(trace.model, "decode_step")
    for token in tokens[1:]:
        new = on_devices(np.array([token], np.int32))
        (logits, state), weights = decode_step(trace.params, *new, memory, state)
        yield unpad(logits, 1)[0].astype(np.float32), state, unpad(weights, 1)


@functools.lru_cache(maxsize=16)
def _program(model: Any, method: str, *options: Any) -> Callable[..., Any]:
    """Compiles a method of a model that also returns the decoder's attention weights by path."""

    def run(params: Any, *inputs: Any) -> Any:
        with keep_activations(["decoder.**.weights"], {}) as weights:
            return apply_method(model, params, method, *inputs, *options), weights

    return jax.jit(run, compiler_options=platform.compiler_options())


def _cache_step(part: Part, keys: np.ndarray, layers: Sequence[int]) -> WalkStep:
    heads, slots, _ = keys.shape
    length = part.index + 1
    empty = [f"slot {i}" for i in range(length, slots)]
    labels = (*part.trace.reading.pieces["decoder"][:length], *empty)
    axes = ("head", Axis("slot", labels), "feature")
    words = {"length": length, "heads": heads, "slots": slots}
    words |= {"layers": len(layers), "layer": layers[0]}
    return part.step("cache", keys, axes, (0, part.index), **words)


def _weights_step(part: Part, kind: str, weights: np.ndarray) -> WalkStep:
    stack = "decoder" if kind == "past" else "encoder"
    key = int(weights[-1, 0].argmax())
    labels = part.trace.reading.pieces[stack][: weights.shape[2]]
    axes = ("layer", "head", Axis("key", tuple(labels)))
    words = {"length": part.index + 1, "key": part.trace.token(stack, key)}
    return part.step(kind, weights, axes, (len(weights) - 1, 0, key), **words)


def _continuation(trace: Trace, index: int, logits: np.ndarray) -> str:
    """The next token of the text and its rank, as a sentence."""
    targets = list(trace.reading.tokens["decoder"][1:])
    # The token that ends the text is predicted, but never read.
    targets += (trace.reading.outputs or ())[len(targets) :]
    if index >= len(targets):
        return " The text ends here."
    rank = int((logits > logits[targets[index]]).sum())
    likely = "the most likely token" if not rank else f"number {rank + 1} by probability"
    (name,) = names_of(trace.outputs, [targets[index]])
    return f" The text continues with {quoted(name)}, {likely}."
