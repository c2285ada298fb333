"""How many outputs are their references, word for word."""

from collections.abc import Sequence


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """{"exact_match": share of the outputs that equal their references}; runs of white space count
    as one space.

    Raises:
      ValueError: there are none, or not as many of one as of the other.
    """
    if not outputs:
        raise ValueError("no outputs to compare")
    pairs = zip(outputs, references, strict=True)
    return {"exact_match": sum(a.split() == b.split() for a, b in pairs) / len(outputs)}
