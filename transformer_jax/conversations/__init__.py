"""Conversations: turns of a user and an assistant, and how they are written for a model."""

from transformer_jax.conversations.cutting import Cutter, prompt_within
from transformer_jax.conversations.templates import TEMPLATES, Template
from transformer_jax.conversations.turns import (
    ASSISTANT,
    INPUT,
    SYSTEM,
    USER,
    Conversation,
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
    "SYSTEM",
    "TEMPLATES",
    "USER",
    "Conversation",
    "Cutter",
    "Marked",
    "Template",
    "Turn",
    "Writer",
    "as_source",
    "check_answered",
    "check_asks",
    "contents",
    "from_line",
    "from_object",
    "from_text",
    "prompt_within",
    "to_text",
]
