# SPDX-License-Identifier: Apache-2.0
"""Ensembles: several models that predict together, with the mean of their probabilities.

    log P(token) = log(1/K sum_k softmax(logits of model k))

B batch, V vocabulary, K members.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.nn.positions import encoding_class


class EnsembleModel:
    """Several models of one vocabulary, to search and to score with as with one model. Their sizes
    and architectures may differ.

    Parameters, memory and decoding state are tuples with a part for each member. Instances compare
    by identity, so that each gets its own compiled programs.
    """

    def __init__(self, members: Sequence[Any]) -> None:
        self.members = tuple(members)

    @property
    def config(self) -> Any:
        """The config of the member that knows the fewest positions: no other reads further."""
        configs = (member.config for member in self.members)
        return min(configs, key=lambda config: encoding_class(config).num_positions(config))

    def state_bytes(self, length: int, num_beams: int = 1) -> int:
        """Bytes of the decoding states of all members, for a sentence's hypotheses of `length`
        tokens."""
        return sum(member.state_bytes(length, num_beams) for member in self.members)

    def apply(
        self, variables: Mapping[str, Any], *inputs: Any, method: str = "__call__", **named: Any
    ) -> Any:
        """Applies all members and averages their predictions.

        Args:
          *inputs: arguments of the method. Memory and state have a part for each member.
          method: "prefill", "decode_step" or "__call__"; "unprojected" returns logits like
            "__call__", because an average has no hidden states.
        """
        calls = [
            functools.partial(member.apply, {"params": params}, **named)
            for member, params in zip(self.members, variables["params"], strict=True)
        ]
        match method:
            case "prefill":
                results = (call(*inputs, method=method) for call in calls)
                logits, memories, states = zip(*results, strict=True)
                return average_logits(logits), memories, states
            case "decode_step":
                tokens, memories, states = inputs
                memories = memories or ((),) * len(calls)  # generation passes none
                results = (
                    call(tokens, memory, state, method=method)
                    for call, memory, state in zip(calls, memories, states, strict=True)
                )
                logits, states = zip(*results, strict=True)
                return average_logits(logits), states
            case "__call__" | "unprojected":
                return average_logits([call(*inputs) for call in calls])
        raise ValueError(f"an ensemble has no method {method!r}")


def average_logits(logits: Sequence[Float[Array, "*B V"]]) -> Float[Array, "*B V"]:
    """Log of the mean of the members' probabilities; logits of a single member stay the same."""
    if len(logits) == 1:
        return logits[0]
    log_probs = jnp.stack([jax.nn.log_softmax(of_member) for of_member in logits])
    return jax.nn.logsumexp(log_probs, axis=0) - math.log(len(logits))
