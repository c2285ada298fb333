"""A template in the language in which tokenizers of transformers keep theirs."""

import json

from transformer_jax.conversations.templates import CONTENT, EOS, Template
from transformer_jax.conversations.turns import ASSISTANT, INPUT, SYSTEM, USER


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
