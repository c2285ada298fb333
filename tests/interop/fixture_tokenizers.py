# SPDX-License-Identifier: Apache-2.0
"""Trains the tokenizers of the fixtures, each with the class and special ids of its family."""

import gzip
import io
import json
import tempfile
from pathlib import Path

import sentencepiece
import tokenizers
import transformers
from fixture_texts import LATIN, lines, normalization_rules, training_lines
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_FALLBACK = dict(
    model_type="bpe",
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    split_digits=True,
    character_coverage=0.98,
)


def sentencepiece_model(seed, vocab_size, **options):
    """Trains a sentencepiece model with `normalization_rules`; its bytes contain no paths."""
    written = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as table:
        table.write(normalization_rules())
        table.flush()
        if "normalization_rule_name" not in options:
            options["normalization_rule_tsv"] = table.name
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(training_lines(seed)),
            model_writer=written,
            vocab_size=vocab_size,
            num_threads=1,
            minloglevel=2,
            **{"character_coverage": 0.995, "hard_vocab_limit": False, **options},
        )
    model = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    model.normalizer_spec.normalization_rule_tsv = ""
    return model.SerializeToString(deterministic=True)


def pieces_of(model):
    return [piece.piece for piece in sentencepiece_model_pb2.ModelProto.FromString(model).pieces]


def byte_level_bpe(num_merges, pre_tokenizer=None):
    """(pieces, merges) of a byte-level BPE: the 256 bytes, then the merges in their order."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(training_lines(4), trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in trained["merges"]]
    return sorted(trained["vocab"], key=trained["vocab"].get), merges


def numbered(pieces):
    return {piece: index for index, piece in enumerate(pieces)}


def loaded(kind, files, **config):
    """Loads a tokenizer of class `kind` from files in the format of older published models."""
    with tempfile.TemporaryDirectory() as directory:
        write_files(Path(directory), kind, files, **config)
        return getattr(transformers, kind).from_pretrained(directory)


def write_files(directory, kind, files, **config):
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    text = json.dumps({"tokenizer_class": kind, **config}, indent=2)
    (directory / "tokenizer_config.json").write_text(text + "\n")


def marian_pieces(models):
    """Marian's own numbering: </s> first, <pad> last, and not every piece of sentencepiece's."""
    found = dict.fromkeys(piece for model in models for piece in pieces_of(model)[3:])
    kept = [piece for index, piece in enumerate(found) if index % 23 != 22]
    return numbered(["</s>", "<unk>", *kept, ">>deu<<", ">>fra<<", "<pad>"])


def marian_files():
    """Marian's tokenizer. Its source model has the complete NMT NFKC, like published ones."""
    source = sentencepiece_model(1, 130, normalization_rule_name="nmt_nfkc")
    target = sentencepiece_model(2, 130)
    vocabulary = json.dumps(marian_pieces([source, target]), ensure_ascii=False)
    return {"source.spm": source, "target.spm": target, "vocab.json": vocabulary}


def marian():
    return loaded("MarianTokenizer", marian_files(), source_lang="en", target_lang="de")


def marian_separate():
    source, target = sentencepiece_model(2, 120), sentencepiece_model(3, 150)
    files = {"source.spm": source, "target.spm": target}
    for name, model in {"vocab.json": source, "target_vocab.json": target}.items():
        files[name] = json.dumps(marian_pieces([model]), ensure_ascii=False)
    return loaded("MarianTokenizer", files, separate_vocabs=True)


def t5_files():
    return {"spiece.model": sentencepiece_model(3, 150, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)}


def t5():
    return loaded("T5Tokenizer", t5_files(), extra_ids=10)


def mbart():
    files = {"sentencepiece.bpe.model": sentencepiece_model(4, 150)}
    return loaded("MBartTokenizer", files, src_lang="en_XX", tgt_lang="de_DE")


