# SPDX-License-Identifier: Apache-2.0
"""Jinja templates, rendered by the library that transformers uses. Chat templates of published
models: translations, recognition, and the sandbox for others."""

import dataclasses
import gzip
import json
from functools import partial
from pathlib import Path

import jinja2.sandbox
import pytest

from tests.refusals import assert_refused
from transformer_jax.conversations import (
    TEMPLATES,
    Template,
    Turn,
    chat_template,
    parse_conversation,
    templates,
)
from transformer_jax.conversations.templates import (
    ALLOW,
    RECOGNIZED,
    jinja_renderer,
    load_model_template,
    read_markup,
)
from transformer_jax.tokenization.published import PublishedTokenizer, import_tokenizer

FIXTURES = Path(__file__).parent / "fixtures"
DRAWN = json.loads(gzip.decompress((FIXTURES / "conversations.json.gz").read_bytes()))
OWN = Template(
    system="{content}\n",
    user="Q \"'\\{{x}}: {content}\n",
    assistant="A: {content}{eos}\n",
    begin="😀{eos}",
)


@pytest.fixture(scope="module")
def environment():
    """Jinja environment with the settings of transformers."""
    return jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)


EMPTY_SYSTEM = dataclasses.replace(TEMPLATES["chatml"], default_system="")


@pytest.mark.parametrize("template", [*TEMPLATES.values(), OWN, EMPTY_SYSTEM])
def test_the_jinja_template_renders_the_same_text(environment, template):
    jinja = environment.from_string(chat_template(template))
    for drawn in DRAWN:
        messages = drawn["messages"]
        if template.system is None:
            messages = [message for message in messages if message["role"] != "system"]
        turns = parse_conversation({"messages": messages})
        assert jinja.render(messages=messages, eos_token="{eos}") == template.render(turns)
        asked = {"messages": messages[:-1], "add_generation_prompt": True}
        prompt = template.render(turns[:-1], add_generation_prompt=True)
        assert jinja.render(eos_token="{eos}", **asked) == prompt


def test_an_input_is_a_message_of_its_own_and_the_first_token_is_added(environment):
    template = TEMPLATES["alpaca"]
    turns = parse_conversation({"instruction": "Add.", "input": "1 2", "output": "3"})
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    for adds_first_token, first in ((False, ""), (True, "<s>")):
        jinja = environment.from_string(chat_template(template, adds_first_token=adds_first_token))
        text = jinja.render(messages=messages, bos_token="<s>", eos_token="{eos}")
        assert text == first + template.render(turns)


