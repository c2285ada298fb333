# SPDX-License-Identifier: Apache-2.0
"""The section `decode` of a config, and the registry of searches."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypedDict

from transformer_jax.decoding import (
    LENGTH_PENALTIES,
    BeamSearch,
    Constraint,
    Sampler,
    Search,
    Unmasking,
)
from transformer_jax.decoding.unmasking import ORDERS
from transformer_jax.errors import UserError
from transformer_jax.fields import Configurable
from transformer_jax.nn.int8 import WEIGHTS
from transformer_jax.ranges import OneOf, Range, Seed, check_fields
from transformer_jax.registry import Registry
from transformer_jax.tokenization import DEFAULT_SPECIALS, SpecialTokens, Tokenizer

Count = Annotated[int, Range(1, 10_000)]


@dataclasses.dataclass(frozen=True)
class DecodeConfig(Configurable):
    """Settings of the search for outputs; the defaults are the paper's (section 6.1).

    Attributes:
      search: search algorithm, an entry of `SEARCHES`; None: "sample" if a temperature is set, else
        "beam".
      beam_size: hypotheses kept per sentence; 1 is greedy search.
      num_outputs: outputs per input: the best hypotheses (at most beam_size; the search continues
        until they are certain), or this many samples.
      alpha: exponent of the length penalty; 0: compare log-probabilities without a penalty.
      length_penalty: base of the penalty: "gnmt", (5 + length) / 6 (Wu et al. 2016), as in the
        paper, or "power", the length itself, as in transformers. With "power", outputs cut at the
        length limit compete with finished ones.
      temperature: sample from softmax(logits / temperature); None: search instead of sampling.
      top_k: sample from the k most likely tokens; None: from all.
      top_p: sample from the smallest set of most likely tokens with this total probability; None:
        from all.
      seed: random seed of sampling.
      repetition_penalty: values above 1 make tokens that already occurred less likely when
        sampling.
      stop: texts separated by "|"; a sample ends before the first of them. None: at the end token.
      max_extra_length: maximal output length minus source length, in tokens; for language models,
        the maximal number of generated tokens.
      batch_size: examples decoded together.
      draft: workdir of a smaller run with the same tokenizers, which proposes tokens in greedy
        search and sampling; or "lookup", which proposes the tokens that followed the same ones
        before. The outputs have the same distribution, and the search takes fewer steps
        (`decoding.speculative`). None: no draft. Evaluations during training use none.
      draft_length: tokens that the draft proposes at once.
      constraint: rule for what an output may be, an entry of `CONSTRAINTS`; None: any text.
      weights: weights of a trained run at inference: "float32", or "int8" (quantized,
        `nn.int8.Int8Matrix`). Training and its evaluations always use float32.

    Raises:
      ValueError: a value out of range, or no search has the name.
    """

    search: str | None = None
    beam_size: Count = 4
    num_outputs: Count = 1
    alpha: Annotated[float, Range(0, 10)] = 0.6
    length_penalty: Annotated[str, OneOf(*LENGTH_PENALTIES)] = "gnmt"
    temperature: Annotated[float, Range(1e-6, 1e6)] | None = None
    top_k: Annotated[int, Range(1, 10_000_000)] | None = None
    top_p: Annotated[float, Range(0, 1, "(]")] | None = None
    seed: Seed = 0
    repetition_penalty: Annotated[float, Range(1e-3, 1e3)] = 1.0
    stop: str | None = None
    max_extra_length: Annotated[int, Range(0, 2**20)] = 50
    batch_size: Annotated[int, Range(1, 2**20)] = 64
    draft: str | None = None
    draft_length: Annotated[int, Range(1, 64)] = 4
    constraint: str | None = None
    weights: Annotated[str, OneOf(*WEIGHTS)] = "float32"

    def __post_init__(self) -> None:
        check_fields(self)
        self.make_search(DEFAULT_SPECIALS)  # rejects settings that the search ignores

    def ignored_fields(self, given: Collection[str]) -> list[str]:
        """Fields among `given` that the chosen search does not read. A search of the user's own may
        read any."""
        if "draft_length" in given and self.draft is None:
            return ["draft_length"]
        unread = frozenset.intersection(*(SEARCHES.unread[name] for name in self.searches))
        return [name for name in given if f"decode.{name}" in unread]

    def with_values(self, values: Mapping[str, Any]) -> "DecodeConfig":
        """These settings with other values, {field: value}. If they name a search, fields that it
        does not read have their defaults, as they may have been set for another one."""
        unread = SEARCHES.unread.get(values.get("search", ""), ())
        names = [name for name in SEARCH_FIELDS if f"decode.{name}" in unread]
        defaults = {name: getattr(DecodeConfig, name) for name in names}
        return dataclasses.replace(self, **{**defaults, **values})

    def greedy_if_one_beam(self) -> "DecodeConfig":
        """These settings; greedy search in place of beam search with one beam."""
        if self.search is not None or self.temperature is not None or self.beam_size > 1:
            return self
        return dataclasses.replace(self, search="greedy")

    @property
    def stop_texts(self) -> list[str]:
        """Texts that end a sample."""
        return [text for text in (self.stop or "").split("|") if text]

    def make_search(self, specials: SpecialTokens) -> Search:
        """Makes the search that `search` names, for outputs with these special tokens. Raises
        ValueError if the search rejects a setting."""
        ids: TokenIds = {
            "eos_id": specials.eos,
            "pad_id": specials.pad,
            "banned_ids": specials.banned,
        }
        return SEARCHES.find(self.searches[0])(self, ids)

    @property
    def searches(self) -> list[str]:
        """Names of the searches that these settings choose, see `searches_of`."""
        return searches_of(self.search, self.temperature, self.beam_size)


def searches_of(search: str | None, temperature: float | None, beam_size: int) -> list[str]:
    """Names of the searches that these fields choose: one, or beam and greedy search for a beam
    size of 1, which language models run as greedy search."""
    if search is not None or temperature is not None:
        return [search or "sample"]
    return ["beam", "greedy"] if beam_size == 1 else ["beam"]


def unread_fields(use: str, task: Any) -> set[str]:
    """The fields of the section `decode` that a task does not read in "predict", "evaluate" or
    "stream"."""
    fields = getattr(task, "evaluates_by" if use == "evaluate" else "predicts_by", None)
    if fields is None or not hasattr(task, "predicts_by"):
        return set()
    names = {"weights", *fields}
    if use == "stream":
        names -= {"num_outputs", "batch_size"}
    return {field.name for field in dataclasses.fields(DecodeConfig)} - names


def search_options(decode: DecodeConfig, task: Any) -> dict[str, Any]:
    """The fields that change the outputs of an evaluation by this task, with their values."""
    fields = dataclasses.asdict(decode)
    if decode.draft is None:
        del fields["draft_length"]
    idle = {"batch_size", *unread_fields("evaluate", task), *decode.ignored_fields(fields)}
    return {name: value for name, value in fields.items() if name not in idle}


class TokenIds(TypedDict):
    """Special tokens, as arguments of the searches of `decoding`."""

    eos_id: int
    pad_id: int
    banned_ids: tuple[int, ...]


def _beam(decode: DecodeConfig, ids: TokenIds) -> BeamSearch:
    _refuse_sampling(decode)
    penalty = decode.length_penalty
    return BeamSearch(decode.beam_size, decode.alpha, length_penalty=penalty, **ids)


def _greedy(decode: DecodeConfig, ids: TokenIds) -> Sampler:
    _refuse_sampling(decode)
    penalty = decode.repetition_penalty
    return Sampler(1.0, top_k=1, top_p=None, repetition_penalty=penalty, **ids)


def _sample(decode: DecodeConfig, ids: TokenIds) -> Sampler:
    if decode.temperature is None:
        raise ValueError("search 'sample' asks for a temperature; set it, as to 1.0")
    return Sampler(
        decode.temperature,
        decode.top_k,
        decode.top_p,
        repetition_penalty=decode.repetition_penalty,
        **ids,
    )


@dataclasses.dataclass(frozen=True)
class UnmaskOptions:
    """Options of the search `unmask`.

    Attributes:
      steps: passes of the model for a text, or for a block of it.
      order: which tokens become visible first: those chosen with the highest probability
        ("confidence"), or any ("random").
      remask: a token that became visible may be hidden again if others are surer, as in
        mask-predict (Ghazvininejad et al. 2019).
    """

    steps: Annotated[int, Range(1, 100_000)] = 32
    order: Annotated[str, OneOf(*ORDERS)] = "confidence"
    remask: bool = False


def _unmask(decode: DecodeConfig, ids: TokenIds) -> Unmasking:
    options = decode.options_of(UnmaskOptions)
    banned_ids = ids["banned_ids"]
    return Unmasking(options.steps, options.order, options.remask, decode.temperature, banned_ids)


def _refuse_sampling(decode: DecodeConfig) -> None:
    for name in ("top_k", "top_p"):
        if getattr(decode, name) is not None:
            raise ValueError(f"{name} is for sampling; set temperature too, as to 1.0")
    if decode.temperature is not None:
        raise ValueError(f"temperature is for sampling, and search is {decode.search!r}")


@dataclasses.dataclass(frozen=True)
class SearchKind:
    """An entry of the registry of searches that declares the fields it reads.

    Attributes:
      make: makes the search.
      reads: fields, "decode.field", that this search reads and some other search does not.
      options: its fields `decode.NAME.*`, a dataclass.
    """

    make: Callable[[DecodeConfig, TokenIds], Any]
    reads: Collection[str]
    options: type | None = None

    def __call__(self, decode: DecodeConfig, ids: TokenIds) -> Search:
        return self.make(decode, ids)


_BEAM = ("decode.beam_size", "decode.alpha", "decode.length_penalty")
_GREEDY = ("decode.repetition_penalty",)
_SAMPLE = ("decode.temperature", "decode.top_k", "decode.top_p", "decode.seed", *_GREEDY)

SEARCHES: Registry[Callable[[DecodeConfig, TokenIds], Search]] = Registry(
    "decode.search",
    {
        "beam": SearchKind(_beam, _BEAM),
        "greedy": SearchKind(_greedy, _GREEDY),
        "sample": SearchKind(_sample, _SAMPLE),
        "unmask": SearchKind(
            _unmask, ("decode.beam_size", "decode.temperature", "decode.seed"), UnmaskOptions
        ),
    },
)
"""Searches by name: functions of the section `decode` and the special tokens.

