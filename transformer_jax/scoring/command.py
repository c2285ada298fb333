"""Scores by a command of the user's, such as one that asks a learned metric."""

import json
import math
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any


def scores_by_command(command: str, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What a command says of outputs.

    Args:
      command: a program and its arguments, as a shell would read them; no shell runs.
      records: the outputs with their examples: on standard input, a JSON object a line.

    Returns:
      The numbers of the JSON object that it prints.

    Raises:
      ValueError: it cannot be run, fails, or prints something else; in one line.
    """
    lines = "".join(json.dumps(record) + "\n" for record in records)
    try:
        words = shlex.split(command)
        ended = subprocess.run(words, input=lines, capture_output=True, encoding="utf-8")
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"{command!r} cannot be run: {error}") from error
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise ValueError(f"{command!r} ended with status {ended.returncode}: {last}")
    try:
        found = json.loads(ended.stdout)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found or not all(map(_is_number, found.values())):
        raise ValueError(
            f"{command!r} printed {ended.stdout[:80]!r}; it must print one JSON object of numbers"
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)
