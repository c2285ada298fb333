# SPDX-License-Identifier: Apache-2.0
"""Text generation with a decoder-only model, also beyond its context.

B prompts, P prompt length, V vocabulary.
"""

import dataclasses
import functools
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import batched
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.packing import LENGTH_STEP, pad_rows, row_lengths
from transformer_jax.decoding.constraints import Constraint, start_under
from transformer_jax.decoding.interface import Start, truncate_at_eos
from transformer_jax.decoding.sampling import Samples, StepwiseSearch
from transformer_jax.errors import NonFiniteError, UserError, user_errors
from transformer_jax.inference import draft
from transformer_jax.inference.batches import PaddedBatch, Prediction
from transformer_jax.inference.config import DecodeConfig, make_constraint
from transformer_jax.models import apply_method
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.parallel import hosts
from transformer_jax.runtime import platform
from transformer_jax.runtime.progress import track
from transformer_jax.tokenization import SpecialTokens, Tokenizer

CHUNK = 16
"""Tokens generated on the device before the host reads them."""

_SLOT_STEP = 128
"""Caches have a multiple of this number of slots, so that few shapes are compiled."""


@dataclasses.dataclass
class Output:
    """Continuation of a prompt.

    Attributes:
      sample: number of this output among those of the prompt. The random draws depend on the seed
        and these two numbers alone.
      log_probs: log-probability of each of these under the model, in nats.
      context: tokens that the model sees: the end of the prompt, and the output.
      start: number of tokens that were in the context when it was last read as a prompt.
    """

    prompt: list[int]
    number: int
    sample: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    ended: bool = False
    context: list[int] = dataclasses.field(init=False)
    start: int = 0

    def __post_init__(self) -> None:
        self.context = self.prompt

    @property
    def log_prob(self) -> float:
        """log P(tokens | prompt), in nats."""
        return math.fsum(self.log_probs)


