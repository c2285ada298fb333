"""Long conversations, cut between an answer and the question behind it."""

import dataclasses
import logging

from transformer_jax.conversations.turns import SYSTEM, USER, Conversation, Turn
from transformer_jax.conversations.written import Marked, Writer
from transformer_jax.errors import UserError

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
