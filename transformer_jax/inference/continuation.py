"""Decoding with a decoder-only model: tokens drawn behind prompts, beyond its context too.

B prompts, P prompt length, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.padding import LENGTH_STEP, pad_rows, row_lengths
from transformer_jax.decoding import Memory, Samples, Start, State, StepwiseSearch, up_to_end
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import FilledBatch
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.models.apply import apply, call
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.parallel import hosts
from transformer_jax.tokenization import SpecialTokens

CHUNK = 16  # tokens drawn before the host looks at them


@dataclasses.dataclass
class Output:
    """What was drawn behind a prompt.

    Attributes:
      prompt: its tokens.
      number: of the prompt.
      sample: number of this output among those of the prompt. What is drawn depends on the seed and
        these two numbers alone.
      tokens: drawn so far.
      log_probs: of each of these under the model, in nats.
      ended: whether that is all.
      context: what the model sees: the end of the prompt and the tokens.
    """

    prompt: list[int]
    number: int
    sample: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    ended: bool = False
    context: list[int] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.context = self.prompt

    @property
    def log_prob(self) -> float:
        """log P(tokens | prompt), in nats."""
        return math.fsum(self.log_probs)


@dataclasses.dataclass(frozen=True)
class Continuation:
    """Draws what follows prompts of unequal length, all in one batch.

    The model sees `context` tokens at most. Where a prompt, with what was drawn behind it, is
    longer, the last half of so many tokens are kept and prefilled again.

    Attributes:
      model: predicts the next token.
      context: tokens that it sees at once.
      specials: of its vocabulary.
      use_cache: False computes the keys and values of all tokens at every step; for comparison.
    """

    model: DecoderOnly
    context: int
    specials: SpecialTokens
    use_cache: bool = True

    def search(self, decode: DecodeConfig) -> StepwiseSearch:
        """What chooses the tokens; UserError where it cannot pause, as beam search cannot."""
        if decode.search is None and not decode.samples and decode.beam_size == 1:
            decode = dataclasses.replace(decode, search="greedy")
        search = decode.make_search(self.specials)
        if not isinstance(search, StepwiseSearch):
            raise UserError(
                "decode: language models draw their outputs: set decode.temperature, or "
                "decode.beam_size 1 for the likeliest token each time"
            )
        return search

    def kept(self, tokens: list[int]) -> list[int]:
        """The tokens that the model sees."""
        return tokens if len(tokens) <= self.context else tokens[-(self.context // 2) :]

    def draw(
        self,
        params: Any,
        outputs: Sequence[Output],
        decode: DecodeConfig,
        needed: Callable[[Output], int | None] = lambda output: None,
    ) -> Iterator[None]:
        """Extends the outputs, in place, until all have ended; yields every few tokens.

        Args:
          params: of the model.
          outputs: with their prompts.
          decode: how to draw; with a beam size of 1 the likeliest token each time.
          needed: how many of an output's tokens complete it; None: it goes on. Tokens are drawn
            several at a time, and those beyond are dropped.

        Raises:
          UserError: the search cannot pause every few tokens, as beam search cannot.
        """
        search, drawn = self.search(decode), 0
        for output in outputs:
            output.ended |= len(output.tokens) >= decode.max_extra_length
        while not all(output.ended for output in outputs):
            for output in outputs:
                output.context = self.kept(output.context)
            longest = max(len(output.context) for output in outputs if not output.ended)
            room = self.context + 1 - longest
            before = [len(output.tokens) for output in outputs]
            to_arrays = functools.partial(self._arrays, decode=decode)
            batch = FilledBatch(Output([self.specials.first], 0, 0, ended=True), to_arrays)
            arrays = batch.place(params, outputs, 1 << (len(outputs) - 1).bit_length())
            samples = self.begin(params, arrays, search, decode.seed, drawn)
            while True:
                length = self._read(samples, outputs, before, decode, needed)
                yield
                if length == room or all(output.ended for output in outputs):
                    break
                samples = self._mark_ended(samples, outputs)
                samples = self.extend(params, samples, search, min(length + CHUNK, room))
            drawn += length
            for output, count in zip(outputs, before, strict=True):
                output.context = [*output.context, *output.tokens[count:]]

    def _arrays(self, outputs: Sequence[Output], decode: DecodeConfig) -> dict[str, np.ndarray]:
        """The arrays of `begin`."""
        contexts = [output.context for output in outputs]
        longest = max(map(len, contexts))
        width = min(max(LENGTH_STEP, 1 << (longest - 1).bit_length()), self.context)
        left = [decode.max_extra_length - len(output.tokens) for output in outputs]
        arrays = {
            "prompt": pad_rows(contexts, width),
            "lengths": row_lengths(contexts),
            "limits": np.array(left, np.int32),
            "ended": np.array([output.ended for output in outputs]),
            "numbers": np.array([output.number for output in outputs], np.int32),
            "samples": np.array([output.sample for output in outputs], np.int32),
        }
        if decode.repetition_penalty != 1:
            arrays["seen"] = np.zeros((len(outputs), self.model.config.vocab_size), bool)
            for row, output in zip(arrays["seen"], outputs, strict=True):
                row[[*output.prompt, *output.tokens]] = True
            arrays["seen"][:, self.specials.eos] = False  # it may head a prompt: no repetition
        return arrays

    def _read(
        self,
        samples: Samples,
        outputs: Sequence[Output],
        before: Sequence[int],
        decode: DecodeConfig,
        needed: Callable[[Output], int | None],
    ) -> int:
        """Copies what was drawn into the outputs, which had so many tokens `before`; returns how
        many tokens were drawn for an output that goes on."""
        length, tokens, log_probs, ended = hosts.to_host(
            (samples.length, samples.tokens, samples.log_probs, samples.ended)
        )
        for i, (output, count) in enumerate(zip(outputs, before, strict=True)):
            if not output.ended:
                found = tokens[i, : min(length, decode.max_extra_length - count)].tolist()
                output.tokens[count:] = up_to_end(found, self.specials.eos)
                output.log_probs[count:] = log_probs[i, : len(output.tokens) - count].tolist()
                enough = needed(output)
                output.ended = bool(ended[i]) or enough is not None
                if enough is not None:
                    del output.tokens[enough:], output.log_probs[enough:]
        return int(length)

    def _mark_ended(self, samples: Samples, outputs: Sequence[Output]) -> Samples:
        rows = len(samples.ended)
        ended = np.ones(rows, bool)
        ended[: len(outputs)] = [output.ended for output in outputs]
        return dataclasses.replace(samples, ended=jax.device_put(ended, samples.ended.sharding))

    @functools.cached_property
    def begin(self) -> Callable[..., Samples]:
        """`(params, arrays, search, seed, drawn) -> Samples`: prefills, draws the first token."""
        return jax.jit(self._begin, static_argnames="search")

    @functools.cached_property
    def extend(self) -> Callable[..., Samples]:
        """`(params, samples, search, length) -> Samples` of that length; the memory of the given
        samples is reused."""
        return jax.jit(self._extend, static_argnames="search", donate_argnums=1)

    def _begin(
        self,
        params: Any,
        arrays: Mapping[str, jax.Array],
        search: StepwiseSearch,
        seed: jax.Array,
        drawn: jax.Array,
    ) -> Samples:
        logits, _, state = self._prefill(params, arrays["prompt"], arrays["lengths"])
        fold_in = jax.vmap(jax.random.fold_in)
        seeds = jnp.broadcast_to(jax.random.key(seed), arrays["numbers"].shape)
        keys = fold_in(fold_in(seeds, arrays["numbers"]), arrays["samples"])
        samples = search.begin(
            Start(logits, (), state, arrays["limits"], keys),
            max_length=self.context + 1,
            drawn_before=drawn,
            seen=arrays.get("seen"),
        )
        return dataclasses.replace(samples, ended=samples.ended | arrays["ended"])

    def _extend(
        self, params: Any, samples: Samples, search: StepwiseSearch, length: jax.Array
    ) -> Samples:
        step = functools.partial(self._decode_step, params)
        return search.extend(samples, step, (), length)

    def _prefill(
        self, params: Any, prompt: jax.Array, lengths: jax.Array
    ) -> tuple[jax.Array, Memory, State]:
        if self.use_cache:
            return call(self.model, params, "prefill", prompt, lengths, self.context)
        rows = jnp.zeros((len(prompt), self.context), jnp.int32)
        rows = rows.at[:, : prompt.shape[1]].set(prompt)
        return self._logits_behind(params, rows, lengths), (), (rows, lengths)

    def _decode_step(
        self, params: Any, tokens: jax.Array, memory: Memory, state: State
    ) -> tuple[jax.Array, State]:
        if self.use_cache:
            return call(self.model, params, "decode_step", tokens, memory, state)
        rows, lengths = state
        rows = rows.at[jnp.arange(len(rows)), lengths].set(tokens)
        return self._logits_behind(params, rows, lengths + 1), (rows, lengths + 1)

    def _logits_behind(self, params: Any, rows: jax.Array, lengths: jax.Array) -> jax.Array:
        """Logits [B, V] of the token after the first `lengths` of rows, without a cache."""
        positions = jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
        segment_ids = (positions < lengths[:, None]).astype(jnp.int32)
        logits = apply(self.model, params, rows, positions, segment_ids)
        return jnp.take_along_axis(logits, lengths[:, None, None] - 1, axis=1)[:, 0]
