# SPDX-License-Identifier: Apache-2.0
"""Search for the outputs of sources with an encoder-decoder, both as tokens.

B batch, S source, P prompt, W constraint tokens, L output length, V vocabulary, n outputs of a
source, N = B * beams; R inputs of a group that enters a batch.
"""

import dataclasses
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from itertools import batched, groupby
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.packing import pad_rows, rounded_length, row_lengths
from transformer_jax.decoding.beam_search import BeamSearch
from transformer_jax.decoding.constraints import Constraint, start_under
from transformer_jax.decoding.interface import (
    DecodeStep,
    Hypotheses,
    Memory,
    RefillableSearch,
    Search,
    Start,
    is_refillable,
    replace_sentences,
)
from transformer_jax.decoding.unmasking import Unmasking
from transformer_jax.errors import NonFiniteError, UserError, user_errors
from transformer_jax.inference import draft
from transformer_jax.inference.batches import PaddedBatch, unpad
from transformer_jax.inference.config import DecodeConfig, make_constraint
from transformer_jax.models import apply_method
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import mesh_of
from transformer_jax.runtime.platform import compiled_method, require_memory
from transformer_jax.runtime.progress import track
from transformer_jax.tokenization import SpecialTokens, Tokenizer

if TYPE_CHECKING:
    from transformer_jax.decoding.beam_tree import BeamTree

GROUPS = 4
"""Groups of a batch. More groups leave fewer places idle, and pause the search more often: greedy
search for 1,000 captions with a model of width 128 took 2.5 CPU seconds with 4 groups of 16 and 2.9
with 8 groups of 8 (without refilling: 3.3)."""

Outputs = tuple[np.ndarray, np.ndarray]
"""Outputs of a source, best first: tokens int32 [n, L], and scores [n], -inf where there is no
output."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A source to search outputs for.

    Attributes:
      prefix: tokens that each output starts with, after those that all outputs start with. They
        are not returned.
      number: number of the source; samples depend on it and on the seed.
      constraint_tokens: tokens that the constraint knows of the source, such as those of its words.
      num_forced: number of output tokens that these determine; the length limit does not count
        them.
    """

    source: Sequence[int]
    prefix: Sequence[int] = ()
    number: int = 0
    constraint_tokens: Sequence[int] = ()
    num_forced: int = 0


def longest_output(arrays: Mapping[str, np.ndarray], decode: DecodeConfig) -> int:
    """L, slots for the outputs of a batch: the same for all batches of the same shapes."""
    tokens = arrays.get("constraint_tokens")
    num_forced = 0 if tokens is None else tokens.shape[1]
    return arrays["source"].shape[1] + num_forced + decode.max_extra_length


