# SPDX-License-Identifier: Apache-2.0
"""Corruptions of a text: what a model reads, and what it should predict of the rest.

Pure functions of (tokens int32 [L], random generator); L tokens of a text.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.ranges import Range
from transformer_jax.registry import Registry
from transformer_jax.tokenization import SpecialTokens

Share = Annotated[float, Range(0, 1, "()")]
MASK_FIELDS = (
    *("task.mask_rate", "task.final_mask_rate", "task.mask_schedule", "task.whole_words"),
    *("task.pooling", "task.normalize"),
)
"""Fields that masked language modeling reads of the section `task`."""
Tokens = np.ndarray


class Sizes(NamedTuple):
    """Largest sizes of source, of target, and of both together, in tokens."""

    source: int
    target: int
    both: int


class SourceTarget(NamedTuple):
    """What is read, and what is to be written, int32 [S] and [T], without special tokens around."""

    source: Tokens
    target: Tokens


class Masked(NamedTuple):
    """A text with hidden tokens, which are predicted in their places.

    Attributes:
      inputs: int32 [L], with the mask token in place of hidden ones.
      is_hidden: bool [L].
      counts: int32 [L], number of tokens that each token stands for; 0: it is read alone. A text
        with k hidden tokens among n that count has losses with the weight count n / k.
    """

    inputs: Tokens
    is_hidden: np.ndarray
    counts: np.ndarray


@dataclasses.dataclass(frozen=True)
class TextTokens:
    """What a corruption knows of a vocabulary.

    Attributes:
      specials: its special tokens; corruptions use `mask` and `extra`.
      ends_sentence: bool [V], True for tokens that end a sentence.
    """

    specials: SpecialTokens
    ends_sentence: np.ndarray

    @property
    def mask(self) -> int:
        assert self.specials.mask is not None  # `TaskKind.needs_mask`
        return self.specials.mask


class Objective:
    """What a model learns of plain text; base class of the entries of `OBJECTIVES`.

    Attributes:
      options: its config fields `task.NAME.*`.
      reads: fields of the section `task` that this objective reads and some other does not.
      ignores: fields that others read and this one does not.
    """

    options: ClassVar[type | None] = None
    reads: ClassVar[Sequence[str]] = ()
    ignores: ClassVar[Sequence[str]] = ()


_LEFT_TO_RIGHT = (
    *("decode.beam_size", "decode.alpha", "decode.length_penalty", "decode.top_k", "decode.top_p"),
    *("decode.repetition_penalty", "decode.stop", "decode.draft", "decode.draft_length"),
    "decode.constraint",
)
"""Fields of searches that write one token after another."""


class Causal(Objective):
    """Next tokens, left to right: the task language_modeling."""


class MaskedTokens(Objective):
    """Masked tokens in both directions (Devlin et al. 2019): the task masked_lm."""

    reads = MASK_FIELDS
    ignores = (
        *_LEFT_TO_RIGHT,
        *("decode.search", "decode.temperature", "decode.seed", "decode.max_extra_length"),
    )


@dataclasses.dataclass(frozen=True)
class Corruption(Objective):
    """An objective that changes texts. One with options has them as its second field."""

    text: TextTokens

    @classmethod
    def of(cls, config: Any, text: TextTokens) -> Self:
        """Makes the corruption of the section `task`."""
        return cls(text, *([config.options_of(cls.options)] if cls.options else []))


class Rewriting(Corruption):
    """A corruption that makes a source and a target of a text."""

    writes_spans: ClassVar[bool] = False
    """Whether the target has a span for each blank, after an extra token."""

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> SourceTarget:
        raise NotImplementedError

    def longest(self, length: int) -> Sizes:
        """Largest sizes for texts of 2 to `length` tokens."""
        raise NotImplementedError

    def prompt(self, tokens: list[int]) -> list[int]:
        """Source for a line of a user, which may have blanks, written as mask tokens."""
        return tokens

    def num_extra(self, length: int) -> int:
        """Extra tokens of the vocabulary that texts of up to `length` tokens need."""
        return 0


class PrefixLM(Rewriting):
    """A text is cut in two at a place drawn uniformly; the second part is predicted (Liu et al.
    2018; Raffel et al. 2020, section 3.3.1)."""

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> SourceTarget:
        cut = int(rng.integers(1, len(tokens)))
        return SourceTarget(tokens[:cut], tokens[cut:])

    def longest(self, length: int) -> Sizes:
        return Sizes(length - 1, length - 1, length)


def noise_spans(length: int, rate: float, mean_length: float) -> tuple[int, int]:
    """Number of hidden tokens and of their spans in a text (`random_spans_noise_mask` of T5)."""
    num_noise = min(max(int(np.round(length * rate)), 1), length - 1)
    num_spans = max(int(np.round(num_noise / mean_length)), 1)
    # A visible token between two spans, which T5 takes for granted: its rate is 15%.
    return num_noise, min(num_spans, num_noise, length - num_noise + 1)


def noise_mask(
    length: int, rate: float, mean_length: float, rng: np.random.Generator
) -> np.ndarray:
    """True for hidden tokens, bool [length].

    Numbers of T5's `random_spans_noise_mask`, and its way to cut hidden tokens into spans. That
    function hides the end of a text, and of a sentence nothing else, unless its `random_roll` is
    set; here every way to place the spans, a visible token between two, is as likely as any other.
    """
    num_noise, num_spans = noise_spans(length, rate, mean_length)
    sizes = np.zeros(2 * num_spans + 1, int)  # visible and hidden ones in turn
    sizes[1::2] = random_segments(num_noise, num_spans, rng)
    sizes[::2] = random_segments(length - num_noise + 2, num_spans + 1, rng)
    sizes[[0, -1]] -= 1  # may be empty
    return np.repeat(np.arange(len(sizes)) % 2 == 1, sizes)


def random_segments(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Sizes of `count` segments, at least 1 each, that add up to `total`; every way is as likely as
    any other. int [count]."""
    cuts = np.sort(rng.permutation(total - 1)[: count - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def replace_spans(
    tokens: Tokens, is_hidden: np.ndarray, sentinels: Sequence[int], closing: bool
) -> SourceTarget:
    """Replaces each hidden span by a sentinel of its own; the target has each sentinel and the span
    after it (Raffel et al. 2020, figure 2).

    Args:
      sentinels: at least as many as there are spans, one more if `closing`.
      closing: the target ends with one more sentinel, as in the figure.
    """
    starts = is_hidden & ~np.concatenate([[False], is_hidden[:-1]])
    places = np.flatnonzero(starts)
    source = tokens.copy()
    source[places] = sentinels[: len(places)]
    target = np.insert(tokens, places, sentinels[: len(places)])
    in_target = np.insert(is_hidden, places, True)
    target = target[in_target]
    if closing:
        target = np.append(target, sentinels[len(places)])
    return SourceTarget(source[~is_hidden | starts], target.astype(tokens.dtype))


@dataclasses.dataclass(frozen=True)
class SpansOptions:
    """Options of the objective `spans`.

    Attributes:
      rate: share of tokens that are hidden.
      mean_length: mean number of tokens of a hidden span.
      closing: the target ends with one more sentinel, as in figure 2 of the paper; false: it does
        not, as in T5's code.
    """

    rate: Share = 0.15
    mean_length: Annotated[float, Range(1, 1000)] = 3.0
    closing: bool = True


@dataclasses.dataclass(frozen=True)
class Spans(Rewriting):
    """Spans are hidden behind sentinels and predicted: T5 (Raffel et al. 2020, section 3.1.4)."""

    settings: SpansOptions = SpansOptions()
    writes_spans: ClassVar[bool] = True
    options: ClassVar[type] = SpansOptions

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> SourceTarget:
        s = self.settings
        is_hidden = noise_mask(len(tokens), s.rate, s.mean_length, rng)
        return replace_spans(tokens, is_hidden, self.text.specials.extra, s.closing)

    def longest(self, length: int) -> Sizes:
        s = self.settings
        sizes = []
        for n in range(2, length + 1):
            num_noise, num_spans = noise_spans(n, s.rate, s.mean_length)
            source = n - num_noise + num_spans
            target = num_noise + num_spans + s.closing
            sizes.append((source, target, source + target))
        return Sizes(*(max(column) for column in zip(*sizes, strict=True)))

    def prompt(self, tokens: list[int]) -> list[int]:
        mask = self.text.specials.mask
        sentinels = self.text.specials.extra
        num_blanks = sum(token == mask for token in tokens)
        if num_blanks > len(sentinels):
            raise UserError(
                f"a line has {num_blanks} blanks, more than the {len(sentinels)} sentinels "
                "(tokenizer.extra_tokens)"
            )
        next_sentinel = iter(sentinels)
        return [next(next_sentinel) if token == mask else token for token in tokens]

    def num_extra(self, length: int) -> int:
        num_spans = noise_spans(length, self.settings.rate, self.settings.mean_length)[1]
        return num_spans + self.settings.closing


@dataclasses.dataclass(frozen=True)
class InfillingOptions:
    """Options of the objective `infilling`.

    Attributes:
      rate: share of tokens that are hidden; 0: none.
      mean_length: mean of the Poisson distribution of the lengths of hidden spans.
      permute: the sentences of the source are in a random order.
    """

    rate: Annotated[float, Range(0, 1, "[)")] = 0.3
    mean_length: Annotated[float, Range(0.1, 1000)] = 3.0
    permute: bool = True


@dataclasses.dataclass(frozen=True)
class Infilling(Rewriting):
    """Spans of the source become one [MASK] each, and its sentences are permuted; the target is the
    whole text: BART (Lewis et al. 2020, section 2.2)."""

    settings: InfillingOptions = InfillingOptions()
    options: ClassVar[type] = InfillingOptions

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> SourceTarget:
        source = tokens
        if self.settings.permute:
            source = permute_sentences(source, self.text.ends_sentence, rng)
        lengths = self._span_lengths(len(tokens), rng)
        return SourceTarget(infill(source, lengths, self.text.mask, rng), tokens)

    def _span_lengths(self, length: int, rng: np.random.Generator) -> list[int]:
        """Lengths of the hidden spans, 0 for a [MASK] that stands for nothing."""
        left = math.ceil(self.settings.rate * length)
        lengths: list[int] = []
        # At most one span for each token, so that many spans of length 0 do not fill the row.
        while left > 0 and len(lengths) < length:
            lengths.append(min(int(rng.poisson(self.settings.mean_length)), left))
            left -= lengths[-1]
        return [int(length) for length in rng.permutation(lengths)]  # the cut one anywhere

    def longest(self, length: int) -> Sizes:
        return Sizes(2 * length, length, 3 * length)


def infill(
    tokens: Tokens, lengths: Sequence[int], mask: int, rng: np.random.Generator
) -> np.ndarray:
    """Replaces spans of these lengths by one `mask` each; every way to place them is as likely as
    any other. Length 0 inserts a mask."""
    num_visible = len(tokens) - sum(lengths)
    is_span = np.arange(num_visible + len(lengths)) < len(lengths)
    rng.shuffle(is_span)  # visible tokens and spans, in order
    sizes = np.ones(len(is_span), int)
    sizes[is_span] = lengths
    starts = np.cumsum(sizes) - sizes
    visible = np.append(tokens, mask)[np.minimum(starts, len(tokens))]
    return np.where(is_span, mask, visible).astype(tokens.dtype)


def permute_sentences(
    tokens: Tokens, ends_sentence: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The sentences of a text in a random order; what follows the last end is one too."""
    ends = np.flatnonzero(ends_sentence[tokens]) + 1
    sentences = [part for part in np.split(tokens, ends) if len(part)]
    return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])


UL2_SPANS = (
    ("R", SpansOptions(0.15, 3, closing=False)),
    ("R", SpansOptions(0.15, 8, closing=False)),
    ("X", SpansOptions(0.5, 3, closing=False)),
    ("X", SpansOptions(0.5, 8, closing=False)),
    ("X", SpansOptions(0.15, 64, closing=False)),
    ("X", SpansOptions(0.5, 64, closing=False)),
)
"""The denoisers by spans of UL2 (Tay et al. 2022, table 1), with their modes. The seventh, of mode
S, predicts the last quarter of a text."""
UL2_MODES = ("R", "S", "X")


class UL2(Rewriting):
    """A mixture of seven denoisers, each as often as any other; a token of its mode, one of the
    first three extra tokens, begins the source (Tay et al. 2022, section 3.1)."""

    writes_spans: ClassVar[bool] = True

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> SourceTarget:
        number = int(rng.integers(1 + len(UL2_SPANS)))
        if number == len(UL2_SPANS):
            mode = "S"
            cut = len(tokens) - noise_spans(len(tokens), 0.25, len(tokens))[0]
            pair = SourceTarget(tokens[:cut], tokens[cut:])
        else:
            mode = UL2_SPANS[number][0]
            pair = self._denoisers[number](tokens, rng)
        mode_token = self.text.specials.extra[UL2_MODES.index(mode)]
        return SourceTarget(np.append(mode_token, pair.source).astype(tokens.dtype), pair.target)

    @functools.cached_property
    def _denoisers(self) -> list[Spans]:
        extra = self.text.specials.extra[len(UL2_MODES) :]
        specials = dataclasses.replace(self.text.specials, extra=extra)
        text = dataclasses.replace(self.text, specials=specials)
        return [Spans(text, settings) for _, settings in UL2_SPANS]

    def longest(self, length: int) -> Sizes:
        sizes = [denoiser.longest(length) for denoiser in self._denoisers]
        sizes.append(Sizes(length - 1, length // 4 + 1, length))
        source, target, both = (max(column) for column in zip(*sizes, strict=True))
        return Sizes(source + 1, target, both + 1)

    def prompt(self, tokens: list[int]) -> list[int]:
        has_blanks = self.text.specials.mask in tokens
        mode_token = self.text.specials.extra[UL2_MODES.index("R" if has_blanks else "S")]
        return [mode_token, *self._denoisers[0].prompt(tokens)]

    def num_extra(self, length: int) -> int:
        return len(UL2_MODES) + max(spans.num_extra(length) for spans in self._denoisers)


@dataclasses.dataclass(frozen=True)
class DiffusionOptions:
    """Options of the objective `diffusion`.

    Attributes:
      draws: masks drawn for each text whose bound is computed (`score`); all of them if there are
        no more.
    """

    draws: Annotated[int, Range(1, 100_000)] = 64


@dataclasses.dataclass(frozen=True)
class Diffusion(Corruption):
    """Masked diffusion (Sahoo et al. 2024; Nie et al. 2025, LLaDA).

    With a share t of its tokens hidden, drawn from U(0, 1], the losses of a text divided by t add
    up to an upper bound of its negative log-likelihood, on average. Here the number k of hidden
    tokens is drawn from 1 to L and the weight is L / k, as LLaDA evaluates likelihoods: it has the
    same mean, less variance, and always a hidden token.
    """

    settings: DiffusionOptions = DiffusionOptions()
    options: ClassVar[type] = DiffusionOptions
    ignores: ClassVar[Sequence[str]] = _LEFT_TO_RIGHT

    def blocks(self, length: int) -> list[range]:
        """Blocks of a text; each is predicted from those before it, and hides tokens alone."""
        return [range(length)]

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Masked:
        blocks = self.blocks(len(tokens))
        block = blocks[int(rng.integers(len(blocks)))]
        size = len(block)
        count = int(rng.integers(1, size + 1))
        inputs = tokens[: block.stop].copy()
        is_hidden = np.zeros(len(inputs), bool)
        is_hidden[block.start + rng.permutation(size)[:count]] = True
        inputs[is_hidden] = self.text.mask
        # The block stands for all blocks, which are as likely.
        counts = np.zeros(len(inputs), np.int32)
        counts[block.start :] = len(blocks)
        return Masked(inputs, is_hidden, counts)


@dataclasses.dataclass(frozen=True)
class BlockDiffusionOptions(DiffusionOptions):
    """Options of the objective `block_diffusion`.

    Attributes:
      size: tokens of a block.
    """

    size: Annotated[int, Range(1, 1_000_000)] = 16


@dataclasses.dataclass(frozen=True)
class BlockDiffusion(Diffusion):
    """Masked diffusion of one block after the other (Arriola et al. 2025): a block drawn at random
    is hidden in part, those before it are visible, those after it are cut off.

    The paper computes all blocks in one pass, with a layer that sees only the clean blocks before.
    Here the tokens before a block see it too, so that a pass learns one block.
    """

    settings: BlockDiffusionOptions = BlockDiffusionOptions()
    options: ClassVar[type] = BlockDiffusionOptions

    def blocks(self, length: int) -> list[range]:
        size = self.settings.size
        return [range(i, min(i + size, length)) for i in range(0, length, size)]


def bound_masks(
    length: int, draws: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, float]]:
    """Masks of `length` tokens, bool [length], and the weight of their losses: the weighted sum of
    all losses is the bound of diffusion, or without bias an estimate of it.

    The bound is the sum over k from 1 to `length` of 1 / k times the mean loss of the masks with k
    hidden tokens. All masks are listed if they are at most `draws`.
    """
    if 2**length - 1 <= draws:
        for bits in range(1, 2**length):
            is_hidden = bits >> np.arange(length) & 1 > 0
            count = int(is_hidden.sum())
            yield is_hidden, 1 / (count * math.comb(length, count))
        return
    # k is stratified: each draw has its own part of the interval.
    shares = (np.arange(draws) + rng.random(draws)) / draws
    for count in (1 + np.floor(length * shares)).astype(int).tolist():
        is_hidden = np.zeros(length, bool)
        is_hidden[rng.permutation(length)[:count]] = True
        yield is_hidden, length / (count * draws)


OBJECTIVES: Registry[type[Objective]] = Registry(
    "task.objective",
    {
        "causal": Causal,
        "prefix_lm": PrefixLM,
        "spans": Spans,
        "infilling": Infilling,
        "ul2": UL2,
        "masked": MaskedTokens,
        "diffusion": Diffusion,
        "block_diffusion": BlockDiffusion,
    },
)
"""Objectives of the task denoising by name. A `Rewriting` of your own needs `__call__` and
`longest`."""
