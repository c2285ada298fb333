# SPDX-License-Identifier: Apache-2.0
"""Documentation of the config fields."""

import pytest

from transformer_jax.errors import UserError
from transformer_jax.runs.field_docs import documented, find_fields
from transformer_jax.runs.settings import FIELDS, SECTIONS, tables


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_documented_in_its_docstring(section):
    described = [name for names in documented(section) for name in names]
    fields = [name for name in FIELDS if name.startswith(f"{section}.")]
    assert len(described) == len(set(described))
    assert set(fields) <= set(described)
    for names in documented(section):  # of one entry have one type and default
        assert len({FIELDS.get(name) for name in names}) == 1, names


def test_fields_are_found_by_a_part_of_their_name_or_a_glob():
    assert [field.field for field in find_fields()] == [*tables().fields]
    assert [field.field for field in find_fields("beam_siz")] == ["decode.beam_size"]
    texts = [field.field for field in find_fields("data.*_text")]
    assert texts == ["data.train_text", "data.valid_text", "data.test_text"]
    with pytest.raises(UserError, match=r"'learnig_rate'; did you mean optimizer.learning_rate"):
        find_fields("learnig_rate")


def test_choices_come_from_registries_annotations_and_types():
    (positions,) = find_fields("model.positions")
    assert {"sinusoidal", "rotary"} <= set(positions.choices)
    assert positions.other_defaults["recurrent"] == "none"
    assert find_fields("norm_placement")[0].choices[:2] == ("post", "pre")
    assert find_fields("remove_traces")[0].choices == ("true", "false")
    assert find_fields("d_model")[0].choices == ()
    (size,) = find_fields("model.key_size")
    assert (size.type, size.default, size.choices) == ("int or none", None, ())
    assert find_fields("train.distillation.teacher")[0].chosen_by == "train.loss=distillation"
