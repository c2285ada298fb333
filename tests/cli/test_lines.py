# SPDX-License-Identifier: Apache-2.0
"""Examples as lines: line feeds within, and the ends of lines."""

import io
import json
import logging
import re
from types import SimpleNamespace
from typing import ClassVar

import pytest
import sacrebleu

from transformer_jax.cli.terminal import one_line, read_batches
from transformer_jax.data.config import DataConfig
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.files.text import open_blocks
from transformer_jax.runs.config import read_settings, save_json
from transformer_jax.runs.run import Run
from transformer_jax.tasks.interface import Prediction
from transformer_jax.tasks.translation import Translation
from transformer_jax.training.evaluation import Evaluator


def read_all(data, most=512):
    return list(read_batches(io.BytesIO(data), most=most))


def test_an_output_is_written_as_it_is_but_for_line_feeds_and_returns():
    for text in (r"\nabla \rho \\ 1\/2", "a\u2028b\x0bc\x85"):
        assert one_line(text) == text
    assert one_line("a\nb\r\nc") == r"a\nb\r\nc"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"a\r\nb\r\r\nc\rd\x0b\r", ["a", "b\r", "c\rd\x0b\r"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", ["\ufeffa"]),
        ("ä\u2028ö\n".encode(), ["ä\u2028ö"]),
    ],
)
def test_the_input_and_files_have_the_same_lines(data, lines, tmp_path):
    assert [line for batch in read_all(data) for line in batch] == lines
    assert [line for (line,) in read_all(data, most=1)] == lines
    if data:
        (tmp_path / "a.txt").write_bytes(data)
        path = str(tmp_path / "a.txt")
        assert list(TextLines(path)) == lines
        assert TextLines(path).text().removesuffix("\n") == "\n".join(lines)
        for megabytes in (1e-4, 1):
            config = DataConfig(documents="line", block_megabytes=megabytes)
            blocks = open_blocks(config, [path])
            documents = [text for i in range(len(blocks)) for text in blocks.documents(i)]
            assert documents == [line for line in lines if line.strip()]


def test_batches_have_at_most_the_given_size_and_long_lines_stay_whole():
    assert [len(batch) for batch in read_all(b"x\n" * 10, most=4)] == [4, 4, 2]
    assert read_all(b"a" * 3_000_000 + b"\nb\n") == [["a" * 3_000_000, "b"]]


def test_bytes_that_are_not_utf8_are_replaced_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="transformer_jax"):
        batches = read_all(b"fine\nalso\nM\xfcnchen\n", most=2)
    assert batches == [["fine", "also"], ["M\ufffdnchen"]]
    (message,) = caplog.messages
    assert message.startswith("line 3 of the input is not UTF-8 from byte 2 on")


class Copies(Translation):
    """A translator that copies its sources, with spaces for line ends and without each third word.

    A tokenizer that normalizes white space makes spaces of it, too.
    """

    def __init__(self):
        tokenizers = SimpleNamespace(sides=("source", "target"))
        for name, value in {"metric": "bleu", "tokenizers": tokenizers, "model": None}.items():
            object.__setattr__(self, name, value)

    lengths: ClassVar = {"source": 48, "target": 48}

    def predict(self, params, lines, decode, first_line=1):
        for line in lines:
            words = re.sub("[\r\u2028]", " ", line).split(" ")
            yield [Prediction(" ".join(words[:2] + words[3:]), 0.0)]


NOISE = [
    r"\alpha \nabla x \rho C:\new \\ 1\/2 \r end",
    "it sees\ra lone return and\r\rtwo",
    "a\u2028separator and\x85next line and\x0bform\x0cfeed here",
    "a byte order mark \ufeffwithin the line",
    "the last of a windows file \\n",
]


def test_predictions_score_as_evaluate_says(shell, monkeypatch, tmp_path, tiny_config):
    settings = read_settings(tiny_config())
    save_json(settings, tmp_path / "config.json")
    run = Run(settings, tmp_path, Copies(), {}, 1)
    monkeypatch.setattr("transformer_jax.runs.load.load", lambda *_, **__: run)
    monkeypatch.setattr(Evaluator, "loss_metrics", lambda self, params, frozen: {"loss": 1.0})
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(NOISE).encode())
    files = [f"--source={tmp_path}/a", f"--target={tmp_path}/a"]
    evaluated = json.loads(shell("evaluate", f"--workdir={tmp_path}", *files).out)
    stdin = (tmp_path / "a").read_bytes()
    predicted = shell("predict", f"--workdir={tmp_path}", stdin=stdin).out
    outputs = predicted.removesuffix("\n").split("\n")
    assert evaluated["num_examples"] == len(outputs) == len(NOISE)
    assert outputs[0] == r"\alpha \nabla \rho C:\new \\ 1\/2 \r end"
    own = sacrebleu.corpus_bleu(outputs, [NOISE]).score
    assert 40 < own < 95 and evaluated["bleu"] == pytest.approx(own, abs=1e-4)
