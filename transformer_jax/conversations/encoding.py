"""Conversations as tokens, and which of them a model learns to write."""

import dataclasses
import functools
import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from transformer_jax.conversations.templates import EOS, Template
from transformer_jax.conversations.turns import ASSISTANT, SYSTEM, USER, Conversation, Turn
from transformer_jax.errors import UserError
from transformer_jax.tokenization import Tokenizer, plain_ids, special_pieces
from transformer_jax.tokenization.tokenizer import well_formed


class Marked(NamedTuple):
    """Tokens of a conversation.

    Attributes:
      tokens: all of them.
      counted: of each whether it is an answer's, its end among them: what a loss counts.
    """

    tokens: list[int]
    counted: list[bool]


class _Run(NamedTuple):
    """A stretch that is encoded by itself: text, or one special token."""

    text: str
    special: int | None
    counted: bool


@dataclass(frozen=True)
class Writer:
    """Writes conversations in a template, for one tokenizer.

    What is said is text, whatever it looks like: special tokens come from the template alone.

    Attributes:
      template: the texts around the turns.
      tokenizer: of the model.

    Raises:
      ValueError: no special token ends the template's answers.
    """

    template: Template
    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        tail = self.template.around(ASSISTANT).tail
        if self._specials.match(tail) is None:
            raise ValueError(
                f"the template ends an answer in {tail!r}, which begins with no special token of "
                f"this tokenizer; write {{content}}{EOS} in the assistant's turn"
            )

    @functools.cached_property
    def end(self) -> int:
        """The token that ends an answer."""
        found = self._specials.match(self.template.around(ASSISTANT).tail)
        assert found
        return self._ids[found[0]]

    @functools.cached_property
    def adds_first(self) -> bool:
        """Whether the tokenizer's first token goes before a conversation: where the template itself
        begins with no special token."""
        begin = self.template.begin or self.template.around(USER).head
        return self._specials.match(begin) is None

    def written(self, conversation: Conversation) -> Marked:
        """A conversation with its answers.

        Raises:
          ValueError: what a turn says could be taken for the template's own text.
        """
        return self._encoded(self._runs(self._checked(conversation)))

    def prompt(self, conversation: Conversation) -> list[int]:
        """A conversation up to where its next answer begins; raises as `written`."""
        head = self.template.around(ASSISTANT).head
        runs = [*self._runs(self._checked(conversation)), *self._of_format(head)]
        return self._encoded(runs).tokens

    def answer(self, conversation: Conversation, text: str) -> list[int]:
        """What follows `prompt` where the next answer is this text, its end among it; raises as
        `written`."""
        *_, turn = self._checked((*conversation, Turn(ASSISTANT, text)))
        return [*plain_ids(self.tokenizer, turn.content), self.end]

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return special_pieces(self.tokenizer) | {EOS: self.tokenizer.specials.eos}

    @functools.cached_property
    def _specials(self) -> re.Pattern[str]:
        longest_first = sorted(self._ids, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))

    def _checked(self, conversation: Conversation) -> Conversation:
        """The turns that are written. Special tokens in what is said are text, so that they cannot
        end a turn; what stands for text in the template can."""
        turns = self.template.completed(
            tuple(Turn(role, well_formed(content)) for role, content in conversation)
        )
        plain = tuple(Turn(role, self._specials.sub("", content)) for role, content in turns)
        if not self.template.tells(plain):
            raise ValueError("what a turn says could be taken for the template's own text")
        return turns

    def _runs(self, turns: Conversation) -> Iterator[_Run]:
        yield from self._of_format(self.template.begin)
        for role, content in turns:
            head, tail = self.template.around(role)
            yield from self._of_format(head)
            if role != ASSISTANT:
                yield from _plain(content)
                yield from self._of_format(tail)
                continue
            yield _Run(content, None, counted=True)
            end = self._specials.match(tail)
            assert end
            yield _Run(end[0], self.end, counted=True)
            yield from self._of_format(tail[end.end() :])

    def _of_format(self, text: str) -> Iterator[_Run]:
        place = 0
        for found in self._specials.finditer(text):
            yield from _plain(text[place : found.start()])
            yield _Run(found[0], self._ids[found[0]], counted=False)
            place = found.end()
        yield from _plain(text[place:])

    def _encoded(self, runs: Iterable[_Run]) -> Marked:
        """Neighbouring texts that do not count are encoded together, as libraries encode the whole
        text; an answer by itself, as the model is asked for it behind what stands before it."""
        tokens, counted, texts = list[int](), list[bool](), list[str]()

        def add(ids: list[int], mark: bool) -> None:
            tokens.extend(ids)
            counted.extend([mark] * len(ids))

        for run in runs:
            if run.special is None and not run.counted:
                texts.append(run.text)
                continue
            add(plain_ids(self.tokenizer, "".join(texts)), False)
            texts.clear()
            alone = plain_ids(self.tokenizer, run.text) if run.special is None else [run.special]
            add(alone, run.counted)
        add(plain_ids(self.tokenizer, "".join(texts)), False)
        if self.adds_first:
            tokens, counted = [self.tokenizer.specials.first, *tokens], [False, *counted]
        return Marked(tokens, counted)


