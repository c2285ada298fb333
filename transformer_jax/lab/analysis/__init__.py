# SPDX-License-Identifier: Apache-2.0
"""Looking inside a trained model: what it attends to, what it holds, and what a part of it does.

This package is above `runs`, which does not know it: importing it gives `Run` the methods of
`METHODS_OF_RUN`. What they compute with is imported when they are first asked for, so that a
training or a prediction does not.
"""

import pkgutil
import types
from typing import Any

from transformer_jax.runs.run import Run

METHODS_OF_RUN = {
    "attention": "analysis.activations:attention",
    "audit": "audit:audit_run",
    "errors": "analysis.tables:errors",
    "head_importance": "analysis.importance:head_importance",
    "hidden": "analysis.activations:hidden",
    "patch_grid": "analysis.patch_grid:patch_grid",
    "plot": "analysis.tables:plot",
    "tokens": "analysis.tables:tokens",
    "walk": "analysis.walk:walk",
}
"""Name of a method -> module of `lab`, and its function of a run and further arguments."""


class _Method:
    """A method that is a function of a module; the module is imported at the first access."""

    def __init__(self, place: str) -> None:
        self._place = f"transformer_jax.lab.{place}"

    def __get__(self, run: Run | None, cls: type[Run]) -> Any:
        function = pkgutil.resolve_name(self._place)
        return function if run is None else types.MethodType(function, run)


for _name, _place in METHODS_OF_RUN.items():
    setattr(Run, _name, _Method(_place))
