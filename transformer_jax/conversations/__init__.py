"""Conversations: turns of a user and an assistant, and how they are written for a model."""

from transformer_jax.conversations.cutting import Cutter, prompt_within
from transformer_jax.conversations.jinja import chat_template
from transformer_jax.conversations.templates import TEMPLATES, Template
from transformer_jax.conversations.turns import (
    ASSISTANT,
    FORMS,
    INPUT,
    KEYS,
    SYSTEM,
    USER,
    Conversation,
    NothingToLearn,
    Turn,
    as_source,
    check_answered,
    check_asks,
    contents,
    from_line,
    from_object,
    from_text,
    to_text,
)
from transformer_jax.conversations.written import Marked, Writer

__all__ = [
    "ASSISTANT",
    "INPUT",
    "KEYS",
    "SYSTEM",
    "TEMPLATES",
    "USER",
    "Conversation",
    "FORMS",
    "Cutter",
    "Marked",
    "NothingToLearn",
    "Template",
    "Turn",
    "Writer",
    "as_source",
    "chat_template",
    "check_answered",
    "check_asks",
    "contents",
    "from_line",
    "from_object",
    "from_text",
    "prompt_within",
    "to_text",
]
