"""Masked language modelling: text in, the tokens that were hidden in it out (Devlin et al. 2019).

B batch, T tokens, P predicted places of a row, V vocabulary.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import batched
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.padding import pad_rows, padded_batch
from transformer_jax.data.batches.windows import Pieces, Windows
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.losses import cross_entropy
from transformer_jax.metrics import metrics_of, slot_sums, token_sums
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.positions import check_reach
from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import place_like, round_up_rows
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Batch, Prediction, require_model
from transformer_jax.tasks.language_modeling import text_stream, training_stride
from transformer_jax.tokenization import BOS, EOS, MASK, Tokenizers

logger = logging.getLogger(__name__)

MASK_TEXT = "[MASK]"
_FIRST_PIECE = MASK + 1  # ids below are special


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModeling:
    """The task of an encoder-only model on documents {"text": str}.

    Rows are [CLS] a window of text [SEP], BOS and EOS in our vocabulary.

    Attributes:
      model: maps tokens and places to logits of the tokens that belong there.
      tokenizers: of the side "text", a WordPiece one; None where no text is met.
      max_length: slots of a row.
      packing: "together" or "apart", as for `LanguageModeling`.
      mask_rate: share of a window's tokens that are predicted. Of these 80% are hidden behind
        [MASK], 10% replaced by a random token, 10% left; drawn anew in each epoch.
      whole_words: all pieces of a word are predicted, or none.
      best_by: the loss, of which less is better.
    """

    model: EncoderOnly
    tokenizers: Tokenizers | None
    max_length: int
    packing: str
    mask_rate: float
    whole_words: bool
    read: ClassVar[Sequence[str]] = ("text",)
    best_by: str = "-loss"

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"text": self.max_length, "labels": self.max_length}

    @property
    def num_predicted(self) -> int:
        """P: the most places of a row that the loss looks at."""
        return min(math.ceil(1.25 * self.mask_rate * self.max_length), self.max_length)

    @classmethod
    def build(
        cls, model_class, settings, vocab_sizes: Mapping[str, int], tokenizers
    ) -> "MaskedLanguageModeling":
        """The task of a run: its sections `task`, `model` and `data`, and the vocabulary's size.

        Raises:
          ValueError: the model is no encoder, its positions do not reach as far as the rows, or the
            tokenizer has no [MASK].
        """
        require_model(settings, [EncoderOnly], model_class)
        if tokenizers and tokenizers["text"].mask_id is None:
            raise ValueError("task masked_lm asks for a tokenizer with [MASK]: kind wordpiece")
        config = dataclasses.replace(settings.model, vocab_size=vocab_sizes["text"])
        check_reach(config, settings.data.max_length)
        rows = (settings.data.max_length, settings.data.packing)
        masking = (settings.task.mask_rate, settings.task.whole_words)
        return cls(model_class(config), tokenizers, *rows, *masking)

    def init(self, rng: jax.Array) -> Any:
        """Fresh parameters."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row, row, row - 1)["params"]

    def prepare(self, examples: Sequence[Mapping[str, str]], training: bool) -> Sequence[Any]:
        """The documents as windows, or pieces, of tokens; two less than a row has slots."""
        stream = text_stream(examples, self.tokenizers)
        length = self.max_length - 2
        if self.packing == "apart":
            return Pieces(stream, length)
        stride = training_stride(stream) if training else length
        return Windows(stream.tokens, length, stride)

    def preprocess(
        self, example: Mapping[str, np.ndarray], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """A window as "text", some of it hidden, and "labels", 0 where nothing is predicted."""
        text = np.array([BOS, *example["input"], EOS], np.int32)
        chosen = self._choose(text, rng)
        labels = np.zeros_like(text)
        labels[chosen] = text[chosen]
        fate = rng.random(len(chosen))
        text[chosen[fate < 0.8]] = MASK
        random = chosen[fate >= 0.9]
        vocab_size = self.model.config.vocab_size
        text[random] = rng.integers(_FIRST_PIECE, vocab_size, len(random))
        return {"text": text, "labels": labels}

    def _choose(self, text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The places to predict, at least one where there is a token that is not special."""
        places = np.flatnonzero(text >= _FIRST_PIECE)
        if not self.whole_words:
            count = max(1, round(self.mask_rate * len(places)))
            return rng.permutation(places)[:count]
        starts = self.tokenizers["text"].starts_word(text[places])
        words = np.split(places, np.flatnonzero(starts)[1:]) if len(places) else []
        count, chosen = max(1, round(self.mask_rate * len(places))), []
        for i in rng.permutation(len(words)):
            if len(chosen) + len(words[i]) <= count or not chosen:
                chosen.extend(words[i])
        return np.array(chosen, np.int64)

    def loss(self, params: Any, batch: Batch, rng: jax.Array | None):
        """Cross-entropy of the tokens chosen to be predicted, `num_predicted` of a row at most."""
        chosen = (batch["labels"] > 0).astype(jnp.int32)
        is_chosen, places = jax.lax.top_k(chosen, self.num_predicted)
        labels = jnp.take_along_axis(batch["labels"], places, axis=1)
        logits = self.model.apply(
            {"params": params},
            batch["text"],
            batch["text_positions"],
            batch["text_segment_ids"],
            places,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )
        weights = is_chosen.astype(jnp.float32)
        losses = cross_entropy(logits, labels)
        sums = token_sums(logits, labels, weights) | slot_sums(batch, self.read)
        return (losses * weights).sum(), weights.sum(), sums

    def metrics(self, sums: Mapping[str, float], examples: Sequence[Any]) -> dict[str, Any]:
        """Loss, perplexity and accuracy of the predicted tokens."""
        return metrics_of(sums)

    def evaluate(
        self, params: Any, examples: Sequence[Mapping[str, str]], decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Nothing beside the loss's metrics."""
        return {}, []

    def predict(
        self,
        params: Any,
        lines: Sequence[str],
        decode: DecodeConfig,
        first_line: int = 1,
        prefixes: Sequence[str] | None = None,
    ) -> Iterator[list[Prediction]]:
        """Each line with its [MASK]s filled: output i with the i-th likeliest token of each place;
        a score is the probability of these, places taken as independent.

        A line without [MASK], or with none among its first `max_length` tokens, is left as it is,
        with a warning that names it.

        Raises:
          UserError: prefixes are given.
        """
        if prefixes is not None:
            raise UserError("prefixes: a masked language model fills its input; leave them out")
        encode = self.tokenizers["text"].encode
        tokens = [[BOS, *encode(line)[: self.max_length - 2], EOS] for line in lines]
        results = [[Prediction(line, 1.0)] for line in lines]
        masked = [i for i, row in enumerate(tokens) if MASK in row]
        for i in set(range(len(lines))) - set(masked):
            number = i + first_line
            logger.warning("line %d has no %s to fill; it is left as it is", number, MASK_TEXT)
        for indices in batched(masked, decode.batch_size):
            found = self._fill(params, [tokens[i] for i in indices], decode)
            for i, ids, probabilities in zip(indices, *found, strict=True):
                count = tokens[i].count(MASK)
                results[i] = self._filled(lines[i], ids[:count], probabilities[:count])
        yield from results

    def _fill(self, params, rows, decode):
        """The likeliest tokens of each [MASK] and their probabilities: [B, P, n] each."""
        fill = [[BOS, EOS]] * (round_up_rows(decode.batch_size, params) - len(rows))
        batch = padded_batch([{"text": row} for row in [*rows, *fill]])
        places = [np.flatnonzero(np.array(row) == MASK) for row in [*rows, *fill]]
        width = 1 << (max(map(len, places)) - 1).bit_length()
        batch["places"] = pad_rows(places, width)
        found = self._likeliest(params, place_like(params, batch), decode.num_outputs)
        return (x[: len(rows)] for x in hosts.to_host(found))

    @functools.cached_property
    def _likeliest(self):
        def likeliest(params, batch, count):
            features = (batch["text"], batch["text_positions"], batch["text_segment_ids"])
            logits = self.model.apply({"params": params}, *features, batch["places"])
            logits = logits.at[..., :_FIRST_PIECE].set(-jnp.inf)
            probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), count)
            return ids, probabilities

        return jax.jit(
            likeliest, static_argnames="count", compiler_options=platform.compiler_options()
        )

    def _filled(self, line, ids, probabilities) -> list[Prediction]:
        between = line.split(MASK_TEXT)
        outputs = []
        for chosen, each in zip(ids.T, probabilities.T, strict=True):
            words = [piece.removeprefix("##") for piece in self.tokenizers["text"].pieces(chosen)]
            words += [MASK_TEXT] * (len(between) - 1 - len(words))
            text = "".join(a + b for a, b in zip(between, [*words, ""], strict=True))
            outputs.append(Prediction(text, float(np.prod(each))))
        return outputs
