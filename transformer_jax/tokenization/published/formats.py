"""The formats of published tokenizers: the files of each, and how text is read and written by it.

Nothing in a file is executed. A special token that is written out in a text is read as that token,
as the libraries that these files come from read it.
"""

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer_jax.tokenization.sentencepiece import load_sentencepiece
from transformer_jax.tokenization.specials import Frame

# FOLDED tokenization.published.vocabulary: What published tokenizers have in common, and what the
# files beside them say.


Files = Mapping[str, bytes]
"""File name -> its content."""

CONFIG, SPECIAL_MAP = "tokenizer_config.json", "special_tokens_map.json"
"""Read where they lie beside the files of a format."""


@dataclass(frozen=True)
class Vocabulary:
    """How a published tokenizer reads and writes text.

    Attributes:
      pieces: the entry of each id; None where there is none.
      encode: text -> ids, with nothing around them; special tokens in the text are read as such.
      encode_plain: likewise, but all of it is text.
      decode: ids -> text.
      special: ids that the files themselves say to stand for no text.
      roles: role -> id, where the model itself says so; such as {"eos": 1}.
      frame: what the files put around a text; None where they do not say.
    """

    pieces: Sequence[str | None]
    encode: Callable[[str], list[int]]
    encode_plain: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    special: Collection[int] = ()
    roles: Mapping[str, int] = field(default_factory=dict)
    frame: Frame | None = None


def settings_of(files: Files) -> dict[str, Any]:
    """What `tokenizer_config.json` and `special_tokens_map.json` say, if they are there."""
    found: dict[str, Any] = {}
    for name in (SPECIAL_MAP, CONFIG):
        said = json.loads(files[name]) if name in files else {}
        if not isinstance(said, dict):
            raise ValueError(f"{name} holds no object")
        found |= {key: value for key, value in said.items() if value is not None}
    return found


def read_vocab(content: bytes) -> dict[str, int]:
    """Piece -> id."""
    vocab = json.loads(content)
    if not isinstance(vocab, dict) or not all(type(i) is int and i >= 0 for i in vocab.values()):
        raise ValueError("a vocabulary is not of pieces and their ids")
    return vocab


def by_id(vocab: Mapping[str, int]) -> list[str | None]:
    """The pieces in the order of their ids; None where an id has none."""
    if not vocab or max(vocab.values()) > 10 * len(vocab) + 1000:
        raise ValueError("the vocabulary is empty, or its ids are far beyond its size")
    pieces: list[str | None] = [None] * (1 + max(vocab.values()))
    for piece, i in vocab.items():
        pieces[i] = piece
    return pieces


def content_of(token: Any) -> str:
    """How a token is written, which files give as a text or as an object."""
    return token["content"] if isinstance(token, Mapping) else token


# FOLDED tokenization.published.huggingface: Published tokenizers that the library `tokenizers`
# runs: its own files, GPT-2's and BERT's.


def tokenizer_json(files: Files, side: str) -> Vocabulary:
    """Whatever model, normalizer and pre-tokenizer the file names."""
    _check_charsmaps(json.loads(files["tokenizer.json"]))
    return _hugging_face(tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode()))


def _check_charsmaps(part: Any) -> None:
    """Raises ValueError where the library would panic, not tell: at a normalizer's cut table."""
    if isinstance(part, Mapping):
        if "precompiled_charsmap" in part:
            table = part["precompiled_charsmap"]
            if not isinstance(table, str) or len(table) < 8:
                raise ValueError("a normalizer's table is cut")
        part = [value for key, value in part.items() if key not in ("model", "vocab")]
    if isinstance(part, Sequence) and not isinstance(part, str):
        for inner in part:
            _check_charsmaps(inner)


