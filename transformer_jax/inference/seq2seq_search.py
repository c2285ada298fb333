"""Decoding with an encoder-decoder: sources in, outputs out, both as tokens.

B batch, S source, L output length, V vocabulary, N = B x beams, n outputs a source.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import batched
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.packing import pad_rows, rounded_length, row_lengths
from transformer_jax.decoding import (
    BeamSearch,
    BeamTree,
    Constraint,
    DecodeStep,
    Hypotheses,
    Memory,
    Start,
    State,
    beam_tree,
    constrained,
    masked_logits,
)
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import PaddedBatch, unpad
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.models import apply_method
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.runtime.platform import require_memory
from transformer_jax.tokenization import SpecialTokens

# FOLDED inference.requests: Sources whose outputs are asked for, in batches of like length. B
# batch, S source, P prompt, L output length, n outputs a source.


Found = tuple[np.ndarray, np.ndarray]
"""The outputs of a source, best first: tokens int32 [n, L], and scores [n], -inf where there is
none."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A source whose outputs are asked for.

    Attributes:
      source: all its tokens, special ones among them.
      prefix: tokens that each output starts with, behind those that every output starts with; none
        of them is returned.
      number: of the source; with the seed, it decides the samples.
      given: what a constraint is told of the source, as the tokens of its words.
      forced: how many tokens of the output follow from that; its limit does not count them.
    """

    source: Sequence[int]
    prefix: Sequence[int] = ()
    number: int = 0
    given: Sequence[int] = ()
    forced: int = 0


def search_in_batches(
    search: Callable[[Sequence[Request]], Found], requests: Sequence[Request], batch_size: int
) -> list[Found]:
    """The outputs of each request, in order; those of like length are searched for together.

    Args:
      search: at most `batch_size` requests -> their outputs, tokens [B, n, L] and scores [B, n].
      requests: any number of them.
      batch_size: B at most.
    """
    found: dict[int, Found] = {}
    order = sorted(
        range(len(requests)), key=lambda i: (len(requests[i].prefix) > 0, len(requests[i].source))
    )
    for chosen in batched(order, batch_size):
        outputs = search([requests[i] for i in chosen])
        found |= zip(chosen, zip(*outputs, strict=True), strict=True)
    return [found[i] for i in range(len(requests))]


def request_arrays(
    specials: SpecialTokens, requests: Sequence[Request], max_extra_length: int
) -> dict[str, np.ndarray]:
    """The arrays of a batch of requests.

    Args:
      specials: of the outputs' vocabulary.
      requests: the rows.
      max_extra_length: tokens by which an output may be longer than its source.

    Returns:
      "source" [B, S] and "prompt" [B, P], with their "source_lengths" [B] and "prompt_lengths" [B];
      "limits" [B], the longest outputs; "numbers" [B], which samples follow from; where something
      is given, "given" [B, W] and "given_lengths" [B].
    """
    sources = [request.source for request in requests]
    forced = (specials.start, *specials.translation.head)
    prompts = [[*forced, *request.prefix] for request in requests]
    is_prefixed = any(request.prefix for request in requests)
    free = np.array([request.forced + max_extra_length for request in requests], np.int32)
    arrays = {
        "source": pad_rows(sources, rounded_length(sources)),
        "source_lengths": row_lengths(sources),
        "prompt": pad_rows(prompts, rounded_length(prompts) if is_prefixed else len(forced)),
        "prompt_lengths": row_lengths(prompts),
        "limits": row_lengths(sources) + free,
        "numbers": np.array([request.number for request in requests], np.int32),
    }
    given = [request.given for request in requests]
    if any(given):
        arrays |= {
            "given": pad_rows(given, rounded_length(given)),
            "given_lengths": row_lengths(given),
        }
    return arrays


def longest_output(arrays: Mapping[str, np.ndarray], max_extra_length: int) -> int:
    """L, the room for the outputs of a batch: the same for all batches of the same shapes."""
    given = arrays["given"].shape[1] if "given" in arrays else 0
    return arrays["source"].shape[1] + given + max_extra_length


@dataclasses.dataclass(frozen=True)
class Seq2SeqSearch:
    """Finds the outputs of a batch of sources by the search that a `DecodeConfig` names; compiled
    for few shapes.

    Attributes:
      model: maps sources and outputs to logits.
      specials: of the outputs' vocabulary.
      constraint: what may be written; None: anything.
    """

    model: Seq2Seq
    specials: SpecialTokens
    constraint: Constraint | None = None

    def __call__(
        self, params: Any, requests: Sequence[Request], decode: DecodeConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds outputs: tokens [B, n, L], padded behind their end, and scores [B, n].

        The batch is filled up to `decode.batch_size` rows, and its rows to a rounded length. Its
        rows are divided among the devices that hold the parameters.

        Args:
          params: of the model.
          requests: the sources.
          decode: how to find outputs.

        Raises:
          UserError: as `check`.
        """
        longest = max(len(one.source) for one in requests)
        self.check(longest + max(len(one.prefix) for one in requests), decode)
        extra = decode.max_extra_length
        to_arrays = functools.partial(request_arrays, self.specials, max_extra_length=extra)
        batch = PaddedBatch(Request([self.specials.eos]), to_arrays)
        arrays = batch.place(params, requests, decode.batch_size)
        found = self.compiled(params, arrays, decode, longest_output(arrays, extra))
        tokens, scores = unpad(found, len(requests))
        return tokens, scores

    def check(self, longest: int, decode: DecodeConfig) -> None:
        """Refuses a search that cannot be made.

        Args:
          longest: tokens of the longest source and the longest prefix.
          decode: how to find outputs.

        Raises:
          UserError: the beam is larger than the target vocabulary or smaller than the number of
            outputs, a setting is not for translation, outputs may grow beyond the positions that
            the model knows, or what is kept of them cannot fit into memory.
        """
        config, search = self.model.config, decode.make_search(self.specials)
        outputs = decode.num_outputs
        if isinstance(search, BeamSearch):
            outputs = search.beam_size
            _check_beams(search.beam_size, decode.num_outputs, config.target_vocab_size)
        if decode.stop or decode.repetition_penalty != 1:
            raise UserError("decode: stop and repetition_penalty are of language models alone")
        longest += len(self.specials.translation.head)
        try:
            check_num_positions(config, longest + decode.max_extra_length)
        except ValueError as error:
            raise UserError(f"decode: {error}; lower decode.max_extra_length") from error
        length = longest + decode.max_extra_length
        require_memory(
            decode.batch_size * outputs * self.model.state_bytes(length),
            f"decode: the state of {decode.batch_size} sources, {outputs} outputs and {length} "
            "tokens",
        )

    @functools.cached_property
    def compiled(self) -> jax.stages.Wrapped:
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
          arrays: as `request_arrays` makes them.
          decode: how to find outputs.
          max_length: L, of the longest output.
          may_end: False: no output ends before its limit, as a benchmark wants it.
        """
        start = self._start(params, arrays, decode, max_length, may_end)
        step = self._step(params, may_end)
        search = decode.make_search(self.specials)
        return search.find(step, start, num_outputs=decode.num_outputs, max_length=max_length)

    def beam_tree(
        self,
        params: Any,
        request: Request,
        decode: DecodeConfig,
        to_pieces: Callable[[Sequence[int]], Sequence[str]],
    ) -> BeamTree:
        """What the beam search for a source looked at, what it kept, and why not the rest.

        Args:
          params: of the model.
          request: the source.
          decode: how to find outputs.
          to_pieces: the text of each token.

        Raises:
          UserError: as `check`, or the search is none with beams.
        """
        search, extra = decode.make_search(self.specials), decode.max_extra_length
        if not isinstance(search, BeamSearch):
            raise UserError(f"decode: search {decode.searches[0]!r} has no beams; take search beam")
        self.check(len(request.source) + len(request.prefix), decode)
        arrays = request_arrays(self.specials, [request], extra)
        max_length = longest_output(arrays, extra)
        to_start, step = self._compiled_parts
        return beam_tree(
            search,
            functools.partial(step, params),
            to_start(params, arrays, decode, max_length),
            num_outputs=decode.num_outputs,
            max_length=max_length,
            to_pieces=to_pieces,
        )

    @functools.cached_property
    def _compiled_parts(self) -> tuple[jax.stages.Wrapped, jax.stages.Wrapped]:
        """What a search starts from, and its step."""
        to_start = jax.jit(self._start, static_argnames=("decode", "max_length"))
        return to_start, jax.jit(lambda params, *inputs: self._step(params)(*inputs))

    def _start(
        self,
        params: Any,
        arrays: Mapping[str, jax.Array],
        decode: DecodeConfig,
        max_length: int,
        may_end: bool = True,
    ) -> Start:
        """Arguments as of `run`."""
        source, prompt = arrays["source"], arrays["prompt"]
        sides = (source, arrays["source_lengths"], prompt, arrays["prompt_lengths"])
        slots = prompt.shape[1] - 1 + max_length
        logits, memory, state = apply_method(self.model, params, "prefill", *sides, slots)
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        keys = fold_in(jax.random.key(decode.seed), arrays["numbers"])
        logits, limits = self._with_end(logits, may_end), arrays["limits"]
        if self.constraint:
            first = self.constraint.begin(arrays["given"], arrays["given_lengths"], limits)
            allowed = self.constraint.allowed(first)
            logits, state = masked_logits(logits, allowed, self._banned_id), (state, first)
        return Start(logits, memory, state, limits, keys)

    def _step(self, params: Any, may_end: bool = True) -> DecodeStep:
        """The model's step, under the constraint."""

        def step(tokens: jax.Array, memory: Memory, state: State) -> tuple[jax.Array, State]:
            logits, state = apply_method(self.model, params, "decode_step", tokens, memory, state)
            return self._with_end(logits, may_end), state

        return constrained(step, self.constraint, self._banned_id) if self.constraint else step

    def _with_end(self, logits: jax.Array, may_end: bool) -> jax.Array:
        return logits if may_end else logits.at[:, self.specials.eos].set(-jnp.inf)

    @property
    def _banned_id(self) -> int:
        return self.specials.banned[0]


def _check_beams(beam_size: int, num_outputs: int, vocab_size: int) -> None:
    if num_outputs > beam_size:
        raise UserError(
            f"decode: num_outputs is {num_outputs}; it must be at most beam_size {beam_size}"
        )
    if beam_size > vocab_size:
        raise UserError(
            f"decode: beam_size is {beam_size}; the target vocabulary has {vocab_size} pieces"
        )
