# SPDX-License-Identifier: Apache-2.0
"""Chat templates: the text around each turn of a conversation, as data.

`chat_template` converts a template to Jinja, the form of tokenizers of transformers.

A template in Jinja is a program. Those of well-known models are recognised by the digest of their
text, and `TEMPLATES` has exact translations. Any other is run only at the user's wish, in Jinja's
sandbox: a few conversations show its markup, and later each conversation is rendered by both, and
must be the same.
"""

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from transformer_jax.conversations.turns import ASSISTANT, INPUT, SYSTEM, USER, Conversation, Turn
from transformer_jax.errors import UserError, user_errors
from transformer_jax.ranges import short_repr
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
            problem = ""
            if text.count(CONTENT) != 1:
                problem = f"write {CONTENT} once, where the turn's content goes"
            elif not self.markup(role).suffix:
                problem = f"add text after {CONTENT} that ends it"
            if problem:
                raise ValueError(f"the template's {role} turn is {text!r}: {problem}")
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
        return self.parse(self.render_turns(turns)) == turns

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
        turns = list(conversation)
        if self.default_system is not None and turns[0].role != SYSTEM:
            has_input = len(turns) > 1 and turns[1].role == INPUT
            with_input = self.default_system_with_input if has_input else None
            turns.insert(0, Turn(SYSTEM, with_input or self.default_system))
        if self.input is None:
            turns = self.join_inputs(turns)
        if self.trims:
            turns = [turn._replace(content=turn.content.strip()) for turn in turns]
        for i, turn in enumerate(turns):
            if self.thinks and turn.role == ASSISTANT:
                content = _with_reasoning(turn.content, is_last=i == len(turns) - 1)
                turns[i] = turn._replace(content=content)
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
        """Inverse of `render_turns`, if `is_unambiguous`; else the turns up to a place where none
        begins or ends.

        The longest matching prefix begins a turn. The first match of its suffix ends it that is
        followed by another turn or by the end of the text.
        """
        markups = {role: self.markup(role) for role in self.roles}
        later = [markup.prefix for role, markup in markups.items() if role != SYSTEM]
        followed = f"(?={'|'.join(map(re.escape, later))}|\\Z)"
        position = len(self.begin)
        turns: list[Turn] = []
        while position < len(text):
            roles = [role for role in self.roles if role != SYSTEM or not turns]
            roles = [role for role in roles if text.startswith(markups[role].prefix, position)]
            if not roles:
                break
            role = max(roles, key=lambda role: len(markups[role].prefix))
            prefix, suffix = markups[role]
            start = position + len(prefix)
            end = re.compile(re.escape(suffix) + followed).search(text, start)
            if end is None:
                break
            turns.append(Turn(role, text[start : end.start()]))
            position = end.end()
        return tuple(turns)


def _with_reasoning(answer: str, is_last: bool) -> str:
    """An answer of a template that `thinks`, with its block of reasoning if it is the last."""
    reasoning = ""
    text = answer
    parts = answer.split(_THOUGHT)
    if len(parts) > 1:  # as in Qwen3's template: up to the first end of a block, and after the last
        reasoning = parts[0].rstrip("\n").split(_THINK)[-1].strip("\n")
        text = parts[-1].lstrip("\n")
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
{%- for message in messages -%}
  {%- if message.role not in turns -%}
    {{- raise_exception('the template has no turn of role ' ~ message.role) -}}
  {%- endif -%}
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

    An input is a message of role "input" after its question. A message of a role for which the
    template has no turn is an error.

    Args:
      adds_first_token: start with `bos_token`, as `ChatTokenizer.adds_first_token` says.
    """
    defaults: list[str] = []  # without an input, and with one; a text may be empty
    if template.system is not None and template.default_system is not None:
        with_input = template.default_system_with_input or template.default_system
        defaults = [template.default_system, with_input]
    values = {
        "turns": {role: template.markup(role) for role in template.roles},
        "begin": template.begin,
        "prompt": template.markup(ASSISTANT).prefix,
        "end": template.end,
        "default_system": defaults,
        "trims": template.trims,
        "thinks": template.thinks,
        "adds_first_token": adds_first_token,
    }
    literals = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    fields = [f"{{%- set {name} = {literal} -%}}" for name, literal in literals.items()]
    return "\n".join(fields).replace(EOS, '" ~ eos_token ~ "') + _JINJA


ALLOW = "TRANSFORMER_JAX_ALLOW_TEMPLATES"
"""Environment variable: 1 allows to run templates that are not recognised."""

RECOGNIZED = {
    "153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3": "chatml",
    "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788": "smollm2",
    "a18cc698dd45623eb707279d08e66f7bb8d76afc89ead84016b88487b395b5cc": "qwen2.5",
    "edcd73b0e30a780c1d6f3e060c07396def3c3fa55a2c55197b10f99d1dde83e1": "qwen3",
    "ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122": "llama3",
    "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6": "gemma",
    "26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7": "mistral",
    "dcaee66df77bfbb789ec541fe713218da30225a526f1db97138fc39ee6dc56aa": "phi3",
    "66291cf0045c2425a3a667cf3cbb7af2b11f09e025c02f97245323ab79119362": "zephyr",
}
"""SHA-256 of a template's text -> its translation in `TEMPLATES`. A last line feed is left out, and
escaped ones, which some files have within strings, are written as line feeds."""


def load_model_template(tokenizer: Any) -> Template:
    """The chat template of an imported tokenizer.

    Raises:
      UserError: it has none, it is not recognised and the user has not allowed to run it, or it
        cannot be followed.
    """
    text: str | None = getattr(tokenizer, "chat_template", None)
    if text is None:
        raise UserError(
            "the tokenizer has no chat template of its own; choose one by name "
            f"(task.template, or --template of chat): {', '.join(TEMPLATES)}"
        )
    plain = text.removesuffix("\n").replace("\\n", "\n")
    digest = hashlib.sha256(plain.encode()).hexdigest()
    if digest in RECOGNIZED:
        return TEMPLATES[RECOGNIZED[digest]]
    if os.environ.get(ALLOW) != "1":
        raise UserError(
            "the model's chat template is a Jinja program that is not one of the known ones "
            f"({', '.join(RECOGNIZED.values())}); choose one of these by name, or set {ALLOW}=1 to "
            "run the model's, in a sandbox"
        )
    tokens = tokenizer.named_tokens | {"eos_token": EOS}
    with user_errors("the model's chat template cannot be used"):
        return read_markup(jinja_renderer(text, tokens))


Render = Callable[[Conversation, bool], str]
"""(conversation, add_generation_prompt) -> text."""


@dataclasses.dataclass(frozen=True)
class ModelTemplate(Template):
    """A template whose turns are compared with those that the model's own template renders."""

    render_original: Render | None = None

    def complete_turns(self, conversation: Conversation) -> Conversation:
        conversation = tuple(self.join_inputs(conversation))  # a model knows no role of inputs
        turns = super().complete_turns(conversation)
        assert self.render_original
        asks = conversation[-1].role != ASSISTANT
        ours = self.render_turns(turns) + (self.markup(ASSISTANT).prefix if asks else self.end)
        if ours != self.render_original(conversation, asks):
            raise ValueError("the model's template does more with a conversation than to add text")
        return turns


