"""Decoding with a decoder-only model: tokens drawn behind prompts, beyond its context too.

B prompts, P prompt length, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.padding import LENGTH_STEP, pad_rows
from transformer_jax.decoding import Sampler, Samples
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import place_like, round_up_rows
from transformer_jax.tokenization import BOS, EOS, PAD, UNK

CHUNK = 16  # tokens drawn between two looks at them


@dataclasses.dataclass
class Output:
    """What was drawn behind a prompt.

    Attributes:
      prompt: its tokens.
      number: of the prompt, and `sample`, of this output among those of the prompt: what is drawn
        follows from the two and the seed.
      tokens: drawn so far.
      log_prob: of these under the model, in nats.
      ended: whether that is all.
      context: what the model looks at: the end of the prompt and the tokens.
    """

    prompt: list[int]
    number: int
    sample: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    log_prob: float = 0.0
    ended: bool = False
    context: list[int] = dataclasses.field(init=False)

    def __post_init__(self):
        self.context = self.prompt


@dataclasses.dataclass(frozen=True)
class Continuation:
    """Draws what follows prompts of unequal length, all in one batch.

    The model looks at `context` tokens at most. Of a prompt, or a prompt and what was drawn behind
    it, that is longer, it keeps the last half of that many, and is prefilled with them anew.

    Attributes:
      model: predicts the next token.
      context: tokens that it sees at once.
      use_cache: False computes keys and values of all tokens anew for each; for comparison.
    """

    model: DecoderOnly
    context: int
    use_cache: bool = True

    def kept(self, tokens: list[int]) -> list[int]:
        """The tokens that the model looks at."""
        return tokens if len(tokens) <= self.context else tokens[-(self.context // 2) :]

    def draw(
        self,
        params: Any,
        outputs: Sequence[Output],
        decode: DecodeConfig,
        is_complete: Callable[[Output], bool] = lambda output: False,
    ) -> Iterator[None]:
        """Goes on with the outputs, in place, until all have ended; yields every few tokens.

        Args:
          params: of the model.
          outputs: with their prompts.
          decode: how to draw; without a temperature the likeliest token is taken each time.
          is_complete: whether an output needs no further token.
        """
        sampler, drawn = _sampler(decode), 0
        while not all(output.ended for output in outputs):
            for output in outputs:
                output.context = self.kept(output.context)
            longest = max(len(output.context) for output in outputs if not output.ended)
            room = self.context + 1 - longest
            before = [(len(output.tokens), output.log_prob) for output in outputs]
            arrays = place_like(params, self._arrays(params, outputs, decode))
            samples = self.begin(params, arrays, sampler, decode.seed, drawn)
            while True:
                length = self._read(samples, outputs, before, is_complete)
                yield
                if length == room or all(output.ended for output in outputs):
                    break
                samples = self._mark_ended(samples, outputs)
                samples = self.extend(params, samples, sampler, min(length + CHUNK, room))
            drawn += length
            for output, (count, _) in zip(outputs, before, strict=True):
                output.context = [*output.context, *output.tokens[count:]]

    def _arrays(self, params, outputs, decode) -> dict[str, np.ndarray]:
        """The rows of a batch; what fills it up has ended already."""
        rows = round_up_rows(1 << (len(outputs) - 1).bit_length(), params)
        fill = rows - len(outputs)
        contexts = [output.context for output in outputs]
        longest = max(map(len, contexts))
        width = min(max(LENGTH_STEP, 1 << (longest - 1).bit_length()), self.context)
        left = [decode.max_extra_length - len(output.tokens) for output in outputs]
        arrays = {
            "prompt": pad_rows([*contexts, *[[EOS]] * fill], width),
            "lengths": np.array([*map(len, contexts), *[1] * fill], np.int32),
            "limits": np.array([*left, *[1] * fill], np.int32),
            "ended": np.array([*(output.ended for output in outputs), *[True] * fill]),
            "numbers": np.array([*(output.number for output in outputs), *[0] * fill], np.int32),
            "samples": np.array([*(output.sample for output in outputs), *[0] * fill], np.int32),
        }
        if decode.repetition_penalty != 1:
            arrays["seen"] = np.zeros((rows, self.model.config.vocab_size), bool)
            for row, output in zip(arrays["seen"], outputs, strict=False):
                row[[*output.prompt, *output.tokens]] = True
        return arrays

    def _read(self, samples, outputs, before, is_complete) -> int:
        """Takes over what was drawn; how many tokens that is for an output that goes on."""
        length, tokens, log_probs, ended = hosts.to_host(
            (samples.length, samples.tokens, samples.log_probs, samples.ended)
        )
        for i, (output, (count, log_prob)) in enumerate(zip(outputs, before, strict=True)):
            if not output.ended:
                output.tokens[count:] = [t for t in tokens[i, :length].tolist() if t != PAD]
                output.log_prob = log_prob + float(log_probs[i])
                output.ended = bool(ended[i]) or is_complete(output)
        return int(length)

    def _mark_ended(self, samples: Samples, outputs: Sequence[Output]) -> Samples:
        rows = len(samples.ended)
        ended = np.ones(rows, bool)
        ended[: len(outputs)] = [output.ended for output in outputs]
        return dataclasses.replace(samples, ended=jax.device_put(ended, samples.ended.sharding))

    @functools.cached_property
    def begin(self):
        """`(params, arrays, sampler, seed, drawn) -> Samples`: prefills, draws the first token."""
        return jax.jit(self._begin, static_argnames="sampler")

    @functools.cached_property
    def extend(self):
        """`(params, samples, sampler, length) -> Samples` of that length; takes over the memory of
        those given."""
        return jax.jit(self._extend, static_argnames="sampler", donate_argnums=1)

    def _begin(self, params, arrays: Mapping[str, jax.Array], sampler, seed, drawn) -> Samples:
        logits, _, state = self._prefill(params, arrays["prompt"], arrays["lengths"])
        fold_in = jax.vmap(jax.random.fold_in)
        seeds = jnp.broadcast_to(jax.random.key(seed), arrays["numbers"].shape)
        samples = sampler.begin(
            logits,
            state,
            keys=fold_in(fold_in(seeds, arrays["numbers"]), arrays["samples"]),
            limits=arrays["limits"],
            max_length=self.context + 1,
            drawn_before=drawn,
            seen=arrays.get("seen"),
        )
        return dataclasses.replace(samples, ended=samples.ended | arrays["ended"])

    def _extend(self, params, samples: Samples, sampler, length) -> Samples:
        step = functools.partial(self._decode_step, params)
        return sampler.extend(samples, step, (), length)

    def _prefill(self, params, prompt, lengths):
        if self.use_cache:
            arguments = (prompt, lengths, self.context)
            return self.model.apply({"params": params}, *arguments, method="prefill")
        rows = jnp.zeros((len(prompt), self.context), jnp.int32)
        state = rows.at[:, : prompt.shape[1]].set(prompt), lengths
        return self._logits_behind(params, *state), (), state

    def _decode_step(self, params, tokens, memory, state):
        if self.use_cache:
            arguments = (tokens, memory, state)
            return self.model.apply({"params": params}, *arguments, method="decode_step")
        rows, lengths = state
        rows = rows.at[jnp.arange(len(rows)), lengths].set(tokens)
        return self._logits_behind(params, rows, lengths + 1), (rows, lengths + 1)

    def _logits_behind(self, params, rows, lengths):
        """Logits [B, V] of the token after the first `lengths` of rows, without a cache."""
        positions = jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
        segment_ids = (positions < lengths[:, None]).astype(jnp.int32)
        logits = self.model.apply({"params": params}, rows, positions, segment_ids)
        return jnp.take_along_axis(logits, lengths[:, None, None] - 1, axis=1)[:, 0]


def _sampler(decode: DecodeConfig) -> Sampler:
    ids = {"eos_id": EOS, "pad_id": PAD, "banned_ids": (PAD, UNK, BOS)}
    penalty = decode.repetition_penalty
    if not decode.samples:
        return Sampler(1.0, 1, None, **ids, repetition_penalty=penalty)
    parts = (decode.temperature, decode.top_k, decode.top_p)
    return Sampler(*parts, **ids, repetition_penalty=penalty)
