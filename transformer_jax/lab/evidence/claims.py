# SPDX-License-Identifier: Apache-2.0
"""Claims: statements about models as files, decided by a sequential test over seeds.

A claim file is Python with a docstring and a `get_claim()` that returns a dict with the fields of
`Claim`. Deciding it trains both rows with the seeds of the first look, tests, and adds seeds until
the test decides or the looks end. The verdict names everything that it depends on.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.lab.evidence.comparison import provenance_of
from transformer_jax.lab.evidence.verdicts import (
    PLACES,
    Freshness,
    check_verdict,
    code_digests,
    describe_machine,
    digest_of,
    input_digests,
    read_verdict,
    stated_configs,
    without_words,
)
from transformer_jax.lab.sweeps.definition import Sweep, read_fields
from transformer_jax.lab.sweeps.results import last_validation
from transformer_jax.lab.sweeps.shared_folder import folder_name
from transformer_jax.lab.sweeps.sweep import run_sweep
from transformer_jax.runs.config import load_json
from transformer_jax.runs.field_docs import as_override
from transformer_jax.runs.load import load
from transformer_jax.runs.outside import acts_outside
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.shipped import find_file, shipped_files
from transformer_jax.runs.user_modules import Modules, load_modules
from transformer_jax.runs.workdir import (
    CONFIG,
    SWEEP,
    VERDICT,
    lock_workdir,
    open_for_writing,
    read_metrics,
)
from transformer_jax.runtime.files import read_regular, write_atomic
from transformer_jax.scoring.sequential import UNDECIDED, Decision, Plan, decide
from transformer_jax.suggestions import suggest
from transformer_jax.summary import Summarized

logger = logging.getLogger(__name__)


type Measure = Callable[[Run], float]


@dataclasses.dataclass(frozen=True, repr=False)
class Claim(Summarized):
    """A statement: the first row is better than the second.

    Attributes:
      statement: the claim in one sentence.
      config: config of both rows; empty with `experiment`.
      rows: the two rows, {name: overrides}; the first is claimed to be better. Or one row, with two
        measures.
      base: overrides of both rows.
      metric: validation metric at the end of training, or a name for what `measure` or `experiment`
        returns.
      better: "lower" or "higher" values of the metric.
      smallest: smallest difference of interest, in units of the metric.
      looks: numbers of seeds at which the claim is tested; the last is the budget.
      error_rate: of the whole procedure (`scoring.sequential.Plan`).
      measure: trained run -> value, in place of the validation metric. Of one row
        {name: such a function}: the two values of each run that are compared.
      experiment: seed -> values of the first and the second row, in place of training.
      source: where the statement is from.
      name, digest: of the file, set by `load_claim`; the digest leaves docstrings and comments out.

    Raises:
      ValueError: there are not two rows or measures, the rows are equal, or a field has no meaning.
    """

    statement: str
    rows: Mapping[str, Mapping[str, Any]]
    config: str = ""
    base: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metric: str = "loss"
    better: str = "lower"
    smallest: float = 0.0
    looks: Sequence[int] = (3, 5, 8, 12)
    error_rate: float = 0.05
    measure: Measure | Mapping[str, Measure] | None = None
    experiment: Callable[[int], tuple[float, float]] | None = None
    source: str = ""
    name: str = ""
    digest: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.measure, Mapping) and len(self.rows) != 1:
            raise ValueError("measure has several functions; they compare the runs of one row")
        if len(self.sides) != 2:
            field = "measure" if isinstance(self.measure, Mapping) else "rows"
            raise ValueError(f"{field} has {len(self.sides)} names; a claim compares two")
        if self.better not in ("lower", "higher"):
            raise ValueError(f"better is {self.better!r}; it must be 'lower' or 'higher'")
        if bool(self.config) == (self.experiment is not None):
            raise ValueError("a claim has either a config to train or an experiment")
        first, *others = map(dict, self.rows.values())
        if self.experiment is None and first in others:
            raise ValueError("the rows are equal; there is nothing to decide")
        self.plan  # noqa: B018 raises ValueError

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the two sides: the rows, or the measures of the only row."""
        return tuple(self.measure if isinstance(self.measure, Mapping) else self.rows)

    @property
    def plan(self) -> Plan:
        """Plan of the sequential test."""
        return Plan(tuple(self.looks), self.smallest, self.error_rate)

    @property
    def identity(self) -> str:
        """Digest of what the claim states and tests, and of its file."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return digest_of(_stated(fields))

    def sweep(self, seeds: int) -> Sweep:
        """Both rows with a number of seeds, as a sweep."""
        metrics = [self.metric] if self.measure is None else []
        return Sweep(self.config, self.rows, self.base, seeds, metrics)

    def configs(self, overrides: Mapping[str, Any]) -> dict[str, Settings]:
        """Settings of each row; none for an experiment.

        Raises:
          UserError: a config is invalid, or the rows have the same.
        """
        if self.experiment is not None:
            return {}
        configs = self.sweep(1).configs(overrides)
        first, *others = configs.values()
        if first in others:
            raise UserError(
                f"claim {self.name}: the rows {' and '.join(configs)} have the same config; there "
                "is nothing to decide"
            )
        return configs

    def summary(self) -> Mapping[str, Any]:
        """The statement and what is compared."""
        return {
            "statement": self.statement,
            "config": self.config or "an experiment",
            **self.rows,
            "metric": f"{self.metric}, {self.better} is better by at least {self.smallest}",
            "seeds": ", ".join(map(str, self.looks)),
        }


def _stated(value: Any) -> Any:
    """A value of a claim with the names of functions in place of the functions."""
    if isinstance(value, Mapping):
        return {name: _stated(member) for name, member in value.items()}
    return getattr(value, "__qualname__", "a function") if callable(value) else value


def load_claim(path: str | Path) -> Claim:
    """Reads a claim file; a shipped claim needs no path.

    Raises:
      UserError: there is no such file, it fails, or its fields are invalid.
    """
    fields = read_fields(path, "claim", Claim)
    content = read_regular(find_file(path, "claim"))
    try:
        digest = digest_of(without_words(content.decode()))
        return Claim(**fields, name=Path(path).stem, digest=digest)
    except (TypeError, ValueError) as error:
        raise UserError(f"claim file {path}: {error}") from error


def find_claims(paths: Sequence[str | Path] = ()) -> dict[str, Callable[[], Claim]]:
    """Shipped claims, and those of the files given, by name; each is read when it is called."""
    files = shipped_files("claim") | {Path(path).stem: Path(path) for path in paths}
    return {name: functools.partial(load_claim, path) for name, path in files.items()}


def decide_claim(
    claim: Claim,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    modules: Modules = (),
    *,
    progress: bool = True,
) -> dict[str, Any]:
    """Trains seeds until the claim is decided or its looks end; writes `NAME.verdict.json`.

    Claims may share a workdir: rows of the same name and config are trained once.

    Args:
      workdir: for the runs; a decision that stopped is resumed.
      overrides: config fields of both rows, such as `data.dir`.

    Returns:
      The verdict, as the file has it.

    Raises:
      UserError: as `run_sweep`; or the workdir holds another claim of this name, or a row of this
        name with another config.
    """
    overrides = overrides or {}
    fields = {name: value for name, value in overrides.items() if name not in PLACES}
    asked = {"claim": claim.identity, "overrides": fields}
    load_modules(modules, workdir)
    configs = claim.configs(overrides)
    with open_for_writing(workdir) as handle:
        path = handle.folder / f"{claim.name}.{VERDICT}".removeprefix(".")
        with lock_workdir(handle.folder, SWEEP):
            _require_same_claim(path, asked)
        values: dict[str, list[float]] = {name: [] for name in claim.sides}
        num_seeds = 0
        seconds = 0.0
        for count in claim.looks:
            seeds = range(num_seeds, count)
            num_seeds = count
            added, spent = _values(claim, seeds, handle.folder, overrides, modules, progress)
            for name in values:
                values[name] += added[name]
            seconds += spent
            decision = decide(_differences(claim, values), claim.plan)
            logger.info("%d seeds: %s", count, _decision_line(decision))
            if decision.verdict != UNDECIDED:
                break
        verdict = {
            "name": claim.name,
            "statement": claim.statement,
            "source": claim.source,
            "verdict": decision.verdict,
            "metric": f"{claim.metric} ({claim.better} is better)",
            "smallest": claim.smallest,
            "difference": _finite(decision.mean),
            "interval": [_finite(decision.low), _finite(decision.high)],
            "test": decision.test,
            "error_rate": claim.error_rate,
            "looks": list(claim.looks),
            "seeds": decision.seeds,
            "values": {name: list(map(_finite, side)) for name, side in values.items()},
            "command": _command(claim, overrides, modules),
            "seconds": round(seconds, 1),
            "asked": asked,
            "configs": stated_configs(configs),
            "digests": {
                **code_digests(),
                **input_digests(configs, modules),
                **_tokenizers(handle.folder, configs),
            },
            "machine": describe_machine(),
        }
        write_atomic(path, json.dumps(verdict, indent=2) + "\n")
    return verdict


def check_claim(
    verdict: Mapping[str, Any],
    claim: Claim,
    overrides: Mapping[str, Any] | None = None,
    modules: Modules = (),
) -> Freshness:
    """Says which parts that a verdict depends on have changed since.

    Args:
      verdict: as `read_verdict` returns it.
      claim: the present claim.
      overrides: places of data (`data.dir`), for claims that read them; other fields are those of
        the verdict.
    """
    fields = verdict["asked"]["overrides"]
    configs = functools.partial(_configs_with_places, claim, fields, overrides or {})
    return check_verdict(verdict, claim.identity, configs, modules)


def _configs_with_places(
    claim: Claim, fields: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Settings]:
    """Configs of the rows with overrides, except places that their data do not read.

    Raises:
      UserError: the verdict alone names data, or something else outside of the runs.
    """
    for name, value in fields.items():
        is_data = name.startswith("data.") and isinstance(value, str)
        if name not in overrides and (is_data or acts_outside(name, value)):
            raise UserError(
                f"only the verdict says {name}={value}, and it may come from strangers; if you "
                f"want it, repeat it: --config.{name}={shlex.quote(str(value))}"
            )
    rows = claim.configs(fields).values()
    unread = {name for row in rows for name in row.resolved.unread if name in PLACES}
    return claim.configs({**fields, **{k: v for k, v in overrides.items() if k not in unread}})


def _require_same_claim(path: Path, asked: Mapping[str, Any]) -> None:
    if path.exists() and read_verdict(path)["asked"] != asked:
        raise UserError(
            f"{path} is the verdict of another claim of this name, or of other overrides; choose "
            "another --workdir, or delete the file to decide again with the runs that are there"
        )


def _values(
    claim: Claim,
    seeds: range,
    folder: Path,
    overrides: Mapping[str, Any],
    modules: Modules,
    progress: bool,
) -> tuple[dict[str, list[float]], float]:
    """Values of some seeds of each row, and the seconds to train and measure them.

    Seeds that are trained, by this claim or another one, are only read.
    """
    start = time.perf_counter()
    if claim.experiment is not None:
        sides = zip(*(claim.experiment(seed) for seed in seeds), strict=True)
        returned = {
            name: list(map(float, side)) for name, side in zip(claim.rows, sides, strict=True)
        }
        return returned, time.perf_counter() - start
    sweep = claim.sweep(seeds.stop)
    rows = run_sweep(sweep, folder, overrides, modules=modules, progress=progress)
    start = time.perf_counter()  # the rows say how long they trained, now or earlier
    values: dict[str, list[float]] = {}
    for row in rows:
        workdirs = _seed_workdirs(folder, row.name, seeds.stop)[seeds.start :]
        values |= _row_values(claim, row.name, workdirs, modules)
    trained = sum(row.seconds for row in rows) * len(seeds) / seeds.stop
    return values, trained + time.perf_counter() - start


def _row_values(
    claim: Claim, row: str, workdirs: Sequence[Path], modules: Modules
) -> dict[str, list[float]]:
    """Values of a row's runs, for each side that they are measured for."""
    if claim.measure is None:
        return {row: [_final_value(workdir, claim.metric) for workdir in workdirs]}
    measures = claim.measure if isinstance(claim.measure, Mapping) else {row: claim.measure}
    runs = [load(workdir, modules=modules) for workdir in workdirs]
    return {name: [float(measure(run)) for run in runs] for name, measure in measures.items()}


