"""Blanks in text, as masked language models fill them.

B batch, P blanks of a row.
"""

from collections.abc import Callable, Sequence

import numpy as np

from transformer_jax.data.batches.padding import pad_rows, padded_batch


def blank_arrays(rows: Sequence[Sequence[int]], mask: int) -> dict[str, np.ndarray]:
    """The rows as the feature "text", and "places" [B, P] where the token `mask` stands in them."""
    batch = padded_batch([{"text": row} for row in rows])
    places = [np.flatnonzero(np.array(row) == mask).tolist() for row in rows]
    width = 1 << (max(map(len, places)) - 1).bit_length()
    return {**batch, "places": pad_rows(places, width)}


def fillings(
    line: str, blank: str, decode: Callable[[Sequence[int]], str], ids: np.ndarray
) -> list[str]:
    """The line with its blanks filled in n ways, by the ids [P, n] of their places."""
    words = [[decode([token]).removeprefix("##") for token in chosen] for chosen in ids.T]
    return [fill_blanks(line, blank, of_places) for of_places in words]


def fill_blanks(line: str, blank: str, words: Sequence[str]) -> str:
    """The line with its first blanks, each written `blank`, replaced by the words.

    Some vocabularies write words with a space before them: it is left out where one stands already,
    and at the start.
    """
    text, *others = line.split(blank)
    for word, behind in zip(words, others, strict=False):
        is_apart = not text or text[-1].isspace()
        text += (word.lstrip(" ") if is_apart else word) + behind
    return blank.join([text, *others[len(words) :]])
