# SPDX-License-Identifier: Apache-2.0
"""Oracles of the forward pass: packing, cached decoding, causality, bfloat16.

B rows, K beams of a row, N = B K hypotheses, T tokens, V vocabulary.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.decoding.interface import can_rewind, reorder_state, rewind
from transformer_jax.errors import UserError
from transformer_jax.lab.verification.float64 import in_float64
from transformer_jax.lab.verification.outcomes import BITS, FLOAT32, Comparison, DoesNotApplyError
from transformer_jax.lab.verification.subject import VOCAB, Subject
from transformer_jax.models import apply_method, apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.nn.embeddings import Embedding
from transformer_jax.nn.hooks import intercept_results
from transformer_jax.nn.layers import looks_ahead
from transformer_jax.tasks.interface import ability

BFLOAT16 = 0.1
"""Largest difference of bfloat16 logits, relative to the largest float32 logit."""

_MOST_EXAMPLES = 3  # in a packed row
_BEAMS = 3
_STEPS = 5  # tokens decoded after a prompt
_PROMPTS = (1, 24, 4)  # lengths
_LONGEST = max(_PROMPTS) + _STEPS

# In a printed program.
_RULES = re.compile(r"custom_vjp_call\[.*?\bfwd=", re.DOTALL)
_STEP_FUNCTIONS = re.compile(r"\b(round|sign|floor|ceil|argmax|argmin|while)\b")


def packed(subject: Subject) -> Comparison:
    """Packed rows give the logits and the loss of the same examples in rows of their own."""
    batch = subject.batch
    if max(ids.max() for name, ids in batch.items() if name.endswith("_segment_ids")) < 2:
        raise DoesNotApplyError("a row of this task holds one example")
    unpacked = subject.unpacked
    losses = Comparison.of_trees(_loss_sums(subject, batch), _loss_sums(subject, unpacked))
    if not _is_supervised(subject):
        return losses
    logits = _compare_outputs(
        subject, _counted_outputs(subject, batch), _counted_outputs(subject, unpacked)
    )
    comparison = logits if logits.relative >= losses.relative else losses
    if not comparison.is_equal:
        return comparison
    leaked = _leaked_gradients(subject)
    return comparison if leaked.is_equal else leaked


def _leaked_gradients(subject: Subject) -> Comparison:
    """The gradients of each prediction by the embedded tokens of all examples but one: 0, or what
    sums over a row leave in their last digits, if examples of a row do not see each other."""
    task: Any = subject.task
    batch = subject.batch
    width = subject.settings.model.d_model
    segments = {name: ids for name, ids in batch.items() if name.endswith("_segment_ids")}

    @jax.jit
    def gradients(params: Any) -> Any:
        logits = partial(apply_model, task.model, params, *task.supervised(batch).inputs)
        return _gradients_by_tokens(logits, [ids.shape for ids in segments.values()], width)[1]

    by_shape = jax.device_get(gradients(subject.params))
    of_examples = []
    for example in range(_MOST_EXAMPLES + 1):  # 0: padding
        of_example = [np.where(x == example, by_shape[x.shape], 0) for x in segments.values()]
        of_examples.append(np.max([x.max(axis=2) for x in of_example], axis=0))
    ordered = np.sort(of_examples, axis=0)
    second_largest = ordered[-2].T  # [B, J]; the largest is that of the own example
    counted = np.asarray(task.supervised(batch).counted)
    leaked = second_largest[counted]
    places = np.argwhere(counted)

    def place(i: int) -> str:
        return f"the gradient of {_place(batch, *places[i])}"

    scale = float(ordered.max()) or 1.0
    return Comparison.of_places(1 + leaked / scale, np.ones_like(leaked), place)


def _gradients_by_tokens(
    logits: Callable[[], jax.Array], shapes: Sequence[tuple[int, ...]], width: int
) -> tuple[jax.Array, Any]:
    """Logits [B, J, V], and their gradients by the embedded tokens of each shape [B, T].

    Of each prediction j they are [J, B, T]: the largest of a token's features, in one drawn
    direction of the logits. One for all: J backward passes instead of J V.
    """

    def shifted_logits(shifts: Mapping[tuple[int, ...], jax.Array]) -> jax.Array:
        def shifted(x: jax.Array) -> jax.Array:
            return x + shifts[x.shape[:2]] if x.shape[:2] in shifts else x

        with intercept_results(shifted, Embedding, "embed"):
            return logits()

    zeros = {shape: jnp.zeros((*shape, width)) for shape in shapes}
    outputs, backward = jax.vjp(shifted_logits, zeros)
    direction = jax.random.normal(jax.random.key(0), outputs.shape[-1:])

    def of_prediction(chosen: jax.Array) -> Any:
        (by_shape,) = backward(jnp.broadcast_to(chosen, outputs.shape))
        return jax.tree.map(lambda x: jnp.abs(x).max(axis=-1), by_shape)

    chosen = jnp.eye(outputs.shape[1])[:, None, :, None] * direction
    return outputs, jax.vmap(of_prediction)(chosen)


def _is_supervised(subject: Subject) -> bool:
    try:
        ability(subject.task, "supervised")(subject.batch)
    except UserError:
        return False
    return True


def _outputs(subject: Subject, batch: Any) -> Callable[[Any], tuple[Any, Any]]:
    """The function from parameters to logits [B, T, V], and whether the loss counts each [B, T]; of
    a task that does not say so, to its loss [1]."""
    task: Any = subject.task

    def logits(params: Any) -> tuple[Any, Any]:
        inputs, _, counted = task.supervised(batch)
        return apply_model(task.model, params, *inputs), counted

    def loss(params: Any) -> tuple[Any, Any]:
        return subject.loss(params)[None], np.ones(1, bool)

    return logits if _is_supervised(subject) else loss


def _counted_outputs(subject: Subject, batch: Any) -> np.ndarray:
    """Logits [N, V] that the loss counts, float32."""
    outputs, counted = jax.device_get(jax.jit(_outputs(subject, batch))(subject.params))
    counted_outputs: np.ndarray = outputs[counted].astype(np.float32)
    return counted_outputs


def _compare_outputs(
    subject: Subject, computed: np.ndarray, expected: np.ndarray, tolerance: float = FLOAT32
) -> Comparison:
    """Compares the logits that the loss counts."""
    if not _is_supervised(subject):
        return Comparison.of_places(computed, expected, lambda i: "the loss", tolerance)
    task: Any = subject.task
    places = np.argwhere(np.asarray(task.supervised(subject.batch).counted))
    return Comparison.of_places(
        computed, expected, lambda i: _place(subject.batch, *places[i]), tolerance
    )


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
    """No logits depend on a later token: their gradient is 0, and other tokens change nothing."""
    model = _decoder(subject)
    if any(looks_ahead(subject.settings.model)):
        raise DoesNotApplyError("attention_layer 'bidirectional' sees later tokens")
    params = subject.params
    tokens = _draw_tokens(1, _LONGEST)
    width = subject.settings.model.d_model

    @jax.jit
    def gradients(params: Any, tokens: Any) -> Any:
        logits = partial(_full_logits, subject, model, params, tokens)
        # Only the decoder reads rows of this length.
        outputs, by_shape = _gradients_by_tokens(logits, [tokens.shape], width)
        return outputs[0], by_shape[tokens.shape][:, 0]

    logits, grads = jax.device_get(gradients(params, tokens))
    if not np.any(grads):
        raise DoesNotApplyError("the logits do not depend on embedded tokens")
    token, later = np.triu_indices(_LONGEST, 1)
    by_later = grads[token, later]
    gradient = Comparison.of_places(
        by_later,
        np.zeros_like(by_later),
        lambda i: f"logits of token {token[i]}, by token {later[i]} after it",
        BITS,
    )
    if not gradient.is_equal:  # relative to all gradients, since 0 is expected of these
        relative = gradient.absolute / float(grads.max())
        return dataclasses.replace(gradient, relative=relative)
    # Gradients do not show what is read otherwise, such as a mask computed from token ids.
    half = _LONGEST // 2
    others = np.concatenate([tokens[:, :half], _draw_tokens(1, _LONGEST - half, seed=1)], axis=1)
    changed, _ = jax.device_get(gradients(params, others))
    return Comparison.of_places(
        changed[:half], logits[:half], lambda i: f"logits of token {i}", BITS
    )


def cached(subject: Subject) -> Comparison:
    """Decoding with a cache gives the logits of the full forward pass.

    The prompts have unequal lengths, one longer than any other length in sight, and the beams are
    reordered after each token. If the cache can forget tokens, as drafts need it, several are read
    at once, and some of them forgotten.
    """
    decoding = Decoding(subject)
    _, _, start = decoding.prefill()
    rows = len(_PROMPTS)
    rng = np.random.default_rng(0)
    decoding.restart(_BEAMS)
    state = reorder_state(start, jnp.zeros((rows, _BEAMS), jnp.int32), 1)  # a row becomes K beams
    for number in range(1, _STEPS + 1):
        parents = rng.integers(0, _BEAMS, (rows, _BEAMS)).astype(np.int32)
        decoding.choose(parents)
        state = reorder_state(state, jnp.asarray(parents), _BEAMS)
        tokens = _draw_tokens(rows * _BEAMS, 1, seed=number)
        state = decoding.step(tokens, state, f"decoded token {number}")
    if can_rewind(start):
        decoding.restart(1)
        state = decoding.step(_draw_tokens(rows, 3, seed=1), start, "token of three at once")
        counts = np.arange(rows, dtype=np.int32) % 3
        state = rewind(state, jnp.asarray(counts))
        decoding.forget(counts)
        decoding.step(_draw_tokens(rows, 2, seed=2), state, "token after a rewind")
    return decoding.compare()


class Decoding:
    """Decodes drawn tokens after prompts, and remembers what was read before each logits."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.model = _decoder(subject)
        self.lengths = np.array(_PROMPTS, np.int32)
        tokens = _draw_tokens(len(_PROMPTS), max(_PROMPTS))
        self.prompts = np.where(np.arange(max(_PROMPTS)) < self.lengths[:, None], tokens, 0)
        self.restart(1)
        # Logits, the tokens that were read before them, their row, and the place.
        self._kept: list[tuple[np.ndarray, list[int], int, str]] = []
        self._step = jax.jit(partial(apply_method, self.model, subject.params, "decode_step"))

    def prefill(self, method: str = "prefill") -> tuple[Any, ...]:
        """Reads the prompts; returns logits, memory and state, and hidden states if the method does
        so."""
        rows = len(_PROMPTS)
        sources = _source(self.subject, rows)[:2] if isinstance(self.model, Seq2Seq) else ()
        inputs = (*sources, self.prompts.astype(np.int32), self.lengths)
        prefill = jax.jit(
            lambda params: apply_method(self.model, params, method, *inputs, _LONGEST)
        )
        logits, self.memory, *others = prefill(self.subject.params)
        self._keep(np.asarray(logits)[:, None], "the prompt's end")
        return logits, self.memory, *others

    def restart(self, num_beams: int) -> None:
        """The prompts alone have been read, each by K beams."""
        pairs = zip(self.prompts.tolist(), self.lengths, strict=True)
        self._read = [row[:length] for row, length in pairs for _ in range(num_beams)]
        self._num_beams = num_beams

    def choose(self, parents: np.ndarray) -> None:
        """Each beam continues another one of its row."""
        first = np.arange(len(parents))[:, None] * self._num_beams
        self._read = [list(self._read[i]) for i in (first + parents).ravel()]

    def forget(self, counts: np.ndarray) -> None:
        """The last tokens of each hypothesis were not read."""
        pairs = zip(self._read, counts, strict=True)
        self._read = [tokens[: len(tokens) - count] for tokens, count in pairs]

    def step(self, tokens: np.ndarray, state: Any, name: str) -> Any:
        """Reads tokens [N, T]; returns the state."""
        for read, row in zip(self._read, tokens, strict=True):
            read.extend(row)
        inputs = tokens[:, 0] if tokens.shape[1] == 1 else tokens
        logits, state = self._step(inputs, self.memory, state)
        self._keep(np.asarray(logits).reshape(*tokens.shape, -1), name)
        return state

    def _keep(self, logits: np.ndarray, name: str) -> None:
        """Remembers logits [N, T, V] after each of the last T tokens."""
        count = logits.shape[1]
        for i, tokens in enumerate(self._read):
            row = i // self._num_beams
            place = f"{name}, row {row} (prompt of {_PROMPTS[row]})"
            for t in range(count):
                prefix = tokens[: len(tokens) - count + t + 1]
                self._kept.append((logits[i, t], prefix, row, place))

    def compare(self) -> Comparison:
        """Compares with the full forward pass."""
        computed, prefixes, rows, places = zip(*self._kept, strict=True)
        tokens = np.zeros((len(prefixes), _LONGEST), np.int32)
        for i, prefix in enumerate(prefixes):
            tokens[i, : len(prefix)] = prefix
        last = np.array([len(prefix) - 1 for prefix in prefixes])

        @jax.jit
        def logits(params: Any) -> jax.Array:
            return _full_logits(self.subject, self.model, params, tokens, np.array(rows))

        expected = np.asarray(logits(self.subject.params))[np.arange(len(last)), last]
        return Comparison.of_places(np.stack(computed), expected, lambda i: places[i])


