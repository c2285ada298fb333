# SPDX-License-Identifier: Apache-2.0
"""Oracles of the forward pass: packing, cached decoding, causality, bfloat16.

B rows, K beams of a row, N = B K hypotheses, T tokens, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.decoding.interface import reorder_state
from transformer_jax.errors import UserError
from transformer_jax.lab.verification.outcomes import (
    BITS,
    Comparison,
    DoesNotApplyError,
    compare_places,
    compare_trees,
)
from transformer_jax.lab.verification.subject import VOCAB, Subject
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.nn.embeddings import intercept_embeddings
from transformer_jax.tasks.interface import ability

BFLOAT16 = 0.1
"""Largest difference of bfloat16 logits, relative to the largest float32 logit."""

_BEAMS = 2
_STEPS = 5  # tokens decoded after a prompt
_PROMPTS = (1, 4, 2)  # lengths
_LONGEST = max(_PROMPTS) + _STEPS


def packed(subject: Subject) -> Comparison:
    """Packed rows give the logits and the loss of the same examples in rows of their own."""
    batch = subject.batch
    if max(ids.max() for name, ids in batch.items() if name.endswith("_segment_ids")) < 2:
        raise DoesNotApplyError("a row of this task holds one example")
    unpacked = subject.unpacked
    losses = compare_trees(_loss_sums(subject, batch), _loss_sums(subject, unpacked))
    if not _is_supervised(subject):
        return losses
    predicted, places = _predictions(subject, batch)
    expected, _ = _predictions(subject, unpacked)
    logits = compare_places(predicted, expected, lambda i: _place(batch, *places[i]))
    return logits if logits.relative >= losses.relative else losses


def _is_supervised(subject: Subject) -> bool:
    try:
        ability(subject.task, "supervised")(subject.batch)
    except UserError:
        return False
    return True


def _predictions(
    subject: Subject, batch: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Logits that the loss counts, float32 [N, V], and the row and index of each, int [N, 2]."""
    task: Any = subject.task

    @jax.jit
    def logits(params: Any, batch: Any) -> Any:
        inputs, _, counted = task.supervised(batch)
        return apply_model(task.model, params, *inputs), counted

    predicted, counted = jax.device_get(logits(subject.params, batch))
    return predicted[counted].astype(np.float32), np.argwhere(counted)


def _place(batch: Mapping[str, np.ndarray], row: int, index: int) -> str:
    """The place of a prediction: row, and the example in it if the index is that of a token."""
    ids = next(x for name, x in batch.items() if name.endswith("_segment_ids"))
    of_example = f" (example {ids[row, index]})" if index < ids.shape[1] else ""
    return f"row {row}, prediction {index}{of_example}"


def _loss_sums(subject: Subject, batch: Any) -> dict[str, Any]:
    """Sums of the loss, except those that count slots."""

    @jax.jit
    def sums(params: Any, batch: Any, frozen: Any) -> Any:
        loss, weight, others = subject.task.loss(params, batch, None, frozen)
        return {**others, "loss": loss, "weight": weight}

    totals = jax.device_get(sums(subject.params, batch, subject.state.frozen))
    return {name: total for name, total in totals.items() if name not in ("filled", "slots")}


def causal(subject: Subject) -> Comparison:
    """No logits depend on a later token: their gradient is 0, and other tokens change nothing.

    The gradient is taken with respect to the embedded tokens of the decoder.
    """
    model = _decoder(subject)
    params = subject.params
    tokens = _draw_tokens(1, _LONGEST)
    width = subject.settings.model.d_model

    @jax.jit
    def gradients(params: Any, tokens: Any) -> Any:
        """Gradient of each position's logits, in a drawn direction, [T, T, D]."""
        zeros = jnp.zeros((1, _LONGEST, width))

        def logits(shift: jax.Array) -> jax.Array:
            # Only the decoder reads rows of this length.
            with intercept_embeddings(lambda x: x + shift if x.shape == shift.shape else x):
                return _full_logits(subject, model, params, tokens)[0]

        outputs, backward = jax.vjp(logits, zeros)
        # One direction for all: T backward passes instead of T V.
        direction = jax.random.normal(jax.random.key(0), outputs.shape[-1:])
        cotangents = jnp.eye(_LONGEST)[:, :, None] * direction
        return outputs, jax.vmap(lambda cotangent: backward(cotangent)[0][0])(cotangents)

    logits, grads = jax.device_get(gradients(params, tokens))
    if not np.any(grads):
        raise DoesNotApplyError("the logits do not depend on embedded tokens")
    token, later = np.triu_indices(_LONGEST, 1)
    by_later = grads[token, later]
    gradient = compare_places(
        by_later,
        np.zeros_like(by_later),
        lambda i: f"logits of token {token[i]}, by token {later[i]} after it",
        BITS,
    )
    if not gradient.is_equal:  # relative to all gradients, since 0 is expected of these
        relative = gradient.absolute / float(np.abs(grads).max())
        return dataclasses.replace(gradient, relative=relative)
    # Gradients do not show what is read otherwise, such as a mask computed from token ids.
    half = _LONGEST // 2
    others = np.concatenate([tokens[:, :half], _draw_tokens(1, _LONGEST - half, seed=1)], axis=1)
    changed, _ = jax.device_get(gradients(params, others))
    return compare_places(changed[:half], logits[:half], lambda i: f"logits of token {i}", BITS)


