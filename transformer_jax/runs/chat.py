"""A conversation with a run that answers."""

from collections.abc import Iterator
from typing import Any

from transformer_jax.conversations import ASSISTANT, SYSTEM, USER, Turn
from transformer_jax.errors import UserError
from transformer_jax.nn.int8 import convert_weights
from transformer_jax.runs.run import Run, decode_options
from transformer_jax.tasks.interface import SupportsChat


class Chat:
    """Questions and their answers, each asked behind those before it.

    Attributes:
      turns: what was said so far.

    Args:
      run: of a task that answers.
      **decode: fields of the section `decode`, as for `Run.predict`.

    Raises:
      UserError: the task answers no conversation.
    """

    def __init__(self, run: Run, **decode: Any) -> None:
        if not isinstance(run.task, SupportsChat):
            raise UserError("chat: this run's task answers no conversation; use predict")
        self._task = run.task
        self._decode = decode_options(run.settings.decode, run.task, "stream", decode)
        self._params = convert_weights(self._decode.weights, run.params)
        self.turns: tuple[Turn, ...] = ()

    def ask(self, question: str) -> Iterator[str]:
        """The answer, piece by piece as it is drawn. Where the conversation grew longer than the
        context, its first questions are no longer read.

        Raises:
          UserError: the question alone is longer than the context, or contains text that looks like
            the template's markup; the conversation stays as it was.
        """
        asked, pieces = (*self.turns, Turn(USER, question)), list[str]()
        for piece in self._task.reply(self._params, asked, self._decode):
            pieces.append(piece)
            yield piece
        self.turns = (*asked, Turn(ASSISTANT, "".join(pieces)))

    def reset(self, system: str | None = None) -> None:
        """Begins anew, told how to answer or not."""
        self.turns = () if system is None else (Turn(SYSTEM, system),)
