# SPDX-License-Identifier: Apache-2.0
"""Instruction tuning: conversations, with a loss on the answers alone.

Fine-tuning on conversations as in Ouyang et al. 2022 (section 3.4) and Taori et al. 2023.
B batch, T tokens.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

from tqdm import tqdm

from transformer_jax.conversations import (
    Conversation,
    Template,
    check_unanswered,
    conversation_from_json,
    parse_request,
)
from transformer_jax.conversations.encoding import ChatTokenizer, ConversationSplitter, fit_prompt
from transformer_jax.data.batches.loss_masks import LOSS_MASK_FEATURES, LossMaskedTexts
from transformer_jax.data.batches.windows import BAR_AFTER_SECONDS
from transformer_jax.data.examples import Corpus, Features, map_corpora
from transformer_jax.errors import UserError, user_errors
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.generation import TokenGenerator
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.tasks.base import CausalTask
from transformer_jax.tasks.interface import Params, Prediction, TaskParts
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.line_warnings import LineWarnings, collect_warnings
from transformer_jax.tasks.losses import ContextTarget
from transformer_jax.tokenization import encode_plain


@dataclasses.dataclass(frozen=True, repr=False)
class Instruction(CausalTask):
    """Instruction tuning of a decoder-only model on conversations {"turns": str}.

    The conversations of a row do not see each other. Each is whole, or cut between an answer and
    the next question. The loss counts each answer and the token that ends it.

    Attributes:
      template: format of conversations.
    """

    template: Template
    features: ClassVar[Sequence[str]] = LOSS_MASK_FEATURES
    predicts_by: ClassVar[Sequence[str]] = LanguageModeling.predicts_by

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        """Makes the task of a run. Raises ValueError as `CausalTask.build`, or if no special token
        of the tokenizer ends the template's answers."""
        has_text = "text" in parts.tokenizers.sides
        tokenizer = parts.tokenizers.text("text") if has_text else None
        task = super().build(parts, template=parts.task.make_template(tokenizer), **fields)
        if tokenizer is not None:
            _ = task.chat_tokenizer  # raises if no token ends an answer
        return task

    @functools.cached_property
    def chat_tokenizer(self) -> ChatTokenizer:
        return ChatTokenizer(self.template, self.tokenizers.text("text"))

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Features]:
        """Returns the conversations as tokens, cut by turns if they are longer than a row. Logs how
        many were cut, and what was left out.

        Raises:
          UserError: no answer is left; or, except in training, a turn contains text that looks like
            the template's markup.
        """
        return map_corpora(examples, functools.partial(self._rows, training=training))

    def _rows(self, examples: Corpus, training: bool) -> LossMaskedTexts:
        splitter = ConversationSplitter(self.chat_tokenizer, self.max_length)
        bar = tqdm(examples, "tokens", unit="conv", delay=BAR_AFTER_SECONDS, disable=None)
        texts = LossMaskedTexts.from_texts(
            piece
            for number, example in enumerate(bar, 1)
            for piece in splitter.split(
                conversation_from_json(example["turns"]), None if training else number
            )
        )
        splitter.report(len(examples))
        if not len(texts):
            reasons = [*splitter.rejected]
            if splitter.num_shortened:
                row = f"a row of {self.max_length} tokens"
                reasons.append(
                    f"not one answer fits into {row} with what is asked; raise data.max_length"
                )
            raise UserError(f"no answer is left to learn: {'; '.join(reasons)}")
        return texts

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields `decode.num_outputs` answers to each line, most likely first, with their
        log-probabilities in nats. A blank line has a blank answer.

        A line is an instruction, or a conversation without its last answer: a JSON object of the
        forms that data may have. The earliest questions and answers of long conversations are left
        out, with a warning.

        Raises:
          UserError: an object is no conversation, a question is longer than the context, or the
            search cannot generate token by token, such as beam search.
        """
        prompts = {}
        with collect_warnings(len(lines)) as warnings:
            for number, line in enumerate(lines, first_line):
                about_line = warnings.about(number)
                if line.strip():
                    turns = _conversation(line, about_line.name)
                    prompts[number] = self._prompt(turns, decode, about_line)
                else:
                    message = f"{about_line.name} is blank, and so is its answer"
                    about_line.add(message, "are blank, and so are their answers")
        answers = self.token_generator.texts(params, [*prompts.values()], decode, [*prompts])
        for number in range(first_line, first_line + len(lines)):
            yield next(answers) if number in prompts else [Prediction("", 0.0)]

    def stream(self, params: Params, line: str, decode: DecodeConfig) -> Iterator[str]:
        return self.reply(params, _conversation(line, "the line"), decode)

    def reply(
        self, params: Params, conversation: Conversation, decode: DecodeConfig
    ) -> Iterator[str]:
        with collect_warnings() as warnings:
            about = warnings.about(1, "the conversation")
            prompt = self._prompt(conversation, decode, about)
        return self.token_generator.stream(params, prompt, decode)

    def pair_tokens(self, number: int, source: str, target: str) -> ContextTarget:
        """Tokens of an instruction, a line as in `predict`, and of the answer as training writes
        it, without the token that ends it."""
        turns = _conversation(source, f"line {number}")
        with user_errors(f"line {number}"):
            check_unanswered(turns)
            answer = self.chat_tokenizer.encode_answer(turns, target)
            return self.chat_tokenizer.encode_prompt(turns), answer[:-1]

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """Returns an instruction as the model reads it, with the target after it, if there is
        one."""
        with collect_warnings() as warnings:
            prompt = self._prompt(_conversation(source, warnings.name), decode, warnings)
        tokens = [*prompt, *encode_plain(self.tokenizers.text("text"), target or "")]
        return text_inputs(self.model, self.tokenizers, source + (target or ""), None, tokens)

    @functools.cached_property
    def token_generator(self) -> TokenGenerator:
        """Generates answers to prompts."""
        tokenizer = self.tokenizers.text("text")
        ends = (tokenizer.specials.eos, *tokenizer.specials.ends)
        end = self.chat_tokenizer.answer_end
        specials = dataclasses.replace(tokenizer.specials, eos=end, ends=ends)
        return TokenGenerator(
            self.model, self.max_length, specials, tokenizer=tokenizer, joins=False
        )

    def _prompt(
        self, conversation: Conversation, decode: DecodeConfig, warnings: LineWarnings
    ) -> list[int]:
        """Tokens of a conversation to answer, with room for the answer after them."""
        room = max(self.max_length - decode.max_extra_length, self.max_length // 2)
        with user_errors(warnings.name, f" (data.max_length is {self.max_length})"):
            check_unanswered(conversation)
            prompt, left_out = fit_prompt(self.chat_tokenizer, conversation, room)
        if left_out:
            message = f"{warnings.name}: the first {left_out} questions are not read"
            warnings.add(message, "are too long: their first questions are not read")
        return prompt


def _conversation(line: str, name: str) -> Conversation:
    with user_errors(name):
        return parse_request(line)
