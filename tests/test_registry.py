# SPDX-License-Identifier: Apache-2.0
"""Registries: lookup, registration, unknown names."""

import sys

import pytest

from tests.refusals import assert_refused
from transformer_jax.registry import Registry, imported, reload_registrations


@pytest.fixture
def colours():
    return Registry("model.colour", {"red": 1, "green": 2})


def test_entries_are_found_added_by_call_and_by_decorator_and_restored(colours):
    assert colours.find("green") == colours["green"] == 2
    before = dict(colours)
    assert colours.register("blue", 3) == 3
    assert colours.register("black")(4) == colours["black"] == 4
    assert list(colours) == ["red", "green", "blue", "black"] and len(colours) == 4
    assert colours.module_of("blue") == __name__ and colours.module_of("red") is None
    colours.restore(before)
    assert list(colours) == ["red", "green"]


def test_unknown_and_taken_names_are_refused(colours):
    nearest = "colour is 'gren', not one of red, green; did you mean green?"
    taken = "model.colour: the name 'red' is taken; choose another"
    assert_refused({nearest: lambda: colours.find("gren")})
    assert_refused({taken: lambda: colours.register("red", 5)})
    assert colours["red"] == 1


def test_a_module_can_register_its_name_again(colours):
    colours.register("blue", 3)
    colours.register("blue", 4)
    assert colours["blue"] == 4
    other = {"__name__": "other", "colours": colours}
    taken = "the name 'blue' is taken"
    assert_refused({taken: lambda: exec("colours.register('blue', 5)", other)})


def test_a_module_can_run_again_and_if_it_fails_the_registry_is_unchanged(colours):
    colours.register("blue", 3)
    colours.register("black", 4)
    with pytest.raises(SystemExit), reload_registrations(__name__):
        colours.register("blue", 5)
        raise SystemExit
    assert dict(colours) == {"red": 1, "green": 2, "blue": 3, "black": 4}
    assert colours.module_of("blue") == __name__
    with reload_registrations(__name__):
        assert list(colours) == ["red", "green"]
        colours.register("blue", 5)
    assert dict(colours) == {"red": 1, "green": 2, "blue": 5}


def test_an_imported_entry_is_the_function_or_method_that_it_names(tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text("class Adder:\n    def add(a, b=1): return a + b\n")
    monkeypatch.syspath_prepend(tmp_path)
    add = imported("late:Adder.add")
    assert "late" not in sys.modules
    assert add(2) == 3 and add(2, b=5) == 7