def gpt2(files: Files, side: str) -> Vocabulary:
    """Byte-level BPE, also of RoBERTa and BART."""
    vocab = read_vocab(files["vocab.json"])
    lines = files["merges.txt"].decode().split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [(a, b) for a, b in pairs]))
    spaced = bool(settings_of(files).get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    return _hugging_face(_with_special_tokens(tokenizer, files))


def bert(files: Files, side: str) -> Vocabulary:
    """WordPiece."""
    lines = files["vocab.txt"].decode().split("\n")
    lines = lines[:-1] if lines and not lines[-1] else lines
    vocab = {piece.rstrip("\r"): i for i, piece in enumerate(lines)}
    said = settings_of(files)
    unknown = content_of(said.get("unk_token", "[UNK]"))
    if unknown not in vocab:
        raise ValueError(f"vocab.txt has no {unknown}")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=said.get("do_lower_case", True),
        strip_accents=said.get("strip_accents"),
        handle_chinese_chars=said.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return _hugging_face(_with_special_tokens(tokenizer, files))


_WRITTEN_ALIKE = (
    *("<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>"),
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
)


def _with_special_tokens(tokenizer: tokenizers.Tokenizer, files: Files) -> tokenizers.Tokenizer:
    """Vocabularies in two files do not say which of their tokens are special: those that the files
    beside them name, and those written as special tokens are. A mask takes the space before it."""
    said = settings_of(files)
    named = [content_of(said[key]) for key in said if key.endswith("_token")]
    named = [piece for piece in (*named, *_WRITTEN_ALIKE) if type(piece) is str]
    known = [piece for piece in named if tokenizer.token_to_id(piece) is not None]
    tokenizer.add_special_tokens(
        [
            tokenizers.AddedToken(piece, special=True, normalized=False, lstrip=piece == "<mask>")
            for piece in dict.fromkeys(known)
        ]
    )
    return tokenizer


def _hugging_face(tokenizer: tokenizers.Tokenizer) -> Vocabulary:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()

    @functools.cache
    def plain() -> tokenizers.Tokenizer:
        copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        copy.encode_special_tokens = True  # as the text that they are written in
        return copy

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    def encode_plain(text: str) -> list[int]:
        return plain().encode(text, add_special_tokens=False).ids

    return Vocabulary(
        pieces=by_id(ids),
        encode=encode,
        encode_plain=encode_plain,
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
        special=[i for i, token in added.items() if token.special],
        frame=_frame(tokenizer),
    )


def _frame(tokenizer: tokenizers.Tokenizer) -> Frame | None:
    """What the post-processor puts around a text and between two."""
    if tokenizer.post_processor is None:
        return None
    single, pair = tokenizer.encode("a"), tokenizer.encode("a", "a")

    def special(found: tokenizers.Encoding, backwards: bool = False) -> tuple[int, ...]:
        both = [*zip(found.ids, found.sequence_ids, strict=True)][:: -1 if backwards else 1]
        ids = [i for i, text in takewhile(lambda one: one[1] is None, both)]
        return tuple(ids[::-1] if backwards else ids)

    if 0 not in single.sequence_ids or 1 not in pair.sequence_ids:
        return None
    last_of_first = len(pair) - 1 - pair.sequence_ids[::-1].index(0)
    between = pair.ids[last_of_first + 1 : pair.sequence_ids.index(1)]
    head, tail = special(single), special(single, backwards=True)
    return Frame(head, tail, tuple(between)) if head or tail else None


# FOLDED tokenization.published.sentencepiece_models: Published tokenizers that sentencepiece runs:
# T5's and Llama's models, and Marian's pair.


def sentencepiece(files: Files, side: str) -> Vocabulary:
    """A model whose ids are those of its pieces, and T5's sentinels behind them."""
    ((name, content),) = (item for item in files.items() if item[0].endswith(".model"))
    if name == "sentencepiece.bpe.model":
        raise ValueError("its ids are not those of the pieces in it; give tokenizer.json")
    processor = load_sentencepiece(content)
    count = processor.get_piece_size()
    pieces: list[str] = [processor.id_to_piece(i) for i in range(count)]
    roles = {
        "unk": processor.unk_id(),
        "pad": processor.pad_id(),
        "bos": processor.bos_id(),
        "eos": processor.eos_id(),
    }
    is_t5 = tuple(roles.values()) == (2, 0, -1, 1) and "<extra_id_0>" not in pieces
    extra = settings_of(files).get("extra_ids", 100) if is_t5 else 0
    if type(extra) is not int or not 0 <= extra <= 1000:
        raise ValueError(f"extra_ids is {extra!r}")
    pieces += [f"<extra_id_{i}>" for i in reversed(range(extra))]
    controls = [i for i in range(count) if processor.is_control(i) or processor.is_unknown(i)]
    special = {pieces[i]: i for i in (*controls, *range(count, count + extra))}
    return Vocabulary(
        pieces,
        _reader(special, processor.encode),
        processor.encode,
        lambda ids: processor.decode([i for i in ids if i < count]),
        tuple(special.values()),
        {role: i for role, i in roles.items() if i >= 0},
    )


def marian(files: Files, side: str) -> Vocabulary:
    """Pieces are those of a side's model, ids those of a vocabulary that both sides may share."""
    target = side == "target"
    processor = load_sentencepiece(files["target.spm" if target else "source.spm"])
    of_target = "target_vocab.json" in files and target
    vocab = read_vocab(files["target_vocab.json" if of_target else "vocab.json"])
    pieces, unknown = by_id(vocab), vocab["<unk>"]
    names: tuple[str, ...] = ("</s>", "<pad>", "<unk>")
    special = {piece: vocab[piece] for piece in names if piece in vocab}

    def encode(text: str) -> list[int]:
        language = re.match(r">>.*?<<", text, re.DOTALL)
        if language:  # to translate to, in front of a source
            return [vocab.get(language[0], unknown), *encode_text(text[language.end() :])]
        return encode_text(text)

    def encode_text(text: str) -> list[int]:
        return [vocab.get(piece, unknown) for piece in processor.encode(text, out_type=str)]

    def decode(ids: list[int]) -> str:
        text = processor.decode_pieces([pieces[i] or "" for i in ids])
        return text.replace("▁", " ").strip()

    return Vocabulary(
        pieces,
        _reader(special, encode),
        encode_text,
        decode,
        [*special.values(), *(i for piece, i in vocab.items() if re.fullmatch(">>.*<<", piece))],
    )


def _reader(
    special: Mapping[str, int], encode: Callable[[str], list[int]]
) -> Callable[[str], list[int]]:
    """`encode`, but for special tokens that are written out in a text."""
    found = re.compile("|".join(re.escape(piece) for piece in special) or r"(?!)")

    def read(text: str) -> list[int]:
        ids, start = list[int](), 0
        for token in found.finditer(text):
            ids += [*encode(text[start : token.start()]), special[token[0]]]
            start = token.end()
        return ids + encode(text[start:])

    return read


@dataclass(frozen=True)
class Format:
    """A format of tokenizers.

    Attributes:
      files: its files; of one that begins with a dot any name will do that ends so.
      build: (files, side) -> the vocabulary; one of many errors where they are damaged.
      optional: files that may be there besides.
      by_side: whether the sides of the data have vocabularies of their own.
    """

    files: tuple[str, ...]
    build: Callable[[Files, str], Vocabulary]
    optional: tuple[str, ...] = ()
    by_side: bool = False

    def named(self, wanted: str, names: Iterable[str]) -> str | None:
        """The name among these of a file that the format wants."""
        is_any = wanted.startswith(".")
        found = (name for name in names if name == wanted or (is_any and name.endswith(wanted)))
        return next(found, None)


FORMATS: dict[str, Format] = {
    "tokenizer.json": Format(("tokenizer.json",), tokenizer_json),
    "marian": Format(
        ("source.spm", "target.spm", "vocab.json"), marian, ("target_vocab.json",), by_side=True
    ),
    "gpt2": Format(("vocab.json", "merges.txt"), gpt2),
    "sentencepiece": Format((".model",), sentencepiece),
    "bert": Format(("vocab.txt",), bert),
}
"""By the name that a stored tokenizer gives, the preferred ones first."""
