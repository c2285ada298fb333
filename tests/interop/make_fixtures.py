# SPDX-License-Identifier: Apache-2.0
"""Writes tests/interop/fixtures: tiny models and tokenizers of transformers, and their results.

The tests read only the files; no environment of the project has PyTorch. To write them again:

    python3.11 -m venv /tmp/fixtures
    /tmp/fixtures/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    /tmp/fixtures/bin/pip install transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3 \\
        sentence-transformers==6.2.0 safetensors==0.8.0 protobuf==7.36.2 numpy==2.4.6
    /tmp/fixtures/bin/python tests/interop/make_fixtures.py [NAME ...]

NAME is a directory of the fixtures (`marian`, `gpt2_bare`, `tokenizers`); without one, all are
made, `bert_gamma` and `gpt2_bare` from the others' files. The same versions on the same machine
write the same bytes. fixtures/README.md says what is in them.
"""

import itertools
import json
import shutil
import sys
import tempfile
from pathlib import Path

import fixture_tokenizers
import numpy as np
import torch
import transformers
from fixture_expected import banned_ids, expected, generated, run
from fixture_models import FAMILIES, build
from fixture_texts import lines
from safetensors.torch import load_file, save_file

FIXTURES = Path(__file__).parent / "fixtures"
# What save_pretrained notes of the machine and of how it was called.
MODEL_TYPES = (
    *("marian", "pegasus", "bart", "mbart", "t5", "t5gemma"),
    *("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"),
    *("mixtral", "qwen3_moe", "deepseek_v2"),
    *("bert", "roberta", "roberta-prelayernorm", "distilbert", "xlm-roberta", "camembert"),
    "modernbert",
)
NOT_KEPT = ("vocab_file", "is_local", "local_files_only", "source_spm", "target_spm", "vocab")


def edited_json(path, edit):
    """Edits a JSON file: sets the fields of `edit`; the value ... removes a field."""
    content = json.loads(path.read_text()) | edit
    content = {name: value for name, value in content.items() if value is not ...}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_tokenizer(family, directory):
    """Saves the family's tokenizer and loads it again."""
    getattr(fixture_tokenizers, family.tokenizer)().save_pretrained(directory)
    edited_json(directory / "tokenizer_config.json", dict.fromkeys(NOT_KEPT, ...))
    return transformers.AutoTokenizer.from_pretrained(directory)


def loaded(family, directory):
    """Loads a saved model; checks that its files have every tensor."""
    kind = getattr(transformers, family.model)
    model, report = kind.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    return model.eval()


def varied(arrays):
    """True if the generations differ, do not just repeat tokens, and only some reach the limit."""
    for rows in (arrays[name] for name in ("greedy", "beam") if name in arrays):
        stopped = (rows == -1).any(1)
        if not stopped.any() or stopped.all() or len({tuple(row) for row in rows}) < len(rows):
            return False
    distinct = [len(set(row) - {-1}) for row in arrays.get("greedy", ())]
    return not distinct or np.mean(distinct) >= 3


def make_family(name):
    """Writes one directory, with the first seed whose generations are varied."""
    family, directory = FAMILIES[name], FIXTURES / name
    tokenizer = write_tokenizer(family, directory)
    for seed in itertools.count():
        for file in directory.glob("model*"):
            file.unlink()
        model = build(family, tokenizer, seed)
        model.save_pretrained(directory, max_shard_size=family.max_shard_size)
        edited_json(directory / "config.json", family.spelling)
        arrays, texts = expected(loaded(family, directory), tokenizer, family)
        if varied(arrays):
            break
    np.savez_compressed(directory / "expected.npz", **arrays)
    edited = json.dumps(texts | {"seed": seed}, indent=2, ensure_ascii=False)
    (directory / "expected.json").write_text(edited + "\n")
    if name == family.tokenizer:
        fixture_tokenizers.write_tokens(directory)


def make_gpt2_bare():
    """Writes GPT-2 as published: no `transformer.` in names, causal masks, an old config."""
    source, directory = FIXTURES / "gpt2", FIXTURES / "gpt2_bare"
    weights = load_file(source / "model.safetensors")
    weights = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    config = json.loads((source / "config.json").read_text())
    size = config["n_positions"]
    for layer in range(config["n_layer"]):
        weights[f"h.{layer}.attn.bias"] = torch.ones(size, size).tril()[None, None]
    fixture_tokenizers.write_files(directory, "GPT2Tokenizer", fixture_tokenizers.gpt2_files())
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "config.json", directory)
    new = ["add_cross_attention", "dtype", "pad_token_id", "tie_word_embeddings"]
    edited_json(directory / "config.json", {"n_ctx": size} | dict.fromkeys(new, ...))
    check_same(FAMILIES["gpt2"], source, directory)


