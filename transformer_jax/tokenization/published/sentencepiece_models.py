"""Published tokenizers that sentencepiece runs: T5's and Llama's models, and Marian's pair."""

import re
from collections.abc import Callable, Mapping

from transformer_jax.tokenization.published.vocabulary import (
    Files,
    Vocabulary,
    by_id,
    read_vocab,
    settings_of,
)
from transformer_jax.tokenization.sentencepiece_tokenizer import load_sentencepiece


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