@dataclasses.dataclass(frozen=True)
class Seq2SeqSearch:
    """Searches for the outputs of batches of sources, with the search of a `DecodeConfig`.

    Attributes:
      constraint: of the task; None: that of `decode.constraint`.
      tokenizer: of the outputs, for `decode.constraint` and trees of beams; None: there is none.
    """

    model: Seq2Seq
    specials: SpecialTokens
    constraint: Constraint | None = None
    tokenizer: Tokenizer | None = None

    def arrays(self, requests: Sequence[Request], decode: DecodeConfig) -> dict[str, np.ndarray]:
        """Arrays of a batch of requests.

        Returns:
          "source" [B, S] and "prompt" [B, P], with "source_lengths" [B] and "prompt_lengths" [B];
          "limits" [B], the longest outputs; "numbers" [B], of the requests; if there are constraint
          tokens, "constraint_tokens" [B, W] and "constraint_lengths" [B].
        """
        sources = [request.source for request in requests]
        forced = (self.specials.start, *self.specials.translation.head)
        prompts = [[*forced, *request.prefix] for request in requests]
        is_prefixed = any(request.prefix for request in requests)
        free = [request.num_forced + decode.max_extra_length for request in requests]
        arrays = {
            "source": pad_rows(sources, rounded_length(sources)),
            "source_lengths": row_lengths(sources),
            "prompt": pad_rows(prompts, rounded_length(prompts) if is_prefixed else len(forced)),
            "prompt_lengths": row_lengths(prompts),
            "limits": row_lengths(sources) + np.array(free, np.int32),
            "numbers": np.array([request.number for request in requests], np.int32),
        }
        tokens = [request.constraint_tokens for request in requests]
        if any(tokens):
            arrays |= {
                "constraint_tokens": pad_rows(tokens, rounded_length(tokens)),
                "constraint_lengths": row_lengths(tokens),
            }
        return arrays

    def __call__(
        self, params: Any, requests: Sequence[Request], decode: DecodeConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds outputs: tokens [B, n, L], padded, and scores [B, n].

        The batch is padded to `decode.batch_size` rows of a rounded length, and divided among the
        devices that hold the parameters.
        """
        self._check_requests(requests, decode)
        filler = Request([self.specials.eos])
        batch = PaddedBatch(filler, functools.partial(self.arrays, decode=decode))
        arrays = batch.place(params, requests, decode.batch_size)
        hypotheses = self.compiled(params, arrays, decode, longest_output(arrays, decode))
        return self._checked(unpad(hypotheses, len(requests)))

    def _check_requests(self, requests: Sequence[Request], decode: DecodeConfig) -> None:
        longest_source = max(len(request.source) for request in requests)
        longest_prefix = max(len(request.prefix) for request in requests)
        self.check(longest_source + longest_prefix, decode)

    def _checked(self, hypotheses: Any) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and scores of `Hypotheses` on the host; NonFiniteError if a score is NaN. Counts
        the steps of a search with a draft."""
        tokens, scores, num_steps = hypotheses
        if np.isnan(scores).any():
            raise NonFiniteError
        if isinstance(self.model, draft.DraftedModel):
            later_tokens = tokens[:, :, 1:] != self.specials.pad
            self.model.record(int(later_tokens.sum()), int(num_steps.sum()))
        return tokens, scores

    def find_all(
        self, params: Any, requests: Sequence[Request], decode: DecodeConfig
    ) -> list[Outputs]:
        """Finds the outputs of any number of requests, in order.

        Batches have sources of similar length, the longest first. In several batches of the same
        shape, the next requests take the places of those that are done.
        """
        # Requests with a prefix are apart, because their prompts have another width.
        by_length = sorted(
            range(len(requests)),
            key=lambda i: (len(requests[i].prefix) > 0, len(requests[i].source)),
            reverse=True,
        )
        mesh = mesh_of(params)
        refills = is_refillable(self._search(decode)) and (mesh is None or mesh.size == 1)

        def shapes(indices: Sequence[int]) -> dict[str, tuple[int, ...]]:
            batch = [requests[i] for i in indices]
            return {name: rows.shape[1:] for name, rows in self.arrays(batch, decode).items()}

        def finished() -> Iterator[list[tuple[int, Outputs]]]:
            for _, same_shape in groupby(batched(by_length, decode.batch_size), key=shapes):
                batches = list(same_shape)
                if refills and len(batches) > 1:
                    order = [i for batch in batches for i in batch]
                    for part in self._refilled(params, [requests[i] for i in order], decode):
                        yield [(order[i], outputs) for i, outputs in part]
                    continue
                for batch in batches:
                    outputs = self(params, [requests[i] for i in batch], decode)
                    yield list(zip(batch, zip(*outputs, strict=True), strict=True))

        by_request: dict[int, Outputs] = {}
        for part in track(finished(), len(requests), "example"):
            by_request |= part
        return [by_request[i] for i in range(len(requests))]

    def _refilled(
        self, params: Any, requests: Sequence[Request], decode: DecodeConfig
    ) -> Iterator[list[tuple[int, Outputs]]]:
        """Yields the outputs that are done, with the indices of their requests.

        Requests enter in groups of a constant size, in order. When the places of a group are free,
        the next one takes them.
        """
        self._check_requests(requests, decode)
        arrays = self.arrays(requests, decode)
        max_length = longest_output(arrays, decode)
        group = max(1, decode.batch_size // GROUPS)
        num_groups = decode.batch_size // group
        places = np.full(num_groups * group, -1)  # index of the request in each place; -1: free
        waiting = list(range(len(requests)))
        batch: Any = None
        while waiting or (places >= 0).any():
            while waiting and (places < 0).sum() >= min(group, len(waiting)):
                entering = waiting[:group]
                waiting = waiting[group:]
                free = np.flatnonzero(places < 0)[: len(entering)]
                places[free] = entering
                # The last group may be smaller: it is filled up with rows that go to no place.
                fill = (0, group - len(entering))
                rows = np.pad(entering, fill, mode="edge")
                of_group = {name: array[rows] for name, array in arrays.items()}
                new = self._open(params, of_group, decode, max_length)
                batch = _repeated(new, num_groups) if batch is None else batch
                batch = _replaced(batch, new, np.pad(free, fill, constant_values=len(places)))
            memory, searched = batch
            # The search pauses when the next group has room; with none waiting, when all are done.
            most_left = len(places) - min(group, len(waiting)) if waiting else 0
            searched, is_done, hypotheses = self._run_opened(
                params, memory, searched, np.int32(most_left), decode
            )
            batch = memory, searched
            is_done, hypotheses = hosts.to_host((is_done, hypotheses))
            done = np.flatnonzero(is_done & (places >= 0))
            final = self._checked(jax.tree.map(operator.itemgetter(done), hypotheses))
            yield list(zip(places[done].tolist(), zip(*final, strict=True), strict=True))
            places[done] = -1

    @compiled_method(searches=True, static_argnames=("decode", "max_length"))
    def _open(
        self, params: Any, arrays: Mapping[str, jax.Array], decode: DecodeConfig, max_length: int
    ) -> tuple[Memory, Any]:
        """Memory and first hypotheses of the requests."""
        start = self._start(params, arrays, decode, max_length)
        search = cast(RefillableSearch, self._search(decode))
        first = search.open(start, num_outputs=decode.num_outputs, max_length=max_length)
        return start.memory, first

    @compiled_method(searches=True, static_argnames="decode", donate_argnums=2)
    def _run_opened(
        self, params: Any, memory: Memory, searched: Any, most_left: jax.Array, decode: DecodeConfig
    ) -> tuple[Any, jax.Array, Hypotheses]:
        """Continues until at most `most_left` sentences are not done."""
        search = cast(RefillableSearch, self._search(decode))
        searched = search.run(searched, self._step(params, decode), memory, most_left)
        return searched, search.is_done(searched), search.outputs(searched)

    def check(self, longest: int, decode: DecodeConfig) -> None:
        """Rejects settings with which the search cannot run.

        Args:
          longest: length of the longest source plus that of the longest prefix.

        Raises:
          UserError: the beam is larger than the target vocabulary or smaller than the number of
            outputs, a setting is only for language models, outputs may exceed the positions that
            the model knows, or the decoding state does not fit into memory.
        """
        search = self._search(decode)
        outputs = decode.num_outputs
        beams = 1
        if isinstance(search, BeamSearch):
            outputs = beams = search.beam_size
            vocab_size = self.model.config.target_vocab_size
            if decode.num_outputs > beams:
                raise UserError(
                    f"decode: num_outputs is {decode.num_outputs}; it must be at most beam_size "
                    f"{beams}"
                )
            if beams > vocab_size:
                raise UserError(
                    f"decode: beam_size is {beams}; the target vocabulary has {vocab_size} pieces"
                )
        if decode.stop or decode.repetition_penalty != 1:
            raise UserError("decode: stop and repetition_penalty are of language models alone")
        length = longest + len(self.specials.translation.head) + decode.max_extra_length
        with user_errors("decode", "; lower decode.max_extra_length"):
            draft.check_positions(self.model, length)
        # The beams of a source share one state; other outputs have one each.
        require_memory(
            decode.batch_size * outputs // beams * self.model.state_bytes(length, beams),
            f"decode: the state of {decode.batch_size} sources, {outputs} outputs and {length} "
            "tokens",
        )

    def _search(self, decode: DecodeConfig) -> Search:
        """The search that `decode` chooses; with a draft, one that uses it."""
        if isinstance(self.model, draft.DraftedModel):
            decode = decode.greedy_if_one_beam()
            if self.constraint:
                raise UserError("decode.draft: constrained outputs cannot be drafted; leave it out")
        search = decode.make_search(self.specials)
        if isinstance(search, Unmasking):
            raise UserError("decode.search 'unmask' fills masks; only runs of diffusion have any")
        if isinstance(search, BeamSearch):
            forced = len(self.specials.translation.head)
            search = dataclasses.replace(search, num_forced=forced)
        return draft.searching(self.model, search)

    @compiled_method(searches=True, static_argnames=("decode", "max_length"))
    def compiled(
        self, params: Any, arrays: Mapping[str, jax.Array], decode: DecodeConfig, max_length: int
    ) -> Hypotheses:
        """Finds the outputs of a batch of `arrays`."""
        start = self._start(params, arrays, decode, max_length)
        step = self._step(params, decode)
        search = self._search(decode)
        return search.find(step, start, num_outputs=decode.num_outputs, max_length=max_length)

    def beam_tree(self, params: Any, request: Request, decode: DecodeConfig) -> "BeamTree":
        """Record of the beam search for a source."""
        from transformer_jax.decoding.beam_tree import beam_tree

        search = self._search(decode)
        if not isinstance(search, BeamSearch):
            raise UserError(f"decode: search {decode.searches[0]!r} has no beams; take search beam")
        assert self.tokenizer is not None
        self._check_requests([request], decode)
        arrays = self.arrays([request], decode)
        max_length = longest_output(arrays, decode)
        return beam_tree(
            search,
            functools.partial(self._compiled_step, params, decode),
            self._compiled_start(params, arrays, decode, max_length),
            num_outputs=decode.num_outputs,
            max_length=max_length,
            to_pieces=self.tokenizer.pieces,
        )

    @compiled_method(searches=True, static_argnames="decode")
    def _compiled_step(self, params: Any, decode: DecodeConfig, *inputs: Any) -> Any:
        return self._step(params, decode)(*inputs)

    def _start(
        self, params: Any, arrays: Mapping[str, jax.Array], decode: DecodeConfig, max_length: int
    ) -> Start:
        prompt = arrays["prompt"]
        sides = (arrays["source"], arrays["source_lengths"], prompt, arrays["prompt_lengths"])
        slots = prompt.shape[1] - 1 + max_length  # the last output token is never read
        method = draft.method_of(self._search(decode), "prefill")
        logits, memory, state, *hidden = apply_method(self.model, params, method, *sides, slots)
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        keys = fold_in(jax.random.key(decode.seed), arrays["numbers"])
        start = Start(logits, memory, state, arrays["limits"], keys, *hidden)
        constraint = self._constraint(decode)
        if constraint is None:
            return start
        tokens = arrays.get("constraint_tokens", arrays["source"])
        counts = arrays.get("constraint_lengths", arrays["source_lengths"])
        return start_under(constraint, start, tokens, counts, self.specials.banned[0])

    _compiled_start = compiled_method(searches=True, static_argnames=("decode", "max_length"))(
        _start
    )

    def _constraint(self, decode: DecodeConfig) -> Constraint | None:
        if self.constraint and decode.constraint:
            raise UserError("decode.constraint: this task has a constraint; leave it out")
        return self.constraint or make_constraint(decode, self.tokenizer)

    def _step(self, params: Any, decode: DecodeConfig) -> DecodeStep:
        search = self._search(decode)
        constraint = self._constraint(decode)
        return draft.decode_step_of(self.model, params, search, constraint, self.specials)


@functools.partial(jax.jit, static_argnames="times")
def _repeated(tree: Any, times: int) -> Any:
    return jax.tree.map(lambda rows: jnp.concatenate([rows] * times), tree)


_replaced = jax.jit(replace_sentences, donate_argnums=0)
