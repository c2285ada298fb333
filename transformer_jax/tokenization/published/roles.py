"""Which of a published vocabulary's tokens is what: padding, end, mask and so on.

In this order it follows from ids that a caller gives, from the files beside the vocabulary, from
the model itself, and from how special tokens are usually written.
"""

from collections.abc import Mapping
from typing import Any

from transformer_jax.tokenization.published.vocabulary import Vocabulary, content_of
from transformer_jax.tokenization.specials import Frame, SpecialTokens

_WRITTEN = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "⟨pad⟩"),
    "unk": ("<unk>", "[UNK]", "⟨unk⟩"),
    "bos": ("<s>", "<|begin_of_text|>", "<bos>", "⟨s⟩"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|im_end|>", "⟨/s⟩"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}
"""Role -> how its token is usually written."""

FRAMES = ("head", "tail", "between")
ROLES = (*_WRITTEN, "start", "first")

Ids = Mapping[str, Any]
"""One id for each of ROLES, any number for each of FRAMES, which are those of a translation."""


def special_tokens(
    vocabulary: Vocabulary, said: Mapping[str, Any], given: Ids, side: str
) -> SpecialTokens:
    """The special tokens of a vocabulary.

    Args:
      vocabulary: with what the files themselves say.
      said: the content of the files beside it, "eos_token": "</s>" and so on.
      given: ids that take the place of what the files say.
      side: "target" is what a search writes: it ends in `eos`.

    Raises:
      ValueError: there is no token that ends a text, or a role that is not known is given.
    """
    if strange := given.keys() - {*ROLES, *FRAMES}:
        raise ValueError(f"{min(strange)!r} is none of the roles {', '.join((*ROLES, *FRAMES))}")
    ids = {piece: i for i, piece in enumerate(vocabulary.pieces) if piece is not None}
    found = _found(vocabulary, said, given, ids)
    is_roberta = "bos" in found and vocabulary.pieces[found.get("mask", found["bos"])] == "<mask>"
    declared = "cls" in found or is_roberta
    eos = found.get("eos", found.get("sep"))
    if eos is None:
        raise ValueError(
            f"no token ends a text: none is named in the files, or is {', '.join(_WRITTEN['eos'])}"
        )
    pad, bos = found.get("pad", eos), found.get("bos")
    start = found.get("start", pad if bos is None else bos)
    first = found.get("first", eos if bos is None else bos)
    cls, sep = found.get("cls", first), found.get("sep", eos)
    doubled = (sep, sep) if (cls, sep) == (bos, eos) and declared else (sep,)
    frame = vocabulary.frame or Frame((cls,) * declared, (sep,), doubled)
    return SpecialTokens(
        pad=pad,
        eos=eos,
        start=start,
        first=first,
        unk=found.get("unk"),
        mask=found.get("mask"),
        translation=_of_translation(frame, given, start, eos, side),
        encoder=Frame(frame.head or (cls,), frame.tail or (sep,), frame.between or doubled),
        others=tuple(sorted(_others(vocabulary, said, ids))),
    )


def _found(
    vocabulary: Vocabulary, said: Mapping[str, Any], given: Ids, ids: Mapping[str, int]
) -> dict[str, int]:
    found = {
        role: ids[piece]
        for role, written in _WRITTEN.items()
        for piece in written[::-1]
        if piece in ids
    }
    found |= vocabulary.roles
    named = {role: content_of(said.get(f"{role}_token")) for role in _WRITTEN}
    found |= {role: ids[piece] for role, piece in named.items() if piece in ids}
    return found | {role: int(i) for role, i in given.items() if role in ROLES}


def _of_translation(frame: Frame, given: Ids, start: int, eos: int, side: str) -> Frame:
    """Every text ends in `eos`; a head that the decoder starts from anyway is not repeated."""
    tail = frame.tail if eos in frame.tail else (*frame.tail, eos)
    head = () if side == "target" and frame.head == (start,) else frame.head
    parts = {"head": head, "tail": (eos,) if side == "target" else tail, "between": frame.between}
    parts |= {name: tuple(given[name]) for name in FRAMES if name in given}
    return Frame(**parts)


def _others(vocabulary: Vocabulary, said: Mapping[str, Any], ids: Mapping[str, int]) -> set[int]:
    lists = ("additional_special_tokens", "extra_special_tokens")
    listed = [said.get(name, ()) for name in lists]
    named = [
        content_of(token)
        for tokens in listed
        for token in (tokens.values() if isinstance(tokens, Mapping) else tokens)
    ]
    return {*vocabulary.special, *(ids[piece] for piece in named if piece in ids)}
