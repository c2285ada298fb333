# SPDX-License-Identifier: Apache-2.0
"""Conversations of a user and an assistant: turns, chat templates and their tokens."""

from importlib import import_module
from typing import Any

from transformer_jax.conversations.templates import MODEL, TEMPLATES, Template, chat_template
from transformer_jax.conversations.turns import (
    ASSISTANT,
    CONVERSATION_FORMATS,
    CONVERSATION_KEYS,
    INPUT,
    SYSTEM,
    USER,
    Conversation,
    NothingToLearn,
    Turn,
    check_answered,
    check_unanswered,
    conversation_from_json,
    conversation_to_json,
    encoder_source,
    join_contents,
    parse_conversation,
    parse_request,
)

__all__ = [
    "ASSISTANT",
    "CONVERSATION_FORMATS",
    "CONVERSATION_KEYS",
    "INPUT",
    "MODEL",
    "SYSTEM",
    "TEMPLATES",
    "USER",
    "ChatTokenizer",
    "Conversation",
    "ConversationSplitter",
    "EncodedConversation",
    "NothingToLearn",
    "Template",
    "Turn",
    "chat_template",
    "check_answered",
    "check_unanswered",
    "conversation_from_json",
    "conversation_to_json",
    "encoder_source",
    "fit_prompt",
    "join_contents",
    "load_model_template",
    "parse_conversation",
    "parse_request",
]

_TOKENS = ("ChatTokenizer", "ConversationSplitter", "EncodedConversation", "fit_prompt")


def __getattr__(name: str) -> Any:
    # Most runs hold no conversation, and do not import what encodes one.
    if name in _TOKENS:
        return getattr(import_module(f"{__name__}.encoding"), name)
    if name == "load_model_template":
        return getattr(import_module(f"{__name__}.model_template"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
