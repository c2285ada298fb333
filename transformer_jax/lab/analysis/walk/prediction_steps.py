# SPDX-License-Identifier: Apache-2.0
"""Steps from the last features to a prediction: logits, the most likely outputs, and decoding.

Decoding feeds the text token by token to the model's `prefill` and `decode_step`, with its cache.
H heads, G heads of keys and values, L slots, K key size of a head, S source tokens, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import softmax

from transformer_jax.inference.batches import unpad
from transformer_jax.lab.analysis.activations import LOGITS, keep_activations
from transformer_jax.lab.analysis.walk.step import Axis, Part, Trace, WalkStep, quoted, step
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
    group = ("prediction",)
    if isinstance(trace.model, TextClassifier):
        yield _table(trace, "classes", group, logits[0], "for the text")
        return
    if isinstance(trace.model, TokenClassifier):
        for i, row in enumerate(logits):
            place = f"for {trace.token(stack, i)}"
            code = TokenClassifier.__call__
            yield _table(trace, "classes", (*group, f"token {i}"), row, place, code=code)
        return
    part = dataclasses.replace(trace.part(stack), group=group)
    if "prediction_head" in trace.params:  # BERT's, between the last layer and the embeddings
        program = jax.jit(lambda p, x: apply_model(trace.model, p, *x, method="unprojected").x)
        features = np.asarray(hosts.to_host(program(trace.params, trace.reading.inputs)))
        head = features[0, : len(ids)]  # without padding
        yield part.step("prediction_head", head, activation=trace.config.activation)
    yield _logits_step(part)
    if stack == "decoder":
        yield _table(trace, "next", group, logits[-1], f"after {trace.token(stack, len(ids) - 1)}")
    elif not isinstance(trace.outputs, Labels):
        for i in np.flatnonzero(ids == trace.outputs.specials.mask).tolist():
            place = f"at position {i}, which is {trace.token(stack, i)}"
            yield _table(trace, "filled", (*group, f"place {i}"), logits[i], place)


def _table(
    trace: Trace,
    kind: str,
    group: tuple[str, ...],
    logits: np.ndarray,
    place: str,
    more: str = "",
    code: Any = None,
) -> WalkStep:
    """The most likely outputs with logit and probability [N, 2].

    Args:
      logits: [V].
      place: location of the prediction, a part of a sentence.
      more: further sentences.
      code: as of `step`.
    """
    probabilities = softmax(logits.astype(np.float64))
    best = np.argsort(-probabilities, kind="stable")[:NUM_SHOWN]
    names = tuple(trace.name_of(int(i)) for i in best)
    values = np.stack([logits[best], probabilities[best]], axis=1)
    axes = (Axis("candidate", names), Axis("number", ("logit", "probability")))
    words = {"count": len(logits), "best": quoted(names[0]), "place": place, "more": more}
    share = f"{probabilities[best[0]]:.1%}"
    return step(kind, group, values, axes, (0, 1), code=code, share=share, **words)


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
    words: dict[str, Any] = {"formula": f"z = {formula}", "matrix": matrix}
    words |= {"highest": logits[part.index, best], "best": quoted(trace.name_of(best))}
    axis = Axis("vocabulary entry", tuple(map(trace.name_of, range(logits.shape[1]))))
    return part.step("logits", logits, axis, best, **words)


def decoding_steps(trace: Trace) -> Iterator[WalkStep]:
    """Steps for each token that the decoder reads; none if the model does not generate."""
    if not hasattr(trace.model, "decode_step") or trace.reading.last_stack != "decoder":
        return
    for index, (logits, state, weights) in enumerate(_decode(trace)):
        token = quoted(trace.reading.pieces["decoder"][index])
        group = ("decoding", f"token {index}, {token}")
        layers = range(len(state))
        classes = [attention_class(trace.config.of_layer(i)) for i in layers]
        with_keys = [i for i in layers if classes[i] is MultiHeadAttention]
        if with_keys:
            cached = unpad(state[with_keys[0]], 1).keys[0, :, :, 0]
            yield _cache_step(trace, group, index, cached.astype(np.float32), with_keys)
        source = len(trace.reading.tokens.get("encoder", ()))
        # Of the slots of a cache, those that are filled.
        for kind, name, keys in (("past", "self", index + 1), ("source", "cross", source)):
            paths = [f"decoder.layer_{i}.{name}_attention.weights" for i in layers]
            by_layer = [weights[path][0, :, 0, :keys] for path in paths if path in weights]
            if by_layer:
                yield _weights_step(trace, group, kind, index, np.stack(by_layer))
        more = _continuation(trace, index, logits)
        yield _table(trace, "next", group, logits, f"after {token}", more)


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


def _cache_step(
    trace: Trace, group: tuple[str, ...], index: int, keys: np.ndarray, layers: Sequence[int]
) -> WalkStep:
    heads, slots, size = keys.shape
    length = index + 1
    empty = [f"slot {i}" for i in range(length, slots)]
    labels = (*trace.reading.pieces["decoder"][:length], *empty)
    words: dict[str, Any] = {"token": trace.token("decoder", index), "index": index}
    words |= {"length": length, "heads": heads, "slots": slots, "size": size}
    words |= {"layers": len(layers), "layer": layers[0]}
    axes = ("head", Axis("slot", labels), "feature")
    return step("cache", group, keys, axes, (0, index), **words)


def _weights_step(
    trace: Trace, group: tuple[str, ...], kind: str, index: int, weights: np.ndarray
) -> WalkStep:
    stack = "decoder" if kind == "past" else "encoder"
    key = int(weights[-1, 0].argmax())
    labels = tuple(trace.reading.pieces[stack][: weights.shape[2]])
    words: dict[str, Any] = {"token": trace.token("decoder", index), "length": index + 1}
    words |= {"share": f"{weights[-1, 0, key]:.1%}", "key": trace.token(stack, key)}
    axes = ("layer", "head", Axis("key", labels))
    return step(kind, group, weights, axes, (len(weights) - 1, 0, key), **words)


def _continuation(trace: Trace, index: int, logits: np.ndarray) -> str:
    """The next token of the text and its rank, as a sentence."""
    tokens = trace.reading.tokens["decoder"][1:]
    # The decoder predicts the token that ends the text, but does not read it.
    following = [*tokens, *(trace.reading.outputs or ())[len(tokens) :]]
    if index >= len(following):
        return " The text ends here."
    rank = int((logits > logits[following[index]]).sum())
    likely = "the most likely token" if not rank else f"number {rank + 1} by probability"
    return f" The text continues with {quoted(trace.name_of(following[index]))}, {likely}."
