# SPDX-License-Identifier: Apache-2.0
"""The section `task` of a config."""

import dataclasses
from typing import Annotated

from transformer_jax.conversations import ASSISTANT, MODEL, SYSTEM, TEMPLATES, USER, Template
from transformer_jax.conversations.templates import load_model_template
from transformer_jax.fields import Configurable
from transformer_jax.ranges import OneOf, Range, check_fields
from transformer_jax.scoring import METRICS
from transformer_jax.tasks.corruptions import OBJECTIVES, Share
from transformer_jax.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class TaskConfig(Configurable):
    """Settings of the task, that is, of what the model learns.

    Attributes:
      name: the task, an entry of `tasks.TASKS`.
      objective: what the task denoising hides of a text and predicts, an entry of
        `corruptions.OBJECTIVES`.
      mask_rate: share of tokens that masked language modeling hides.
      final_mask_rate: share at the last step of training, which the share approaches from the first
        step on (Ankner et al. 2024); evaluations hide `mask_rate` throughout. None: the same.
      mask_schedule: how it changes: an entry of `optimizer.schedule` that decays.
      whole_words: mask all tokens of a word together (masked language modeling).
      tree_words: size of the word vocabulary that a parser's decoder reads: the most frequent
        words; all others are replaced by their word class. The decoder is then fed each next word
        before it predicts the brackets in front of it, which helps with few trees. 0: no words; it
        predicts a tag per word, as in Vinyals et al. 2015.
      template: format of conversations, an entry of `conversations.TEMPLATES`; "model": that of the
        imported model whose tokenizer it is; None: the format given by the three *_turn fields.
      system_turn, user_turn, assistant_turn: text of such a turn, with "{content}" in place of the
        message, for example "Q: {content}\\n"; "{eos}" is the end-of-text token.
      beta: beta of DPO: strength of the penalty for departing from the reference model (Rafailov et
        al. 2023). Smaller values let the model move farther.
      pooling: how an encoder's vectors of tokens become one vector of a text (`embed`): "mean" of
        all, that of the first token ("cls"), or "max"; None: a run makes none.
      normalize: scale the vectors of texts to length 1.
      metric: metric that compares outputs with targets and selects the best checkpoint, an entry of
        `scoring.METRICS`; None: the task's own. Only for tasks with text outputs.

    Raises:
      ValueError: a value out of range, no metric or template has the name, or the texts of turns
        are no template.
    """

    name: str = "translation"
    objective: str | None = None
    mask_rate: Share = 0.15
    final_mask_rate: Share | None = None
    mask_schedule: str = "linear"
    whole_words: bool = False
    tree_words: Annotated[int, Range(0, 1_000_000)] = 0
    template: str | None = "alpaca"
    system_turn: str | None = None
    user_turn: str | None = None
    assistant_turn: str | None = None
    beta: Annotated[float, Range(1e-6, 1e6)] = 0.1
    pooling: Annotated[str, OneOf("mean", "cls", "max")] | None = None
    normalize: bool = False
    metric: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.normalize and self.pooling is None:
            raise ValueError("normalize is set, and there are no vectors of texts; set pooling too")
        if self.mask_schedule != "linear" and self.final_mask_rate is None:
            raise ValueError(
                "mask_schedule is set, and the share of masks stays the same; set final_mask_rate "
                "too"
            )
        if self.metric is not None:
            METRICS.find(self.metric)
        if self.objective is not None:
            OBJECTIVES.find(self.objective)
        self.make_template()

    def make_template(self, tokenizer: Tokenizer | None = None) -> Template:
        """Makes the format of conversations.

        Args:
          tokenizer: of the conversations. Without it, "model" is any template, to check the rest.
        """
        fields = {role: getattr(self, f"{role}_turn") for role in (SYSTEM, USER, ASSISTANT)}
        turns = {role: text for role, text in fields.items() if text is not None}
        if self.template is not None:
            if turns:
                raise ValueError(
                    f"template {self.template!r} has turns of its own; set it to none, or leave "
                    f"{min(turns)}_turn out"
                )
            if self.template == MODEL:
                if tokenizer is None:
                    return TEMPLATES["chatml"]
                return load_model_template(tokenizer)
            return TEMPLATES.find(self.template)
        if len(turns) < len(fields):
            missing = ", ".join(f"{role}_turn" for role in fields if role not in turns)
            raise ValueError(f"a template of one's own has three turns; set {missing} too")
        return Template(**turns)
