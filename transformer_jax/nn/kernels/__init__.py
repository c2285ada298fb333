"""Implementations of attention that never hold all of its weights, and how one is chosen.

`attention.scaled_dot_product_attention` is the paper's function; the fused kernels here (Dao et al.
2022) compute the same, block by block, on accelerators. None of them gives the weights to anyone or
drops some, so what they cannot compute exactly stays with the plain function.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from transformer_jax.nn.division import is_divided
from transformer_jax.nn.inputs import AttentionInputs
from transformer_jax.nn.kernels.base import Asked, Kernel
from transformer_jax.nn.kernels.cudnn import CuDNN
from transformer_jax.nn.kernels.splash import Splash
from transformer_jax.registry import Registry
from transformer_jax.runtime.platform import target

__all__ = ["ATTENTION", "Asked", "Choice", "Kernel", "choose", "noted_choices"]

ATTENTION: Registry[Kernel | None] = Registry(
    "model.attention", {"auto": None, "plain": None, "cudnn": CuDNN(), "splash": Splash()}
)
"""Kernels by name; None where `choose` takes no certain one."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """What computes an attention, and why.

    Attributes:
      name: entry of `ATTENTION`.
      reason: why a kernel that was looked at does not; "" where none was, or where one does.
    """

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name

    @property
    def kernel(self) -> Kernel | None:
        """None: the plain function."""
        return ATTENTION[self.name]


def choose(name: str, inputs: AttentionInputs, asked: Asked) -> Choice:
    """The fastest that is exact for what is asked: under "auto" the first kernel of the platform
    that does not refuse, under the name of a kernel that one, else "plain".

    Raises:
      ValueError: `name` is no entry of `ATTENTION`.
    """
    wanted, here = ATTENTION.find(name), target().platform
    kernels = {key: kernel for key, kernel in ATTENTION.items() if kernel is not None}
    if name == "auto":
        kernels = {key: kernel for key, kernel in kernels.items() if kernel.platform == here}
    else:
        kernels = {} if wanted is None else {name: wanted}
    reasons = []
    for key, kernel in kernels.items():
        reason = _refusal(kernel, inputs, asked)
        if reason is None:
            return _noted(Choice(key))
        reasons.append(f"not {key}: {reason}" if name == "auto" else reason)
    return _noted(Choice("plain", "; ".join(reasons)))


def _refusal(kernel: Kernel, inputs: AttentionInputs, asked: Asked) -> str | None:
    if kernel.platform != (here := target().platform):
        return f"it runs on a {kernel.platform}, and this is a {here}"
    if inputs.segments is None or not is_divided():
        return "this is no training step on devices that divide rows and heads"
    return asked.not_fused() or kernel.refusal(inputs, asked)


@contextlib.contextmanager
def noted_choices() -> Iterator[list[Choice]]:
    """A context: the list that it gives holds each choice made while models are traced inside."""
    choices: list[Choice] = []
    token = _choices.set(choices)
    try:
        yield choices
    finally:
        _choices.reset(token)


def _noted(choice: Choice) -> Choice:
    choices = _choices.get()
    if choices is not None and choice not in choices:
        choices.append(choice)
    return choice


_choices: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar(
    "choices", default=None
)
