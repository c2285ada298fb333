# SPDX-License-Identifier: Apache-2.0
"""Definition of a night: a baseline, its goal, a budget and an error rate, as `night.py` states
them.

`night.py` in the folder of the night is Python with a `get_night()` that returns a dict with the
fields of `Night`.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.lab.evidence.fingerprints import code_fingerprint
from transformer_jax.lab.night.decision import CONTROLS, LOOKS
from transformer_jax.lab.sweeps.definition import load_definition
from transformer_jax.runs.user_modules import load_modules

type Costs = Mapping[str, float]
"""Costs of a row: "seconds" of a run, "memory" in bytes, "lines" of components, "parameters"."""


@dataclasses.dataclass(frozen=True)
class Night:
    """A baseline, and how proposals to change it are tested.

    Attributes:
      question: what the night looks for, in one sentence.
      config: the baseline's config, a file (relative to the folder of the night) or a shipped one.
      metric: validation metric that decides, of the trained parameters.
      better: "lower" or "higher" values of the metric.
      smallest: smallest difference of interest, in units of the metric.
      budget: {"runs": trainings of one seed} or {"seconds": of training}, or both: what the night
        may spend.
      error_rate: of the whole night.
      control: what the error rate bounds, an entry of `decision.CONTROLS`.
      proposals: planned number of proposals; more are possible, at lower levels.
      looks: numbers of seeds at which a proposal is tested; after the last it is refused. The
        baseline has the seeds of the last.
      base: overrides of the config for baseline and proposals.
      modules: files of components that the baseline needs, relative to the folder of the night.
      price: costs of a proposal and of the baseline -> the difference that the proposal must bring
        to be worth them, in units of the metric; None: costs do not count.
      slower: a proposal may train at most this many times as long as the baseline.
      gigabytes: a proposal may write at most this much.
      finish_seeds: fresh seeds of the winner and of the first baseline, at the end.

    Raises:
      ValueError: a field has no meaning.
    """

    config: str
    smallest: float
    budget: Mapping[str, float]
    question: str = ""
    metric: str = "loss"
    better: str = "lower"
    error_rate: float = 0.05
    control: str = "alpha_spending"
    proposals: int = 100
    looks: Sequence[int] = LOOKS
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    modules: Sequence[str] = ()
    price: Callable[[Costs, Costs], float] | None = None
    slower: float = 3.0
    gigabytes: float = 10.0
    finish_seeds: int = 5

    def __post_init__(self) -> None:
        if self.better not in ("lower", "higher"):
            raise ValueError(f"better is {self.better!r}; it must be 'lower' or 'higher'")
        if self.control not in CONTROLS:
            raise ValueError(f"control is {self.control!r}; it must be {' or '.join(CONTROLS)}")
        if not self.budget or not set(self.budget) <= {"runs", "seconds"}:
            raise ValueError(f"budget is {self.budget!r}; write {{'runs': 200}} or 'seconds'")
        positive = {"smallest": self.smallest, "slower": self.slower, "gigabytes": self.gigabytes}
        for name, value in (positive | dict(self.budget)).items():
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value!r}; it is a number above 0")
        if not 0 < self.error_rate < 0.5:
            raise ValueError(f"error_rate is {self.error_rate}; it must be between 0 and 0.5")
        if not self.looks or self.looks[0] < 1 or sorted(set(self.looks)) != list(self.looks):
            raise ValueError(f"looks is {self.looks}; give increasing numbers of seeds from 1 on")
        for name, least in (("proposals", 1), ("finish_seeds", 2)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}; it is a number of at least {least}")


def load_night(folder: Path) -> Night:
    """Reads `night.py` in the folder of a night; its paths become absolute.

    Raises:
      UserError: there is no such file, it fails, or its fields are invalid.
    """
    path = folder / "night.py"
    if not path.is_file():
        raise UserError(f"night: {folder} holds no night.py with a get_night(): docs/nights.md")
    night = load_definition(path, "night", Night)
    config = folder / night.config
    modules = [str(folder.absolute() / module) for module in night.modules]
    place = str(config.absolute()) if config.is_file() else night.config
    return dataclasses.replace(night, config=place, modules=modules)


def stated(night: Night) -> dict[str, Any]:
    """Fields that must stay the same while a night is under way, in addition to its config.

    Its budget, limits and question may change.
    """
    tested = ("metric", "better", "smallest", "error_rate", "control", "proposals")
    return {name: getattr(night, name) for name in tested} | {
        "looks": list(night.looks),
        "modules": {module.name: module.sha256 for module in load_modules(night.modules)},
        "price": night.price and code_fingerprint(night.price),
    }
