# SPDX-License-Identifier: Apache-2.0
"""Drafts for speculative decoding (`decoding.speculative`): a smaller model or a lookup.

B inputs, N rows, T new tokens, P prompt, S slots, V vocabulary.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from transformer_jax.decoding.constraints import Constraint, constrained
from transformer_jax.decoding.interface import DecodeStep, Search, can_rewind
from transformer_jax.decoding.sampling import Sampler
from transformer_jax.errors import UserError
from transformer_jax.models import apply_method
from transformer_jax.models.patches import WrappedModel
from transformer_jax.nn.cache import state_bytes
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.tokenization import SpecialTokens

LOOKUP = "lookup"
"""The value of `decode.draft` that proposes what followed the same tokens before."""

_LONGEST_MATCH = 3
_NEVER = -1e9  # logit of the tokens that a lookup does not propose


class Drafted(NamedTuple):
    """Parameters, memories or states of a model and of its draft."""

    model: Any
    draft: Any


_NO_MEMORY = Drafted((), ())


class DraftedModel(WrappedModel):
    """A model with a draft. Searches call `apply` with `Drafted` parameters.

    Attributes:
      num_steps: decode steps of all rows so far.
      num_tokens: output tokens that these steps found.

    Args:
      draft: a model with the same vocabulary and inputs, or a `Lookup`.
      length: tokens that the draft proposes at once.

    Raises:
      UserError: the layers of one of the two keep a state that cannot forget tokens.
    """

    def __init__(self, model: Any, draft: Any, length: int) -> None:
        super().__init__(model)
        self.draft = draft
        self.length = length
        self.num_steps = self.num_tokens = 0
        for name, part in (("the model", model), ("the draft", draft)):
            if not can_rewind(jax.eval_shape(lambda part=part: part.empty_state(1, 1))):
                raise UserError(
                    f"decode.draft: {name} has layers that cannot take back a proposal (recurrent "
                    "ones, or a cache with fields of its own and no `rewind`); leave the draft out"
                )

    def apply(self, variables: Any, *inputs: Any, method: Any = "__call__", **named: Any) -> Any:
        """Applies a method; "draft_step" is the draft's `decode_step`. Both prefill."""
        params = variables["params"]
        if method == "prefill":
            *prompts, max_length = inputs
            prompts.append(max_length + self.length)  # proposals need slots, too
            logits, *of_model = apply_method(self.model, params.model, method, *prompts)
            _, *of_draft = apply_method(self.draft, params.draft, method, *prompts)
            return logits, *map(Drafted, of_model, of_draft)
        if method in ("decode_step", "draft_step"):
            part = "model" if method == "decode_step" else "draft"
            tokens, memory, state = inputs
            variables, *read = (getattr(x, part) for x in (params, memory or _NO_MEMORY, state))
            model = getattr(self, part)
            logits, after = apply_method(model, variables, "decode_step", tokens, *read)
            return logits, state._replace(**{part: after})
        return self.model.apply({"params": params.model}, *inputs, method=method, **named)

    def record(self, num_tokens: int, num_steps: int) -> None:
        self.num_tokens += num_tokens
        self.num_steps += num_steps

    @property
    def tokens_per_step(self) -> float:
        """Output tokens that a step of a row found so far."""
        return self.num_tokens / max(1, self.num_steps)

    @property
    def acceptance(self) -> float:
        """Share of the draft's proposals that became output tokens so far."""
        return max(0.0, self.tokens_per_step - 1) / self.length

    def state_bytes(self, length: int, num_beams: int = 1) -> int:
        """Bytes of the decoding states of one hypothesis of `length` tokens; searches with a draft
        have no beams."""
        assert num_beams == 1
        return sum(part.state_bytes(length + self.length) for part in (self.model, self.draft))


