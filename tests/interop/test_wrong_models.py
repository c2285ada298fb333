# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be imported: one line on stderr, exit status 2, and an untouched workdir."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.interop.published import FIXTURES
from transformer_jax.cli.main import main
from transformer_jax.interop.weights import WEIGHTS, save_tensors


@pytest.fixture
def error_of(tmp_path, capsys):
    """Function that imports a source and returns the line on stderr."""

    def line(source, workdir=tmp_path / "run"):
        before = sorted(tmp_path.rglob("*"))
        assert main(["import", f"--from={source}", f"--workdir={workdir}"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1
        assert len(err) < 700
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return line


@pytest.fixture
def copy_of(tmp_path):
    """Function that copies a fixture with other keys and tensors; the value ... removes one."""

    def copy(name, keys=(), tensors=()):
        directory = shutil.copytree(FIXTURES / name, tmp_path / name)
        path = directory / "config.json"
        content = json.loads(path.read_text()) | dict(keys)
        kept = {key: value for key, value in content.items() if value is not ...}
        path.write_text(json.dumps(kept))
        if tensors:
            arrays = load_file(directory / WEIGHTS) | dict(tensors)
            save_tensors(
                {name: one for name, one in arrays.items() if one is not ...}, directory / WEIGHTS
            )
        return directory

    return copy


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "config.json is missing"),
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'["bert"]', "is not a JSON object"),
        (b"{}", "model_type is None"),
        (b'{"model_type": ["bert"]}', "model_type is ['bert']"),
        (b'{"model_type": "whisper"}', "model_type is 'whisper'; supported are marian, "),
        (b'{"model_type": "bert", "architectures": "BertModel"}', "architectures is 'BertModel'"),
        (b'{"model_type": "bert", "architectures": [["BertModel"]]}', "architectures is"),
        (b'{"model_type": "bert", "architectures": {"0": 1}}', "architectures is"),
        (b'{"model_type": "bert"}', "config.json has no hidden_size"),
    ],
)
def test_an_unusable_config_json(error_of, tmp_path, content, message):
    directory = tmp_path / "model"
    directory.mkdir()
    save_tensors({"a": np.zeros(1, np.float32)}, directory / WEIGHTS)
    if content is not None:
        (directory / "config.json").write_bytes(content)
    assert message in error_of(directory)


INVALID_SIZES = ["16", None, -3, 0, 1e99, 2.5, [16], {"a": 1}, True, float("nan")]
SIZES = {
    "bert": ("hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size"),
    "marian": ("d_model", "encoder_layers", "decoder_ffn_dim", "max_position_embeddings"),
    "t5": ("d_kv", "num_layers", "relative_attention_num_buckets"),
    "gpt2": ("n_embd", "n_layer", "n_positions"),
    "llama": ("hidden_size", "num_attention_heads"),
    "gemma2": ("num_hidden_layers",),
    "roberta": ("max_position_embeddings",),
}


@pytest.mark.parametrize("name", SIZES)
def test_an_invalid_size_is_named(error_of, copy_of, name):
    directory = copy_of(name)
    path = directory / "config.json"
    keys = json.loads(path.read_text())
    for key in SIZES[name]:
        # All sizes are read by one function.
        for value in INVALID_SIZES if key == "hidden_size" else INVALID_SIZES[:3]:
            path.write_text(json.dumps(keys | {key: value}))
            assert f"config.json: {key} is " in error_of(directory)


