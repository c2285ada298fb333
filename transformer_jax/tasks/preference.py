# SPDX-License-Identifier: Apache-2.0
"""Direct preference optimization, DPO (Rafailov et al. 2023), on pairs of answers.

B batch, T slots of a row.
"""

import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import batched
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from transformer_jax.conversations import conversation_from_json
from transformer_jax.conversations.encoding import fit_prompt
from transformer_jax.data.batches.loss_masks import (
    PREFERENCE_FEATURES,
    REFERENCE,
    SIDES,
    LossMaskedTexts,
    PreferencePairs,
)
from transformer_jax.data.batches.windows import BAR_AFTER_SECONDS
from transformer_jax.data.examples import Corpus, Features, map_corpora
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import score_pairs
from transformer_jax.metrics import padding_sums
from transformer_jax.runtime import platform
from transformer_jax.tasks.instruction import Instruction
from transformer_jax.tasks.interface import Batch, Frozen, LossSums, Params, Supervised, TaskParts
from transformer_jax.tasks.losses import row_scores, with_loss_mask

logger = logging.getLogger(__name__)

_TEXTS_AT_ONCE = 1024  # scored between two updates of the progress bar

Reference = Callable[[LossMaskedTexts], np.ndarray]
"""Texts -> log P of the tokens that count of each text, float32 [D], under the model that training
starts from."""


