"""The section `task` of a config."""

import dataclasses
from typing import Annotated

from transformer_jax.conversations import ASSISTANT, SYSTEM, TEMPLATES, USER, Template
from transformer_jax.ranges import Range, check_fields
from transformer_jax.scoring import METRICS


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What the model learns.

    Attributes:
      name: the task, an entry of `tasks.TASKS`.
      mask_rate: share of the tokens that masked language modelling hides.
      whole_words: whether masked language modelling hides all tokens of a word together.
      tree_words: tokens for words in the vocabulary of trees: the most frequent words, and classes
        of all others. The decoder then reads each word, and writes its tag, before the brackets in
        front of it, which it learns from few trees; 0: it writes a tag where a word stands, as in
        Vinyals et al. 2015.
      template: how conversations are written, an entry of `conversations.TEMPLATES`; None: as the
        next three say.
      system_turn, user_turn, assistant_turn: the text of such a turn, with "{content}" where what
        is said stands, as "Q: {content}\\n"; "{eos}" is the token that ends a text.
      beta: of preferences, how much the model pays for going away from the one that training starts
        from (Rafailov et al. 2023): the less, the farther it goes.
      metric: what compares outputs with targets, an entry of `scoring.METRICS`, which then chooses
        the best checkpoint; None: the task's own. Refused by tasks that compare no texts.

    Raises:
      ValueError: a value out of range, no metric or template has the name, or the texts of turns
        are no template.
    """

    name: str = "translation"
    mask_rate: Annotated[float, Range(0, 1, "()")] = 0.15
    whole_words: bool = False
    tree_words: Annotated[int, Range(0, 1_000_000)] = 0
    template: str | None = "alpaca"
    system_turn: str | None = None
    user_turn: str | None = None
    assistant_turn: str | None = None
    beta: Annotated[float, Range(1e-6, 1e6)] = 0.1
    metric: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.metric is not None:
            METRICS.find(self.metric)
        self.make_template()

    def make_template(self) -> Template:
        """How conversations are written."""
        turns = {role: getattr(self, f"{role}_turn") for role in (SYSTEM, USER, ASSISTANT)}
        given = {role: text for role, text in turns.items() if text is not None}
        if self.template is not None:
            if given:
                raise ValueError(
                    f"template {self.template!r} has turns of its own; set it to none, or leave "
                    f" {min(given)}_turn out"
                )
            return TEMPLATES.find(self.template)
        if len(given) < len(turns):
            missing = ", ".join(f"{role}_turn" for role in turns if role not in given)
            raise ValueError(f"a template of one's own has three turns; set {missing} too")
        return Template(**given)
