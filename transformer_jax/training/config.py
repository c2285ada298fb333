# SPDX-License-Identifier: Apache-2.0
"""The sections `train` and `lora` of a config."""

import dataclasses
import math
import re
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from transformer_jax.errors import UserError
from transformer_jax.fields import Configurable
from transformer_jax.nn.lora import Adapters, LowRankAdapter
from transformer_jax.nn.parameters import named_leaves, parameter_at
from transformer_jax.nn.transformer import REMAT
from transformer_jax.ranges import OneOf, PathPattern, Range, Steps, check_fields, short_repr


@dataclasses.dataclass(frozen=True)
class TrainConfig(Configurable):
    """Length of training and size of its batches.

    Attributes:
      num_steps: total number of training steps.
      tokens_per_batch: tokens in the batch of one step, on each side, padding included.
      scale_to_data: lower `num_steps`, `optimizer.warmup_steps`, `tokenizer.vocab_size` and the
        `every_steps` of logging, evaluation and checkpoints, which are then upper limits, to the
        size of the training data, when a run starts: about 30 epochs, and half as many subwords as
        the text has words. The run's config.json has the resulting values.
      accumulation_steps: micro-batches per step; their gradients are summed before the update.
      rows_per_device: rows per device and micro-batch, as an alternative to `accumulation_steps`:
        the number of micro-batches then follows from the number of devices. None: use
        `accumulation_steps`.
      loss: loss of each predicted token or label (`losses.TOKEN_LOSSES`).
      label_smoothing: epsilon of label smoothing, spread over the whole vocabulary (section 5.4).
      z_loss: weight of log^2 Z in the loss, where Z is the denominator of the softmax over the
        vocabulary; it keeps logits from drifting (Chowdhery et al. 2022, who use 1e-4).
      loss_tiles: tiles of the vocabulary in which the loss is computed, one after another, so that
        the logits of a whole batch are never in memory; the backward pass recomputes each tile.
        None: one tile on CPUs; elsewhere at least two, each at most 1/64 of a device's memory.
      r_drop: weight alpha of R-Drop (Liang et al. 2021, who use 5 for translation): each batch
        passes through the model twice with different dropout, and the loss adds the divergence of
        the two output distributions. A step takes twice as long. 0: off.
      remat: activations that the backward pass recomputes to save memory: "none", "full" (all
        except each layer's input), "dots" (all except products with parameters) or "offload"
        ("dots", with those products kept in host memory).
      on_spike: action when the gradient norm is not finite, or exceeds `spike_factor` times its
        mean over about the last hundred steps: "apply" the update anyway (a non-finite one stops
        the training), "skip" it, or "rewind": return to the last checkpoint (or the start) and
        continue with the data that comes next (Chowdhery et al. 2022, 5.1). In the first 20 steps
        only non-finite updates are skipped.
      spike_factor: threshold of `on_spike`.
      reproducible: on GPUs, use only kernels that add in a fixed order, so that two runs on one
        kind of GPU are equal bit for bit, as they are on CPUs. Steps take longer. Other devices
        ignore it.
      callbacks: callbacks at records, evaluations and checkpoints (`training.callbacks`), separated
        by commas; None: none.
      init_from: workdir of a run whose parameters and tokenizers training starts from, or
        hf:OWNER/NAME, a published model that is imported first; None: random parameters.

    Raises:
      ValueError: a value is out of range, `accumulation_steps` and `rows_per_device` are both set,
        `spike_factor` is set without `on_spike`, or R-Drop is combined with loss tiles.
    """

    num_steps: Steps = 100_000
    tokens_per_batch: Annotated[int, Range(1, 10**9)] = 25_000
    scale_to_data: bool = False
    accumulation_steps: Annotated[int, Range(1, 10**6)] = 1
    rows_per_device: Annotated[int, Range(1, 10**6)] | None = None
    loss: str = "cross_entropy"
    label_smoothing: Annotated[float, Range(0, 1, "[)")] = 0.1
    z_loss: Annotated[float, Range(0, 1)] = 0.0
    loss_tiles: Annotated[int, Range(1, 4096)] | None = None
    r_drop: Annotated[float, Range(0, 1e3)] = 0.0
    remat: Annotated[str, OneOf(*REMAT)] = "none"
    on_spike: Annotated[str, OneOf("apply", "skip", "rewind")] = "apply"
    spike_factor: Annotated[float, Range(1, 1e6)] = 5.0
    reproducible: bool = False
    callbacks: str | None = None
    init_from: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rows_per_device and self.accumulation_steps > 1:
            raise ValueError(
                f"rows_per_device is {self.rows_per_device}, but accumulation_steps "
                f"{self.accumulation_steps} already divides the batch; set only one of them"
            )
        if self.spike_factor != 5.0 and not self.detects_spikes:
            raise ValueError(
                f"spike_factor is {self.spike_factor}, but on_spike is 'apply'; set it to skip or "
                "rewind"
            )
        if self.r_drop and (self.loss_tiles or 1) > 1:
            raise ValueError(
                f"r_drop is {self.r_drop}, which compares whole distributions, but loss_tiles is "
                f"{self.loss_tiles}; set only one of them"
            )

    @property
    def detects_spikes(self) -> bool:
        """Returns True if updates with a spiked gradient are skipped or undone."""
        return self.on_spike != "apply"

    def micro_batches(self, longest: int, shards: int) -> int:
        """Number of micro-batches in a batch; arguments and errors are those of `rows`."""
        if self.rows_per_device is None:
            return self.accumulation_steps
        return self.rows(longest, shards) // (self.rows_per_device * shards)

    def rows(self, longest: int, shards: int = 1) -> int:
        """Number of rows in a batch, a multiple of `accumulation_steps` or `rows_per_device`.

        Args:
          longest: tokens per row.
          shards: parts into which the devices divide each micro-batch.

        Raises:
          ValueError: a micro-batch has no room for one row, or its rows cannot be divided.
        """
        least = self.rows_per_device or self.accumulation_steps
        rows = self.tokens_per_batch // longest // least * least
        if not rows:
            raise ValueError(
                f"tokens_per_batch {self.tokens_per_batch} has no room for {least} rows of "
                f"{longest} tokens; raise it, or lower data.max_*"
            )
        unit = least * shards
        if rows % unit:
            fitting = [n * unit * longest for n in (rows // unit, rows // unit + 1) if n]
            how = f"at {least} rows each" if self.rows_per_device else f"in {least} micro-batches"
            raise ValueError(
                f"tokens_per_batch {self.tokens_per_batch} makes {rows} rows of {longest} tokens, "
                f"which {shards} devices cannot share equally {how}; "
                f"set it to {' or '.join(map(str, fitting))}"
            )
        return rows


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adaptation (Hu et al. 2021): trains adapters of some matrices of the run in
    `train.init_from`, whose own parameters are frozen.

    Attributes:
      rank: rank r of the adapters; None: no adapters, train all parameters.
      alpha: scale of the adapters: each adds alpha / r times its product.
      targets: regular expression; linear maps whose path contains a match get adapters.
      dropout_rate: dropout on the adapters' inputs.
      rank_stabilized: divide alpha by sqrt(r) instead of r (Kalajdzievski 2023).

    Raises:
      ValueError: a value out of range, or one that does nothing without a rank.
    """

    rank: Annotated[int, Range(1, 65_536)] | None = None
    alpha: Annotated[float, Range(1e-6, 1e6)] = 16.0
    targets: PathPattern = "(query|value)/kernel$"
    dropout_rate: Annotated[float, Range(0, 1, "[)")] = 0.0
    rank_stabilized: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if self.rank is None and value != field.default:
                raise ValueError(
                    f"{field.name} is {short_repr(value)}, but there is no rank; set it too"
                )

    @property
    def scale(self) -> float:
        assert self.rank is not None
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)

    def init_adapters(self, key: jax.Array, params: Any) -> Adapters:
        """Initializes adapters for the linear maps that match `targets`: A is uniform in
        +-1 / sqrt(I), of variance 1 / (3 I), as in peft, so that learning rates carry over; B is 0.
        UserError if no map matches."""
        assert self.rank is not None
        adapters: dict[str, LowRankAdapter] = {}
        for number, (name, leaf) in enumerate(named_leaves(params).items()):
            parameter = parameter_at(name)
            if parameter is None or parameter.kind != "matrix" or not re.search(self.targets, name):
                continue
            # A key by the leaf's number: the adapters of other leaves do not change it.
            own_key = jax.random.fold_in(key, number)
            inputs = math.prod(leaf.shape[: parameter.input_axes])
            limit = 1 / math.sqrt(inputs)
            down = jax.random.uniform(own_key, (inputs, self.rank), minval=-limit, maxval=limit)
            up = jnp.zeros((self.rank, leaf.size // inputs))
            adapters[name] = LowRankAdapter(down, up, self.scale, self.dropout_rate)
        if not adapters:
            raise UserError(
                f"config.lora.targets {self.targets!r} matches the path of no linear map; such "
                "paths end in query/kernel, inner/kernel and so on"
            )
        return adapters
