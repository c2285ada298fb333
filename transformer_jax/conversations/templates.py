# SPDX-License-Identifier: Apache-2.0
"""Chat templates: the text around each turn of a conversation, as data.

`chat_template` converts a template to Jinja, the form of tokenizers of transformers.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from transformer_jax.conversations.turns import ASSISTANT, INPUT, SYSTEM, USER, Conversation, Turn
from transformer_jax.registry import Registry

CONTENT = "{content}"
EOS = "{eos}"
_THINK = "<think>"
_THOUGHT = "</think>"

_SAMPLE = (Turn(SYSTEM, "s"), Turn(USER, "a"), Turn(ASSISTANT, "b"), Turn(USER, "c"))


class Markup(NamedTuple):
    """Text before and after the content of a turn."""

    prefix: str
    suffix: str


@dataclasses.dataclass(frozen=True)
class Template:
    """Format of the turns of a conversation.

    The format of a turn contains "{content}" once, followed by some text. "{eos}" is the end of
    sequence of the tokenizer; other special tokens are written as in the vocabulary.

    Attributes:
      user, assistant, system: format of a turn with this role.
      input: format of an input; None: an input is appended to its question after a blank line.
      begin: text before the first turn.
      default_system: content of the system turn if a conversation has none; None: no system turn.
      default_system_with_input: the same if the first question has an input; None: no difference.
      trims: strip white space around contents.
      thinks: answers have a block of reasoning, as Qwen3's: the last one gets an empty block if it
        has none, and earlier ones lose theirs.
      end: text after the last turn, unless an answer is asked for.

    `system` None: there are no system turns.

    Raises:
      ValueError: a format does not contain "{content}" exactly once or has no text after it, or
        the turns of a rendered conversation cannot be distinguished.
    """

    user: str
    assistant: str
    system: str | None
    input: str | None = None
    begin: str = ""
    default_system: str | None = None
    default_system_with_input: str | None = None
    trims: bool = False
    thinks: bool = False
    end: str = ""

    def __post_init__(self) -> None:
        for role in self.roles:
            text = getattr(self, role)
            if text.count(CONTENT) != 1:
                raise ValueError(
                    f"the template's {role} turn is {text!r}: write {CONTENT} once, where the "
                    "turn's content goes"
                )
            if not self.markup(role).suffix:
                raise ValueError(
                    f"the template's {role} turn is {text!r}: add text after {CONTENT} that ends it"
                )
        sample = _SAMPLE if self.system is not None else _SAMPLE[1:]
        if not self.is_unambiguous(self.complete_turns(sample)):
            raise ValueError(
                "the template's turns cannot be distinguished: begin user and assistant turns with "
                "different texts"
            )

    def is_unambiguous(self, turns: Conversation) -> bool:
        """Returns True if parsing the rendered turns gives the same turns.

        It is False if a turn's content contains text that looks like the template's markup.
        """
        try:
            return self.parse(self.render_turns(turns)) == turns
        except ValueError:
            return False

    @property
    def roles(self) -> list[str]:
        """Roles that have turns of their own."""
        roles = (USER, INPUT, ASSISTANT, SYSTEM)
        return [role for role in roles if getattr(self, role) is not None]

    def markup(self, role: str) -> Markup:
        """Text around the content of a turn with this role."""
        prefix, _, suffix = getattr(self, role).partition(CONTENT)
        return Markup(prefix, suffix)

    def complete_turns(self, conversation: Conversation) -> Conversation:
        """Turns to render: adds the default system turn, appends inputs to questions, trims.

        Raises:
          ValueError: a system turn, and the template has none.
        """
        if self.system is None and conversation[0].role == SYSTEM:
            raise ValueError("the template has no system turn; leave it out")
        turns = [*self._default_system_turn(conversation), *conversation]
        if self.input is None:
            turns = self.join_inputs(turns)
        if self.trims:
            turns = [turn._replace(content=turn.content.strip()) for turn in turns]
        if self.thinks:
            last = len(turns) - 1
            turns = [
                turn._replace(content=_with_reasoning(turn.content, i == last))
                if turn.role == ASSISTANT
                else turn
                for i, turn in enumerate(turns)
            ]
        return tuple(turns)

    @staticmethod
    def join_inputs(turns: Iterable[Turn]) -> list[Turn]:
        """Appends each input to its question, after a blank line."""
        joined: list[Turn] = []
        for turn in turns:
            if turn.role == INPUT:
                joined[-1] = Turn(USER, f"{joined[-1].content}\n\n{turn.content}")
            else:
                joined.append(turn)
        return joined

    def _default_system_turn(self, conversation: Conversation) -> Iterator[Turn]:
        if conversation[0].role == SYSTEM or self.default_system is None:
            return
        has_input = len(conversation) > 1 and conversation[1].role == INPUT
        with_input = self.default_system_with_input if has_input else None
        yield Turn(SYSTEM, with_input or self.default_system)

    def render(self, conversation: Conversation, add_generation_prompt: bool = False) -> str:
        """Text of a conversation; "{eos}" is not replaced.

        With `add_generation_prompt`, the prefix of an assistant turn follows.
        """
        prompt = self.markup(ASSISTANT).prefix if add_generation_prompt else self.end
        return self.render_turns(self.complete_turns(conversation)) + prompt

    def render_turns(self, turns: Conversation) -> str:
        """Text of completed turns (`complete_turns`) with their markup, from `begin` on."""
        parts = [(self.markup(role), content) for role, content in turns]
        return self.begin + "".join(markup.prefix + text + markup.suffix for markup, text in parts)

    def parse(self, text: str) -> Conversation:
        """Inverse of `render_turns`, if `is_unambiguous`: a turn ends at the first match of its
        suffix that is followed by another turn or by the end of the text.

        Raises:
          ValueError: the template does not render such a text.
        """
        if not text.startswith(self.begin):
            raise ValueError("the text does not begin as the template does")
        position = len(self.begin)
        turns: list[Turn] = []
        while position < len(text):
            role = self._find_role(text, position, first=not turns)
            prefix, suffix = self.markup(role)
            start = position + len(prefix)
            end = self._find_end(text, start, suffix)
            turns.append(Turn(role, text[start:end]))
            position = end + len(suffix)
        return tuple(turns)

    def _find_role(self, text: str, position: int, first: bool) -> str:
        """Role of the turn that begins at a character; the longest matching prefix decides."""
        roles = [role for role in self.roles if first or role != SYSTEM]
        for role in sorted(roles, key=lambda role: -len(self.markup(role).prefix)):
            if text.startswith(self.markup(role).prefix, position):
                return role
        raise ValueError(f"no turn of the template begins at character {position}")

    def _find_end(self, text: str, start: int, suffix: str) -> int:
        """First match of a suffix that is followed by another turn or by the end of the text."""
        prefixes = tuple(self.markup(role).prefix for role in self.roles if role != SYSTEM)
        position = text.find(suffix, start)
        while position >= 0:
            end = position + len(suffix)
            if end == len(text) or text.startswith(prefixes, end):
                return position
            position = text.find(suffix, position + 1)
        raise ValueError(f"nothing ends the turn that begins at character {start}")


def _with_reasoning(answer: str, is_last: bool) -> str:
    """An answer of a template that `thinks`, with its block of reasoning if it is the last."""
    reasoning = ""
    text = answer
    if _THOUGHT in answer:
        # As in Qwen3's template: up to the first end of a block, and after the last.
        before = answer.split(_THOUGHT)[0].rstrip("\n")
        reasoning = before.split(_THINK)[-1].strip("\n")
        text = answer.split(_THOUGHT)[-1].lstrip("\n")
    if not is_last:
        return text
    text = text.lstrip("\n")
    return f"{_THINK}\n{reasoning}\n{_THOUGHT}\n\n{text}"


_ALPACA = "Below is an instruction that describes a task{}. Write a response that appropriately"
_ALPACA += " completes the request."


def _by_role(turn: str, **others: Any) -> Template:
    """A template whose turns differ in the name of their role, ROLE in the format `turn`."""
    turns = {role: turn.replace("ROLE", role) for role in (SYSTEM, USER, ASSISTANT)}
    return Template(**(turns | others))


_CHATML = _by_role(f"<|im_start|>ROLE\n{CONTENT}<|im_end|>\n")
_GEMMA = f"<start_of_turn>ROLE\n{CONTENT}<end_of_turn>\n"

MODEL = "model"
"""Value of `task.template`: the template of the model that the tokenizer was imported from."""

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
        "chatml": _CHATML,
        "smollm2": dataclasses.replace(
            _CHATML,
            default_system="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        ),
        "qwen2.5": dataclasses.replace(
            _CHATML,
            default_system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        ),
        "qwen3": dataclasses.replace(_CHATML, thinks=True),
        "llama3": _by_role(
            f"<|start_header_id|>ROLE<|end_header_id|>\n\n{CONTENT}<|eot_id|>",
            begin="<|begin_of_text|>",
            trims=True,
        ),
        "gemma": _by_role(
            _GEMMA,
            system=None,
            assistant=_GEMMA.replace("ROLE", "model"),
            begin="<bos>",
            trims=True,
        ),
        "mistral": Template(
            system=None, user=f"[INST] {CONTENT} [/INST]", assistant=f"{CONTENT}{EOS}", begin="<s>"
        ),
        "phi3": _by_role(f"<|ROLE|>\n{CONTENT}<|end|>\n", end=EOS),
        "zephyr": _by_role(f"<|ROLE|>\n{CONTENT}{EOS}\n"),
    },
)
"""Stanford's Alpaca (Taori et al. 2023), whose markup is plain text; OpenAI's ChatML, and with it
the templates of SmolLM2 and Qwen, which differ in the system turn and in reasoning; those of Llama
3 (Grattafiori et al. 2024), Gemma, Mistral 0.1, Phi-3 and Zephyr."""


_JINJA = r"""
{%- if adds_first_token -%} {{- bos_token -}} {%- endif -%}
{{- begin -}}
{%- if default_system and messages[0].role != 'system' -%}
  {%- set has_input = messages | length > 1 and messages[1].role == 'input' -%}
  {{- turns.system[0] ~ default_system[1 if has_input else 0] ~ turns.system[1] -}}
{%- endif -%}
{%- for message in messages if message.role in turns -%}
  {%- set content = message.content | trim if trims else message.content -%}
  {%- if thinks and message.role == 'assistant' -%}
    {%- set parts = content.split('</think>') -%}
    {%- set reasoning = '' -%}
    {%- if parts | length > 1 -%}
      {%- set reasoning = parts[0].rstrip('\n').split('<think>')[-1].strip('\n') -%}
      {%- set content = parts[-1].lstrip('\n') -%}
    {%- endif -%}
    {%- if loop.last -%}
      {%- set content = '<think>\n' ~ reasoning ~ '\n</think>\n\n' ~ content.lstrip('\n') -%}
    {%- endif -%}
  {%- endif -%}
  {{- turns[message.role][0] ~ content ~ turns[message.role][1] -}}
{%- endfor -%}
{{- prompt if add_generation_prompt else end -}}
"""
"""`Template.render` in Jinja, after the template's fields."""


def chat_template(template: Template, adds_first_token: bool = False) -> str:
    """Jinja template with which transformers' `apply_chat_template` renders the same text as
    `Template.render`.

    An input is a message of role "input" after its question.

    Args:
      adds_first_token: start with `bos_token`, as `ChatTokenizer.adds_first_token` says.
    """
    system = template.default_system if template.system is not None else None
    values = {
        "turns": {role: template.markup(role) for role in template.roles},
        "begin": template.begin,
        "prompt": template.markup(ASSISTANT).prefix,
        "end": template.end,
        "default_system": [system, template.default_system_with_input or system] if system else [],
        "trims": template.trims,
        "thinks": template.thinks,
        "adds_first_token": adds_first_token,
    }
    literals = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    fields = [f"{{%- set {name} = {literal} -%}}" for name, literal in literals.items()]
    return "\n".join(fields).replace(EOS, '" ~ eos_token ~ "') + _JINJA
