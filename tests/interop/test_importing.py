# SPDX-License-Identifier: Apache-2.0
"""Imported models have the published parameters, and work like any other run."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import transformer_jax as tj
from tests.interop.published import FIXTURES, changed_copy, expected, padded
from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.checkpoints.store import CheckpointConfig, Checkpoints
from transformer_jax.cli.main import main
from transformer_jax.conversations import Turn
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.generation import Output
from transformer_jax.interop.exporting import export_run
from transformer_jax.interop.importing import import_model
from transformer_jax.interop.weights import WEIGHTS, save_tensors
from transformer_jax.tasks.line_warnings import collect_warnings
from transformer_jax.tasks.masked_lm import mask_text
from transformer_jax.tokenization import load_tokenizers, store_tokenizers
from transformer_jax.tokenization.published import import_tokenizer

LINES = ["The dog runs.", "a", "A red ball, two"]
CLASSIFIERS = ["bert_classification", "roberta_classification", "distilbert_classification"]
CLASSIFIERS += ["bart_classification"]
TAGGERS = ["bert_tagging", "roberta_tagging", "distilbert_tagging"]


def test_a_source_longer_than_the_positions_is_truncated(run_of, caplog):
    run = run_of("bart")
    assert run.settings.decode.max_extra_length == 14  # of 28 positions
    with collect_warnings() as warnings:
        source = run.task._encode_source("der Hund läuft " * 40, warnings.about(1))
    run.task.search.check(len(source), run.settings.decode)
    assert "line 1" in caplog.text


def text_rows(task, rows):
    """Right-padded batch of rows of tokens."""
    names = ("text", "text_positions", "text_segment_ids")
    return dict(zip(names, padded(rows, task.tokenizers.specials("text").pad), strict=True))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier_logits_are_those_of_the_published_model(run_of, name):
    run, want = run_of(name), expected(name)
    said = json.loads((FIXTURES / name / "expected.json").read_text())
    rows = [
        run.task.tokens(parts) for parts in [*([text] for text in said["texts"]), *said["pairs"]]
    ]
    lengths = want["lengths"]
    assert rows == [row[:n].tolist() for row, n in zip(want["tokens"], lengths, strict=True)]
    one_text = jnp.ones((len(rows), 1), jnp.int32)
    logits = jax.jit(run.task.logits)(run.params, text_rows(run.task, rows), one_text)[:, 0]
    np.testing.assert_allclose(logits, want["logits"], atol=1e-5 * np.abs(want["logits"]).max())
    if name != "bert_classification":
        return  # `tasks/test_classification` has predictions of each architecture
    # The run's predictions, the most probable first, for lines of different lengths.
    lines = [*said["texts"], *("\t".join(pair) for pair in said["pairs"])]
    for found, row in zip(run.n_best(lines, num_outputs=3), want["logits"], strict=True):
        best = np.argsort(-row)
        assert [one.text for one in found] == [said["labels"][i] for i in best]
        chances = np.exp(row - np.logaddexp.reduce(row))[best]
        np.testing.assert_allclose([one.score for one in found], chances, rtol=1e-5)


def test_a_class_without_a_search_has_none(tmp_path):
    keys = {"num_beams": 3, "decoder_start_token_id": 0}
    directory = changed_copy(tmp_path, "bart_classification", keys)
    import_model(str(directory), tmp_path / "run")
    run = tj.load(tmp_path / "run")
    assert run.settings.decode == DecodeConfig() and run.settings.data.max_length == 28
    assert run.model.body.config.start_id == 0


@pytest.mark.parametrize("name", TAGGERS)
def test_logits_of_tags_are_those_of_the_published_model(run_of, name):
    run, want = run_of(name), expected(name)
    rows = [row[:n].tolist() for row, n in zip(want["tokens"], want["lengths"], strict=True)]
    found = run.task.probabilities(run.params, text_rows(run.task, rows))
    for probabilities, logits, row in zip(found, want["logits"], rows, strict=True):
        expected_log = jax.nn.log_softmax(logits[: len(row)])
        np.testing.assert_allclose(np.log(probabilities[: len(row)]), expected_log, atol=1e-5)
    said = json.loads((FIXTURES / name / "expected.json").read_text())
    assert {*run.task.tokenizers.labels("tags").names} == {*said["labels"]}
    if name == "bert_tagging":
        (tags,) = run.predict(["The dog runs"])
        assert len(tags.split()) == 3 and {*tags.split()} <= {*said["labels"]}


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_predictions_of_masks_are_those_of_the_published_model(run_of, name):
    run, want = run_of(name), expected(name)
    lines = json.loads((FIXTURES / name / "expected.json").read_text())["masked"]
    task, specials = run.task, run.tokenizer.specials("text")
    encode = run.tokenizer.text("text").encode
    rows = [specials.encoder.around(encode(line)) for line in lines]
    batch = text_rows(task, rows)
    places = batch["text_positions"]
    logits = jax.jit(run.model.apply)({"params": run.params}, *batch.values(), places)
    at_masks = np.asarray(jax.nn.softmax(logits))[batch["text"] == specials.mask]
    best = np.argsort(-at_masks, axis=1)[:, :5]
    np.testing.assert_array_equal(best, want["top5_ids"])
    chances = np.take_along_axis(at_masks, best, axis=1)
    np.testing.assert_allclose(chances, want["top5_probabilities"], rtol=1e-5)
    assert mask_text(task.tokenizers.text("text")) in lines[0]
    # The run predicts no special tokens; the other probabilities are renormalized.
    (found,) = run.n_best([lines[0]], num_outputs=5)
    likely = np.where(task.is_text, at_masks[0], 0)
    likely /= likely.sum()
    np.testing.assert_allclose([one.score for one in found], np.sort(likely)[:-6:-1], rtol=1e-5)
    assert mask_text(task.tokenizers.text("text")) not in found[0].text


@pytest.mark.parametrize(
    "name, same, ignored",
    [
        ("bert_gamma", "bert", "bert.pooler.dense.bias"),
        ("bert_pretraining", None, "cls.seq_relationship.weight"),
        ("gpt2_bare", "gpt2", "h.0.attn.bias"),
    ],
)
def test_older_files_give_the_same_models_and_ignored_tensors_are_logged(
    run_of, tmp_path, caplog, name, same, ignored
):
    with caplog.at_level("INFO", logger="transformer_jax"):
        import_model(str(FIXTURES / name), tmp_path / name)
    (message,) = (line for line in caplog.messages if line.startswith("ignored tensors"))
    assert ignored in message
    assert not any(line.startswith("newly") for line in caplog.messages)
    if same:
        params = tj.load(tmp_path / name).params
        jax.tree.map(np.testing.assert_array_equal, params, run_of(same).params)


@pytest.fixture
def bare_bert(tmp_path):
    """BERT saved as `BertModel`: without a head, and without the prefix of names."""
    directory = changed_copy(tmp_path, "bert", {"architectures": ["BertModel"]})
    tensors = load_file(directory / WEIGHTS)
    body = {name for name in tensors if name.startswith("bert.")}
    save_tensors({name.removeprefix("bert."): tensors[name] for name in body}, directory / WEIGHTS)
    return directory


def test_a_model_without_a_head_gets_a_new_one(run_of, bare_bert, tmp_path, caplog):
    with caplog.at_level("INFO", logger="transformer_jax"):
        import_model(str(bare_bert), tmp_path / "run")
    (message,) = (line for line in caplog.messages if line.startswith("newly initialized"))
    leaves = named_leaves(tj.load(tmp_path / "run").params)
    for path, leaf in named_leaves(run_of("bert").params).items():
        is_new = path.startswith("prediction_head/")
        assert (path in message) == is_new
        assert is_new or np.array_equal(leaves[path], leaf)


def test_provenance_has_the_published_model_and_its_tokenizers(workdir_of, tmp_path):
    workdir = shutil.copytree(workdir_of("bert"), tmp_path / "run")
    kept = Checkpoints(workdir / "checkpoints", CheckpointConfig()).snapshot().provenance
    assert kept["published model"] == str(FIXTURES / "bert")
    assert set(kept) >= {"tokenizer of text"}
    shutil.rmtree(workdir / "tokenizer")
    other = import_tokenizer(FIXTURES / "bert_gamma", "text")  # with the same size
    store_tokenizers("file", {"text": other}, workdir / "tokenizer")
    with pytest.raises(tj.UserError, match="was trained with another tokenizer of text"):
        tj.load(workdir)


def test_an_imported_model_can_be_fine_tuned_but_not_resumed(workdir_of, tiny, tmp_path, capsys):
    workdir = shutil.copytree(workdir_of("marian"), tmp_path / "run")
    kept = json.loads((workdir / "config.json").read_text())
    empty = tmp_path / "empty.py"
    empty.write_text("from ml_collections import ConfigDict\n\nget_config = ConfigDict\n")
    config = tj.config(empty, {"train.init_from": str(workdir)})
    assert kept["model"] == config.model.to_dict()
    assert (config.model.d_model, config.model.positions) == (16, "sinusoidal_halves")
    before = sorted(workdir.rglob("*"))
    data = [f"--config.{name}={tiny[name]}" for name in tiny if name.startswith("data.")]
    of_origin = f"--config.train.init_from={workdir_of('marian')}"
    words = ["train", f"--config={empty}", f"--workdir={workdir}", of_origin, *data]
    assert main(words) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert f"{workdir} holds a published model, without the state of a training" in errors[0]
    assert f"--config.train.init_from={workdir}" in errors[0]
    assert sorted(workdir.rglob("*")) == before


TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """Qwen2's fixture with a chat template and two end tokens."""
    ends = {"eos_token_id": [282, 280]}
    directory = changed_copy(tmp_path_factory.mktemp("chat"), "qwen2", generation=ends)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    import_model(str(directory), directory.parent / "run")
    return directory


