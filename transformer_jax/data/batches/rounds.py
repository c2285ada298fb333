"""What streams pack, group by group."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass

from transformer_jax.data.batches.packing import Examples, PackedGroup, Packer

Round = Mapping[str, PackedGroup]
"""The next group of each stream, by the stream's number."""


@dataclass(frozen=True)
class Stream:
    """Examples that are packed in groups of rows.

    Attributes:
      examples: an endless sequence.
      packer: of a group.
    """

    examples: Examples
    packer: Packer


def rounds(streams: Mapping[str, Stream], starts: Mapping[str, int]) -> Generator[Round]:
    """Packs without end.

    Args:
      streams: by number.
      starts: the example of each with which its first group starts.
    """
    while True:
        groups = {i: each.packer.pack(each.examples, starts[i]) for i, each in streams.items()}
        starts = {i: group.end for i, group in groups.items()}
        yield groups
