# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be imported: one line on stderr, exit status 2, and an untouched workdir."""

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.interop.published import FIXTURES, changed_copy
from tests.refusals import assert_refused
from transformer_jax.cli.main import main
from transformer_jax.interop.importing import import_model
from transformer_jax.interop.weights import WEIGHTS, save_tensors


def import_changed(name, keys=(), tensors=()):
    """Imports a changed copy of a fixture."""
    with tempfile.TemporaryDirectory() as parent:
        directory = changed_copy(Path(parent), name, keys, tensors)
        import_model(str(directory), Path(parent) / "run")


@pytest.fixture
def refusal(tmp_path, capsys):
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


def test_an_unusable_config_json(refusal, tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    save_tensors({"a": np.zeros(1, np.float32)}, directory / WEIGHTS)
    assert "config.json is missing" in refusal(directory)
    contents = {
        "{": "cannot be read",
        '["bert"]': "is not a JSON object",
        "{}": "model_type is None",
        '{"model_type": "whisper"}': "model_type is 'whisper'; supported are marian, ",
        '{"model_type": "bert", "architectures": "BertModel"}': "architectures is 'BertModel'",
        '{"model_type": "bert"}': "config.json has no hidden_size",
    }
    for content, message in contents.items():
        (directory / "config.json").write_text(content)
        assert message in refusal(directory)


YARN = {"rope_type": "yarn", "factor": 2.0}
FULL = "full_attention"
TWO_LABELS = {"id2label": {"0": "a", "1": "b"}}
NESTED = {"full_attention": {"rope_theta": 5.0, "rope_type": "default"}}
SEVERAL = {"problem_type": "multi_label_classification"}
REFUSED_KEYS = {
    "for bert are BertForMaskedLM, ": ("bert", {"architectures": ["BertForQuestionAnswering"]}),
    "config.json has no hidden_size, which bert needs": ("bert", {"hidden_size": ...}),
    "config.json has no vocab_size": ("bert", {"vocab_size": ...}),
    "no vocab_size that is a number": ("bert", {"vocab_size": "131"}),
    "hidden_act is 'mish'; supported are relu, gelu,": ("bert", {"hidden_act": "mish"}),
    "num_heads 2 does not divide d_model 15": ("bert", {"hidden_size": 15}),
    "hidden_size is '16'; it must be of type int": ("bert", {"hidden_size": "16"}),
    "hidden_size is None": ("bert", {"hidden_size": None}),
    "hidden_size is 100000; it must lie in": ("bert", {"hidden_size": 100_000}),
    "layer_norm_eps is 2.5": ("bert", {"layer_norm_eps": 2.5}),
    "hidden_dropout_prob is 1; it must lie in [0, 1)": ("bert", {"hidden_dropout_prob": 1}),
    "position_embedding_type is 'rel": ("bert", {"position_embedding_type": "relative_key"}),
    "is_decoder is True; only False is supported": ("bert", {"is_decoder": True}),
    "a special token has id 500": ("bert", {"pad_token_id": 500}),
    "hidden_act is 'relu'; only 'gelu' is supported": ("roberta", {"hidden_act": "relu"}),
    "pad_token_id is None": ("roberta", {"pad_token_id": None}),
    "encoder_ffn_dim 28 and decoder_ffn_dim 30 differ": ("marian", {"decoder_ffn_dim": 30}),
    "static_position_embeddings is False": ("marian", {"static_position_embeddings": False}),
    "normalize_before is True": ("bart", {"normalize_before": True}),
    "feed_forward_proj is 'tanh'": ("t5", {"feed_forward_proj": "gated-tanh"}),
    "config.json is no t5's": ("t5", {"feed_forward_proj": None}),
    "scale_attn_by_inverse_layer_idx is": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "rope_type is 'yarn'; supported are default,": ("llama", {"rope_scaling": YARN}),
    "config.json is no llama's": ("llama", {"rope_scaling": "linear"}),
    "has no low_freq_factor": ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0}}),
    "partial_rotary_factor is 0.5; only 1.0": ("deepseek_v2", {"partial_rotary_factor": 0.5}),
    "num_key_value_heads 3": ("llama", {"num_key_value_heads": 3}),
    "attn_logit_softcapping is 5.0; only None": ("gemma3", {"attn_logit_softcapping": 5.0}),
    "layer_types must name one of": ("gemma2", {"layer_types": [FULL, "chunked", FULL]}),
    "layer_types must name one of sliding_attention": ("gemma2", {"layer_types": [FULL]}),
    "has the shape [3]; by config.json it must be [2]": ("bert_classification", TWO_LABELS),
    "[3]; by config.json it must be [2]": ("bert_classification", {"id2label": ...}),
    "id2label does not name": ("bert_classification", {"id2label": {"0": "a", "2": "b"}}),
    "one of them twice": ("bert_classification", {"id2label": {"0": "a", "1": "a"}}),
    "quantization_config is {'bits': 4}; only {} is": (
        "llama",
        {"quantization_config": {"bits": 4}},
    ),
    "rope_parameters has full_attention {'rope_theta'": ("gemma2", {"rope_parameters": NESTED}),
    "only 'single_label": ("bert_classification", {"problem_type": "regression"}),
    "problem_type is 'multi_label_class": ("bert_classification", SEVERAL),
    "id2label has one class": ("bert_classification", {"id2label": {"0": "LABEL_0"}}),
    "has one class": ("bert_classification", {"id2label": ..., "num_labels": 1}),
}
EXTRA = np.zeros(3, np.float32)
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
TABLE = load_file(FIXTURES / "gpt2" / WEIGHTS)["transformer.wte.weight"]
REFUSED_TENSORS = {
    f"the weights have no tensor {QUERY}, which config.json requires": ("bert", {QUERY: ...}),
    "no tensor cls.predictions.tra": ("bert", {"cls.predictions.transform.dense.bias": ...}),
    "has bert.encoder.layer.2.x, and a bert": ("bert", {"bert.encoder.layer.2.x": EXTRA}),
    f"{QUERY} has the shape [16, 8]; by": ("bert", {QUERY: np.zeros((16, 8), np.float32)}),
    f"{QUERY} has dtype I32; weights": ("bert", {QUERY: np.zeros((16, 16), np.int32)}),
    "differs from model.shared.weight": ("marian", {"lm_head.weight": EXTRA}),
    "no tensor lm_head.weight": ("t5_v1_1", {"lm_head.weight": ...}),
    "no tensor classifier.bias": ("bert_classification", {"classifier.bias": ...}),
    "lm_head.weight differs from transformer.wte.weight, and config.json ties them": (
        "gpt2",
        {"lm_head.weight": TABLE + 1},
    ),
}


