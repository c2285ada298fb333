"""Sources whose outputs are asked for, in batches of like length.

B batch, S source, P prompt, L output length, n outputs a source.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import batched

import numpy as np

from transformer_jax.data.batches.padding import pad_rows, rounded_length, row_lengths
from transformer_jax.tokenization import SpecialTokens

Found = tuple[np.ndarray, np.ndarray]
"""The outputs of a source, best first: tokens int32 [n, L], and scores [n], -inf where there is
none."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A source whose outputs are asked for.

    Attributes:
      source: all its tokens, special ones among them.
      prefix: tokens that each output starts with, behind those that every output starts with; none
        of them is returned.
      number: of the source; with the seed, it decides the samples.
      given: what a constraint is told of the source, as the tokens of its words.
      forced: how many tokens of the output follow from that; its limit does not count them.
    """

    source: Sequence[int]
    prefix: Sequence[int] = ()
    number: int = 0
    given: Sequence[int] = ()
    forced: int = 0


def find_all(
    search: Callable[[Sequence[Request]], Found], requests: Sequence[Request], batch_size: int
) -> list[Found]:
    """The outputs of each request, in order; those of like length are searched for together.

    Args:
      search: at most `batch_size` requests -> their outputs, tokens [B, n, L] and scores [B, n].
      requests: any number of them.
      batch_size: B at most.
    """
    found: dict[int, Found] = {}
    order = sorted(
        range(len(requests)), key=lambda i: (len(requests[i].prefix) > 0, len(requests[i].source))
    )
    for chosen in batched(order, batch_size):
        outputs = search([requests[i] for i in chosen])
        found |= zip(chosen, zip(*outputs, strict=True), strict=True)
    return [found[i] for i in range(len(requests))]


def request_arrays(
    specials: SpecialTokens, requests: Sequence[Request], max_extra_length: int
) -> dict[str, np.ndarray]:
    """The arrays of a batch of requests.

    Args:
      specials: of the outputs' vocabulary.
      requests: the rows.
      max_extra_length: tokens by which an output may be longer than its source.

    Returns:
      "source" [B, S] and "prompt" [B, P], with their "source_lengths" [B] and "prompt_lengths" [B];
      "limits" [B], the longest outputs; "numbers" [B], which samples follow from; where something
      is given, "given" [B, W] and "given_lengths" [B].
    """
    sources = [request.source for request in requests]
    forced = (specials.start, *specials.translation.head)
    prompts = [[*forced, *request.prefix] for request in requests]
    is_prefixed = any(request.prefix for request in requests)
    free = np.array([request.forced + max_extra_length for request in requests], np.int32)
    arrays = {
        "source": pad_rows(sources, rounded_length(sources)),
        "source_lengths": row_lengths(sources),
        "prompt": pad_rows(prompts, rounded_length(prompts) if is_prefixed else len(forced)),
        "prompt_lengths": row_lengths(prompts),
        "limits": row_lengths(sources) + free,
        "numbers": np.array([request.number for request in requests], np.int32),
    }
    given = [request.given for request in requests]
    if any(given):
        arrays |= {
            "given": pad_rows(given, rounded_length(given)),
            "given_lengths": row_lengths(given),
        }
    return arrays


def longest_output(arrays: Mapping[str, np.ndarray], max_extra_length: int) -> int:
    """L, the room for the outputs of a batch: the same for all batches of the same shapes."""
    given = arrays["given"].shape[1] if "given" in arrays else 0
    return arrays["source"].shape[1] + given + max_extra_length
