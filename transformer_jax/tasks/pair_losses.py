"""The losses of a model that maps sources to targets, on packed pairs.

B batch, T slots of a target, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from transformer_jax.losses import TokenLosses, symmetric_divergence, token_losses
from transformer_jax.models.apply import apply
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Batch, LossOptions, LossSums, Params
from transformer_jax.tasks.packed import packed_loss, row_inputs, row_scores, shift_right
from transformer_jax.tiled_losses import projected_losses
from transformer_jax.tokenization import SpecialTokens


@dataclasses.dataclass(frozen=True)
class PairLosses:
    """What training and scoring compute of pairs, packed as the features "source" and "target".

    Attributes:
      model: maps source and shifted target to logits.
      specials: of the targets' vocabulary.
      options: of the training loss.
      predicts: of each token of the targets' vocabulary that which is predicted in its place; None:
        itself.
    """

    model: Any
    specials: SpecialTokens
    options: LossOptions
    predicts: tuple[int, ...] | None = None
    read: ClassVar[tuple[str, ...]] = ("source", "target")

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters of the model."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, *[row] * 6)["params"]

    def __call__(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """Label-smoothed cross-entropy of each target token given its past and the source; in
        training with R-Drop, where that is asked for."""
        if self.options.r_drop and rng is not None:
            found = self._consistent(params, batch, rng)
        else:
            found = self._losses(params, batch, self.options, rng)
        return packed_loss(batch, self.read, found, self._predicted(batch))

    @functools.cached_property
    def scores(self) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
        """(parameters, packed batch) -> `row_scores` of the targets; compiled."""

        def scores(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
            return row_scores(
                self._losses(params, batch, self.options.plain), self._predicted(batch)
            )

        return jax.jit(scores, compiler_options=platform.compiler_options())

    def _predicted(self, batch: Batch) -> jax.Array:
        """[B, T]: whether a target token is one that the model must predict; the head is forced."""
        head = len(self.specials.translation.head)
        return (batch["target_segment_ids"] > 0) & (batch["target_positions"] >= head)

    def _losses(
        self,
        params: Params,
        batch: Batch,
        options: LossOptions,
        rng: jax.Array | None = None,
    ) -> TokenLosses:
        """[B, T] of the target tokens."""
        predicted = apply(self.model, params, *self._inputs(batch), rng=rng, method="unprojected")
        return projected_losses(
            *(predicted, self._outputs(batch), options.label_smoothing, options.z_loss),
            tiles=options.loss_tiles,
        )

    def _consistent(self, params: Params, batch: Batch, rng: jax.Array) -> TokenLosses:
        """[B, T] of the target tokens by R-Drop (Liang et al. 2021, equation 4, halved): the mean
        cross-entropy of two passes that differ in dropout, and alpha / 4 of the divergence of
        their distributions, both directions added."""
        # Copies stand side by side, so that both are on the device of their row.
        twice = {name: jnp.repeat(rows, 2, axis=0) for name, rows in batch.items()}
        logits = apply(self.model, params, *self._inputs(twice), rng=rng)
        eps, z_loss = self.options.label_smoothing, self.options.z_loss
        found = token_losses(logits, self._outputs(twice), eps, z_loss)
        one, other = logits[::2], logits[1::2]
        apart = symmetric_divergence(one, other)
        losses = (found.losses[::2] + found.losses[1::2]) / 2 + self.options.r_drop / 4 * apart
        return TokenLosses(losses, found.nll[::2], found.correct[::2])

    def _outputs(self, batch: Batch) -> jax.Array:
        """[B, T], the tokens that the model predicts."""
        target = batch["target"]
        return target if self.predicts is None else jnp.array(self.predicts, jnp.int32)[target]

    def _inputs(self, batch: Batch) -> tuple[jax.Array, ...]:
        """What the model reads."""
        target, *where = row_inputs(batch, "target")
        shifted = shift_right(target, where[0], self.specials.start)
        return (*row_inputs(batch, "source"), shifted, *where)
