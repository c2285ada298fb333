# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md is complete, and equal to the output of its script."""

import runpy
from pathlib import Path

import pytest

from transformer_jax.registry import Registry
from transformer_jax.runs.settings import FIELDS, SECTIONS

SCRIPT = Path(__file__).parents[2] / "docs" / "write_configuration.py"


@pytest.fixture(scope="module")
def script():
    """The names of docs/write_configuration.py."""
    return runpy.run_path(str(SCRIPT))


def test_the_page_equals_the_output_of_the_script(script):
    kept = SCRIPT.with_name("configuration.md").read_text(encoding="utf-8")
    assert kept == script["page"](), "run: python docs/write_configuration.py"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_documented_in_its_docstring(script, section):
    described = [name for names in script["documented"](section) for name in names]
    fields = [name for name in FIELDS if name.startswith(f"{section}.")]
    assert len(described) == len(set(described))
    assert set(fields) <= set(described)


@pytest.mark.parametrize("section", SECTIONS)
def test_fields_of_one_entry_have_one_type_and_default(script, section):
    for names in script["documented"](section):
        assert len({FIELDS.get(name) for name in names}) == 1, names


def test_choices_name_existing_fields(script):
    for field, registry in script["CHOICES"].items():
        assert field in FIELDS
        assert not isinstance(registry, Registry) or registry.field == field
        assert FIELDS[field].default in {*registry, None}


def test_a_class_without_attributes_is_an_error(script):
    class Bare:
        """Says nothing of its fields."""

    with pytest.raises(ValueError, match="Bare has no Attributes"):
        script["attributes"](Bare)


def test_attributes_are_read_over_lines_and_by_many_names(script):
    class Example:
        """Sizes.

        Attributes:
          width, height: of the page: both
            in points.
          depth: none.

        Raises:
          ValueError: never.
        """

    assert script["attributes"](Example) == {
        ("width", "height"): "of the page: both in points.",
        ("depth",): "none.",
    }
