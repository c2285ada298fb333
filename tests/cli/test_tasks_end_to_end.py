# SPDX-License-Identifier: Apache-2.0
"""Other tasks than translation through the command line: small configs on small texts."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.recorded import twenty_steps
from transformer_jax.checkpoints.step_folder import PARAMS, read_arrays, saved_arrays, step_folders

pytestmark = pytest.mark.usefixtures("shared_runs")
ROOT = Path(__file__).parents[2]
SMALL = {
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "model.max_length": 32,
    "model.dtype": "float32",
    "model.dropout_rate": 0.0,
    "data.max_length": 32,
    "optimizer.warmup_steps": 2,
    "train.num_steps": 8,
    "train.tokens_per_batch": 128,
    "eval.every_steps": 8,
    "decode.batch_size": 4,
    "checkpoint.every_steps": 4,
    "logging.every_steps": 2,
}
BERT_SIZES = {"model.d_model": 32, "model.d_ff": 64, "model.num_heads": 4, "model.max_length": 128}
"""Of the run `bert`."""
PLAIN = ("the", "film", "is", "very", "good", "bad", "and", "dull", "fine")


def words(config, workdir, changes):
    overrides = [f"--config.{name}={value}" for name, value in (SMALL | changes).items()]
    return ["train", f"--config={ROOT / 'configs' / config}.py", f"--workdir={workdir}", *overrides]


def params_of(workdir):
    folder = max(step_folders(Path(workdir) / "checkpoints").items())[1]
    stored = saved_arrays(folder, PARAMS)
    shapes = {n: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for n, leaf in stored.items()}
    return {name: np.asarray(leaf) for name, leaf in read_arrays(folder, PARAMS, shapes).items()}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Folder of texts: reviews with labels, sentences."""
    folder = tmp_path_factory.mktemp("text")
    for split in ("train", "valid"):
        lines = [f"the film is {how}\t{label}" for how, label in (("good", 1), ("bad", 0))] * 6
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
        (folder / f"{split}.txt").write_text((" ".join(PLAIN) + " .\n") * 20)
    return folder


def test_a_language_model_is_scored_by_loss_bits_and_words(shell, language_model, tiny):
    answer = shell("evaluate", f"--workdir={language_model.workdir}", "--split=valid")
    metrics = json.loads(answer.out)
    assert metrics.keys() >= {"loss", "perplexity", "bits_per_byte", "word_perplexity", "step"}
    assert metrics["loss"] == pytest.approx(np.log(metrics["perplexity"]))
    # Each character is one byte; the end of a line is one more token.
    lines = Path(tiny["data.valid_source"]).read_text().splitlines()
    encode = language_model.tokenizer.text("text").encode
    num_tokens = sum(len(encode(line)) + 1 for line in lines)
    expected = metrics["loss"] * num_tokens / np.log(2) / sum(map(len, lines))
    assert metrics["bits_per_byte"] == pytest.approx(expected)
    assert "predictions" not in {path.name for path in language_model.workdir.iterdir()}


