"""Beam search with an encoder-decoder: sources in, outputs out, both as tokens.

B batch, S source, L output length, n outputs a source.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import precision
from transformer_jax.data.padding import pad_rows, rounded_length
from transformer_jax.decoding import DecodeConfig, Hypotheses, beam_search
from transformer_jax.errors import UserError
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.positions import check_reach
from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import place_like, round_up_rows
from transformer_jax.tokenization import BOS, EOS, PAD, UNK


@dataclasses.dataclass(frozen=True)
class SourceSearch:
    """The search of section 6.1 for a batch of sources, compiled for few shapes."""

    model: EncoderDecoder

    def __call__(
        self, params: Any, sources: Sequence[Sequence[int]], decode: DecodeConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Searches for sources that end in EOS: tokens [B, n, L] and scores [B, n].

        The batch is filled up to `decode.batch_size` rows, and its rows to a rounded length. Its
        rows are divided among the devices that hold the parameters.

        Raises:
          UserError: the beam is larger than the target vocabulary, or outputs may grow beyond the
            positions that the model knows.
        """
        self._check(max(map(len, sources)), decode)
        width = rounded_length(sources)
        filler = [[EOS]] * (round_up_rows(decode.batch_size, params) - len(sources))
        source = pad_rows([*sources, *filler], width)
        limits = (source != PAD).sum(axis=1, dtype=np.int32) + decode.max_extra_length
        source, limits = place_like(params, (source, limits))
        found = self.compiled(params, source, limits, decode, width + decode.max_extra_length)
        return tuple(x[: len(sources)] for x in hosts.to_host(found))

    def _check(self, longest_source: int, decode: DecodeConfig) -> None:
        config = self.model.config
        if decode.beam_size > config.target_vocab_size:
            raise UserError(
                f"decode: beam_size is {decode.beam_size}; the target vocabulary has "
                f"{config.target_vocab_size} pieces"
            )
        try:
            check_reach(config, longest_source + decode.max_extra_length)
        except ValueError as error:
            raise UserError(f"decode: {error}; lower decode.max_extra_length") from error

    @functools.cached_property
    def compiled(self):
        """`run`, compiled once for each shape and setting."""
        return jax.jit(
            self.run,
            static_argnames=("decode", "max_length", "may_end"),
            compiler_options=precision.compiler_options(),
        )

    def run(
        self,
        params: Any,
        source: jax.Array,
        limits: jax.Array,
        decode: DecodeConfig,
        max_length: int,
        may_end: bool = True,
    ) -> Hypotheses:
        """Searches for padded sources [B, S], their outputs limited to `limits` [B] tokens.

        Without `may_end` no output ends before its limit, as a benchmark wants it.
        """
        variables = {"params": params}
        forbid = (lambda logits: logits) if may_end else (lambda x: x.at[:, EOS].set(-jnp.inf))
        prompt = jnp.full((source.shape[0], 1), BOS)
        logits, memory, state = self.model.apply(
            variables, source, prompt, max_length, method="prefill"
        )

        def decode_step(tokens, memory, state):
            logits, state = self.model.apply(variables, tokens, memory, state, method="decode_step")
            return forbid(logits), state

        return beam_search(
            decode_step,
            forbid(logits),
            memory,
            state,
            max_lengths=limits,
            max_length=max_length,
            beam_size=decode.beam_size,
            num_outputs=decode.num_outputs,
            alpha=decode.alpha,
            eos_id=EOS,
            pad_id=PAD,
            banned_ids=(PAD, UNK, BOS),
        )
