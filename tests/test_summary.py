# SPDX-License-Identifier: Apache-2.0
"""Summaries of objects in terminals and notebooks are short, and text in them is escaped."""

from transformer_jax.summary import MOST_LINES, Summarized, counted


class Shown(Summarized):
    def __init__(self, values):
        self.values = values

    def summary(self):
        return self.values


def test_a_summary_has_a_line_for_each_value():
    assert repr(Shown({"name": "a", "longer": 12})) == "Shown\n  name    a\n  longer  12"


def test_what_exceeds_the_lines_is_counted():
    lines = repr(Shown({f"row {i}": i for i in range(40)})).splitlines()
    assert len(lines) == MOST_LINES
    assert lines[-2:] == ["  row 9  9", "  ...    30 more"]


def test_a_value_is_one_short_line():
    words = ", ".join(f"field_{i}=value" for i in range(9))
    cut = repr(Shown({"text": words}))
    assert "field_2=value ... field_6=value" in cut
    line = repr(Shown({"text": "a\nb\x1b[2J" + "x" * 500})).splitlines()[1]
    assert "a b\\x1b[2J" in line and " ... " in line and len(line) < 120


def test_a_noun_is_singular_for_one():
    assert counted(1, "example") == "1 example"
    assert counted(2000, "example") == "2,000 examples"


def test_html_escapes_text():
    shown = Shown({"<b>": "<script>alert(1)</script>"})._repr_html_()
    assert "<script>" not in shown and "<b>&lt;" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown and "&lt;b&gt;" in shown