def _plain(text: str) -> Iterator[_Run]:
    if text:
        yield _Run(text, None, counted=False)


# FOLDED conversations.cutting: Long conversations, cut between an answer and the question behind
# it.


logger = logging.getLogger(__name__)


@dataclasses.dataclass
class Cutter:
    """Cuts conversations between an answer and the question behind it; counts those that it cut,
    that lost an answer, and that it refused.

    Attributes:
      writer: writes them.
      max_length: tokens of a row.
    """

    writer: Writer
    max_length: int
    cut: int = 0
    left_out: int = 0
    refused: int = 0

    def pieces(self, conversation: Conversation, number: int | None) -> list[Marked]:
        """The parts of a conversation that fit into a row each; `number` names it where what it
        says may not be left out."""
        try:
            whole = self._row(conversation)
        except ValueError as error:
            if number is not None:
                raise UserError(f"conversation {number}: {error}") from error
            self.refused += 1
            return []
        if self._fits(whole):
            return [whole]
        system, exchanges = exchanges_of(conversation)
        self.cut += len(exchanges) > 1
        rows, kept, lost = list[Marked](), list[Turn](), 0
        for exchange in exchanges:
            longer = self._row((*system, *kept, *exchange))
            if kept and self._fits(longer):
                rows[-1], kept = longer, [*kept, *exchange]
                continue
            alone = self._row((*system, *exchange))
            if self._fits(alone):
                rows.append(alone)
                kept = [*exchange]
            else:
                lost += 1
                kept = []
        self.left_out += lost > 0
        return rows

    def _row(self, conversation: Conversation) -> Marked:
        """Up to the end of the last answer."""
        tokens, counted = self.writer.written(conversation)
        end = len(counted) - counted[::-1].index(True)
        return Marked(tokens[:end], counted[:end])

    def _fits(self, row: Marked) -> bool:
        return len(row.tokens) - 1 <= self.max_length

    def report(self, count: int) -> None:
        """Says what was cut and left out of so many conversations."""
        for number, what in (
            (self.cut, "are longer than a row, and were cut between their turns"),
            (self.left_out, "lost answers that with their questions are longer than a row"),
            (self.refused, "say what the template would take for its own text, left out"),
        ):
            if number:
                logger.warning("%d of %d conversations %s", number, count, what)


def prompt_within(writer: Writer, conversation: Conversation, room: int) -> tuple[list[int], int]:
    """The tokens of a conversation that is to be answered, at most so many, and how many of its
    first questions were left out, with their answers.

    Raises:
      ValueError: the last question alone has more, or what is said could be taken for the
        template's own text.
    """
    system, exchanges = exchanges_of(conversation)
    for left_out in range(len(exchanges)):
        kept = [turn for exchange in exchanges[left_out:] for turn in exchange]
        prompt = writer.prompt((*system, *kept))
        if len(prompt) <= room:
            return prompt, left_out
    raise ValueError(
        f"the question has {len(prompt)} tokens with the template's, and {room} fit beside an "
        "answer; make it shorter"
    )


def exchanges_of(conversation: Conversation) -> tuple[Conversation, list[Conversation]]:
    """The system's turn, if there is one, and the others: each question with its answer."""
    system = conversation[:1] if conversation[0].role == SYSTEM else ()
    starts = [i for i, turn in enumerate(conversation) if turn.role == USER]
    ends = [*starts[1:], len(conversation)]
    return system, [conversation[i:j] for i, j in zip(starts, ends, strict=True)]