@dataclasses.dataclass(frozen=True, repr=False)
class Preference(Instruction):
    """DPO of a decoder-only model on {"turns", "chosen", "rejected"}.

    Training makes the chosen answer likelier than the rejected one, relative to a reference model.
    Both answers are written as in `Instruction`.

    The pairs of a row do not see each other, and the two answers of a pair are in separate rows.

    Attributes:
      beta: penalty for departing from the reference model (section 4).
      reference: log-probabilities under the model that training starts from, stored in the workdir;
        None if no examples are read.
    """

    beta: float = 0.1
    reference: Reference | None = None
    features: ClassVar[Sequence[str]] = PREFERENCE_FEATURES
    read: ClassVar[Sequence[str]] = tuple(f"{side}_input" for side in SIDES)

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        return super().build(parts, beta=parts.task.beta, **fields)

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Features]:
        """Returns both answers of each pair as tokens after the prompt. The first questions of a
        long conversation are left out. Pairs that do not fit into a row are skipped, with a
        warning.

        Raises:
          UserError: no pair is left; or, except in training, a turn contains text that looks like
            the template's markup.
        """
        return map_corpora(examples, functools.partial(self._pairs, training=training))

    def _pairs(self, examples: Corpus, training: bool) -> PreferencePairs:
        assert self.reference is not None
        pairs = []
        limit = f"a row of {self.max_length} tokens (data.max_length)"
        left_out: Counter[str] = Counter()
        bar = tqdm(examples, "tokens", unit="pair", delay=BAR_AFTER_SECONDS, disable=None)
        for number, example in enumerate(bar, 1):
            turns = conversation_from_json(example["turns"])
            try:
                answers = [
                    self.chat_tokenizer.encode_answer(turns, example[side]) for side in SIDES
                ]
            except ValueError as error:
                if not training:
                    raise UserError(f"pair {number}: {error}") from error
                left_out[str(error)] += 1
                continue
            room = self.max_length + 1 - max(map(len, answers))
            try:
                prompt, _ = fit_prompt(self.chat_tokenizer, turns, room)
            except ValueError:
                left_out[f"an answer with its question is longer than {limit}"] += 1
                continue
            pairs.append([with_loss_mask(prompt, answer) for answer in answers])
        for reason, count in left_out.items():
            logger.warning("%d of %d pairs are left out: %s", count, len(examples), reason)
        if not pairs:
            raise UserError(f"no pair of answers is left: {'; '.join(left_out)}")
        chosen, rejected = (LossMaskedTexts.from_texts(texts) for texts in zip(*pairs, strict=True))
        reference = [self.reference(texts) for texts in (chosen, rejected)]
        return PreferencePairs(chosen, rejected, np.stack(reference, axis=1))

    def with_stored_scores(self, scores: Reference) -> Self:
        return dataclasses.replace(self, reference=scores)

    def score_texts(self, params: Params, texts: LossMaskedTexts, batch_size: int) -> np.ndarray:
        """Computes log P of the tokens that count of each text, float32 [D]."""
        log_probs: list[float] = []
        with tqdm(total=len(texts), desc="reference", unit="answer", disable=None) as bar:
            for indices in batched(range(len(texts)), _TEXTS_AT_ONCE):
                rows = [texts[i] for i in indices]
                scores = score_pairs(self.scores, params, rows, batch_size, self.model.config)
                log_probs += [score.log_prob for score in scores]
                bar.update(len(indices))
        return np.array(log_probs, np.float32)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Returns the means over all pairs; "num_loss_examples" are these, if some do not fit."""
        metrics = super().metrics(sums, examples)
        num_pairs = np.asarray(sums["tokens"]).astype(int)
        if np.any(num_pairs < len(examples)):
            metrics["num_loss_examples"] = num_pairs
        return metrics

    def supervised(self, batch: Batch) -> Supervised:
        """Raises UserError: there are no labels, only pairs of answers."""
        raise UserError("batches: task preference compares answers and has no labels; use its loss")

    @platform.compiled_method()
    def scores(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return row_scores(self.model, params, super().supervised(batch), self.loss_options)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen) -> LossSums:
        """Returns -log sigmoid of each pair's margin (equation 7): the reward of the chosen answer
        minus that of the rejected one. The reward of an answer is `beta` * (log P - log P under the
        reference). With label smoothing, each preference is taken to be wrong with that
        probability."""
        keys = (None, None) if rng is None else jax.random.split(rng)
        # Features are packed as int32, so the log-probabilities travel as their bits.
        reference = jax.lax.bitcast_convert_type(batch[REFERENCE], jnp.float32)
        pairs = batch[f"{REFERENCE}_segment_ids"]
        sides = batch[f"{REFERENCE}_positions"]
        rewards = []
        for index, (side, key) in enumerate(zip(SIDES, keys, strict=True)):
            prefix = f"{side}_"
            texts = {
                name.removeprefix(prefix): values
                for name, values in batch.items()
                if name.startswith(prefix)
            }
            log_probs = self.log_probs(params, texts, key)
            policy = sum_by_segment(log_probs, texts["target_segment_ids"])
            base = sum_by_segment(jnp.where(sides == index, reference, 0.0), pairs)
            rewards.append(self.beta * (policy - base))
        chosen, rejected = rewards
        margin = chosen - rejected
        eps = self.loss_options.smoothing
        losses = -(1 - eps) * jax.nn.log_sigmoid(margin) - eps * jax.nn.log_sigmoid(-margin)
        is_pair = jnp.arange(1, pairs.shape[1] + 1) <= pairs.max(axis=1, keepdims=True)
        means = {"margin": margin, "chosen_reward": chosen, "rejected_reward": rejected}
        sums = {name: (values * is_pair).sum() for name, values in means.items()}
        sums |= {
            "tokens": is_pair.sum(dtype=jnp.float32),
            "correct": ((margin > 0) & is_pair).sum(),
        }
        return (losses * is_pair).sum(), sums["tokens"], sums | padding_sums(batch, self.read)


def sum_by_segment(values: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Sums of a row's values by segment, float32 [B, T]: segment i + 1 at index i, 0 after the
    last.

    Args:
      values: [B, T].
      segment_ids: int32 [B, T], from 1; 0 is padding.
    """
    count = segment_ids.shape[1] + 1
    sums = jax.vmap(lambda row, ids: jax.ops.segment_sum(row, ids, count))(values, segment_ids)
    return sums[:, 1:]