YARN = {"rope_type": "yarn", "factor": 2.0}
FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    "name, keys, message",
    [
        (
            "bert",
            {"architectures": ["BertForQuestionAnswering"]},
            "for bert are BertForMaskedLM, ",
        ),
        ("bert", {"hidden_size": ...}, "config.json has no hidden_size, which bert needs"),
        ("bert", {"vocab_size": ...}, "config.json has no vocab_size"),
        ("bert", {"hidden_act": "mish"}, "hidden_act is 'mish'; supported are relu, gelu,"),
        ("bert", {"hidden_act": ["gelu"]}, "hidden_act is ['gelu']; it must be of type str"),
        ("bert", {"hidden_size": 15}, "num_heads 2 does not divide d_model 15"),
        ("bert", {"hidden_size": 100_000}, "config.json cannot be a run: config.model: d_mod"),
        ("bert", {"layer_norm_eps": 2.5}, "norm_epsilon is 2.5"),
        ("bert", {"hidden_dropout_prob": 1}, "hidden_dropout_prob is 1; it must lie in [0, 1)"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'rel"),
        ("bert", {"is_decoder": True}, "is_decoder is True; only False is supported"),
        ("bert", {"pad_token_id": 500}, "a special token has id 500"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act is 'relu'; only 'gelu' is supported"),
        ("roberta", {"pad_token_id": None}, "pad_token_id is None"),
        ("marian", {"decoder_ffn_dim": 30}, "encoder_ffn_dim 28 and decoder_ffn_dim 30 differ"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings is False"),
        ("marian", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; it must be"),
        ("bart", {"normalize_before": True}, "normalize_before is True"),
        ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj is 'tanh'"),
        ("t5", {"feed_forward_proj": None}, "feed_forward_proj is None"),
        ("t5", {"num_decoder_layers": [2]}, "num_decoder_layers is [2]"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is"),
        ("gpt2", {"n_inner": "36"}, "n_inner is '36'"),
        ("llama", {"rope_scaling": YARN}, "rope_type is 'yarn'; supported are default,"),
        ("llama", {"rope_scaling": {"type": ["x"]}}, "type is ['x']; it must be of type str"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be of type dict"),
        ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "has no low_freq_factor"),
        ("llama", {"rope_theta": None}, "rope_theta is None; it must be of type float"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ("gemma2", {"layer_types": [FULL, "chunked", FULL]}, "layer_types must name one of"),
        ("gemma2", {"layer_types": [FULL]}, "layer_types must name one of"),
        ("gemma2", {"layer_types": "full_attention"}, "layer_types is 'full_attention'; it must"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        (
            "bert_classification",
            {"id2label": ...},
            "has the shape [3]; by config.json it must be [2]",
        ),
        ("bert_classification", {"id2label": {"0": "a", "2": "b"}}, "id2label does not name"),
        ("bert_classification", {"id2label": {"0": "a", "1": "a"}}, "one of them twice"),
        (
            "bert_classification",
            {"id2label": {"0": "a", "1": "b"}},
            "has the shape [3]; by config.json it must be [2]",
        ),
    ],
)
def test_unsupported_keys_are_named(error_of, copy_of, name, keys, message):
    assert message in error_of(copy_of(name, keys))


EXTRA = np.zeros(3, np.float32)
QUERY = "bert.encoder.layer.0.attention.self.query.weight"


@pytest.mark.parametrize(
    "name, tensors, message",
    [
        ("bert", {QUERY: ...}, f"the weights have no tensor {QUERY}, which config.json requires"),
        ("bert", {"cls.predictions.transform.dense.bias": ...}, "no tensor cls.predictions.tra"),
        ("bert", {"bert.encoder.layer.2.x": EXTRA}, "has bert.encoder.layer.2.x, and a bert"),
        ("bert", {QUERY: np.zeros((16, 8), np.float32)}, f"{QUERY} has the shape [16, 8]; by"),
        (
            "bert",
            {QUERY: np.zeros((16, 16), np.int32)},
            f"{QUERY} has dtype I32; weights",
        ),
        ("marian", {"lm_head.weight": EXTRA}, "lm_head.weight differs from model.shared.weight"),
        ("t5_v1_1", {"lm_head.weight": ...}, "no tensor lm_head.weight"),
        ("bert_classification", {"classifier.bias": ...}, "no tensor classifier.bias"),
    ],
)
def test_tensors_that_contradict_the_config(error_of, copy_of, name, tensors, message):
    assert message in error_of(copy_of(name, tensors=tensors))


def test_copies_of_a_tied_matrix_must_be_equal(error_of, copy_of):
    table = load_file(FIXTURES / "gpt2" / WEIGHTS)["transformer.wte.weight"]
    line = error_of(copy_of("gpt2", tensors={"lm_head.weight": table + 1}))
    assert "lm_head.weight differs from transformer.wte.weight, and by config.json they are" in line


def test_damaged_weights_and_pickles(error_of, copy_of):
    directory = copy_of("bert")
    weights = directory / WEIGHTS
    intact = weights.read_bytes()
    for damaged in (b"", intact[:100], b"\xff" * 8 + intact[8:], intact[:-1]):
        weights.write_bytes(damaged)
        assert f"{weights} cannot be read" in error_of(directory)
    weights.unlink()
    assert "model.safetensors is missing" in error_of(directory)
    (directory / "pytorch_model.bin").write_bytes(intact)
    assert "pytorch_model.bin but no model.safetensors: pickles are not read" in error_of(directory)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite(error_of, copy_of, tmp_path, value):
    table = load_file(FIXTURES / "bert" / WEIGHTS)[QUERY]
    table[3, :2] = value
    directory = copy_of("bert", tensors={QUERY: table})
    message = f"{WEIGHTS}: '{QUERY}' has 2 values that are NaN or infinite"
    assert message in error_of(directory)
    words = [f"--from={directory}", f"--workdir={tmp_path / 'run'}", "--allow_nonfinite"]
    assert main(["import", *words]) == 0


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json"]
)
def test_links_out_of_the_folder_are_not_followed(error_of, copy_of, tmp_path, name):
    """A model may name any file of the user, which would then be in the run and its exports."""
    directory = copy_of("gpt2")
    secret = tmp_path / "credentials"
    (directory / name).rename(secret)
    (directory / name).symlink_to(secret)
    assert "it is a link that leads out of its folder" in error_of(directory)


def test_weights_that_are_a_link(error_of, copy_of, tmp_path):
    directory = copy_of("gpt2")
    (directory / WEIGHTS).rename(tmp_path / "elsewhere")
    (directory / WEIGHTS).symlink_to(tmp_path / "elsewhere")
    assert "it is a link that leads out of its folder" in error_of(directory)


def test_tokenizers_that_do_not_fit(error_of, copy_of):
    directory = copy_of("bert_gamma")
    vocabulary = directory / "vocab.txt"
    with vocabulary.open("a") as file:
        file.write("one\n")
    assert "the tokenizer has 132 tokens, and the model's table 131" in error_of(directory)
    vocabulary.write_text("a\nb\n")
    assert "vocab.txt has no [UNK]" in error_of(directory)
    vocabulary.unlink()
    assert "no tokenizer is there; it may be tokenizer.json" in error_of(directory)
    (directory / "tokenizer.json").write_text("{")
    assert "tokenizer.json" in error_of(directory)


def test_a_missing_directory_or_repository(error_of, tmp_path, monkeypatch):
    assert "is no directory (of the hub: hf:OWNER/NAME)" in error_of(tmp_path / "none")
    for name in ("hf:", "hf:bert", "hf:a/b/c", "hf:a/b@", "hf:a/b@../x y", "hf:../b"):
        assert name in error_of(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert "hf:nobody/nothing cannot be fetched (" in error_of("hf:nobody/nothing")


def test_a_workdir_that_is_not_empty_stays_unchanged(error_of, tmp_path):
    source, full, file = FIXTURES / "bert", tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "notes").write_text("kept")
    file.write_text("kept")
    assert "is not empty; choose a new or an empty folder as --workdir" in error_of(source, full)
    assert f"{file}" in error_of(source, file)
    assert (full / "notes").read_text() == file.read_text() == "kept"
