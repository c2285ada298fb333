# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of configs. A config may be a stranger's, so matching has a time limit."""

import functools
import json
import re
import subprocess
import sys
from collections.abc import Sequence

from transformer_jax.errors import UserError

_LONGEST = 1000
_SECONDS = 10.0
_PROGRAM = """
import json, re, sys
pattern, texts = json.load(sys.stdin)
print(json.dumps([re.search(pattern, text) is not None for text in texts]))
"""


def check_pattern(field: str, pattern: str) -> None:
    """Raises ValueError, which names the field, for text that is no regular expression."""
    if len(pattern) > _LONGEST:
        raise ValueError(f"{field} has {len(pattern)} characters; at most {_LONGEST} are allowed")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        message = f"{field} is {pattern[:80]!r}, not a regular expression: {error}"
        raise ValueError(message) from error


def matching(field: str, pattern: str, texts: Sequence[str], seconds: float = _SECONDS) -> set[str]:
    """Finds the texts that a regular expression matches somewhere.

    A process of its own does it, because nothing else can stop `re`: an expression such as
    `(a+)+$` takes exponential time.

    Args:
      field: name of the expression's config field.
      pattern: expression that `check_pattern` accepts.
      texts: texts to search.
      seconds: time limit.

    Raises:
      UserError: the time is over.
    """
    return _matching(field, pattern, tuple(texts), seconds)


@functools.lru_cache(maxsize=64)
def _matching(field: str, pattern: str, texts: tuple[str, ...], seconds: float) -> set[str]:
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PROGRAM],
            input=json.dumps([pattern, texts]),
            capture_output=True,
            text=True,
            check=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"config.{field} {pattern!r} takes more than {seconds:g} s to match the paths of the "
            "parameters; simplify it, above all a repetition in a repetition, such as (a+)+"
        ) from error
    found = json.loads(ended.stdout)
    return {text for text, matches in zip(texts, found, strict=True) if matches}
