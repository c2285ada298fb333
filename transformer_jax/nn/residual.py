"""The residual connection around a sublayer, with norm and dropout (sections 3.1, 5.4)."""

from collections.abc import Callable

import flax.linen as nn
import jax

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout


class Residual(nn.Module):
    """What stands before and after a sublayer; the three placements of the norm.

    post:      LayerNorm(x + Dropout(Sublayer(x)))              the paper
    pre:       x + Dropout(Sublayer(LayerNorm(x)))              Xiong et al. 2020
    sandwich:  x + LayerNorm(Dropout(Sublayer(LayerNorm(x))))   Ding et al. 2021

    LayerNorm stands for the config's `norm`.

    Use: `y = residual.before(x)`, the sublayer, then `x = residual.after(x, y, deterministic)`.
    """

    config: TransformerConfig

    def setup(self):
        placement = self.config.norm_placement
        if placement in ("pre", "sandwich"):
            self.norm_before = make_norm(self.config)
        if placement in ("post", "sandwich"):
            self.norm_after = make_norm(self.config)
        self.dropout = Dropout(self.config.dropout_rate)

    def before(self, x: jax.Array) -> jax.Array:
        """The sublayer's input: x [B, T, D] -> [B, T, D]."""
        return x if self.config.norm_placement == "post" else self.norm_before(x)

    def after(self, x: jax.Array, y: jax.Array, deterministic: bool) -> jax.Array:
        """Joins the sublayer's output y to the stream x: [B, T, D] each -> [B, T, D]."""
        y = self.dropout(y, deterministic)
        match self.config.norm_placement:
            case "post":
                return self.norm_after(x + y)
            case "pre":
                return x + y
            case _:
                return x + self.norm_after(y)


def each_stream(change: Callable[[jax.Array], jax.Array]):
    """A context: in models applied inside it, the residual stream [B, T, D] behind each sublayer
    passes through `change`, which may say how devices divide it, or look at it."""

    def intercept(method, args, kwargs, context):
        result = method(*args, **kwargs)
        behind = isinstance(context.module, Residual) and context.method_name == "after"
        return change(result) if behind else result

    return nn.intercept_methods(intercept)


def make_norm(config: TransformerConfig) -> nn.Module:
    """Normalization over the last axis, in float32: LayerNorm (Ba et al. 2016), or RMSNorm, which
    neither centers nor shifts (Zhang and Sennrich 2019)."""
    return nn.RMSNorm(epsilon=1e-6) if config.norm == "rms" else nn.LayerNorm(epsilon=1e-6)


def final_norm(config: TransformerConfig) -> nn.Module | None:
    """The norm at the end of a stack whose layers leave the stream unnormed; None for post-norm."""
    return None if config.norm_placement == "post" else make_norm(config)
