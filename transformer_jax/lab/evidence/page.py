# SPDX-License-Identifier: Apache-2.0
"""HTML page of a comparison of runs."""

import base64
from typing import Any

from transformer_jax.lab.analysis.pages.document import asset, page
from transformer_jax.lab.evidence.comparison import Comparison
from transformer_jax.lab.pictures.style import rendered
from transformer_jax.scoring.statistics import SeedTest, mean_line

_STYLES = ("theme.css", "comparison.css")
_SCRIPTS = ("document.js", "comparison.js")


def comparison_page(found: Comparison) -> str:
    """A page of what differs, the tests, curves with bands, and examples side by side."""
    title = f"{', '.join(found.names[:-1])} and {found.names[-1]}"
    examples = [
        {
            "run": name,
            "metric": scores.metric,
            "first": scores.first,
            "second": scores.second,
            "difference": scores.difference,
            "interval": scores.interval,
            "p": scores.p,
            "differs": scores.differs,
            "test": scores.test,
        }
        for name, scores in found.over_examples
    ]
    curves = base64.b64encode(rendered(found.plot(), "svg")).decode()
    data = {
        "title": title,
        "runs": found.names,
        "differing": {name: list(map(str, values)) for name, values in found.differing.items()},
        "values": {
            metric: [mean_line(of_runs[name]) for name in found.names]
            for metric, of_runs in found.values.items()
        },
        "seeds": list(map(_seed_test, found.over_seeds)),
        "examples": examples,
        "curves": f"data:image/svg+xml;base64,{curves}",
        "disagreements": {
            name: [
                {
                    "example": {key: str(value) for key, value in disagreement.example.items()},
                    "outputs": disagreement.outputs,
                }
                for disagreement in disagreements
            ]
            for name, disagreements in found.disagreements.items()
        },
        "notes": list(found.notes),
    }
    styles, scripts = (list(map(asset, names)) for names in (_STYLES, _SCRIPTS))
    return page(title, asset("comparison.html"), styles, scripts, data)


def _seed_test(test: SeedTest) -> dict[str, Any]:
    difference = test.difference
    return {
        "run": test.name,
        "metric": test.metric,
        "mean": difference.mean,
        "low": difference.low,
        "high": difference.high,
        "adjusted": test.p_adjusted,
        "permutation": test.p_permutation,
        "needed": test.seeds_to_decide,
        "differs": test.differs,
    }