@dataclasses.dataclass(frozen=True)
class TokenGenerator:
    """Generates continuations of prompts of unequal length in one batch.

    If a prompt with its output grows longer than `context`, its last `context` / 2 tokens are
    prefilled again.

    Attributes:
      context: tokens that the model sees at once.
      tokenizer: of the outputs, for texts and `decode.constraint`; None: there is none.
      joins: True: an output continues the prompt's text, possibly within a word. False: it is a
        text of its own.
    """

    model: DecoderOnly
    context: int
    specials: SpecialTokens
    tokenizer: Tokenizer | None = None
    joins: bool = True

    def search(self, decode: DecodeConfig) -> StepwiseSearch:
        """Makes the search. Raises UserError if it cannot pause every few tokens, such as
        beam search, or if the draft knows fewer positions than the model."""
        with user_errors("decode.draft", "; take another draft"):
            draft.check_positions(self.model, self.context)
        search = draft.searching(self.model, decode.greedy_if_one_beam().make_search(self.specials))
        if not isinstance(search, StepwiseSearch):
            raise UserError(
                "decode: language models generate token by token: set decode.temperature, or "
                "decode.beam_size 1 for greedy search"
            )
        return search

    def fit_context(self, tokens: list[int]) -> list[int]:
        """The tokens that the model sees: all of them or, if they exceed the context, the last
        `context` / 2."""
        return tokens if len(tokens) <= self.context else tokens[-(self.context // 2) :]

    def generate(
        self, params: Any, outputs: Sequence[Output], decode: DecodeConfig
    ) -> Iterator[None]:
        """Extends the outputs in place until all have ended; yields every few tokens."""
        search = self.search(decode)
        constraint = make_constraint(decode, self.tokenizer)
        drawn_before = 0
        before_move = None
        for output in outputs:
            output.ended |= len(output.tokens) >= decode.max_extra_length
        while not all(output.ended for output in outputs):
            for output in outputs:
                output.context = self.fit_context(output.context)
                output.start = len(output.tokens)
            longest = max(len(output.context) for output in outputs if not output.ended)
            room = self.context + 1 - longest  # the last token is not read
            to_arrays = functools.partial(self._arrays, decode=decode)
            batch = PaddedBatch(Output([self.specials.first], 0, 0, ended=True), to_arrays)
            # Rows, like prompts, are padded to a power of 2, so that few shapes are compiled.
            arrays = batch.place(params, outputs, 1 << (len(outputs) - 1).bit_length())
            slots = self.num_slots(arrays["prompt"].shape[1], decode)
            samples = self.begin(
                params, arrays, search, decode.seed, drawn_before, slots, constraint, before_move
            )
            while True:
                length = self._read(samples, outputs, decode)
                yield
                if length == room or all(output.ended for output in outputs):
                    break
                ended = np.ones(len(samples.ended), bool)
                ended[: len(outputs)] = [output.ended for output in outputs]
                ended = jax.device_put(ended, samples.ended.sharding)
                samples = dataclasses.replace(samples, ended=ended)
                length = min(length + CHUNK, room)
                samples = self.extend(params, samples, search, length, constraint)
            if isinstance(self.model, draft.DraftedModel):
                num_steps = hosts.to_host(samples.num_steps)[: len(outputs)]
                # The first token is found by `begin`.
                num_later = sum(max(0, len(o.tokens) - o.start - 1) for o in outputs)
                self.model.record(num_later, int(num_steps.sum()))
            drawn_before += length  # no random key is used twice
            if constraint or samples.search_state is not None:
                of_constraint = samples.state[1] if constraint else None
                before_move = dataclasses.replace(samples, state=of_constraint)
            for output in outputs:
                output.context = [*output.context, *output.tokens[output.start :]]

    def _arrays(self, outputs: Sequence[Output], decode: DecodeConfig) -> dict[str, np.ndarray]:
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
                # EOS may begin a prompt, which is no repetition.
                begin = int(output.prompt[:1] == [self.specials.eos])
                row[[*output.prompt[begin:], *output.tokens]] = True
        return arrays

    def num_slots(self, prompt_length: int, decode: DecodeConfig) -> int:
        """Tokens that the caches have room for: the context, or fewer if no output reaches its
        end, because each step reads all slots."""
        needed = prompt_length + decode.max_extra_length
        return min(self.context, -(-needed // _SLOT_STEP) * _SLOT_STEP)

    def _read(self, samples: Samples, outputs: Sequence[Output], decode: DecodeConfig) -> int:
        """Copies new tokens into the outputs. Returns how many an output has that has not ended."""
        lengths, tokens, log_probs, ended = hosts.to_host(
            (samples.lengths, samples.tokens, samples.log_probs, samples.ended)
        )
        length = int(lengths.max())
        for i, output in enumerate(outputs):
            if not output.ended:
                start = output.start
                new_tokens = tokens[i, : min(length, decode.max_extra_length - start)].tolist()
                # The search itself stops at `eos` alone.
                for end in (self.specials.eos, *self.specials.ends):
                    new_tokens = truncate_at_eos(new_tokens, end)
                output.tokens[start:] = new_tokens
                output.log_probs[start:] = log_probs[i, : len(new_tokens)].tolist()
                if math.isnan(output.log_prob):
                    raise NonFiniteError
                complete = self.complete_length(output, decode.stop_texts)
                has_end = bool(new_tokens) and new_tokens[-1] in self.specials.ends
                output.ended = bool(ended[i]) or has_end or complete is not None
                if complete is not None:
                    del output.tokens[complete:], output.log_probs[complete:]
        return length

    @platform.compiled_method(searches=True, static_argnames=("search", "constraint", "slots"))
    def begin(
        self,
        params: Any,
        arrays: Mapping[str, jax.Array],
        search: StepwiseSearch,
        seed: jax.Array,
        drawn: jax.Array,
        slots: int,
        constraint: Constraint | None = None,
        before_move: Samples | None = None,
    ) -> Samples:
        """Samples with the first token."""
        prompt, lengths = arrays["prompt"], arrays["lengths"]
        method = draft.method_of(search, "prefill")
        prefilled = apply_method(self.model, params, method, prompt, lengths, slots)
        logits, _, state, *hidden = prefilled
        fold_in = jax.vmap(jax.random.fold_in)
        seeds = jnp.broadcast_to(jax.random.key(seed), arrays["numbers"].shape)
        keys = fold_in(fold_in(seeds, arrays["numbers"]), arrays["samples"])
        last = hidden[0] if hidden else None
        start = Start(logits, (), state, arrays["limits"], keys, last, before_move)
        if constraint:
            start = start_under(constraint, start, prompt, lengths, self.specials.banned[0])
        samples = search.begin(
            start, max_length=self.context + 1, drawn_before=drawn, seen=arrays.get("seen")
        )
        return dataclasses.replace(samples, ended=samples.ended | arrays["ended"])

    @platform.compiled_method(
        searches=True, static_argnames=("search", "constraint"), donate_argnums=1
    )
    def extend(
        self,
        params: Any,
        samples: Samples,
        search: StepwiseSearch,
        length: jax.Array,
        constraint: Constraint | None = None,
    ) -> Samples:
        """Samples of a length. The memory of the given ones is reused."""
        step = draft.decode_step_of(self.model, params, search, constraint, self.specials)
        return search.extend(samples, step, (), length)

    def texts(
        self,
        params: Any,
        prompts: Sequence[list[int]],
        decode: DecodeConfig,
        numbers: Sequence[int],
    ) -> Iterator[list[Prediction]]:
        """Yields the continuations of each prompt: `decode.num_outputs` texts, most likely first,
        with the log-probability in nats of their tokens up to the end token, or to the one that
        completes a text of `decode.stop`. Samples depend on the numbers of the prompts."""
        count = decode.num_outputs
        outputs = [
            Output(prompt, number, sample)
            for number, prompt in zip(numbers, prompts, strict=True)
            for sample in range(count)
        ]
        batches = batched(outputs, max(decode.batch_size, count))
        for batch in track(batches, len(outputs), "output"):
            for _ in self.generate(params, batch, decode):
                pass
        for group in batched(outputs, count):
            scored = [Prediction(self._text(output, decode), output.log_prob) for output in group]
            yield sorted(scored, key=lambda output: -output.score)

    def stream(self, params: Any, prompt: list[int], decode: DecodeConfig) -> Iterator[str]:
        """Yields the continuation of a prompt, piece by piece while it is generated."""
        output = Output(prompt, 1, 0)
        sent = 0
        held = max(map(len, decode.stop_texts), default=1) - 1
        for _ in self.generate(params, [output], decode):
            text = self._text(output, decode)
            # Later tokens may complete a character or a stop text, so its beginning is held back.
            ready = len(text) if output.ended else len(text.rstrip("\ufffd")) - held
            if ready > sent:
                yield text[sent:ready]
                sent = ready

    def complete_length(self, output: Output, stops: Sequence[str]) -> int | None:
        """Number of tokens that complete the first stop text; None if the output has none. Those
        beyond it are dropped."""
        if not stops:
            return None

        def has_stop(count: int) -> bool:
            text = self._continuation(output.prompt, output.tokens[:count])
            return any(stop in text for stop in stops)

        length = len(output.tokens)
        if not has_stop(length):
            return None
        # A stop text stays once it is complete, so the shortest such length can be bisected.
        return bisect_left(range(length), True, key=has_stop)

    def _continuation(self, prompt: list[int], tokens: list[int]) -> str:
        assert self.tokenizer is not None
        decode = self.tokenizer.decode
        if not self.joins:
            return decode(tokens)
        # Decoded with the prompt: alone, the first piece would lose the space before it.
        before = decode(prompt)
        text = decode([*prompt, *tokens])
        return text[len(before) :] if text.startswith(before) else decode(tokens)

    def _text(self, output: Output, decode: DecodeConfig) -> str:
        """Text of an output, up to the first stop text."""
        text = self._continuation(output.prompt, output.tokens)
        ends = [text.find(stop) for stop in decode.stop_texts if stop in text]
        return text[: min(ends, default=len(text))]