def test_each_line_has_one_line_of_continuation(shell, language_model_workdir):
    words = ["predict", f"--workdir={language_model_workdir}"]
    lines = b"The old\nThe man\\nof\n\nThe dog sees a cat. The dog sees a cat.\n\xff"
    answer = shell(*words, stdin=lines)
    assert answer.status == 0 and answer.out.count("\n") == 5
    streamed = shell(*words, "--stream", stdin=b"The old\n")
    assert streamed.out == answer.out.split("\n")[0] + "\n"
    samples = ["--format=jsonl", "--num_outputs=3", "--temperature=1", "--stop=x|e"]
    outputs = json.loads(shell(*words, *samples, stdin=b"The").out)
    assert len(outputs["outputs"]) == 3
    assert not any("e" in output["text"] for output in outputs["outputs"])


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Workdir of a pre-trained encoder: that of tests/recorded, whose programs it shares."""
    folder = tmp_path_factory.mktemp("sentences")
    twenty_steps.write_text(folder)
    file, changes = twenty_steps.experiments(folder)["bert_small"]
    sizes = twenty_steps.SMALL | twenty_steps.PARALLEL["one"]
    tj.train(tj.config(ROOT / "configs" / f"{file}.py", sizes | changes), folder / "bert")
    return folder / "bert"


def test_a_pre_trained_encoder_may_be_frozen(shell, bert, text, tmp_path):
    workdir = tmp_path / "run"
    changes = {
        "data.name": "table",
        "data.train_text": text / "train.tsv",
        "data.valid_text": text / "valid.tsv",
        **BERT_SIZES,
        "train.init_from": bert,
        "optimizer.frozen": "^(embedding|input|encoder)/",
    }
    answer = shell(*words("cola", workdir, changes))
    assert answer.status == 0
    before, after = params_of(bert), params_of(workdir)
    head = {name for name in after if name.startswith(("pooler", "classifier"))}
    assert after.keys() - before.keys() == head and len(head) == 4
    for name in before.keys() & after.keys():
        np.testing.assert_array_equal(before[name], after[name])
    *_, record = (workdir / "metrics.jsonl").read_text().splitlines()
    assert json.loads(record).keys() >= {"accuracy", "f1", "matthews", "loss"}
    answer = shell("predict", f"--workdir={workdir}", stdin=b"the film is good\n\nbad\n")
    assert set(answer.out.split()) <= {"0", "1"} and answer.out.count("\n") == 3
    answer = shell(
        "score", f"--workdir={workdir}", f"--source={ROOT}/README.md", f"--target={ROOT}/README.md"
    )
    assert answer.status == 2 and "this run's task does not score pairs" in answer.err


def test_a_parser_starts_from_a_pre_trained_encoder(bert, tmp_path):
    """It trains on a mixture of two treebanks; the encoder is frozen."""
    trees = "(TOP (S (NP (DT the) (NN film)) (VP (VBZ is) (ADJP (JJ {})))))\n(TOP (ADJP (JJ {})))\n"
    for name, words_of_file in (("gold", ("good", "bad")), ("silver", ("dull", "fine"))):
        (tmp_path / f"{name}.mrg").write_text(trees.format(*words_of_file) * 4)
    changes = {
        **{name: value for name, value in SMALL.items() if name != "model.num_layers"},
        "model.positions": "learned",
        **BERT_SIZES,
        "model.max_length": 160,
        "model.num_decoder_layers": 1,
        "train.init_from": str(bert),
        "optimizer.frozen": "^(source_embedding|source_norm|source_positions|encoder)/",
        "optimizer.decay_steps": 8,
        "data.name": "bracketed_trees",
        "data.train_text": f"{tmp_path}/gold.mrg,{tmp_path}/silver.mrg",
        "data.valid_text": f"{tmp_path}/gold.mrg",
        "data.weights": "2,1",
        "data.max_source_length": 24,
        "data.max_target_length": 48,
        "decode.max_extra_length": 10,
    }
    del changes["data.max_length"]
    workdir = tmp_path / "run"
    tj.train(tj.config("parse_gum", changes), workdir, until=4)  # before any evaluation
    before, after = params_of(bert), params_of(workdir)
    np.testing.assert_array_equal(after["source_embedding/table"], before["embedding/table"])
    np.testing.assert_array_equal(after["source_norm/scale"], before["input/norm/scale"])
    positions = before["input/positions/table"] + before["input/token_types"][0]
    reach = len(positions)
    np.testing.assert_array_equal(after["source_positions/table"][:reach], positions)
    assert after["source_positions/table"][reach:].any()
    for name in before:
        if name.startswith("encoder/"):
            np.testing.assert_array_equal(after[name], before[name])


@pytest.fixture(scope="module")
def assistant(tmp_path_factory):
    """Workdir of a finished small run of configs/alpaca.py."""
    folder = tmp_path_factory.mktemp("alpaca")
    rows = [
        {"instruction": f"Say {word}.", "input": "", "output": word} for word in (*PLAIN, *PLAIN)
    ]
    (folder / "alpaca_data.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows * 4))
    changes = {"data.dir": str(folder), "data.max_length": 160, "model.max_length": 160}
    changes |= {"train.tokens_per_batch": 640, "decode.max_extra_length": 6}
    changes |= {"tokenizer.vocab_size": 300}
    config = tj.config(ROOT / "configs" / "alpaca.py", SMALL | changes)
    tj.train(config, folder / "run")
    return folder / "run"


def test_instructions_and_conversations_are_answered(shell, assistant):
    asked = {"messages": [{"role": "user", "content": 'Say "good".'}]}
    lines = f"Say film.\n{json.dumps(asked)}\n".encode()
    answer = shell("predict", f"--workdir={assistant}", "--format=jsonl", stdin=lines)
    found = [json.loads(line)["outputs"][0]["text"] for line in answer.out.splitlines()]
    assert answer.status == 0 and len(found) == 2
    assert found == shell("predict", f"--workdir={assistant}", stdin=lines).out.split("\n")[:-1]
    asked["messages"].append({"role": "assistant", "content": "good"})
    refused = shell("predict", f"--workdir={assistant}", stdin=json.dumps(asked).encode())
    assert refused.status == 2 and "line 1: the last turn is not the user's" in refused.err


def test_a_chat_reads_commands_and_continues_after_mistakes(shell, assistant):
    said = "Say film.\n/strange\n\n/system Be brief.\nSay a\\n.\n/reset\n" + "Say " * 400
    said += "\nSay film.\n/quit\nSay the.\n"
    answer = shell("chat", f"--workdir={assistant}", stdin=said.encode())
    assert answer.status == 0
    replies = answer.out.split("\n")[:-1]
    assert replies[0] == replies[-1]  # nothing is left of what was said before /reset
    assert "no command: /strange; /reset starts over" in answer.err
    assert "error: the conversation: the question has" in answer.err
