# SPDX-License-Identifier: Apache-2.0
"""Metrics computed by the user's own command (`eval.command`), such as a learned metric."""

import json
import math
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.runtime.files import parse_json
from transformer_jax.runtime.startup import environment_of_user


def scores_by_command(command: str, records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Runs a command that scores outputs.

    Args:
      command: a program and its arguments, quoted as for a shell; no shell is started.
      records: outputs with their examples, written to standard input as one JSON object per line.

    Returns:
      The numbers of the JSON object that the command prints.

    Raises:
      ValueError: the command cannot be run, fails, or prints something else; in one line.
    """
    lines = "".join(json.dumps(record) + "\n" for record in records)
    try:
        words = shlex.split(command)
        ended = subprocess.run(
            words, input=lines, capture_output=True, encoding="utf-8", env=environment_of_user()
        )
    except (OSError, ValueError, IndexError) as error:
        raise ValueError(f"{command!r} cannot be run: {error}") from error
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise ValueError(f"{command!r} ended with status {ended.returncode}: {last}")
    try:
        scores = parse_json(ended.stdout)
    except (ValueError, RecursionError):
        scores = None
    if not isinstance(scores, dict) or not scores or not all(map(is_number, scores.values())):
        raise ValueError(
            f"{command!r} printed {ended.stdout[:80]!r}; it must print one JSON object of numbers"
        )
    return scores


def is_number(value: Any) -> bool:
    """Returns True for a finite number; booleans are none."""
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)
