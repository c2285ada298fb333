"""Values of flags: text to number, step, pattern or names; argparse tells what cannot be read."""

import argparse
import re


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def natural(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


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
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not latest, best or the number of a step")
    return int(text)


def names(text: str) -> list[str]:
    """Names with commas between them."""
    return [name for name in text.split(",") if name]