@pytest.mark.parametrize("name, role", [("gemma", "system"), ("chatml", "input")])
def test_the_jinja_template_leaves_no_message_out(environment, name, role):
    def refuse(message):  # as in transformers
        raise jinja2.TemplateError(message)

    jinja = environment.from_string(chat_template(TEMPLATES[name]), {"raise_exception": refuse})
    messages = [{"role": role, "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(jinja2.TemplateError, match=f"no turn of role {role}"):
        jinja.render(messages=messages, eos_token="{eos}")


PUBLISHED = json.loads(gzip.decompress((FIXTURES / "templates.json.gz").read_bytes()))
TOKENS = {"bos_token": "", "eos_token": "{eos}"}
FIRST = {"llama3": "<|begin_of_text|>", "gemma": "<bos>", "mistral": "<s>"}


def renderings(name):
    """(conversation, text) of each drawn conversation, with its last answer and without."""
    for drawn in PUBLISHED[name]["conversations"]:
        turns = parse_conversation({"messages": drawn["messages"]})
        yield turns, False, drawn["text"]
        yield turns[:-1], True, drawn["prompt"]


@pytest.fixture
def tokenizer_with(tmp_path):
    """Function that imports the tokenizer of the fixtures with a chat template."""

    def tokenizer(template, file="chat_template.jinja"):
        (tmp_path / "tokenizer.json").write_bytes((FIXTURES / "tokenizer.json").read_bytes())
        settings = {"eos_token": "<|end_of_text|>", "bos_token": "<|begin_of_text|>"}
        if file == "tokenizer_config.json":
            settings["chat_template"] = [
                {"name": "tool_use", "template": "?"},
                {"name": "default", "template": template},
            ]
        elif template is not None:
            (tmp_path / file).write_text(template)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return PublishedTokenizer(import_tokenizer(tmp_path, "text"))

    return tokenizer


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_translation_renders_as_transformers_renders_the_published_template(name):
    for turns, asks, expected in renderings(name):
        assert TEMPLATES[name].render(turns, add_generation_prompt=asks) == expected


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_published_template_is_recognized_and_not_run(tokenizer_with, monkeypatch, file):
    monkeypatch.setattr(templates, "jinja_renderer", None)
    assert {*RECOGNIZED.values()} == {*PUBLISHED}
    for name, published in PUBLISHED.items():
        found = load_model_template(tokenizer_with(published["template"], file))
        assert found is TEMPLATES[name]


@pytest.mark.parametrize("name", ["smollm2", "mistral", "phi3"])
def test_the_sandbox_renders_other_templates_alike(name):
    tokens = TOKENS | {"bos_token": FIRST.get(name, "")}
    found = read_markup(jinja_renderer(PUBLISHED[name]["template"], tokens))
    for field in ("user", "assistant", "system", "begin", "default_system", "end", "trims"):
        assert getattr(found, field) == getattr(TEMPLATES[name], field)
    for turns, asks, expected in [*renderings(name)][:20]:
        assert found.render(turns, add_generation_prompt=asks) == expected


def test_an_unknown_template_is_run_only_if_the_user_allows_it(tokenizer_with, monkeypatch):
    other = PUBLISHED["chatml"]["template"].replace("im_start", "im_begin")
    monkeypatch.delenv(ALLOW, raising=False)
    unknown = f"set {ALLOW}=1 to run the model's, in a sandbox"
    none = "has no chat template of its own; choose one by name"
    assert_refused({unknown: lambda: load_model_template(tokenizer_with(other))})
    assert_refused({none: lambda: load_model_template(None)})
    monkeypatch.setenv(ALLOW, "1")
    found = load_model_template(tokenizer_with(other))
    assert found.render((Turn("user", "a"),), True) == (
        "<|im_begin|>user\na<|im_end|>\n<|im_begin|>assistant\n"
    )


REFUSED = {
    "SecurityError": "{{ cycler.__init__.__globals__.os.listdir('/') }}",
    "TypeError": "{% include '/etc/hostname' %}",
    "RecursionError": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "TemplateSyntaxError": "{{ messages[0].content",
    ": no": "{{ raise_exception('no') }}",
    "a turn is left out": "hello",
    "not regular": "{% for m in messages %}{{ m.content }}{{ loop.index }}{% endfor %}",
}


def test_templates_that_cannot_be_used_are_refused():
    def read(template):
        read_markup(jinja_renderer(template, TOKENS))

    assert_refused({words: partial(read, template) for words, template in REFUSED.items()})


def test_a_template_that_changes_a_conversation_is_refused_when_it_does():
    shout = "{% for m in messages %}<{{ m.role }}>{% if 'x' in m.content %}{{ m.content | upper }}"
    shout += "{% else %}{{ m.content }}{% endif %}</s>{% endfor %}"
    shout += "{% if add_generation_prompt %}<assistant>{% endif %}"
    found = read_markup(jinja_renderer(shout, TOKENS))
    assert found.render((Turn("user", "abc"),), True) == "<user>abc</s><assistant>"
    with_input = Turn("user", "abc"), Turn("input", "d")
    assert found.render(with_input, True) == "<user>abc\n\nd</s><assistant>"
    words = "does more with a conversation than to add text"
    assert_refused({words: lambda: found.render((Turn("user", "xyz"),), True)})
