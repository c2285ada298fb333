# SPDX-License-Identifier: Apache-2.0
"""Conversations as tokens: loss masks, prompts, and splitting of long conversations."""

import dataclasses
import functools
import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from transformer_jax.conversations.templates import EOS, Template
from transformer_jax.conversations.turns import ASSISTANT, SYSTEM, USER, Conversation, Turn
from transformer_jax.errors import UserError
from transformer_jax.tokenization import Tokenizer, encode_plain, special_token_ids
from transformer_jax.tokenization.tokenizer import replace_lone_surrogates

logger = logging.getLogger(__name__)


class EncodedConversation(NamedTuple):
    """Tokens of a conversation.

    Attributes:
      tokens: token ids.
      loss_mask: True for the tokens of answers that are learned, including the token that ends
        each answer.
    """

    tokens: list[int]
    loss_mask: list[bool]


type _Part = str | int
"""A text, or a special token."""


@dataclass(frozen=True)
class ChatTokenizer:
    """Encodes conversations with a template and a tokenizer.

    Special tokens come from the template alone; the content of a turn is always plain text.

    Raises:
      ValueError: the suffix of the template's answers does not begin with a special token.
    """

    template: Template
    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        suffix = self.template.markup(ASSISTANT).suffix
        if self._specials.match(suffix) is None:
            raise ValueError(
                f"the template ends an answer in {suffix!r}, which does not begin with a special "
                f"token of this tokenizer; write {{content}}{EOS} in the assistant's turn"
            )

    @functools.cached_property
    def answer_end(self) -> int:
        """Token that ends an answer."""
        match = self._specials.match(self.template.markup(ASSISTANT).suffix)
        assert match
        return self._ids[match[0]]

    @functools.cached_property
    def adds_first_token(self) -> bool:
        """True if the tokenizer's first token is prepended to conversations: the template does not
        begin with a special token."""
        begin = self.template.begin or self.template.markup(USER).prefix
        return self._specials.match(begin) is None

    def encode(self, conversation: Conversation) -> EncodedConversation:
        """Encodes a conversation with its answers. Raises ValueError if a turn contains text that
        looks like the template's markup."""
        return self._encode_turns(conversation, then="")

    def encode_prompt(self, conversation: Conversation) -> list[int]:
        """Encodes a conversation up to the first token of its next answer; errors as `encode`."""
        prefix = self.template.markup(ASSISTANT).prefix
        return self._encode_turns(conversation, then=prefix).tokens

    def encode_answer(self, conversation: Conversation, text: str) -> list[int]:
        """Encodes an answer as the continuation of `encode_prompt`, with the token that ends it;
        errors as `encode`."""
        *_, turn = self._checked_turns((*conversation, Turn(ASSISTANT, text)))
        return [*encode_plain(self.tokenizer, turn.content), self.answer_end]

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return special_token_ids(self.tokenizer) | {EOS: self.tokenizer.specials.eos}

    @functools.cached_property
    def _specials(self) -> re.Pattern[str]:
        # The first alternative that matches wins, and a token may begin with another.
        longest_first = sorted(self._ids, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def _checked_turns(self, conversation: Conversation) -> Conversation:
        """Turns to render; ValueError if plain-text markup in a turn's content could be misread.

        Special tokens in contents are harmless, since contents are encoded as plain text. They are
        removed before the check.
        """
        turns = self.template.complete_turns(
            tuple(
                turn._replace(content=replace_lone_surrogates(turn.content))
                for turn in conversation
            )
        )
        plain = tuple(turn._replace(content=self._specials.sub("", turn.content)) for turn in turns)
        if not self.template.is_unambiguous(plain):
            raise ValueError("a turn contains text that looks like the template's markup")
        return turns

    def _encode_turns(self, conversation: Conversation, then: str) -> EncodedConversation:
        """Encodes turns and the markup that follows them: adjacent text outside of answers
        together, and each answer on its own.

        Libraries encode the whole text together. An answer is separate here, because generation
        starts after the tokens of the prompt.
        """
        tokens: list[int] = []
        loss_mask: list[bool] = []

        def add(ids: list[int], in_loss: bool) -> None:
            tokens.extend(ids)
            loss_mask.extend([in_loss] * len(ids))

        parts = self._split_markup(self.template.begin)  # since the last answer
        if self.adds_first_token:
            parts.insert(0, self.tokenizer.specials.first)
        for turn in self._checked_turns(conversation):
            prefix, suffix = self.template.markup(turn.role)
            parts += self._split_markup(prefix)
            if turn.role != ASSISTANT:
                parts += [turn.content, *self._split_markup(suffix)]
                continue
            add(self._encode_parts(parts), False)
            add([*encode_plain(self.tokenizer, turn.content), self.answer_end], turn.is_learned)
            parts = self._split_markup(self._specials.sub("", suffix, count=1))
        add(self._encode_parts([*parts, *self._split_markup(then)]), False)
        return EncodedConversation(tokens, loss_mask)

    def _split_markup(self, text: str) -> list[_Part]:
        """Splits the template's text at its special tokens."""
        return [self._ids.get(part, part) for part in self._specials.split(text)]

    def _encode_parts(self, parts: Iterable[_Part]) -> list[int]:
        """Tokens of parts; adjacent texts are encoded together."""
        tokens: list[int] = []
        for is_text, group in itertools.groupby(parts, lambda part: isinstance(part, str)):
            if is_text:
                tokens += encode_plain(self.tokenizer, "".join(map(str, group)))
            else:
                tokens += map(int, group)
        return tokens


@dataclasses.dataclass
class ConversationSplitter:
    """Splits conversations that are longer than a row between an answer and the next question.

    Attributes:
      max_length: tokens of a row.
      num_split, num_shortened: conversations that were split, or that lost an answer.
      rejected: reasons why conversations cannot be encoded, and the number of these.
    """

    chat_tokenizer: ChatTokenizer
    max_length: int
    num_split: int = 0
    num_shortened: int = 0
    rejected: Counter[str] = dataclasses.field(default_factory=Counter)

    def split(self, conversation: Conversation, number: int | None) -> list[EncodedConversation]:
        """Encodes a conversation as one or more rows.

        An exchange (a question and its answer) that does not fit into a row is left out.

        Args:
          conversation: ends in an answer.
          number: number of the conversation in error messages. None: a conversation that cannot be
            encoded is left out and counted.

        Raises:
          UserError: the conversation cannot be encoded and has a number.
        """
        try:
            whole = self._encode_row(conversation)
        except ValueError as error:
            if number is not None:
                raise UserError(f"conversation {number}: {error}") from error
            self.rejected[str(error)] += 1
            return []
        if self._fits(whole):
            return [whole]
        system, exchanges = split_exchanges(conversation)
        self.num_split += len(exchanges) > 1
        rows: list[EncodedConversation] = []
        row_turns: Conversation = ()  # of the last row; empty if no exchange may follow in it
        is_shortened = False
        for exchange in exchanges:
            longer = self._encode_row((*system, *row_turns, *exchange))
            if row_turns and self._fits(longer):
                rows[-1] = longer
                row_turns += exchange
                continue
            alone = self._encode_row((*system, *exchange))
            if self._fits(alone):
                rows.append(alone)
                row_turns = exchange
            else:
                is_shortened = True
                row_turns = ()
        self.num_shortened += is_shortened
        return [row for row in rows if any(row.loss_mask)]

    def _encode_row(self, conversation: Conversation) -> EncodedConversation:
        """Tokens up to the end of the last answer that is learned; all of them if none is."""
        tokens, loss_mask = self.chat_tokenizer.encode(conversation)
        end = len(loss_mask) - (loss_mask[::-1].index(True) if any(loss_mask) else 0)
        return EncodedConversation(tokens[:end], loss_mask[:end])

    def _fits(self, row: EncodedConversation) -> bool:
        return len(row.tokens) - 1 <= self.max_length  # the last token is a target only

    def report(self, count: int) -> None:
        """Logs a warning for each kind of loss; `count` is the number of all conversations."""
        row = f"a row of {self.max_length} tokens (data.max_length)"
        messages = {
            f"are longer than {row}, and were split between their turns": self.num_split,
            f"were shortened: a question and its answer take more than {row}, and are left out": (
                self.num_shortened
            ),
            **{f"are left out: {reason}": number for reason, number in self.rejected.items()},
        }
        for message, number in messages.items():
            if number:
                logger.warning("%d of %d conversations %s", number, count, message)


def fit_prompt(
    chat_tokenizer: ChatTokenizer, conversation: Conversation, max_tokens: int
) -> tuple[list[int], int]:
    """Encodes the prompt of a conversation, without its first exchanges if it is too long.

    Returns:
      the prompt, at most `max_tokens` tokens, and the number of exchanges left out.

    Raises:
      ValueError: the last question alone is too long, or the conversation cannot be encoded.
    """
    system, exchanges = split_exchanges(conversation)
    for left_out in range(len(exchanges)):
        turns = [turn for exchange in exchanges[left_out:] for turn in exchange]
        prompt = chat_tokenizer.encode_prompt((*system, *turns))
        if len(prompt) <= max_tokens:
            return prompt, left_out
    raise ValueError(
        f"the question has {len(prompt)} tokens with the template's, and {max_tokens} fit beside "
        "an answer; shorten it"
    )


def split_exchanges(conversation: Conversation) -> tuple[Conversation, list[Conversation]]:
    """Splits off the system turn, if any, and groups each question with its input and answer."""
    system = conversation[:1] if conversation[0].role == SYSTEM else ()
    starts = [i for i, turn in enumerate(conversation) if turn.role == USER]
    spans = itertools.pairwise([*starts, len(conversation)])
    return system, [conversation[start:end] for start, end in spans]
