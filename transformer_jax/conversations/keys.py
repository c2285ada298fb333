# SPDX-License-Identifier: Apache-2.0
"""Keys of objects in data sets that others wrote: each is read, refused by name, or ignored.

A key that nothing reads may change what a row means: a system prompt, tools, a weight. So it is an
error, unless its value says nothing (null, "", an empty list or object), or it is one of `IGNORED`,
which describe where a row comes from.
"""

from collections.abc import Collection, Mapping
from typing import Any

IGNORED = frozenset(
    (
        *("id", "_id", "idx", "index", "uid", "uuid", "row_id", "prompt_id", "question_id"),
        *("conversation_id", "message_id", "source", "dataset", "subset", "split", "origin", "url"),
        *("license", "author", "annotator", "generator", "model", "chosen_model", "rejected_model"),
        *("lang", "language", "category", "categories", "topic", "tags", "type", "task"),
        *("date", "time", "timestamp", "created", "created_at", "updated_at", "version", "hash"),
        *("meta", "metadata", "info", "comment", "notes", "num_tokens", "token_count"),
        *("quality", "score", "rating", "score_chosen", "score_rejected", "chosen_score"),
        *("rejected_score", "chosen_rating", "rejected_rating"),
    )
)
"""Keys without effect on what is learned."""


def require_read(found: Mapping[str, Any], read: Collection[str]) -> None:
    """Checks that each key of an object is read or may be ignored.

    Args:
      read: the keys that the caller reads.

    Raises:
      ValueError: another key has a value.
    """
    for key, value in found.items():
        says_nothing = value is None or (isinstance(value, str | list | dict) and not value)
        if not (key in read or key in IGNORED or says_nothing):
            raise ValueError(
                f"the key {str(key)[:60]!r} is not read, and what it says would be lost; remove it "
                f"(read: {', '.join(read)})"
            )
