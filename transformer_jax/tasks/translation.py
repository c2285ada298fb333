"""Translation: sentence pairs in, BLEU out (sections 5 and 6.1).

B batch, S source, T target, V vocabulary.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.padding import padded_batch
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.source_search import SourceSearch
from transformer_jax.losses import cross_entropy
from transformer_jax.metrics import metrics_of, slot_sums, token_sums
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.positions import check_reach
from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import place_like, round_up_rows
from transformer_jax.runtime import platform
from transformer_jax.scoring.bleu import score_translations
from transformer_jax.tasks.interface import Batch, Prediction, require_model
from transformer_jax.tokenization import BOS, EOS, Tokenizers

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Translation:
    """The task of an encoder-decoder on pairs {"source": str, "target": str}.

    Attributes:
      model: maps source and shifted target to logits.
      tokenizers: sides "source" and "target"; None where no text is met.
      max_source_length, max_target_length: slots of a packed row, in tokens, EOS included.
      label_smoothing: of the training loss (section 5.4).
      compare: (outputs, references) -> metrics.
      best_by: the figure of `compare` that chooses the best checkpoint.
    """

    model: EncoderDecoder
    tokenizers: Tokenizers | None
    max_source_length: int
    max_target_length: int
    label_smoothing: float
    compare: Callable[[Sequence[str], Sequence[str]], dict[str, Any]] = score_translations
    read: ClassVar[Sequence[str]] = ("source", "target")
    best_by: str = "bleu"

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"source": self.max_source_length, "target": self.max_target_length}

    def prepare(self, examples: Sequence[Any], training: bool) -> Sequence[Any]:
        """The pairs as they are."""
        return examples

    def preprocess(self, example: Mapping[str, str], rng: np.random.Generator) -> dict[str, Any]:
        """Both sides as tokens ending in EOS."""
        return {
            side: np.array([*self.tokenizers[side].encode(example[side]), EOS], np.int32)
            for side in self.lengths
        }

    @classmethod
    def build(
        cls, model_class, settings, vocab_sizes: Mapping[str, int], tokenizers, **metrics: Any
    ) -> "Translation":
        """The task of a run: its sections `model`, `data` and `train`, and the vocabularies' sizes;
        `metrics` are `compare` and `best_by`.

        Raises:
          ValueError: the model is no encoder-decoder, embeddings are shared between vocabularies
            that are not, or the positions do not reach as far as the rows.
        """
        require_model(settings, [EncoderDecoder], model_class)
        config = dataclasses.replace(
            settings.model,
            source_vocab_size=vocab_sizes["source"],
            target_vocab_size=vocab_sizes["target"],
        )
        task = cls(
            model_class(config),
            tokenizers,
            settings.data.max_source_length,
            settings.data.max_target_length,
            settings.train.label_smoothing,
            **metrics,
        )
        check_reach(config, max(task.lengths.values()))
        return task

    def init(self, rng: jax.Array) -> Any:
        """Fresh parameters."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, *[row] * 6)["params"]

    def loss(self, params: Any, batch: Batch, rng: jax.Array | None):
        """Label-smoothed cross-entropy of each target token given its past and the source."""
        logits = self._logits(params, batch, rng)
        weights = (batch["target_segment_ids"] > 0).astype(jnp.float32)
        smoothed = cross_entropy(logits, batch["target"], self.label_smoothing)
        sums = token_sums(logits, batch["target"], weights)
        sums |= slot_sums(batch, self.read)
        return (smoothed * weights).sum(), weights.sum(), sums

    def _logits(self, params, batch, rng):
        target, target_positions = batch["target"], batch["target_positions"]
        return self.model.apply(
            {"params": params},
            batch["source"],
            batch["source_positions"],
            batch["source_segment_ids"],
            shift_right(target, target_positions),
            target_positions,
            batch["target_segment_ids"],
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )

    def metrics(self, sums: Mapping[str, float], examples: Sequence[Any]) -> dict[str, Any]:
        """The metrics of the loss over all examples."""
        return metrics_of(sums)

    def evaluate(
        self, params: Any, examples: Sequence[Mapping[str, str]], decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Figures of the best outputs beside the targets: BLEU and chrF of translations."""
        n_best = self.predict(params, [example["source"] for example in examples], decode)
        outputs = [hypotheses[0] for hypotheses in n_best]
        references = [example["target"] for example in examples]
        return self.compare([output.text for output in outputs], references), outputs

    def predict(
        self,
        params: Any,
        lines: Sequence[str],
        decode: DecodeConfig,
        first_line: int = 1,
        prefixes: Sequence[str] | None = None,
    ) -> Iterator[list[Prediction]]:
        """The `decode.num_outputs` best translations of each line, best first, in order.

        A blank line has a blank translation. A source of more than `max_source_length` tokens is
        cut there, and characters unknown to the tokenizer are left to the model, each with a
        warning that names the line, counted from `first_line`.

        With `prefixes`, one a line, each translation starts with its prefix, which is best given in
        whole words; scores are then of what follows it.
        """
        sources = [self._encode_source(line, n) for n, line in enumerate(lines, first_line)]
        encode = self.tokenizers["target"].encode
        forced = [encode(prefix) for prefix in prefixes or [""] * len(sources)]
        results: list[list[Prediction]] = [[Prediction("", 0.0)] for _ in sources]
        worded = [i for i, source in enumerate(sources) if len(source) > 1]
        by_length = sorted(worded, key=lambda i: (len(forced[i]) > 0, len(sources[i])))
        for indices in batched(by_length, decode.batch_size):
            prompts = [forced[i] for i in indices]
            numbers = [first_line + i for i in indices]
            found = self.search(params, [sources[i] for i in indices], decode, prompts, numbers)
            for i, tokens, scores in zip(indices, *found, strict=True):
                results[i] = self._texts(forced[i], tokens, scores)
        yield from results

    def _encode_source(self, line: str, number: int) -> list[int]:
        tokenizer, limit = self.tokenizers["source"], self.max_source_length
        tokens = tokenizer.encode(line)
        if not tokens:
            logger.warning("line %d is blank, and so is its translation", number)
        if unknown := tokenizer.count_unknown(tokens):
            logger.warning("line %d has %d pieces unknown to the tokenizer", number, unknown)
        if len(tokens) >= limit:
            logger.warning(
                "line %d has %d tokens; only the first %d are translated "
                "(data.max_source_length is %d)",
                *(number, len(tokens), limit - 1, limit),
            )
        return [*tokens[: limit - 1], EOS]

    def _texts(self, prefix, tokens, scores):
        decoded = self.tokenizers["target"].decode
        found = zip(tokens.tolist(), scores.tolist(), strict=True)
        return [
            Prediction(decoded([*prefix, *row]), score) for row, score in found if score > -jnp.inf
        ]

    @functools.cached_property
    def search(self) -> SourceSearch:
        """Finds outputs for sources, as tokens."""
        return SourceSearch(self.model)

    def score(
        self, params: Any, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[float]:
        """log P(target | source) of each pair in nats, EOS included."""
        pairs = [
            self.preprocess({"source": source, "target": target}, None)
            for source, target in zip(sources, targets, strict=True)
        ]
        scores = []
        for chunk in batched(pairs, batch_size):
            rows = round_up_rows(batch_size, params)
            filler = [dict.fromkeys(self.lengths, [EOS])] * (rows - len(chunk))
            batch = place_like(params, padded_batch([*chunk, *filler]))
            scores += hosts.to_host(self._log_probs(params, batch))[: len(chunk)].tolist()
        return scores

    @functools.cached_property
    def _log_probs(self):
        def log_probs(params, batch):
            logits = self._logits(params, batch, rng=None)
            nll = cross_entropy(logits, batch["target"])
            return -(nll * (batch["target_segment_ids"] > 0)).sum(axis=1)

        return jax.jit(log_probs, compiler_options=platform.compiler_options())


def shift_right(target: jax.Array, positions: jax.Array) -> jax.Array:
    """The decoder's inputs [B, T]: BOS where a sentence starts, elsewhere the token before."""
    return jnp.where(positions == 0, BOS, jnp.roll(target, 1, axis=1))
