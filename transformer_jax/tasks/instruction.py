"""Following instructions: conversations in, answers out; the loss counts the answers alone.

Fine-tuning on conversations as Ouyang et al. 2022 (section 3.4) and Taori et al. 2023 do it.
B batch, T tokens.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from tqdm import tqdm

from transformer_jax.conversations import (
    CONVERSATION_FORMATS,
    ChatTokenizer,
    Conversation,
    ConversationSplitter,
    Template,
    check_unanswered,
    conversation_from_json,
    fit_prompt,
    parse_request,
)
from transformer_jax.data.batches.loss_masks import LOSS_MASK_FEATURES, LossMaskedTexts
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.generation import TextGenerator, TokenGenerator
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.inference.pairs import PairScore
from transformer_jax.metrics import compute_metrics
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.tasks.interface import (
    Batch,
    LossOptions,
    LossSums,
    Params,
    Prediction,
    TaskParts,
)
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.losses import CausalLosses
from transformer_jax.tokenization import Tokenizers, encode_plain

logger = logging.getLogger(__name__)

BAR_AFTER_SECONDS = 2


@dataclasses.dataclass(frozen=True)
class Instruction:
    """The task of a decoder-only model on conversations {"turns": str}.

    A row holds conversations apart from each other, each whole or cut between an answer and the
    question behind it. Each answer counts, and the token that ends it.

    Attributes:
      model: maps tokens to logits of the next.
      tokenizers: of the side "text".
      max_length: slots of a row, which is the context: the tokens that the model sees at once.
      template: how conversations are written.
      loss_options: of the training loss.
    """

    model: DecoderOnly
    tokenizers: Tokenizers
    max_length: int
    template: Template
    loss_options: LossOptions
    read: ClassVar[Sequence[str]] = CausalLosses.read
    best_by: ClassVar[str] = "-loss"
    predicts_by: ClassVar[Sequence[str]] = LanguageModeling.predicts_by
    evaluates_by: ClassVar[Sequence[str]] = ()
    objects: ClassVar[str] = CONVERSATION_FORMATS

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return dict.fromkeys(LOSS_MASK_FEATURES, self.max_length)

    @classmethod
    def build(cls, parts: TaskParts) -> "Instruction":
        """The task of a run.

        Raises:
          ValueError: the model is no decoder, its positions do not reach as far as the rows, or no
            special token of the tokenizer ends the template's answers.
        """
        length, vocab_size = parts.data.max_length, parts.vocab_sizes["text"]
        task = cls(
            model=parts.make_model(DecoderOnly, reach=length, vocab_size=vocab_size),
            tokenizers=parts.tokenizers,
            max_length=length,
            template=parts.task.make_template(),
            loss_options=parts.loss,
        )
        if "text" in parts.tokenizers.sides:
            _ = task.chat_tokenizer
        return task

    @functools.cached_property
    def chat_tokenizer(self) -> ChatTokenizer:
        """Writes conversations as tokens."""
        return ChatTokenizer(self.template, self.tokenizers.text("text"))

    @functools.cached_property
    def losses(self) -> CausalLosses:
        """Of the model, on conversations."""
        return CausalLosses(self.model, self.loss_options)

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters."""
        return self.losses.init(rng)

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Features]:
        """The conversations as tokens, cut by turns where they are longer than a row. Logs how many
        were cut, and what was left out.

        Raises:
          UserError: no answer is left; or, but in training, a turn contains text that looks like
            the template's markup.
        """
        splitter = ConversationSplitter(self.chat_tokenizer, self.max_length)
        bar = tqdm(examples, "tokens", unit="conv", delay=BAR_AFTER_SECONDS, disable=None)
        found = LossMaskedTexts.from_texts(
            piece
            for number, example in enumerate(bar, 1)
            for piece in splitter.split(
                conversation_from_json(example["turns"]), None if training else number
            )
        )
        splitter.report(len(examples))
        if not len(found):
            raise UserError(
                f"not one answer fits into a row of {self.max_length} tokens with what is asked; "
                "raise data.max_length"
            )
        return found

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """A piece as it is: the features "input", "target", one token on, and "counted"."""
        return example

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """Cross-entropy of each answer's tokens given all before it, label-smoothed in training."""
        return self.losses(params, batch, rng)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Loss, perplexity and accuracy of an answer's token."""
        return compute_metrics(sums)

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Nothing besides the loss's metrics."""
        return {}, []

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """The answer to each line, which is an instruction, or a conversation as a JSON object of
        the forms that data may have, without its last answer: `decode.num_outputs` samples,
        likeliest first, with their log-probabilities in nats. A blank line has a blank answer.

        Of long conversations the earliest questions and answers are left out, with a warning.

        Raises:
          UserError: an object is no conversation, a question is longer than the context, or a
            search is asked for that cannot draw token by token, such as beam search.
        """
        prompts = {}
        for number, line in enumerate(lines, first_line):
            name = f"line {number}"
            if line.strip():
                prompts[number] = self._prompt(_conversation(line, name), name, decode)
            else:
                logger.warning("%s is blank, and so is its answer", name)
        answers = self.continuation.texts(params, [*prompts.values()], decode, [*prompts])
        for number in range(first_line, first_line + len(lines)):
            found = next(answers) if number in prompts else [("", 0.0)]
            yield [Prediction(*output) for output in found]

    def stream(self, params: Params, line: str, decode: DecodeConfig) -> Iterator[str]:
        """The answer to a line, piece by piece as it is drawn."""
        return self.reply(params, _conversation(line, "the line"), decode)

    def reply(
        self, params: Params, conversation: Conversation, decode: DecodeConfig
    ) -> Iterator[str]:
        """The next answer of a conversation, piece by piece."""
        prompt = self._prompt(conversation, "the conversation", decode)
        return self.continuation.stream(params, prompt, decode)

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """log P(answer | instruction) of each pair in nats: of the answer's own tokens, no end
        behind them; sources as lines of `predict`."""
        tokenizer = self.tokenizers.text("text")
        pairs = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
            name = f"line {number}"
            try:
                prompt = self.chat_tokenizer.encode_prompt(_conversation(source, name))
            except ValueError as error:
                raise UserError(f"{name}: {error}") from error
            pairs.append((prompt, encode_plain(tokenizer, target)))
        return self.losses.score(params, pairs, self.max_length, batch_size)

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """An instruction as the model reads it, with the answer behind it, if that is given."""
        prompt = self._prompt(_conversation(source, "the text"), "the text", decode)
        tokens = [*prompt, *encode_plain(self.tokenizers.text("text"), target or "")]
        return text_inputs(self.model, self.tokenizers, source + (target or ""), None, tokens)

    @functools.cached_property
    def continuation(self) -> TextGenerator:
        """Draws answers behind prompts."""
        tokenizer = self.tokenizers.text("text")
        specials = dataclasses.replace(tokenizer.specials, eos=self.chat_tokenizer.answer_end)
        drawing = TokenGenerator(self.model, self.max_length, specials)
        return TextGenerator(drawing, tokenizer, joins=False)

    def _prompt(self, conversation: Conversation, name: str, decode: DecodeConfig) -> list[int]:
        """The tokens of a conversation that is to be answered, with room behind them."""
        room = max(self.max_length - decode.max_extra_length, self.max_length // 2)
        try:
            check_unanswered(conversation)
            prompt, left_out = fit_prompt(self.chat_tokenizer, conversation, room)
        except ValueError as error:
            raise UserError(f"{name}: {error} (data.max_length is {self.max_length})") from error
        if left_out:
            logger.warning("%s: the first %d questions are not read", name, left_out)
        return prompt


def _conversation(line: str, name: str) -> Conversation:
    """What a line asks."""
    try:
        return parse_request(line)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error
