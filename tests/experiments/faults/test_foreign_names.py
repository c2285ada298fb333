"""The campaign of foreign names and addresses, short: nothing outside changes or is opened."""

import pytest

from experiments.faults import foreign_names
from transformer_jax.runtime import files


@pytest.fixture(autouse=True)
def odd_addresses(monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_ALLOW_ADDRESSES", "odd")


def test_foreign_names_are_refused_or_lead_below_the_folder():
    ended = dict(foreign_names.judge(number) for number in range(60))
    assert set(ended.values()) <= {"read", "refused"}
    assert len(ended) == len(foreign_names.READERS)


def test_the_campaign_finds_a_reader_that_trusts_names(monkeypatch):
    monkeypatch.setattr(files, "is_safe_name", lambda name: True)
    monkeypatch.setattr(files.Path, "is_relative_to", lambda path, folder: True)
    ended = {foreign_names.judge(number)[1].partition(":")[0] for number in range(60)}
    assert ended > {"read", "refused"}