class LookupState(struct.PyTreeNode):
    """Text of each row; slots after its length are never read."""

    tokens: Int[Array, "N S"]
    length: Int[Array, " N"]

    def rewind(self, counts: Int[Array, " N"]) -> "LookupState":
        return self.replace(length=self.length - counts)

    def append(self, token: Int[Array, " N"]) -> "LookupState":
        rows = jnp.arange(len(token))
        return LookupState(self.tokens.at[rows, self.length].set(token), self.length + 1)

    def next_token(self) -> Int[Array, " N"]:
        """The token that followed the longest match: up to 3 last tokens of the text, where they
        occurred before; of equally long matches the latest. Without a match the last token."""
        slots = jnp.arange(self.tokens.shape[1])
        longest = jnp.zeros_like(self.tokens)
        is_match = jnp.ones(self.tokens.shape, bool)
        for count in range(_LONGEST_MATCH):  # is_match: these `count` tokens end in the slot
            last = jnp.take_along_axis(
                self.tokens, self.length[:, None] - 1 - count, 1, mode="clip"
            )
            is_match &= (jnp.roll(self.tokens, count, axis=1) == last) & (slots >= count)
            longest += is_match
        longest = jnp.where(slots < self.length[:, None] - 1, longest, 0)
        latest = longest.shape[1] - 1 - jnp.argmax(longest[:, ::-1], axis=1)
        latest = jnp.where(longest.any(axis=1), latest, self.length - 2)
        return jnp.take_along_axis(self.tokens, latest[:, None] + 1, axis=1)[:, 0]


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A draft without parameters: proposes the token that followed the last tokens before, in the
    source, the prompt or the output.
    """

    vocab_size: int

    def apply(self, variables: Any, *inputs: Any, method: str) -> Any:
        return getattr(self, method)(*inputs)

    def prefill(self, *inputs: Any) -> tuple[Float[Array, "B V"], tuple[()], LookupState]:
        """Reads the texts; `inputs` are tokens and lengths of each, and the longest output."""
        *texts, max_length = inputs
        rows, width = texts[0].shape
        widths = [tokens.shape[1] for tokens in texts[::2]]
        # The longest output includes the prompt, which is the last text.
        state = self.empty_state(rows, sum(widths[:-1]) + max(widths[-1], max_length))
        for tokens, lengths in zip(texts[::2], texts[1::2], strict=True):
            write = jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice(row, new, (at,)))
            tokens = write(state.tokens, tokens, state.length)
            state = LookupState(tokens, state.length + lengths)
        return self._logits(state), (), state

    def decode_step(
        self, tokens: Int[Array, " N"], memory: tuple[()], state: LookupState
    ) -> tuple[Float[Array, "N V"], LookupState]:
        state = state.append(tokens)
        return self._logits(state), state

    def empty_state(self, rows: int, max_length: int) -> LookupState:
        return LookupState(jnp.zeros((rows, max_length), jnp.int32), jnp.zeros(rows, jnp.int32))

    def state_bytes(self, length: int) -> int:
        return state_bytes(jax.eval_shape(lambda: self.empty_state(1, length)))

    def _logits(self, state: LookupState) -> Float[Array, "N V"]:
        chosen = jax.nn.one_hot(state.next_token(), self.vocab_size)
        return jnp.where(chosen > 0, 0.0, _NEVER)


def searching(model: Any, search: Search) -> Search:
    """The search with the draft of this model, if it has one. UserError if it cannot use one."""
    if not isinstance(model, DraftedModel):
        return search
    if type(search) is not Sampler:
        raise UserError(
            "decode.draft: a draft serves greedy search and sampling; set decode.search to "
            "'greedy', or decode.temperature"
        )
    from transformer_jax.decoding.speculative import SpeculativeSampler

    return SpeculativeSampler(**vars(search), draft_length=model.length)


def check_positions(model: Any, length: int) -> None:
    """Raises ValueError if a model, or its draft, has fewer positions than `length`."""
    for part in (model.model, model.draft) if isinstance(model, DraftedModel) else (model,):
        if not isinstance(part, Lookup):
            check_num_positions(part.config, length)


def method_of(search: Any, name: str) -> str:
    """Name of the method that a search calls; it returns hidden states if the search needs them."""
    return f"{name}_hidden" if getattr(search, "needs_hidden", False) else name


def decode_step_of(
    model: Any, params: Any, search: Any, constraint: Constraint | None, specials: SpecialTokens
) -> DecodeStep:
    """The decode step of a model, with that of its draft if it has one, under a constraint."""

    def step_by(method: str) -> DecodeStep:
        return functools.partial(apply_method, model, params, method)

    step = step_by(method_of(search, "decode_step"))
    if isinstance(model, DraftedModel):
        from transformer_jax.decoding.speculative import DraftedStep

        step = DraftedStep(step, step_by("draft_step"))
    return constrained(step, constraint, specials.banned[0]) if constraint else step
