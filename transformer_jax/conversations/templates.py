"""How a conversation is written: the texts around each turn, as data."""

import dataclasses
import json
from collections.abc import Iterator
from typing import NamedTuple

from transformer_jax.conversations.turns import (
    ASSISTANT,
    INPUT,
    SYSTEM,
    USER,
    Conversation,
    Turn,
)
from transformer_jax.registry import Registry

CONTENT, EOS = "{content}", "{eos}"

_SAMPLE = (Turn(SYSTEM, "s"), Turn(USER, "a"), Turn(ASSISTANT, "b"), Turn(USER, "c"))


class Around(NamedTuple):
    """What stands before and behind the content of a turn."""

    head: str
    tail: str


@dataclasses.dataclass(frozen=True)
class Template:
    """The texts of a conversation.

    A turn's text has "{content}" where the turn's content stands, and something behind it. "{eos}"
    is the token that ends a text, whatever the vocabulary writes for it; other special tokens are
    written as the vocabulary writes them.

    Attributes:
      user, assistant, system: the text of a turn.
      input: likewise; None: an input joins the question before it, behind a blank line.
      begin: what stands before the first turn.
      default_system: the system's content where a conversation has none.
      default_system_with_input: the same where the first question has an input, if that differs.
      trims: whether white space around contents is dropped.

    Raises:
      ValueError: a turn's text has no place for its content, two of them, or nothing behind it, or
        the turns' texts cannot be told apart.
    """

    user: str
    assistant: str
    system: str
    input: str | None = None
    begin: str = ""
    default_system: str | None = None
    default_system_with_input: str | None = None
    trims: bool = False

    def __post_init__(self) -> None:
        for role in (SYSTEM, USER, INPUT, ASSISTANT):
            text = getattr(self, role)
            if text is not None and text.count(CONTENT) != 1:
                raise ValueError(
                    f"the template's {role} turn is {text!r}: write {CONTENT} once, where what is "
                    "said stands"
                )
            if text is not None and not self.around(role).tail:
                raise ValueError(
                    f"the template's {role} turn is {text!r}: nothing behind {CONTENT} ends it"
                )

        if not self.tells(self.completed(_SAMPLE)):
            raise ValueError(
                "the template's turns cannot be told apart: begin those of user and assistant with "
                "texts of their own"
            )

    def tells(self, turns: Conversation) -> bool:
        """Whether the text of completed turns is theirs alone: nothing that is said could be taken
        for the template's own text."""
        try:
            return self.undone(self.joined(turns)) == turns
        except ValueError:
            return False

    def around(self, role: str) -> Around:
        """What stands around a turn of the role."""
        head, _, tail = getattr(self, role).partition(CONTENT)
        return Around(head, tail)

    def completed(self, conversation: Conversation) -> Conversation:
        """The turns that are written: with the default system turn, inputs joined, trimmed."""
        turns = [*self._default(conversation), *conversation]
        joined: list[Turn] = []
        for turn in turns:
            if turn.role == INPUT and self.input is None:
                joined[-1] = Turn(USER, f"{joined[-1].content}\n\n{turn.content}")
            else:
                joined.append(turn)
        if self.trims:
            joined = [Turn(role, content.strip()) for role, content in joined]
        return tuple(joined)

    def _default(self, conversation: Conversation) -> Iterator[Turn]:
        if conversation[0].role == SYSTEM or self.default_system is None:
            return
        has_input = len(conversation) > 1 and conversation[1].role == INPUT
        other = self.default_system_with_input if has_input else None
        yield Turn(SYSTEM, other or self.default_system)

    def text(self, conversation: Conversation, answering: bool = False) -> str:
        """A conversation as it is written, "{eos}" as such; with `answering`, up to where the next
        answer begins."""
        opened = self.around(ASSISTANT).head if answering else ""
        return self.joined(self.completed(conversation)) + opened

    def joined(self, turns: Conversation) -> str:
        """The text of turns that are completed."""
        around = [(self.around(role), content) for role, content in turns]
        return self.begin + "".join(head + content + tail for (head, tail), content in around)

    def undone(self, text: str) -> Conversation:
        """The turns of a text that `text` made, as `completed` gives them, as far as the text alone
        tells where each ends.

        Raises:
          ValueError: it is no such text.
        """
        if not text.startswith(self.begin):
            raise ValueError("the text does not begin as the template does")
        place, turns = len(self.begin), list[Turn]()
        while place < len(text):
            role = self._role_at(text, place, first=not turns)
            head, tail = self.around(role)
            start = place + len(head)
            end = self._end_of(text, start, tail)
            turns.append(Turn(role, text[start:end]))
            place = end + len(tail)
        return tuple(turns)

    def _role_at(self, text: str, place: int, first: bool) -> str:
        roles = [role for role in (USER, INPUT, ASSISTANT) if getattr(self, role) is not None]
        roles += [SYSTEM] * first
        for role in sorted(roles, key=lambda role: -len(self.around(role).head)):
            if text.startswith(self.around(role).head, place):
                return role
        raise ValueError(f"no turn of the template begins at character {place}")

    def _end_of(self, text: str, start: int, tail: str) -> int:
        """The first place where the tail stands and the text ends, or another turn begins."""
        heads = tuple(
            self.around(role).head
            for role in (USER, INPUT, ASSISTANT)
            if getattr(self, role) is not None
        )
        place = text.find(tail, start)
        while place >= 0:
            behind = place + len(tail)
            if behind == len(text) or text.startswith(heads, behind):
                return place
            place = text.find(tail, place + 1)
        raise ValueError(f"nothing ends the turn that begins at character {start}")


