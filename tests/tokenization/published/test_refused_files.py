# SPDX-License-Identifier: Apache-2.0
"""Files of tokenizers that cannot be used are refused in one line."""

import json

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import PublishedTokenizer, import_tokenizer


@pytest.mark.parametrize(
    "content, message",
    [
        ([], "tokenizer.json has no model"),
        ({"model": []}, "tokenizer.json has no model"),
        ({"model": {"type": "BPE", "dropout": 0.1}}, "its model drops merges at random"),
    ],
)
def test_a_tokenizer_json_without_a_model_or_with_a_random_one_is_refused(
    tmp_path, content, message
):
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        import_tokenizer(tmp_path, "text")


def test_an_error_of_the_library_while_encoding_is_one_line(folder_of, tmp_path):
    content = json.loads((folder_of("roberta") / "tokenizer.json").read_text())
    vocab = {piece: i for piece, i in content["model"]["vocab"].items() if piece != "b"}
    content["model"] = {"type": "WordLevel", "vocab": vocab, "unk_token": "missing"}
    content["pre_tokenizer"] = {"type": "Whitespace"}
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < 4]
    content["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = PublishedTokenizer(import_tokenizer(tmp_path, "text"))
    with pytest.raises(UserError, match="the tokenizer cannot encode a text: ") as found:
        tokenizer.encode("zebra")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("merges", [[["aaaaa", "bbbbb"]], [["aaaaa", "a"]]])
def test_a_panic_while_reading_leaves_one_line_and_nothing_on_stderr(tmp_path, capfd, merges):
    """tokenizers 0.23 panics at a merge that is longer than any piece."""
    vocab = {"</s>": 0, "aaaaa": 1, "bbbbb": 2, "a": 3}
    content = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": vocab}}
    content["model"]["merges"] = merges
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="tokenizer.json: ") as found:
        import_tokenizer(tmp_path, "text")
    assert "\n" not in str(found.value) and capfd.readouterr().err == ""
