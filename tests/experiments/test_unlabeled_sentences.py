# SPDX-License-Identifier: Apache-2.0
import sys

from experiments import unlabeled_sentences
from experiments.unlabeled_sentences import sentences


def test_text_becomes_sentences_of_words():
    for text, expected in (
        ("Mr. Rose doesn't stop. Why?", "Mr. Rose does n't stop .|Why ?"),
        ('"Stop!" he said. (He left.) So', '" Stop ! "|he said .|( He left . )|So'),
        ("a well-known line\nwith 3.5\n\nTitle", "a well - known line with 3.5|Title"),
        (" role @-@ play , 1 @,@ 000 . J. K. 's <unk> ", "role - play , 1,000 .|J. K. 's <unk>"),
    ):
        assert [" ".join(words) for words in sentences(text)] == expected.split("|")


def test_sentences_of_the_training_split_are_drawn_once(tmp_path, monkeypatch, capsys):
    text = "The sea was calm. The sea was calm. A <unk> sat on it. Too short. We saw the sea."
    (tmp_path / "train.txt").write_text(text)
    data = ["--config.data.name=text", f"--config.data.train_text={tmp_path / 'train.txt'}"]
    command = ["--config=configs/lm_from_text.py", *data, "--count=10"]
    monkeypatch.setattr(sys, "argv", ["unlabeled_sentences", *command])
    unlabeled_sentences.main()
    drawn = sorted(capsys.readouterr().out.splitlines())
    assert drawn == ["The sea was calm .", "We saw the sea ."]
