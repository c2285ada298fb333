"""Decoding with a decoder-only model: tokens drawn behind prompts, beyond its context too.

B prompts, P prompt length, V vocabulary.
"""

import dataclasses
import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import batched
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.packing import LENGTH_STEP, pad_rows, row_lengths
from transformer_jax.decoding import Memory, Samples, Start, State, StepwiseSearch, truncate_at_eos
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import PaddedBatch
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.models import apply_method, apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.parallel import hosts
from transformer_jax.tokenization import SpecialTokens, Tokenizer

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
class TokenGenerator:
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
            batch = PaddedBatch(Output([self.specials.first], 0, 0, ended=True), to_arrays)
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
                output.tokens[count:] = truncate_at_eos(found, self.specials.eos)
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
            return apply_method(self.model, params, "prefill", prompt, lengths, self.context)
        rows = jnp.zeros((len(prompt), self.context), jnp.int32)
        rows = rows.at[:, : prompt.shape[1]].set(prompt)
        return self._logits_behind(params, rows, lengths), (), (rows, lengths)

    def _decode_step(
        self, params: Any, tokens: jax.Array, memory: Memory, state: State
    ) -> tuple[jax.Array, State]:
        if self.use_cache:
            return apply_method(self.model, params, "decode_step", tokens, memory, state)
        rows, lengths = state
        rows = rows.at[jnp.arange(len(rows)), lengths].set(tokens)
        return self._logits_behind(params, rows, lengths + 1), (rows, lengths + 1)

    def _logits_behind(self, params: Any, rows: jax.Array, lengths: jax.Array) -> jax.Array:
        """Logits [B, V] of the token after the first `lengths` of rows, without a cache."""
        positions = jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
        segment_ids = (positions < lengths[:, None]).astype(jnp.int32)
        logits = apply_model(self.model, params, rows, positions, segment_ids)
        return jnp.take_along_axis(logits, lengths[:, None, None] - 1, axis=1)[:, 0]


# FOLDED inference.continued_text: Prompts continued with text.


@dataclass(frozen=True)
class TextGenerator:
    """Draws the texts that follow prompts.

    Attributes:
      drawing: draws tokens.
      tokenizer: which they are of.
      joins: whether what follows goes on in the prompt's text, in the same word perhaps; otherwise
        it is a text of its own.
    """

    drawing: TokenGenerator
    tokenizer: Tokenizer
    joins: bool = True

    def texts(
        self,
        params: Any,
        prompts: Sequence[list[int]],
        decode: DecodeConfig,
        numbers: Sequence[int],
    ) -> Iterator[list[tuple[str, float]]]:
        """What follows each prompt: `decode.num_outputs` samples, likeliest first, each with the
        log-probability of its tokens in nats, up to the end or to the one that completes a text of
        `decode.stop`.

        Args:
          params: of the model.
          prompts: tokens, at least one each.
          decode: how to draw.
          numbers: of the prompts, on which their samples depend.

        Raises:
          UserError: a search is asked for that cannot draw token by token, such as beam search.
        """
        count = decode.num_outputs
        outputs = [
            Output(prompt, number, sample)
            for number, prompt in zip(numbers, prompts, strict=True)
            for sample in range(count)
        ]
        for batch in batched(outputs, max(decode.batch_size, count)):
            for _ in self._draw(params, batch, decode):
                pass
        for of_prompt in batched(outputs, count):
            found = [(self._text(one, decode), one.log_prob) for one in of_prompt]
            yield sorted(found, key=lambda one: -one[1])

    def stream(self, params: Any, prompt: list[int], decode: DecodeConfig) -> Iterator[str]:
        """What follows a prompt, piece by piece as it is drawn."""
        output, told = Output(prompt, 1, 0), 0
        held = max(map(len, decode.stops), default=1) - 1
        for _ in self._draw(params, [output], decode):
            text = self._text(output, decode)
            # Half a character or half a stop text may yet become another.
            ready = len(text) if output.ended else len(text.rstrip("\ufffd")) - held
            if ready > told:
                yield text[told:ready]
                told = ready

    def _draw(self, params: Any, outputs: Sequence[Output], decode: DecodeConfig) -> Iterator[None]:
        stops = decode.stops

        def needed(output: Output) -> int | None:
            def stopped(count: int) -> bool:
                text = self._behind(output.prompt, output.tokens[:count])
                return any(stop in text for stop in stops)

            length = len(output.tokens)
            return bisect_left(range(length), True, key=stopped) if stopped(length) else None

        return self.drawing.draw(params, outputs, decode, needed)

    def _behind(self, prompt: list[int], tokens: list[int]) -> str:
        """What was drawn behind a prompt, as text."""
        decode = self.tokenizer.decode
        if not self.joins:
            return decode(tokens)
        # Decoded behind the prompt: alone, a first piece would lose the space before it.
        before, text = decode(prompt), decode([*prompt, *tokens])
        return text[len(before) :] if text.startswith(before) else decode(tokens)

    def _text(self, output: Output, decode: DecodeConfig) -> str:
        """What was drawn, up to the first of the texts that stop it."""
        text = self._behind(output.prompt, output.tokens)
        return text[: min((text.find(s) for s in decode.stops if s in text), default=len(text))]