def test_unsupported_keys_and_tensors_are_named():
    calls = {
        words: functools.partial(import_changed, name, keys)
        for words, (name, keys) in REFUSED_KEYS.items()
    }
    for words, (name, tensors) in REFUSED_TENSORS.items():
        calls[words] = functools.partial(import_changed, name, tensors=tensors)
    assert_refused(calls)


def test_weights_that_are_not_finite(refusal, tmp_path):
    table = load_file(FIXTURES / "bert" / WEIGHTS)[QUERY]
    table[3, :2] = (np.nan, -np.inf)
    directory = changed_copy(tmp_path, "bert", tensors={QUERY: table})
    message = f"{WEIGHTS}: '{QUERY}' has 2 values that are NaN or infinite"
    assert message in refusal(directory)
    words = [f"--from={directory}", f"--workdir={tmp_path / 'run'}", "--allow_nonfinite"]
    assert main(["import", *words]) == 0


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer_config.json", "tokenizer.json", "generation_config.json", WEIGHTS],
)
def test_links_out_of_the_folder_are_not_followed(refusal, tmp_path, name):
    """A model may name any file of the user, which would then be in the run and its exports."""
    directory = changed_copy(tmp_path, "gpt2")
    secret = tmp_path / "credentials"
    (directory / name).rename(secret)
    (directory / name).symlink_to(secret)
    assert "it is a link that leads out of its folder" in refusal(directory)


def test_a_tokenizer_that_does_not_fit(refusal, tmp_path):
    directory = changed_copy(tmp_path, "bert_gamma")
    with (directory / "vocab.txt").open("a") as file:
        file.write("one\n")
    assert "the tokenizer has 132 tokens, and the model's table 131" in refusal(directory)


def test_a_missing_directory_or_repository(refusal, tmp_path, monkeypatch):
    assert "is no directory (of the hub: hf:OWNER/NAME)" in refusal(tmp_path / "none")
    for name in ("hf:", "hf:bert", "hf:a/b/c", "hf:a/b@", "hf:a/b@../x y", "hf:../b"):
        assert name in refusal(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert "hf:nobody/nothing cannot be fetched (" in refusal("hf:nobody/nothing")


def test_a_workdir_that_is_not_empty_stays_unchanged(refusal, tmp_path):
    source, full, file = FIXTURES / "bert", tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "notes").write_text("kept")
    file.write_text("kept")
    assert "is not empty; choose a new or an empty folder as --workdir" in refusal(source, full)
    assert f"{file}" in refusal(source, file)
    assert (full / "notes").read_text() == file.read_text() == "kept"
