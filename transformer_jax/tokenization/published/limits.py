# SPDX-License-Identifier: Apache-2.0
"""Limits on a tokenizer.json: no pattern that backtracks without bound, no text that explodes.

The file decides how the library works on every text. A pattern such as `(a+)+$` takes exponential
time, and normalizers that replace each character by ten, in a row, use up all memory. Both are
refused when a tokenizer is read. All patterns of well-known models (GPT-2, Llama 3, GPT-4o, Qwen,
Mistral, DeepSeek, CLIP) are within the limits.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MAX_GROWTH = 400
"""Characters for each character of a text after all normalizers, or after all decoders."""

_MAX_UNBOUNDED, _MAX_OPTIONAL, _MAX_REPEATS, _MAX_LENGTH = 2, 8, 1000, 10_000
_MAX_WORD, _MAX_AFFIX = 10_000, 64
_UNICODE_GROWTH = {"NFD": 4, "NFC": 3, "NFKD": 18, "NFKC": 18, "Lowercase": 3, "ByteLevel": 4}
_UNICODE_GROWTH |= {"BertNormalizer": 9}
"""Most characters for one character, by normalizer (Unicode standard annex 15, section 9)."""


def check_limits(content: Any) -> None:
    """Raises ValueError if using a parsed tokenizer.json could take unlimited time or memory."""
    if not isinstance(content, Mapping):
        raise ValueError("tokenizer.json is not a JSON object")
    for part in _parts([value for key, value in content.items() if key != "model"]):
        for pattern in (part.get("pattern"), part):
            if isinstance(pattern, Mapping) and isinstance(pattern.get("Regex"), str):
                check_pattern(pattern["Regex"])
    for name in ("normalizer", "decoder"):
        growth = 1.0
        for part in _parts(content.get(name)):
            growth *= _growth(part)
        if growth > MAX_GROWTH:
            raise ValueError(
                f"its {name} can make a text {growth:,.0f} times as long; at most {MAX_GROWTH} are "
                "allowed"
            )
    _check_model(content.get("model"))


def _check_model(model: Any) -> None:
    if not isinstance(model, Mapping):
        raise ValueError("tokenizer.json has no model")
    if model.get("dropout"):
        raise ValueError("its model drops merges at random (dropout); tokens must not be random")
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int) and longest > _MAX_WORD:
        raise ValueError(f"max_input_chars_per_word is {longest}; at most {_MAX_WORD} are allowed")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(str(model.get(key) or "")) > _MAX_AFFIX:
            raise ValueError(f"{key} is longer than {_MAX_AFFIX} characters")


def _parts(part: Any) -> Iterator[Mapping[str, Any]]:
    """All JSON objects inside of a part, itself included."""
    inner: Any = part if isinstance(part, list) else ()
    if isinstance(part, Mapping):
        yield part
        inner = part.values()
    for one in inner:
        if isinstance(one, Mapping | list):
            yield from _parts(one)


def _growth(part: Mapping[str, Any]) -> float:
    """Most characters that a normalizer or decoder makes of one."""
    kind = part.get("type")
    if kind == "Replace":
        pattern, content = part.get("pattern"), str(part.get("content", ""))
        text = pattern.get("String") if isinstance(pattern, Mapping) else None
        if text is None:
            return max(1.0, 1.0 + len(content))  # an empty match keeps the character
        return max(1.0, len(content) / len(text) if text else 1.0 + len(content))
    if kind == "Precompiled":
        return _charsmap_growth(part.get("precompiled_charsmap"))
    if kind == "Prepend":  # once for each text, which may be of one character
        return 1.0 + len(str(part.get("prepend", ""))) / 8
    return _UNICODE_GROWTH.get(str(kind), 1)


def _charsmap_growth(table: Any) -> float:
    """Length of the longest replacement in a table of sentencepiece: a trie, then its texts."""
    if not table:
        return 1.0
    content = base64.b64decode(table, validate=True) if isinstance(table, str) else b""
    size = int.from_bytes(content[:4], "little")
    if len(content) < 4 or 4 + size > len(content):
        raise ValueError("a normalizer's table is truncated")
    texts = content[4 + size :].split(b"\0")
    return float(max(1, *(len(text.decode(errors="replace")) for text in texts)))


class _Cost(NamedTuple):
    """Choices of a pattern's part: parts repeated without bound, other parts of several lengths."""

    unbounded: int = 0
    optional: int = 0
    alternatives: bool = False

    @property
    def is_fixed(self) -> bool:
        return self == _Cost()


_QUANTIFIER = re.compile(r"(?:([*+?])|\{(\d*)(,?)(\d*)\})([?+]*)")
_ESCAPE = re.compile(
    r"\\(?:[pP]\{\^?\w+\}|x\{[0-9A-Fa-f]+\}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{4}|.)", re.S
)
_GROUP = re.compile(r"\((?:\?(?:[imsx-]*:|[=!>]|<[=!]))?")
_FORBIDDEN_ESCAPES = re.compile(r"\\[1-9kgXRK]")


