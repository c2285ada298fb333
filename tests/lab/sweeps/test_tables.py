# SPDX-License-Identifier: Apache-2.0
"""Tables of experiments: means, deviations and missing values."""

import csv
import dataclasses
import io
import math

import pytest

from transformer_jax.lab.report import difference_cells
from transformer_jax.lab.sweeps import tables
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.scoring import statistics

ROWS = [
    Row("base", {"loss": [1.0, 2.0, 3.0], "bleu": [30.0, 31.0, 32.5]}, 1_234_567, 9876.5, 90.0),
    Row("deep", {"loss": [2.5, math.nan, 2.5], "bleu": [None, None, None]}, 2_000_000, 100.0, 6.0),
]


def test_means_and_sample_deviations():
    assert ROWS[0].mean("loss") == 2.0 and ROWS[0].seeds == 3
    assert ROWS[0].deviation("loss") == 1.0  # over n - 1
    assert ROWS[1].mean("loss") == 2.5  # of the seeds that did not diverge
    assert "2.500 ± 0.000 (1 of 3 diverged)" in tables.as_text(ROWS)
    row = Row("one", {"loss": [1.5]}, 10, 1.0, 1.0)
    assert "±" not in tables.as_text([row]) and "1.500" in tables.as_text([row])
    assert math.isnan(row.deviation("loss"))


def test_text_has_columns_of_equal_width():
    head, base, deep, _ = tables.as_text(ROWS).splitlines()
    assert head.split() == ["loss", "bleu", "seeds", "parameters", "tokens/s", "time"]
    assert base.split("  ")[0] == "base" and "2.000 ± 1.000" in base and "31.17 ± 1.26" in base
    assert base.endswith("3   1,234,567     9,876  1.5 min")
    assert head.index("seeds") + 5 == base.index(" 3 ") + 2
    assert " - " in deep  # no such figure


def test_names_are_only_text():
    names = ["base", "<img src=x>", "[5cm]x", "*y"]
    rows = [Row(name, {"loss": [1.0]}, 1, 1.0, 1.0) for name in names]
    markdown = tables.as_markdown(rows)
    assert "<img" not in markdown and "&lt;img src=x&gt;" in markdown
    assert not any(line.startswith(("[", "*")) for line in tables.as_latex(rows).splitlines())
    lines = tables.as_latex(APART).splitlines()
    assert lines[:2] == [r"\begin{tabular}{lr}", r"\toprule"]
    assert r"worse\_1 & 3.000 $\pm$ 0.100 $\neq$ \\" in lines
    lines = tables.as_markdown(ROWS[:1]).splitlines()
    assert lines[1].startswith("| --- | ---: |")
    assert len({line.count("|") for line in lines}) == 1
    for times in ((math.inf, 1.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="must be finite"):
            Row("base", {"loss": [1.0]}, 1, *times)


APART = [
    Row("base", {"loss": [1.0, 1.1, 0.9]}, 10, 1.0, 1.0),
    Row("worse_1", {"loss": [3.0, 3.1, 2.9]}, 10, 1.0, 1.0),
    Row("close", {"loss": [1.0, 1.3, 0.9]}, 10, 1.0, 1.0),
]


def test_rows_of_the_same_seeds_are_pairs():
    base = Row("base", {"loss": [1.0, 2.0, 3.0]}, 10, 1.0, 1.0)
    shifted = Row("shifted", {"loss": [1.1, 2.12, 3.09]}, 10, 1.0, 1.0)
    (test,) = tables.differences([base, shifted])
    assert test.difference.test == "paired t" and test.differs
    assert "paired t over seeds" in tables.as_text([base, shifted])
    (test,) = tables.differences([base, shifted.first_seeds(2)])
    assert test.difference.test == "Welch" and not test.differs


def test_the_best_trial_of_a_search_is_tested_as_one_of_all_pairs():
    """Two rows differ from a base in two tests; three trials have three pairs."""
    trials = [dataclasses.replace(row, values={"model.d_ff": 8}) for row in APART]
    of_row, of_trial = tables.differences(APART)[0], tables.differences(trials)[0]
    assert of_trial.p_adjusted == pytest.approx(1.5 * of_row.p_adjusted)


def test_a_difference_that_no_number_of_seeds_decides_is_not_shown_as_decided():
    values = {"base": [1.0, 2.0, 3.1], "far": [11.0, 12.0, 13.2], "same": [2.0, 3.1, 1.0]}
    _, far, same = difference_cells(statistics.compare_seeds("loss", values))
    assert (far[-1], same[-1]) == ("-", "?")


def test_differences_have_intervals_and_the_seeds_that_would_decide():
    worse, close = tables.differences(APART)
    # t = 2 / sqrt(2 * 0.01 / 3) = 24.5 with four degrees of freedom; two tests
    assert worse.p_adjusted == pytest.approx(2 * 1.65e-5, rel=0.02) and worse.differs
    half = 2.776 * math.sqrt(2 * 0.01 / 3)
    assert worse.difference.low == pytest.approx(2 - half, rel=1e-3)
    assert not close.differs and close.seeds_to_decide > 3
    base_line, worse_line, close_line, legend = tables.as_text(APART).splitlines()[1:]
    assert "≠" in worse_line and "≠" not in base_line + close_line
    assert legend.startswith("≠ differs from base")
    assert f" {close.seeds_to_decide}" in tables.as_text_with_differences(APART).splitlines()[-1]
    assert tables.differences(APART[:1]) == [] and "≠" not in tables.as_text(APART[:1])

    interval = f"{worse.difference.low:.4g} to {worse.difference.high:.4g}"
    for form in (tables.as_text_with_differences, tables.as_markdown, tables.as_latex):
        text = form(APART)
        assert interval in text and f" {close.seeds_to_decide} " in text + " "
    base, first, second = csv.DictReader(io.StringIO(tables.as_csv(APART)))
    assert base["loss_low"] == "" and float(first["loss_low"]) == worse.difference.low
    assert first["loss_seeds_to_decide"] == ""
    assert second["loss_seeds_to_decide"] == str(close.seeds_to_decide)

    rows = list(csv.DictReader(io.StringIO(tables.as_csv(ROWS))))  # with all digits
    assert float(rows[0]["bleu_mean"]) == pytest.approx(93.5 / 3, rel=1e-12)
    assert rows[1]["bleu_mean"] == "" and rows[1]["row"] == "deep"
    assert rows[0]["parameters"] == "1234567"


def test_rows_show_their_table_and_are_still_a_list():
    rows = tables.Rows(ROWS)
    assert repr(rows) == tables.as_text(ROWS)
    assert rows == ROWS and rows[1].name == "deep"
    html = tables.Rows([Row("<b>", {"loss": [1.0]}, 1, 1.0, 1.0)])._repr_html_()
    assert "<td>&lt;b&gt;</td>" in html and "<td>1.000</td>" in html
    table = tables.Rows([*ROWS, Row("1", {"loss": [1.0]}, 1, 1.0, 1.0)]).table()
    assert list(table.index) == ["base", "deep", "1"]
    assert table.loc["base", "bleu_mean"] == pytest.approx(93.5 / 3, rel=1e-12)
    assert table.loc["base", "tokens_per_s"] == 9876.5
    assert math.isnan(table.loc["deep", "bleu_mean"])
