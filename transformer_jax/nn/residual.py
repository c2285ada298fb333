"""The residual connection around a sublayer, with norm and dropout (sections 3.1, 5.4)."""

import contextlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.norms import make_norm


class Residual(nn.Module):
    """What stands before and after a sublayer; the three placements of the norm.

    post:      LayerNorm(x + Dropout(Sublayer(x)))              the paper
    pre:       x + Dropout(Sublayer(LayerNorm(x)))              Xiong et al. 2020
    sandwich:  x + LayerNorm(Dropout(Sublayer(LayerNorm(x))))   Ding et al. 2021

    LayerNorm stands for the config's `norm`.

    Use: `y = residual.before(x)`, the sublayer, then `x = residual.after(x, y, deterministic)`.
    """

    config: TransformerConfig

    def setup(self) -> None:
        placement = self.config.norm_placement
        if placement in ("pre", "sandwich"):
            self.norm_before = make_norm(self.config)
        if placement in ("post", "sandwich"):
            self.norm_after = make_norm(self.config)
        self.dropout = Dropout(self.config.dropout_rate, self.config.dropout_bits)

    def before(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The sublayer's input."""
        return x if self.config.norm_placement == "post" else self.norm_before(x)

    def after(
        self, x: Float[Array, "B T D"], y: Float[Array, "B T D"], deterministic: bool
    ) -> Float[Array, "B T D"]:
        """Adds the sublayer's output y to the residual stream x, and keeps the stream's dtype."""
        y = self.dropout(y, deterministic)
        match self.config.norm_placement:
            case "post":
                stream = self.norm_after(x + y)
            case "pre":
                stream = x + y
            case _:
                stream = x + self.norm_after(y)
        return stream.astype(x.dtype)


def each_stream(change: Callable[[Array], Array]) -> contextlib.AbstractContextManager[None]:
    """A context: in models applied inside it, the residual stream [B, T, D] after each sublayer
    passes through `change`, which may constrain its sharding, or look at it."""

    def intercept(method: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        result = method(*args, **kwargs)
        after = isinstance(context.module, Residual) and context.method_name == "after"
        return change(result) if after else result

    return nn.intercept_methods(intercept)
