# SPDX-License-Identifier: Apache-2.0
"""A plan measures how fast this machine packs the config's data, if they are here."""

import pytest

from tests.conftest import QUICKSTART
from transformer_jax.lab.plan import packing
from transformer_jax.runs.config import read_settings, resolve_file


def test_tokens_of_the_data_that_are_here_are_packed(tiny_config, monkeypatch):
    monkeypatch.setattr(packing, "_SECONDS", 0.05)
    assert packing.packing_speed(read_settings(tiny_config()))["tokens_per_s"] > 1000


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"data.name": "multi30k_en_de"}, "is not on this machine"),
        ({"data.name": "tfds", "data.tfds_name": "lm1b"}, "may have to be downloaded"),
    ],
)
def test_other_data_are_not_downloaded(fields, reason, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path))
    settings = resolve_file(QUICKSTART, fields)
    assert packing.packing_speed(settings)["reason"].endswith(reason)
    assert not list(tmp_path.iterdir())
