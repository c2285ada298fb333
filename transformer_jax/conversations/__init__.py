# SPDX-License-Identifier: Apache-2.0
"""Conversations of a user and an assistant: turns, chat templates and their tokens."""

from transformer_jax.conversations.templates import MODEL, TEMPLATES, Template, chat_template
from transformer_jax.conversations.turns import (
    ASSISTANT,
    SYSTEM,
    USER,
    Conversation,
    NothingToLearn,
    Turn,
    check_unanswered,
    conversation_from_json,
    conversation_to_json,
    parse_conversation,
    parse_request,
)
