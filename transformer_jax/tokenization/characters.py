"""The one kind of text that no tokenizer takes."""

import re

_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """The text with U+FFFD for each half of a UTF-16 pair: JSON can hold one, UTF-8 cannot."""
    return _LONE_SURROGATES.sub("\ufffd", text)