A function returns a `decoding.Search`, which encoder-decoders use; for language models the search
must be a `decoding.StepwiseSearch` too. Register a `SearchKind` to declare the fields that your
search reads: the others are then rejected. A plain function counts as reading all fields.
"""

CONSTRAINTS: Registry[Callable[[DecodeConfig, Tokenizer], Constraint]] = Registry(
    "decode.constraint"
)
"""Constraints by name: functions of the section `decode` and the tokenizer of the outputs."""


def make_constraint(decode: DecodeConfig, tokenizer: Tokenizer | None) -> Constraint | None:
    """Makes the constraint that `decode.constraint` names, if any.

    Raises:
      UserError: there is a draft, whose proposals a constraint cannot follow.
    """
    if decode.constraint is None:
        return None
    if decode.draft is not None:
        raise UserError("decode.draft: constrained outputs cannot be drafted; leave it out")
    assert tokenizer is not None, "this task reads no decode.constraint"
    return CONSTRAINTS.find(decode.constraint)(decode, tokenizer)


SEARCH_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(DecodeConfig)
    if f"decode.{field.name}" in {*_BEAM, *_GREEDY, *_SAMPLE}
)
"""Fields of the section `decode` that only some searches read."""

_OUTPUT_FIELDS = (
    *("search", "max_extra_length", "batch_size", "draft", "draft_length", "num_outputs"),
    "constraint",
)

TARGET_FIELDS = (*_OUTPUT_FIELDS, *(n for n in SEARCH_FIELDS if n != "repetition_penalty"))
"""Fields that a task on pairs reads to predict a target."""

CONTINUATION_FIELDS = (*_OUTPUT_FIELDS, "stop", *(n for n in SEARCH_FIELDS if n != "alpha"))
"""Fields that a language model reads to continue a text."""