def _full_logits(
    subject: Subject, model: Any, params: Any, tokens: Any, sentences: np.ndarray | None = None
) -> Any:
    """Logits [N, T, V] of a decoder that reads whole rows; `sentences` numbers their sources."""
    if not isinstance(model, Seq2Seq):
        return apply_model(model, params, tokens)
    sentences = np.zeros(len(tokens), np.int32) if sentences is None else sentences
    source, lengths = (x[sentences] for x in _source(subject, len(_PROMPTS)))
    positions = np.broadcast_to(np.arange(source.shape[1], dtype=np.int32), source.shape)
    segment_ids = (positions < lengths[:, None]).astype(np.int32)
    inputs = {"source_positions": positions, "source_segment_ids": segment_ids, "target": tokens}
    return model.apply({"params": params}, source, **inputs)


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
    """Products and activations in bfloat16 give logits near those in float32: nearly all of them,
    since rounding may carry some over a step."""
    low = subject.but(model__dtype="bfloat16", model__activation_dtype="bfloat16")
    rounded = _counted_outputs(low, subject.batch)
    expected = _counted_outputs(subject, subject.batch)
    comparison = _compare_outputs(subject, rounded, expected, BFLOAT16)
    norm = float(np.linalg.norm(rounded - expected) / np.linalg.norm(expected))
    # NaN is within no tolerance.
    return dataclasses.replace(comparison, relative=norm) if norm <= BFLOAT16 else comparison


def exact(subject: Subject) -> Comparison:
    """Logits in float32 are those of the same program without any rounding below float64; so are
    gradients, if functions have gradient rules of their own."""
    outputs = _outputs(subject, subject.batch)
    expected, counted = in_float64(outputs, subject.params)
    computed = _counted_outputs(subject, subject.batch)
    logits = _compare_outputs(subject, computed, expected[counted])
    rules = _RULES.findall(str(jax.make_jaxpr(subject.loss)(subject.params)))
    # The rule of a step function, as of rounded weights, is meant to be no derivative.
    if not logits.is_equal or not rules or _STEP_FUNCTIONS.search("".join(rules)):
        return logits
    return subject.rounding