def test_an_imported_model_can_be_talked_to(chat_model, workdir_of):
    run = tj.load(chat_model.parent / "run").with_config({"data.max_length": 200})
    assert run.tokenizer.specials("text").ends == (280,)
    chat = tj.Chat(run, max_extra_length=4)
    task, question = chat._run.task, (Turn("user", "Hello"),)
    text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert task.chat_tokenizer.encode_prompt(question) == run.tokenizer["text"].encode(text)
    generator = task.token_generator
    assert {generator.specials.eos, *generator.specials.ends} == {282, 280}
    # Any token ends the answer if all are declared as ends.
    specials = dataclasses.replace(generator.specials, ends=tuple(range(280)))
    output = Output(task.chat_tokenizer.encode_prompt(question), 1, 0)
    generator = dataclasses.replace(generator, specials=specials)
    [*generator.generate(run.params, [output], chat._decode)]
    assert len(output.tokens) == 1 and output.ended
    plain = tj.load(workdir_of("qwen2"))
    with pytest.raises(tj.UserError, match="has no chat template of its own; choose one by name"):
        tj.Chat(plain)
    tj.Chat(plain, "chatml")


def test_the_chat_template_and_the_end_tokens_are_exported_again(chat_model, tmp_path):
    run = tj.load(chat_model.parent / "run")
    export_run(run, tmp_path / "out", "hf")
    assert (tmp_path / "out/chat_template.jinja").read_text() == TEMPLATE
    generation = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert generation["eos_token_id"] == [282, 280]
    tuned = run.with_config({"task.name": "instruction", "task.template": "model"})
    export_run(tuned, tmp_path / "tuned", "hf")
    assert (tmp_path / "tuned/chat_template.jinja").read_text() == TEMPLATE


def test_generation_config_says_how_outputs_begin_and_end(tmp_path):
    keys = {"decoder_start_token_id": 0, "eos_token_id": 2, "forced_bos_token_id": 7}
    directory = changed_copy(tmp_path, "bart", generation=keys)
    import_model(str(directory), tmp_path / "run")
    specials = load_tokenizers(tmp_path / "run" / "tokenizer").specials("target")
    assert (specials.start, specials.eos, specials.translation.head) == (0, 2, (7,))