def cached(subject: Subject) -> Comparison:
    """Decoding with a cache gives the logits of the full forward pass.

    The prompts have unequal lengths, and the beams are reordered after each token.
    """
    model = _decoder(subject)
    params = subject.params
    rng = np.random.default_rng(0)
    rows = len(_PROMPTS)
    lengths = np.array(_PROMPTS, np.int32)
    prompts = np.where(np.arange(lengths.max()) < lengths[:, None], _draw_tokens(rows, 4), 0)
    prefixes = [[list(row[:length])] for row, length in zip(prompts, lengths, strict=True)]

    @jax.jit
    def prefill(params: Any) -> Any:
        sources = _source(subject, rows)[:2] if isinstance(model, Seq2Seq) else ()
        inputs = (*sources, prompts.astype(np.int32), lengths, _LONGEST)
        return model.apply({"params": params}, *inputs, method="prefill")

    @jax.jit
    def step(params: Any, tokens: Any, memory: Any, state: Any, parents: Any) -> Any:
        state = reorder_state(state, parents, _BEAMS)
        return model.apply({"params": params}, tokens, memory, state, method="decode_step")

    logits, memory, state = prefill(params)
    logits_by_step = [np.asarray(logits)]
    read = [beams[0] for beams in prefixes]  # prefixes in the order of their logits
    state = reorder_state(state, jnp.zeros((rows, _BEAMS), jnp.int32), 1)  # a row becomes K beams
    prefixes = [beams * _BEAMS for beams in prefixes]
    for number in range(1, _STEPS + 1):
        parents = rng.integers(0, _BEAMS, (rows, _BEAMS)).astype(np.int32)
        tokens = _draw_tokens(rows, _BEAMS, seed=number)
        prefixes = [
            [[*beams[parent], token] for parent, token in zip(*chosen, strict=True)]
            for beams, *chosen in zip(prefixes, parents, tokens, strict=True)
        ]
        logits, state = step(params, tokens.reshape(-1), memory, state, parents)
        logits_by_step.append(np.asarray(logits))
        read += [prefix for beams in prefixes for prefix in beams]
    expected = _logits_after(subject, model, read)

    def place(i: int) -> str:
        if i < rows:
            return f"the prompt's end, row {i} (prompt of {lengths[i]})"
        decoded, beam = divmod(i - rows, rows * _BEAMS)
        row = beam // _BEAMS
        return f"decoded token {decoded + 1}, row {row} (prompt of {lengths[row]})"

    return compare_places(np.concatenate(logits_by_step), expected, place)


def _logits_after(subject: Subject, model: Any, prefixes: Sequence[Sequence[int]]) -> np.ndarray:
    """Logits after each prefix, [N, V], by the full forward pass; prefixes of one batch row follow
    each other, K at a time after the first B."""
    tokens = np.zeros((len(prefixes), _LONGEST), np.int32)
    for row, prefix in enumerate(prefixes):
        tokens[row, : len(prefix)] = prefix
    rows = np.arange(len(_PROMPTS))
    sentences = np.concatenate([rows, np.tile(np.repeat(rows, _BEAMS), _STEPS)])
    logits = jax.jit(lambda params: _full_logits(subject, model, params, tokens, sentences))
    last = np.array([len(prefix) - 1 for prefix in prefixes])
    return np.asarray(logits(subject.params))[np.arange(len(prefixes)), last]


def _full_logits(
    subject: Subject, model: Any, params: Any, tokens: Any, sentences: np.ndarray | None = None
) -> jax.Array:
    """Logits [N, T, V] of a decoder that reads whole rows; `sentences` numbers their sources."""
    logits: Any
    if not isinstance(model, Seq2Seq):
        logits = apply_model(model, params, tokens)
        return logits
    sentences = np.zeros(len(tokens), np.int32) if sentences is None else sentences
    source, lengths = (x[sentences] for x in _source(subject, len(_PROMPTS)))
    positions = np.broadcast_to(np.arange(source.shape[1], dtype=np.int32), source.shape)
    segment_ids = (positions < lengths[:, None]).astype(np.int32)
    inputs = {"source_positions": positions, "source_segment_ids": segment_ids, "target": tokens}
    logits = model.apply({"params": params}, source, **inputs)
    return logits


def _source(subject: Subject, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Source tokens of unequal length, one column more than a target has, and their lengths."""
    lengths = np.array([_LONGEST + 1 - 3 * row for row in range(rows)], np.int32)
    tokens = _draw_tokens(rows, _LONGEST + 1, seed=7)
    return np.where(np.arange(_LONGEST + 1) < lengths[:, None], tokens, 0), lengths


def _draw_tokens(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(4, VOCAB, (rows, length)).astype(np.int32)


def _decoder(subject: Subject) -> Any:
    """The model, if it decodes."""
    model = subject.task.model
    if not isinstance(model, DecoderOnly | Seq2Seq):
        raise DoesNotApplyError(f"{type(model).__name__} reads whole texts; it has no decoder")
    return model


def bfloat16(subject: Subject) -> Comparison:
    """Products and activations in bfloat16 give logits near those in float32."""
    low = subject.but(model__dtype="bfloat16", model__activation_dtype="bfloat16")
    if not _is_supervised(subject):
        rounded_loss = _loss_sums(low, subject.batch)["loss"]
        loss = _loss_sums(subject, subject.batch)["loss"]
        return compare_trees({"loss": rounded_loss}, {"loss": loss}, BFLOAT16)
    rounded, places = _predictions(low, subject.batch)
    expected, _ = _predictions(subject, subject.batch)
    return compare_places(rounded, expected, lambda i: _place(subject.batch, *places[i]), BFLOAT16)
