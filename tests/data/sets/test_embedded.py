# SPDX-License-Identifier: Apache-2.0
"""Set `synthetic_en_de`: the shipped pairs."""

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import SOURCES, open_split
from transformer_jax.errors import UserError


def test_training_uses_the_first_pairs():
    train = open_split(DataConfig(), "train")
    assert len(train) == 20_000
    assert train[0] == {
        "source": "If many sick sisters eat the cake, two students lose an interesting novel next "
        "to this hotel.",
        "target": "Wenn viele kranke Schwestern den Kuchen essen, verlieren zwei Studenten "
        "einen interessanten Roman neben diesem Hotel.",
    }
    assert open_split(DataConfig(synthetic_size=50), "train") == train[:50]


def test_other_splits_do_not_depend_on_the_training_size():
    splits = SOURCES["synthetic_en_de"].splits
    assert splits == ("train", "valid", "test", "test_combinations")
    for split in splits[1:]:
        held_out = open_split(DataConfig(synthetic_size=50), split)
        assert len(held_out) == 1000
        assert held_out == open_split(DataConfig(), split)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [("size", 20_001, "20001, but 20000 pairs are"), ("seed", 1, "1, but 0 is")],
)
def test_the_error_for_text_that_is_not_shipped_names_the_command(field, value, problem):
    config = DataConfig(**{f"synthetic_{field}": value})
    command = f"python -m experiments.grammar.write .*--{field}={value}"
    with pytest.raises(
        UserError, match=f"data.synthetic_{field} is {problem} shipped: .*{command}"
    ):
        open_split(config, "train")
