# SPDX-License-Identifier: Apache-2.0
"""Removing heads: the curves, and what is refused."""

from types import SimpleNamespace

import numpy as np

from experiments import heads


def test_all_heads_are_ordered_least_important_first():
    importance = {
        "gradient": {"a": np.array([0.3, 0.1]), "b": np.array([0.2, 0.4])},
        "switching_off": {"a": np.array([-0.1, 0.5]), "b": np.array([0.0, 0.4])},
    }
    run = SimpleNamespace(
        workdir="run",
        settings=SimpleNamespace(seed=1),
        head_importance=lambda split, by: importance[by],
    )
    found = heads.orders(run)
    assert found["gradient"] == [("a", 1), ("b", 0), ("a", 0), ("b", 1)]
    assert found["switching_off"] == [("a", 0), ("b", 0), ("b", 1), ("a", 1)]
    assert list(found) == ["gradient", "switching_off", "random"]
    assert sorted(found["random"]) == sorted(found["gradient"])


def test_the_curves_have_deviations_over_runs(tmp_path):
    rows = ["run,order,removed,bleu"]
    rows += [f"{run},gradient,{n},{20 - n + run}" for run in (0, 2) for n in (0, 4)]
    table = tmp_path / "heads.csv"
    table.write_text("\n".join(rows) + "\n")
    curve = heads.curves(table)["gradient"]
    assert curve.index.tolist() == [0, 4]
    np.testing.assert_allclose(curve, [[21, 2**0.5], [17, 2**0.5]])
    heads.draw(table)
    assert table.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