def read_markup(render: Render) -> ModelTemplate:
    """Finds the text that a template puts around turns.

    Raises:
      ValueError: it does something else.
    """
    # Contents with a character for private use do not occur in a template.
    question = Turn(USER, "\ue000a")
    answered = (question, Turn(ASSISTANT, "\ue000b"))
    longer = (*answered, Turn(USER, "\ue000c"))
    first, between, after = _split(render(answered, False), answered)
    _, _, next_turn, asked = _split(render(longer, True), longer)
    _, _, _, user_end = _split(render(longer, False), longer)
    # `end` follows an answer and a question alike; `asked` has the question's suffix without it.
    suffix = os.path.commonprefix([user_end, asked])
    end = user_end[len(suffix) :]
    prompt = asked[len(suffix) :]
    if not between.startswith(suffix) or not after.endswith(end):
        raise ValueError("its turns are not regular")
    prefix = between[len(suffix) :]
    answer_end = after[: len(after) - len(end)]
    if prefix != prompt or not next_turn.startswith(answer_end):
        raise ValueError("answers begin otherwise than the text that asks for them")
    user = next_turn[len(answer_end) :]
    if not first.endswith(user):
        raise ValueError("the first question begins otherwise than later ones")
    opening = first[: len(first) - len(user)]
    begin = opening
    default_system = None
    instructed = (Turn(SYSTEM, "\ue000s"), question)
    try:
        before_system, after_system, _ = _split(render(instructed, False), instructed)
    except ValueError:
        system = None
    else:
        if not before_system.startswith(opening):  # the opening has a system turn by default
            system_suffix = after_system[: len(after_system) - len(user)]
            default_system = opening[len(before_system) :].removesuffix(system_suffix)
            begin = ""
        system = before_system[len(begin) :] + CONTENT + after_system.removesuffix(user)
    spaced = Turn(USER, f" {question.content} ")
    return ModelTemplate(
        user=user + CONTENT + suffix,
        assistant=prefix + CONTENT + answer_end,
        system=system,
        begin=begin,
        default_system=default_system,
        trims=spaced.content not in render((spaced,), False),
        end=end,
        render_original=render,
    )


def _split(text: str, turns: Conversation) -> list[str]:
    """Text before, between and after the contents of turns. Each content must occur once."""
    parts = []
    for turn in turns:
        before, match, text = text.partition(turn.content)
        if not match or turn.content in text:
            raise ValueError(f"a turn is left out or doubled in {short_repr(before + text)}")
        parts.append(before)
    return [*parts, text]


def jinja_renderer(template: str, tokens: Mapping[str, str]) -> Render:
    """Renders conversations by a template in Jinja's sandbox, which has no files and forbids access
    to Python's internals. It raises ValueError if the template is wrong, or refuses a conversation.

    Args:
      template: the template's text.
      tokens: values of `bos_token` and so on.
    """
    try:
        import jinja2.sandbox
    except ImportError as error:
        raise UserError(
            "to run a model's chat template, install Jinja: make setup EXTRAS=templates"
        ) from error
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(str(message))

    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    compile_once = functools.cache(environment.from_string)

    def render(conversation: Conversation, add_generation_prompt: bool) -> str:
        messages = [{"role": role, "content": content} for role, content in conversation]
        try:
            return compile_once(template).render(
                messages=messages, add_generation_prompt=add_generation_prompt, **tokens
            )
        except Exception as error:  # a template may fail in any way
            raise ValueError(short_repr(f"{type(error).__name__}: {error}")) from error

    return render
