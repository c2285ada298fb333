"""Values of flags: text to number, step, pattern or names; argparse tells what cannot be read."""

import argparse
import math
import re

_DIGITS = 19  # as many as 2^63 has
_MOST_SEEDS = 1000
_MOST = 2**31 - 1  # in arrays, sizes are int32


def positive(text: str) -> int:
    """A whole number from 1 to 2^31 - 1."""
    if not 1 <= (number := _whole(text)) <= _MOST:
        raise argparse.ArgumentTypeError(
            f"{_shown(text)} is not a positive whole number below 2^31"
        )
    return number


def seeds(text: str) -> int:
    """How many seeds train together: their parameters are all held at once."""
    if (number := positive(text)) > _MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"{number} seeds; at most {_MOST_SEEDS} train together")
    return number


def natural(text: str) -> int:
    """A whole number from 0 to 2^31 - 1."""
    if not 0 <= (number := _whole(text)) <= _MOST:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number from 0 to 2^31 - 1")
    return number


def _whole(text: str) -> int:
    """The number; -1 for any other text, and for more digits than any number here has."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else -1


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text


def checkpoint(text: str) -> str | int:
    """latest, best or the number of a step."""
    if text in ("latest", "best"):
        return text
    if (step := _whole(text)) < 0:
        told = f"{_shown(text)} is not latest, best or the number of a step"
        raise argparse.ArgumentTypeError(told)
    return step


def address(text: str) -> str:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, as in 10.0.0.1:1234")
    return text


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return [name for name in text.split(",") if name]


def patch(text: str) -> tuple[str, float]:
    """PLACE=X: a place of the model and a finite number."""
    place, _, number = text.rpartition("=")
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not place or not math.isfinite(scale):
        told = f"{_shown(text)} is not PLACE=X, as in encoder.layer_0.self_attention.heads[1]=0"
        raise argparse.ArgumentTypeError(told)
    return place, scale


def _shown(text: str) -> str:
    """A value in a message, which stays one line that can be read."""
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