def scored_pieces(model):
    """Pieces of a sentencepiece model with their scores, without the first three."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    return [(piece.piece, piece.score) for piece in proto.pieces[3:]]


def charsmap(model):
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    return proto.normalizer_spec.precompiled_charsmap


def unigram(kind, seed):
    model = sentencepiece_model(seed, 150)
    special = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return kind(
        vocab=[*special, *scored_pieces(model), ("<mask>", 0.0)],
        _spm_precompiled_charsmap=charsmap(model),
    )


def xlm_roberta():
    return unigram(transformers.XLMRobertaTokenizer, 4)


def camembert():
    return unigram(transformers.CamembertTokenizer, 5)


def gpt2():
    pieces, merges = byte_level_bpe(24)
    return transformers.GPT2Tokenizer(vocab=numbered([*pieces, "<|endoftext|>"]), merges=merges)


def gpt2_files():
    pieces, merges = byte_level_bpe(24)
    vocabulary = json.dumps(numbered([*pieces, "<|endoftext|>"]))
    text = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)
    return {"vocab.json": vocabulary, "merges.txt": text}


def roberta():
    pieces, merges = byte_level_bpe(24)
    vocabulary = numbered(["<s>", "<pad>", "</s>", "<unk>", *pieces, "<mask>"])
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)


def qwen2():
    split = transformers.Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    pieces, merges = byte_level_bpe(24, split)
    vocabulary = numbered([*pieces, "<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return transformers.Qwen2Tokenizer(
        vocab=vocabulary,
        merges=merges,
        eos_token="<|im_end|>",
        extra_special_tokens=["<|im_start|>"],
    )


def llama_files():
    return {"tokenizer.model": sentencepiece_model(5, 340, **BYTE_FALLBACK)}


def llama():
    return loaded("LlamaTokenizer", llama_files(), add_bos_token=True)


def gemma2():
    ids = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3, add_dummy_prefix=False)
    pieces = dict(pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>")
    files = {"tokenizer.model": sentencepiece_model(6, 330, **BYTE_FALLBACK, **ids, **pieces)}
    return loaded("GemmaTokenizer", files, add_bos_token=True)


def llama3():
    """Byte-level BPE with a custom pattern, completely defined by tokenizer.json."""
    pattern = pre_tokenizers.Split(tokenizers.Regex(LLAMA3_PATTERN), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([pattern, bytes_only])
    pieces, merges = byte_level_bpe(24, split)
    start, end = "<|begin_of_text|>", "<|end_of_text|>"
    tokenizer = tokenizers.Tokenizer(models.BPE(numbered(pieces), merges, ignore_merges=True))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    tokenizer.add_special_tokens([start, end])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A",
        pair=f"{start} $A {start}:1 $B:1",
        special_tokens=[(start, tokenizer.token_to_id(start))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=end
    )


def bert_pieces():
    letters = sorted({letter for word in LATIN for letter in word.lower()} | set("0123456789"))
    words = sorted({word.lower() for word in LATIN if len(word) > 1})[::2]
    endings = ["##" + ending for ending in ["er", "en", "ing", "s's", "ße", "st", "and"]]
    others = [*".,!?'-", *"ηατ", *"собака", *"你世"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    continued = ["##" + letter for letter in letters]
    return list(dict.fromkeys([*special, *others, *letters, *continued, *endings, *words]))


def bert():
    return transformers.BertTokenizer(vocab=numbered(bert_pieces()))


def bert_files():
    return {"vocab.txt": "".join(piece + "\n" for piece in bert_pieces())}


# Directories of tokenizers/, with what old published models have: class, files, config.
VARIANTS = {
    "bert_vocab_txt": ("BertTokenizer", bert_files, {"do_lower_case": True}),
    "gpt2_merges": ("GPT2Tokenizer", gpt2_files, {}),
    "t5_spiece": ("T5Tokenizer", t5_files, {"extra_ids": 10}),
    "llama_model": ("LlamaTokenizer", llama_files, {"add_bos_token": True}),
}


def write_json(path, value):
    """Writes gzip without a time stamp, so that equal values give equal files."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def write_tokens(directory):
    """Writes tokens.json.gz: ids of the lines, and decoded texts of the first 200."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    texts = lines()
    ids = [tokenizer(line)["input_ids"] for line in texts]
    tokens = {"ids": ids, "decoded": decoded(tokenizer, ids)}
    if isinstance(tokenizer, transformers.MarianTokenizer):
        tokens["target_ids"] = [tokenizer(text_target=line)["input_ids"] for line in texts]
        tokens["target_decoded"] = decoded(tokenizer, tokens["target_ids"])
    for model in [*directory.glob("spiece.model"), *directory.glob("tokenizer.model")]:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        tokens["sentencepiece_ids"] = processor.encode(texts)
        tokens["sentencepiece_decoded"] = processor.decode(tokens["sentencepiece_ids"][:200])
    write_json(directory / "tokens.json.gz", tokens)


def decoded(tokenizer, ids):
    return [tokenizer.decode(row, skip_special_tokens=True) for row in ids[:200]]