def check_pattern(pattern: str) -> None:
    """Raises ValueError unless a regular expression is matched in a bounded number of attempts.

    Repeated groups may contain neither alternatives nor parts of several lengths, an alternative
    has at most two parts without a longest length, and groups cannot be referred to.
    """
    try:
        if len(pattern) > _MAX_LENGTH:
            raise ValueError(f"it is longer than {_MAX_LENGTH} characters")
        _, end = _alternatives(pattern, 0, 0)
        if end != len(pattern):
            raise ValueError(f"the parenthesis at character {end} is not opened")
    except ValueError as error:
        shown = pattern if len(pattern) <= 60 else f"{pattern[:57]}..."
        raise ValueError(
            f"the pattern {shown!r} may take unlimited time, and is refused: {error}"
        ) from error


def _alternatives(pattern: str, start: int, depth: int) -> tuple[_Cost, int]:
    """Cost of alternatives up to a closing parenthesis or the end, and that position."""
    if depth > 20:
        raise ValueError("more than 20 parentheses are nested")
    costs, position = [_Cost()], start
    while position < len(pattern) and pattern[position] != ")":
        if pattern[position] == "|":
            costs.append(_Cost())
            position += 1
            continue
        cost, position = _repeated(pattern, *_atom(pattern, position, depth))
        unbounded = costs[-1].unbounded + cost.unbounded
        optional = costs[-1].optional + cost.optional
        if unbounded > _MAX_UNBOUNDED:
            raise ValueError(f"{unbounded} parts of any length follow each other")
        if optional > _MAX_OPTIONAL:
            raise ValueError(f"{optional} optional parts follow each other")
        costs[-1] = _Cost(unbounded, optional, costs[-1].alternatives or cost.alternatives)
    several = len(costs) > 1 or any(cost.alternatives for cost in costs)
    return _Cost(max(c.unbounded for c in costs), max(c.optional for c in costs), several), position


def _atom(pattern: str, position: int, depth: int) -> tuple[_Cost, int]:
    """Cost and end of a character, a class or a group."""
    character = pattern[position]
    if character == "\\":
        found = _ESCAPE.match(pattern, position)
        if found is None or _FORBIDDEN_ESCAPES.match(pattern, position):
            raise ValueError(f"the escape at character {position} is not supported")
        return _Cost(), found.end()
    if character == "[":
        return _Cost(), _class_end(pattern, position)
    if character == "(":
        found = _GROUP.match(pattern, position)
        assert found
        if pattern.startswith("?", found.end()):
            raise ValueError(f"the group at character {position} is of an unsupported kind")
        cost, end = _alternatives(pattern, found.end(), depth + 1)
        if end >= len(pattern):
            raise ValueError(f"the parenthesis at character {position} is not closed")
        return cost, end + 1
    return _Cost(), position + 1


def _class_end(pattern: str, start: int) -> int:
    depth, position = 0, start
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 1
        elif pattern[position] == "[":
            depth += 1
        elif pattern[position] == "]" and not _is_first_of_class(pattern, position):
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    raise ValueError(f"the class at character {start} is not closed")


def _is_first_of_class(pattern: str, position: int) -> bool:
    return pattern[:position].endswith(("[", "[^")) and not pattern[:position].endswith("\\[")


def _repeated(pattern: str, cost: _Cost, position: int) -> tuple[_Cost, int]:
    """Cost of an atom with the quantifiers after it, and their end."""
    while found := _QUANTIFIER.match(pattern, position):
        symbol, least, comma, most, more = found.groups()
        if not symbol and not least and not most:
            break  # a literal brace
        if "+" in more and symbol is None or len(more) > 1:
            raise ValueError(f"the quantifier at character {position} is not supported")
        position = found.end()
        top = _most_repetitions(symbol, least, comma, most)
        if top == 1:
            cost = cost._replace(optional=cost.optional + 1)
            continue
        if not cost.is_fixed:
            raise ValueError("a repeated group has alternatives or parts of several lengths")
        if top is None or (top > _MAX_OPTIONAL and least != most and comma):
            cost = _Cost(unbounded=1)
        elif comma:
            cost = _Cost(optional=1)
        if top is not None and top > _MAX_REPEATS:
            raise ValueError(f"a part is repeated {top} times")
    return cost, position


def _most_repetitions(symbol: str | None, least: str, comma: str, most: str) -> int | None:
    """Most repetitions that a quantifier allows; None: there is no bound."""
    if symbol:
        return 1 if symbol == "?" else None
    if comma:
        return int(most) if most else None
    return int(least)
