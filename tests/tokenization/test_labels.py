"""Labels have ids in order, and one never seen is named beside those that were."""

import pickle

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import Labels

TAGS = Labels(("B-PER", "I-PER", "O"))


def test_ids_are_the_places_of_names_and_come_back():
    assert [TAGS.encode(name) for name in ("B-PER", "I-PER", "O")] == [0, 1, 2]
    assert [TAGS.decode(i) for i in range(3)] == list(TAGS.names)
    assert len(TAGS) == TAGS.vocab_size == 3


def test_a_label_never_seen_is_named_with_the_known_ones():
    with pytest.raises(UserError) as caught:
        TAGS.encode("I-LOC")
    assert str(caught.value) == (
        "label 'I-LOC' was never seen in training; the labels are 'B-PER', 'I-PER', 'O'"
    )


def test_of_many_known_labels_a_few_are_named():
    with pytest.raises(UserError, match=r"are '000', '001', '002', '003', '004', ... \(900 in all"):
        Labels(tuple(f"{i:03}" for i in range(900))).encode("x")


@pytest.mark.parametrize("names", [(), ("a", "a"), (1, 2), (["a"],)])
def test_names_are_strings_that_differ(names):
    with pytest.raises(ValueError, match="labels must"):
        Labels(names)


@pytest.mark.parametrize("name", ["größer", "two words", 'a"\n', "\ud800", ""])
def test_written_labels_come_back(name):
    labels = Labels(tuple(sorted(("m", name))))
    assert Labels.from_json(labels.to_json()) == labels


def test_pickled_labels_are_the_same():
    assert pickle.loads(pickle.dumps(TAGS)).encode("O") == TAGS.encode("O") == 2


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"a": 1}', b'"ab"', b"[1]", b"[]", b"[" * 100_000, b"\xff", b"null"]
)
def test_what_is_no_list_of_labels_is_refused(content):
    with pytest.raises(ValueError, match=r"no list of labels|labels must"):
        Labels.from_json(content)
