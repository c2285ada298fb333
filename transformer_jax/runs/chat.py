# SPDX-License-Identifier: Apache-2.0
"""A conversation with a run."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.conversations import ASSISTANT, MODEL, SYSTEM, USER, Turn
from transformer_jax.runs.run import Run
from transformer_jax.summary import Summarized
from transformer_jax.tasks.interface import ability


class Chat(Summarized):
    """A conversation: each question is answered given all turns before it.

    Attributes:
      turns: the turns so far.

    Args:
      run: a run whose task supports conversations, or a language model, such as an imported one.
      template: a value of `task.template`; None: that of the run, or of the tokenizer.
      **decode: fields of the section `decode`, as for `Run.predict`.
    """

    def __init__(self, run: Run, template: str | None = None, **decode: Any) -> None:
        if run.settings.task.name == "language_modeling":
            run = run.with_config({"task.name": "instruction", "task.template": template or MODEL})
        elif template is not None:
            run = run.with_config({"task.template": template})
        ability(run.task, "reply")
        self._decode = run._decode("stream", decode)
        task, self._params = run.with_decoding(self._decode)
        self._run = run
        self._reply = ability(task, "reply")
        self.turns: tuple[Turn, ...] = ()

    def summary(self) -> Mapping[str, Any]:
        return {f"{number} {turn.role}": turn.content for number, turn in enumerate(self.turns, 1)}

    def ask(self, question: str) -> Iterator[str]:
        """Yields the answer piece by piece while it is sampled.

        If the conversation is longer than the context, its oldest turns are dropped.

        Raises:
          UserError: the question alone is longer than the context, or contains text that looks like
            the template's markup; the conversation stays as it was.
        """
        turns = (*self.turns, Turn(USER, question))
        pieces = []
        with self._run.naming_layer([]):
            for piece in self._reply(self._params, turns, self._decode):
                pieces.append(piece)
                yield piece
        # Only now: after an error, or if the caller stops early, the conversation is as before.
        self.turns = (*turns, Turn(ASSISTANT, "".join(pieces)))

    def reset(self, system: str | None = None) -> None:
        """Starts a new conversation, with a system prompt if given."""
        self.turns = () if system is None else (Turn(SYSTEM, system),)