def _final_value(workdir: Path, metric: str) -> float:
    """A metric of a seed's last validation; NaN if the seed diverged.

    Raises:
      UserError: its validations do not have the metric.
    """
    record = last_validation(read_metrics(workdir))
    if record and metric not in record:
        raise UserError(
            f"claim: {workdir} has no validation metric {metric!r}{suggest(metric, record)}"
        )
    value = record.get(metric)
    return math.nan if value is None else float(value)


def _seed_workdirs(folder: Path, row: str, count: int) -> list[Path]:
    """Workdirs of the first seeds of a row, wherever the sweep has put them."""
    paths = (folder / folder_name(row)).glob(f"**/seed_*/{CONFIG}")
    workdirs = {load_json(path).seed: path.parent for path in paths}
    return [workdirs[seed] for seed in sorted(workdirs)[:count]]


def _tokenizers(folder: Path, rows: Iterable[str]) -> dict[str, str]:
    """Digests of the tokenizers of each row; none for a row without a checkpoint."""
    digests: dict[str, str] = {}
    for row in rows:
        with contextlib.suppress(UserError):
            provenance = provenance_of(_seed_workdirs(folder, row, 1)[0])
            for part, digest in provenance.items():
                if "tokenizer" in part:
                    digests[f"{part} of {row}"] = digest
    return digests


def _differences(claim: Claim, values: Mapping[str, Sequence[float]]) -> list[float]:
    """Differences of the seeds, positive where the claim is right; infinite if a side diverged."""
    first, second = values.values()
    sign = 1 if claim.better == "higher" else -1
    worst = -sign * math.inf
    pairs = [
        tuple(value if math.isfinite(value) else worst for value in pair)
        for pair in zip(first, second, strict=True)
    ]
    return [0.0 if a == b else sign * (a - b) for a, b in pairs]  # both may be infinite


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _decision_line(decision: Decision) -> str:
    return f"{decision.verdict}, {decision.mean:.4g} [{decision.low:.4g}, {decision.high:.4g}]"


def _command(claim: Claim, overrides: Mapping[str, Any], modules: Modules) -> str:
    """The command of a decision, without the places of files on this machine."""
    words = ["transformer_jax", "claim", claim.name or "FILE", "--workdir=DIR"]
    for module in [modules] if isinstance(modules, str | Path) else modules:
        words.append(f"--modules={Path(module).name if Path(module).is_absolute() else module}")
    for name, value in overrides.items():
        words.append(f"--config.{name}={'DIR' if name in PLACES else as_override(value)}")
    return shlex.join(words)
