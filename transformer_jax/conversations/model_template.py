# SPDX-License-Identifier: Apache-2.0
"""The chat template of a published model, as a `Template`.

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
from collections.abc import Callable, Mapping
from typing import NoReturn

from transformer_jax.conversations.templates import CONTENT, EOS, TEMPLATES, Template
from transformer_jax.conversations.turns import ASSISTANT, SYSTEM, USER, Conversation, Turn
from transformer_jax.errors import UserError
from transformer_jax.ranges import short_repr
from transformer_jax.tokenization import Tokenizer
from transformer_jax.tokenization.published import PublishedTokenizer

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


def load_model_template(tokenizer: Tokenizer) -> Template:
    """The chat template of an imported tokenizer.

    Raises:
      UserError: it has none, it is not recognised and the user has not allowed to run it, or it
        cannot be followed.
    """
    if not isinstance(tokenizer, PublishedTokenizer) or tokenizer.chat_template is None:
        raise UserError(
            "the tokenizer has no chat template of its own; choose one by name "
            f"(task.template, or --template of chat): {', '.join(TEMPLATES)}"
        )
    text = tokenizer.chat_template
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
    try:
        return read_markup(jinja_renderer(text, tokens))
    except ValueError as error:
        raise UserError(f"the model's chat template cannot be used: {error}") from error


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
