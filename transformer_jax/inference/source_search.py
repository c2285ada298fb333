"""Decoding with an encoder-decoder: sources in, outputs out, both as tokens.

B batch, S source, L output length, n outputs a source.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.padding import pad_rows, rounded_length
from transformer_jax.decoding import Hypotheses, Sampler, beam_search, sample
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.positions import check_reach
from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import place_like, round_up_rows
from transformer_jax.tokenization import BOS, EOS, PAD, UNK


@dataclasses.dataclass(frozen=True)
class SourceSearch:
    """The outputs of a batch of sources, by the search of section 6.1 or sampled; compiled for few
    shapes."""

    model: EncoderDecoder

    def __call__(
        self,
        params: Any,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds outputs for sources that end in EOS: tokens [B, n, L] and scores [B, n].

        The batch is filled up to `decode.batch_size` rows, and its rows to a rounded length. Its
        rows are divided among the devices that hold the parameters.

        Args:
          params: of the model.
          sources: tokens.
          decode: how to find outputs.
          prefixes: tokens that each output starts with, not returned with it; None: nothing.
          numbers: of the sources, from which their samples follow; None: 0, 1, ...

        Raises:
          UserError: the beam is larger than the target vocabulary or smaller than the number of
            outputs, a setting is not for translation, or outputs may grow beyond the positions that
            the model knows.
        """
        prompts = [[BOS, *prefix] for prefix in prefixes or [()] * len(sources)]
        self._check(max(map(len, sources)) + max(map(len, prompts)) - 1, decode)
        fill = round_up_rows(decode.batch_size, params) - len(sources)
        width = rounded_length(sources)
        forced = max(map(len, prompts)) > 1
        arrays = {
            "source": pad_rows([*sources, *[[EOS]] * fill], width),
            "prompt": pad_rows(
                [*prompts, *[[BOS]] * fill], rounded_length(prompts) if forced else 1
            ),
            "numbers": np.array([*(numbers or range(len(sources))), *[0] * fill], np.int32),
        }
        arrays["limits"] = (arrays["source"] != PAD).sum(1, np.int32) + decode.max_extra_length
        arrays = place_like(params, arrays)
        found = self.compiled(params, arrays, decode, width + decode.max_extra_length)
        return tuple(x[: len(sources)] for x in hosts.to_host(found))

    def _check(self, longest: int, decode: DecodeConfig) -> None:
        config = self.model.config
        if not decode.samples and decode.num_outputs > decode.beam_size:
            raise UserError(
                f"decode: num_outputs is {decode.num_outputs}; it must be at most beam_size "
                f"{decode.beam_size}"
            )
        if decode.stop or decode.repetition_penalty != 1:
            raise UserError("decode: stop and repetition_penalty are of language models alone")
        if decode.beam_size > config.target_vocab_size:
            raise UserError(
                f"decode: beam_size is {decode.beam_size}; the target vocabulary has "
                f"{config.target_vocab_size} pieces"
            )
        try:
            check_reach(config, longest + decode.max_extra_length)
        except ValueError as error:
            raise UserError(f"decode: {error}; lower decode.max_extra_length") from error

    @functools.cached_property
    def compiled(self):
        """`run`, compiled once for each shape and setting."""
        return jax.jit(self.run, static_argnames=("decode", "max_length", "may_end"))

    def run(
        self,
        params: Any,
        arrays: Mapping[str, jax.Array],
        decode: DecodeConfig,
        max_length: int,
        may_end: bool = True,
    ) -> Hypotheses:
        """Finds outputs for the arrays of a batch.

        Args:
          params: of the model.
          arrays: "source" [B, S] and "prompt" [B, P], padded; "limits" [B], the longest outputs;
            "numbers" [B], which samples follow from.
          decode: how to find outputs.
          max_length: L, of the longest output.
          may_end: False: no output ends before its limit, as a benchmark wants it.
        """
        variables = {"params": params}
        forbid = (lambda logits: logits) if may_end else _without_eos
        prompt = arrays["prompt"]
        logits, memory, state = self.model.apply(
            variables,
            arrays["source"],
            prompt,
            (prompt != PAD).sum(axis=1),
            prompt.shape[1] - 1 + max_length,
            method="prefill",
        )

        def decode_step(tokens, memory, state):
            logits, state = self.model.apply(variables, tokens, memory, state, method="decode_step")
            return forbid(logits), state

        ids = {"eos_id": EOS, "pad_id": PAD, "banned_ids": (PAD, UNK, BOS)}
        common = {
            "max_lengths": arrays["limits"],
            "max_length": max_length,
            "num_outputs": decode.num_outputs,
        }
        logits = forbid(logits)
        if not decode.samples:
            options = {"beam_size": decode.beam_size, "alpha": decode.alpha}
            return beam_search(decode_step, logits, memory, state, **options, **ids, **common)
        sampler = Sampler(decode.temperature, decode.top_k, decode.top_p, **ids)
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        keys = fold_in(jax.random.key(decode.seed), arrays["numbers"])
        return sample(decode_step, logits, memory, state, sampler, keys=keys, **common)


def _without_eos(logits):
    return jnp.where(jnp.arange(logits.shape[1]) == EOS, -jnp.inf, logits)
