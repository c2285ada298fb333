# SPDX-License-Identifier: Apache-2.0
"""LoRA: the section `lora` of a config, and the adapters that it describes."""

import dataclasses
import math
import re
from typing import Annotated, Any

import jax

from transformer_jax.errors import UserError
from transformer_jax.nn.lora import Adapters, LowRankAdapter, init_adapter
from transformer_jax.nn.parameters import parameter_at
from transformer_jax.ranges import PathPattern, Range, check_fields, short_repr


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
        """Initializes adapters for the linear maps that match `targets`. UserError if none does."""
        assert self.rank is not None
        adapters: dict[str, LowRankAdapter] = {}
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(params)):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            parameter = parameter_at(name)
            if parameter is None or parameter.kind != "matrix" or not re.search(self.targets, name):
                continue
            # A key by the leaf's number: the adapters of other leaves do not change it.
            adapters[name] = init_adapter(
                jax.random.fold_in(key, number),
                leaf,
                parameter.input_axes,
                self.rank,
                self.scale,
                self.dropout_rate,
            )
        if not adapters:
            raise UserError(
                f"config.lora.targets {self.targets!r} matches the path of no linear map; such "
                "paths end in query/kernel, inner/kernel and so on"
            )
        return adapters