_ALPACA = "Below is an instruction that describes a task{}. Write a response that appropriately"
_ALPACA += " completes the request."


def _llama3(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{CONTENT}<|eot_id|>"


def _chatml(role: str) -> str:
    return f"<|im_start|>{role}\n{CONTENT}<|im_end|>\n"


TEMPLATES: Registry[Template] = Registry(
    "task.template",
    {
        "alpaca": Template(
            system=CONTENT + "\n\n",
            user=f"### Instruction:\n{CONTENT}\n\n",
            input=f"### Input:\n{CONTENT}\n\n",
            assistant=f"### Response:\n{CONTENT}{{eos}}\n\n",
            default_system=_ALPACA.format(""),
            default_system_with_input=_ALPACA.format(
                ", paired with an input that provides further context"
            ),
        ),
        "chatml": Template(
            system=_chatml("system"), user=_chatml("user"), assistant=_chatml("assistant")
        ),
        "llama3": Template(
            system=_llama3("system"),
            user=_llama3("user"),
            assistant=_llama3("assistant"),
            begin="<|begin_of_text|>",
            trims=True,
        ),
    },
)
"""Stanford's Alpaca (Taori et al. 2023), whose marks are plain text; OpenAI's ChatML, as Qwen and
others have it; and Llama 3's (Grattafiori et al. 2024)."""


# FOLDED conversations.jinja: A template in the language in which tokenizers of transformers keep
# theirs.


def chat_template(template: Template, adds_first: bool = False) -> str:
    """What `apply_chat_template` of transformers writes conversations with, as `Template.text`
    does, behind the tokenizer's first token if `Writer.adds_first`. An input is a message of the
    role "input" behind its question."""
    content = "message['content']" + " | trim" * template.trims
    turns = {
        role: _written(getattr(template, role), f"({content})")
        for role in (SYSTEM, USER, INPUT, ASSISTANT)
        if getattr(template, role) is not None
    }
    cases = "".join(
        f"{{% {'elif' if i else 'if'} message['role'] == {_literal(role)} %}}{text}"
        for i, (role, text) in enumerate(turns.items())
    )
    opened = _expression(template.around(ASSISTANT).head)
    return (
        "{{ bos_token }}" * adds_first
        + _expression(template.begin)
        + _default(template)
        + f"{{% for message in messages %}}{cases}{{% endif %}}{{% endfor %}}"
        + f"{{% if add_generation_prompt %}}{opened}{{% endif %}}"
    )


def _default(template: Template) -> str:
    """The system turn of a conversation that has none."""
    if template.default_system is None:
        return ""
    text = _written(template.system, _literal(template.default_system))
    if template.default_system_with_input is not None:
        other = _written(template.system, _literal(template.default_system_with_input))
        with_input = "messages | length > 1 and messages[1]['role'] == 'input'"
        text = f"{{% if {with_input} %}}{other}{{% else %}}{text}{{% endif %}}"
    return f"{{% if messages[0]['role'] != 'system' %}}{text}{{% endif %}}"


def _written(turn: str, content: str) -> str:
    """A turn around what an expression gives."""
    head, _, tail = turn.partition(CONTENT)
    return f"{_expression(head)}{{{{ {content} }}}}{_expression(tail)}"


def _expression(text: str) -> str:
    parts = [_literal(part) for part in text.split(EOS)]
    return f"{{{{ {' + eos_token + '.join(parts)} }}}}" if text else ""


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
