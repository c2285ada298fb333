# SPDX-License-Identifier: Apache-2.0
"""Hostile tokenizer.json files are refused when they are read; well-known patterns are not."""

import json

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import PublishedTokenizer, import_tokenizer
from transformer_jax.tokenization.published.limits import check_limits, check_pattern

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{Lm}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}]?[\p{L}\p{M}]+"
GROUPED_DIGITS = r"(?<=\d)(?=(?:\d{3})+(?!\d))"


@pytest.mark.parametrize(
    "pattern", [GPT2, LLAMA3, GPT4O, DEEPSEEK, GROUPED_DIGITS, "[]a]+", "a{b}"]
)
def test_patterns_of_well_known_models_are_allowed(pattern):
    check_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+$", "(a|a)*b", "(?:a?){30}", "(a{1,30}){1,30}", "(?:a*)*", "a{1,3}{1,3}{1,3}"),
        *("a?" * 20 + "a" * 20, "a*a*a*$", r"(a)\1", "(?R)", r"(?<n>a)\g<n>", "(?~a)", "a{9999}"),
        *("(", "a)", "[a", "\\", "(" * 50 + ")" * 50),
    ],
)
def test_patterns_that_backtrack_without_bound_are_refused(pattern):
    with pytest.raises(ValueError, match="may take unlimited time"):
        check_pattern(pattern)


def replacement(content, pattern=None):
    return {"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}


@pytest.mark.parametrize("name, key", [("normalizer", "normalizers"), ("decoder", "decoders")])
def test_replacements_may_not_multiply_a_text(name, key):
    model = {"model": {"type": "BPE"}}
    check_limits({**model, name: {"type": "Sequence", key: [replacement("a" * 20)] * 2}})
    for steps in ([replacement("a" * 10)] * 3, [replacement("b" * 500, {"Regex": "c*"})]):
        with pytest.raises(ValueError, match=f"its {name} can make a text .* times as long"):
            check_limits({**model, name: {"type": "Sequence", key: steps}})


@pytest.mark.parametrize(
    "part, message",
    [
        ({"dropout": 0.1}, "dropout"),
        ({"max_input_chars_per_word": 10**9}, "max_input_chars_per_word is 1000000000"),
        ({"continuing_subword_prefix": "#" * 100}, "continuing_subword_prefix is longer"),
    ],
)
def test_a_model_may_not_be_random_or_slow(part, message):
    with pytest.raises(ValueError, match=message):
        check_limits({"model": {"type": "BPE", **part}})


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