def make_bert_gamma():
    """Writes BERT as published: LayerNorm.gamma and beta, with the pooler and the NSP head."""
    source, directory = FIXTURES / "bert", FIXTURES / "bert_gamma"
    weights = load_file(source / "model.safetensors")
    whole = load_file(FIXTURES / "bert_pretraining" / "model.safetensors")
    weights |= {name: whole[name] for name in whole if "pooler" in name or "seq_relation" in name}
    old = {".weight": ".gamma", ".bias": ".beta"}
    for name in [name for name in weights if "LayerNorm" in name]:
        stem, dot, last = name.rpartition(".")
        weights[stem + old[dot + last]] = weights.pop(name)
    files = fixture_tokenizers.bert_files()
    fixture_tokenizers.write_files(directory, "BertTokenizer", files, do_lower_case=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "config.json", directory)
    check_same(FAMILIES["bert"], source, directory)


def check_same(family, source, directory):
    """Checks that transformers reads both directories as the same model."""
    kind = getattr(transformers, family.model)
    ids = np.arange(20)[None]
    models = [kind.from_pretrained(path).eval() for path in (source, directory)]
    first, second = (run(model, input_ids=ids) for model in models)
    assert torch.equal(first.logits, second.logits)


def make_tokenizers():
    """Writes the mixed lines, and tokenizers in the formats of older published models."""
    fixture_tokenizers.write_json(FIXTURES / "lines.json.gz", lines())
    for name, (kind, files, config) in fixture_tokenizers.VARIANTS.items():
        directory = FIXTURES / "tokenizers" / name
        fixture_tokenizers.write_files(directory, kind, files(), **config)
        fixture_tokenizers.write_tokens(directory)


def make_class_defaults():
    """Writes the keys of config.json of each family, and those of generation, by default."""
    configs = {name: transformers.CONFIG_MAPPING[name]().to_dict() for name in sorted(MODEL_TYPES)}
    generation = transformers.GenerationConfig().to_dict()
    generation |= transformers.GenerationConfig._get_default_generation_params()
    content = {"config": configs, "generation": generation}
    text = json.dumps(content, indent=1, sort_keys=True)
    (FIXTURES / "class_defaults" / "defaults.json").write_text(text + "\n")


def make_sentences():
    """Writes a BERT with the modules of sentence-transformers, and its vectors of lines."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    family, directory = FAMILIES["bert_bare"], FIXTURES / "sentences"
    with tempfile.TemporaryDirectory() as saved:
        tokenizer = write_tokenizer(family, Path(saved))
        build(family, tokenizer, 0).save_pretrained(saved)
        words = Transformer(saved, max_seq_length=12)
    pooling = Pooling(words.get_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[words, pooling, Normalize()], device="cpu")
    model.save(str(directory), create_model_card=False)
    edited_json(directory / "tokenizer_config.json", dict.fromkeys(NOT_KEPT, ...))
    lines = ["The dog runs.", "a", "", "A woman with a red ball, two people and the old man. " * 2]
    expected = {"lines": lines, "vectors": model.encode(lines).tolist()}
    (directory / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


SETTINGS = {
    "repetition_penalty 2": {"repetition_penalty": 2.0},
    "max_new_tokens 3": {"max_new_tokens": 3},
}


def make_generations():
    """Writes greedy continuations of prompts with other settings of generation.

    Some prompts contain the end token, as a turn before the last one does.
    """
    directory, family = FIXTURES / "llama", FAMILIES["llama"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model, expected_arrays = loaded(family, directory), np.load(directory / "expected.npz")
    lengths = expected_arrays["prompt_lengths"]
    prompts = [row[:n].tolist() for row, n in zip(expected_arrays["prompt"], lengths, strict=True)]
    random = np.random.default_rng(6).integers(3, model.config.vocab_size, (16, 3)).tolist()
    prompts += [[*row, model.config.eos_token_id, *row[:1]] for row in random]
    outputs = {}
    for name, options in SETTINGS.items():
        found = [generated(model, tokenizer, family, row, **options) for row in prompts]
        rows = [one.sequences[0, len(row) :] for one, row in zip(found, prompts, strict=True)]
        outputs[name] = [row.tolist() for row in rows]
    content = {"prompts": prompts, "outputs": outputs, "banned": banned_ids(family, tokenizer)}
    path = FIXTURES / "generations" / "llama.json"
    path.write_text(json.dumps(content) + "\n")


OTHERS = {
    "sentences": make_sentences,
    "generations": make_generations,
    "class_defaults": make_class_defaults,
    "gpt2_bare": make_gpt2_bare,
    "bert_gamma": make_bert_gamma,
    "tokenizers": make_tokenizers,
}


def main(names):
    torch.set_num_threads(1)
    for name in names or [*(name for name in FAMILIES if name != "bert_bare"), *OTHERS]:
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
        (FIXTURES / name).mkdir(parents=True)
        if name in FAMILIES:
            make_family(name)
        else:
            OTHERS[name]()
        size = sum(file.stat().st_size for file in (FIXTURES / name).rglob("*") if file.is_file())
        print(f"{name:24} {size / 1000:7.1f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
