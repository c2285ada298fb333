# SPDX-License-Identifier: Apache-2.0
"""The campaign of foreign names and addresses, short: nothing outside changes or is opened."""

import pytest

from tests.campaigns.faults import foreign_names


@pytest.fixture(autouse=True)
def odd_addresses(monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_ALLOW_ADDRESSES", "odd")


def test_foreign_names_are_refused_or_lead_below_the_folder():
    ended = dict(foreign_names.judge(number) for number in range(60))
    assert set(ended.values()) <= {"read", "refused"}
    assert len(ended) == len(foreign_names.READERS)


@pytest.mark.parametrize(
    ("name", "ended"),
    [("../outside/file", "changed what is outside"), ("none/file", "traceback")],
)
def test_the_campaign_finds_a_reader_that_trusts_names(monkeypatch, name, ended):
    def trust(folder, draw):
        (folder / name).write_text("foreign")

    monkeypatch.setattr(foreign_names, "READERS", [trust])
    assert foreign_names.judge(0)[1].partition(":")[0] == ended
