# SPDX-License-Identifier: Apache-2.0
"""Fields of dataclasses, and the options of components."""

import dataclasses
from functools import partial
from typing import Annotated, Literal

import pytest

from tests.refusals import assert_refused
from transformer_jax.fields import GIVEN, Configurable, Field, fields_of
from transformer_jax.ranges import Range, violation
from transformer_jax.registry import Registry


@dataclasses.dataclass(frozen=True)
class Options:
    size: int = 3
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Derived(Options):
    depth: int = 1


@dataclasses.dataclass(frozen=True)
class Section(Configurable):
    width: int = 8
    count: int | Literal["auto"] = "auto"
    computed: int = dataclasses.field(default=0, metadata=GIVEN)


@pytest.fixture
def layers():
    registry = Registry("model.made_up", {"plain": object})
    registry.reserve(["made_up", "width"])
    return registry


def test_fields_that_a_config_can_set():
    fields = fields_of("model", Section)
    assert fields == {
        "model.width": Field(int, (), 8),
        "model.count": Field(int, ("auto",), "auto"),
    }
    assert [fields["model.count"].typed(text) for text in ("4", "auto")] == [4, "auto"]
    assert fields_of("model.own", Options) == {
        "model.own.size": Field(int, (), 3),
        "model.own.rate": Field(float, (None,), None),
    }


def test_limits_may_be_those_of_a_type_and_none():
    @dataclasses.dataclass(frozen=True)
    class Own:
        size: Annotated[int | None, Range(1, 8)] = 2

    assert fields_of("model.own", Own) == {"model.own.size": Field(int, (None,), 2)}
    assert [violation(Own, "size", size) for size in (None, 3)] == [None, None]
    assert violation(Own, "size", 9) == "; it must lie in [1, 8]"


def test_options_are_found_by_their_class_and_otherwise_have_defaults():
    assert Section(4).options_of(Options) == Options()
    section = Section(options=(Derived(size=7), Options(size=5)))
    assert section.options_of(Options).size == 5 and section.options_of(Derived).size == 7
    assert Section(options=(Derived(size=7),)).options_of(Options) == Derived(size=7)
    again = dataclasses.make_dataclass("Options", [("size", int, 3)], frozen=True)
    again.__module__, again.__qualname__ = Options.__module__, "Options"
    assert section.options_of(again).size == 5  # a class that is defined again


def test_an_entry_declares_options_as_an_attribute_or_when_registered_and_gets_them(layers):
    @layers.register("first")
    class First:
        options = Options

    layers.register("second", dict, options=Derived)
    layers.restore(dict(layers))  # with their options
    assert [layers.options(name) for name in (*layers, "unknown")] == [None, Options, Derived, None]
    layers.register("second", dict)
    assert layers.options("second") is None
    assert layers.configured("plain", Section()) is object
    layers.register("scaled", lambda x, options: x * options.size, options=Options)
    assert layers.configured("scaled", Section(options=(Options(5),)))(2) == 10
    layers.restore({})
    assert layers.options("first") is None


frozen = partial(dataclasses.make_dataclass, frozen=True)
UNFIT = {
    "model.made_up: the options dict of 'x': it is no dataclass": dict,
    "the options Melted of 'x': it is not frozen": dataclasses.make_dataclass("Melted", []),
    "it has the field sizes of type <class 'list'>; it must be int, float, bool or str": frozen(
        "Lists", [("sizes", list, None)]
    ),
    "it has the field size without a default": frozen("Bare", [("size", int)]),
    "the option 'width' of 'x' has the name of the config field model.width": frozen(
        "Wide", [("width", int, 1)]
    ),
}


def test_options_that_are_no_config_fields_are_refused(layers):
    register = partial(layers.register, "x", object)
    assert_refused({words: partial(register, options=cls) for words, cls in UNFIT.items()})
    assert "x" not in layers


def test_a_name_that_cannot_hold_options_is_refused(layers):
    layers.register("twice", object, options=Options)
    other, late = Registry("model.other"), Registry("model.late")
    other.register("twice", object)
    late.register("width", object)
    twice = "model.made_up has options under the name 'twice' too"
    odd = "min_p_0.1"
    assert_refused(
        {
            "is the config field model.width; choose": lambda: layers.register("width", object),
            f"{odd!r} has options": lambda: layers.register(odd, object, options=Options),
            twice: lambda: other.register("twice", object, options=Options),
            "'width' is the config field": lambda: late.reserve(["width"]),
        }
    )
