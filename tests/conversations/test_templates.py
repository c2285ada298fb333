"""Templates for transformers, rendered by the library that it renders them with."""

import gzip
import json
from pathlib import Path

import jinja2.sandbox
import pytest

from transformer_jax.conversations import TEMPLATES, Template, chat_template, from_object

DRAWN = json.loads(
    gzip.decompress((Path(__file__).parent / "fixtures/conversations.json.gz").read_bytes())
)
OWN = Template(
    system="{content}\n",
    user="Q \"'\\{{x}}: {content}\n",
    assistant="A: {content}{eos}\n",
    begin="😀{eos}",
)
TEXTS = [*TEMPLATES, "own"]


@pytest.fixture(scope="module")
def environment():
    """As transformers sets it up."""
    return jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)


def template_of(name):
    return OWN if name == "own" else TEMPLATES[name]


@pytest.mark.parametrize("name", TEXTS)
def test_a_template_writes_the_same_there(environment, name):
    template = template_of(name)
    theirs = environment.from_string(chat_template(template))
    for drawn in DRAWN:
        messages, asked = drawn["messages"], drawn["messages"][:-1]
        expected = template.text(from_object({"messages": messages}))
        assert theirs.render(messages=messages, eos_token="{eos}") == expected
        expected = template.text(from_object({"messages": messages})[:-1], answering=True)
        found = theirs.render(messages=asked, eos_token="{eos}", add_generation_prompt=True)
        assert found == expected


def test_an_input_is_a_message_of_its_own(environment):
    template = TEMPLATES["alpaca"]
    turns = from_object({"instruction": "Add.", "input": "1 2", "output": "3"})
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    theirs = environment.from_string(chat_template(template))
    assert theirs.render(messages=messages, eos_token="{eos}") == template.text(turns)


def test_the_first_token_stands_where_the_template_has_none(environment):
    theirs = environment.from_string(chat_template(TEMPLATES["alpaca"], adds_first=True))
    messages = DRAWN[0]["messages"]
    expected = TEMPLATES["alpaca"].text(from_object({"messages": messages}))
    found = theirs.render(messages=messages, bos_token="<s>", eos_token="{eos}")
    assert found == f"<s>{expected}"
