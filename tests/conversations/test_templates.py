# SPDX-License-Identifier: Apache-2.0
"""Jinja templates, rendered by the library that transformers uses."""

import gzip
import json
from pathlib import Path

import jinja2.sandbox
import pytest

from transformer_jax.conversations import TEMPLATES, Template, chat_template, parse_conversation

DRAWN = json.loads(
    gzip.decompress((Path(__file__).parent / "fixtures/conversations.json.gz").read_bytes())
)
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


@pytest.mark.parametrize("template", [*TEMPLATES.values(), OWN])
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
