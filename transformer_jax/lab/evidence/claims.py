# SPDX-License-Identifier: Apache-2.0
"""Claims: statements about models as files, decided by a sequential test over seeds.

A claim file is Python with a docstring and a `get_claim()` that returns a dict with the fields of
`Claim`. Deciding it trains both rows with the seeds of the first look, tests, and adds seeds until
the test decides or the looks end. The verdict names everything that it depends on.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import UserError
from transformer_jax.lab.evidence import fingerprints, verdicts
from transformer_jax.lab.evidence.comparison import provenance_of, run_digests
from transformer_jax.lab.evidence.verdicts import STATISTIC
from transformer_jax.lab.report import Report, json_number
from transformer_jax.lab.sweeps.definition import Sweep, load_definition
from transformer_jax.lab.sweeps.results import PLACES, is_of_other_config
from transformer_jax.lab.sweeps.shared_folder import folder_name
from transformer_jax.lab.sweeps.sweep import run_sweep
from transformer_jax.runs import provenance
from transformer_jax.runs.config import load_json
from transformer_jax.runs.field_docs import as_override
from transformer_jax.runs.load import load
from transformer_jax.runs.outside import acts_outside
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.shipped import shipped_files, shipped_modules
from transformer_jax.runs.user_modules import Modules, load_modules, recorded_modules
from transformer_jax.runs.workdir import (
    CONFIG,
    RESULT,
    SWEEP,
    VERDICT,
    lock_workdir,
    open_for_writing,
    workdir_within,
)
from transformer_jax.runtime.files import write_atomic
from transformer_jax.scoring import require_direction, sequential
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
      published: metric -> what the source found for the first and the second row.
      name: of the file, set by `load_claim`.

    Raises:
      ValueError: there are not two rows or measures, or a field has no meaning.
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
    published: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    name: str = ""

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
        self.plan  # noqa: B018 raises ValueError

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the two sides: the rows, or the measures of the only row."""
        return tuple(self.measure if isinstance(self.measure, Mapping) else self.rows)

    @property
    def plan(self) -> sequential.Plan:
        """Plan of the sequential test."""
        return sequential.Plan(tuple(self.looks), self.smallest, self.error_rate)

    @property
    def identity(self) -> str:
        """Digest of what the claim states and tests; of functions the names count."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["published"]  # says what others found
        return verdicts.digest_of(_stated(fields))

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
        configs = self.sweep(1).with_base(overrides).configs()
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
    claim = load_definition(path, "claim", Claim)
    return dataclasses.replace(claim, name=Path(path).stem)


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
) -> Report:
    """Trains seeds until the claim is decided or its looks end; writes `NAME.verdict.json`, which
    the report has as JSON.

    Claims may share a workdir: rows of the same name and config are trained once. Where a row of
    this name and another config is there, the claim's rows are in a folder of its own name.

    Args:
      workdir: for the runs; a decision that stopped is resumed.
      overrides: config fields of both rows, such as `data.dir`.

    Raises:
      UserError: as `run_sweep`; or the workdir holds another claim of this name.
    """
    overrides = overrides or {}
    fields = {name: value for name, value in overrides.items() if name not in PLACES}
    asked = {"claim": claim.identity, STATISTIC: _statistic(claim), "overrides": fields}
    user_modules = load_modules(modules, workdir)
    claim = dataclasses.replace(claim, base={**claim.base, **overrides})
    configs = claim.configs({})
    require_direction(claim.metric, claim.better)
    with open_for_writing(workdir) as handle:
        path = handle.folder / f"{claim.name}.{VERDICT}".removeprefix(".")
        with lock_workdir(handle.folder, SWEEP):
            if path.exists() and verdicts.read_verdict(path)["asked"] != asked:
                raise UserError(
                    f"{path} is the verdict of another claim of this name, or of other overrides; "
                    "choose another --workdir, or delete the file to decide again with the runs "
                    "that are there"
                )
        folder = _rows_folder(claim, handle.folder, configs)
        values, seconds, decision = _decide(claim, folder, configs, modules, progress)
        verdict = {
            "name": claim.name,
            "statement": claim.statement,
            "source": claim.source,
            "verdict": decision.verdict,
            "metric": f"{claim.metric} ({claim.better} is better)",
            "smallest": claim.smallest,
            "difference": json_number(decision.mean),
            "interval": [json_number(decision.low), json_number(decision.high)],
            "published": {name: list(pair) for name, pair in claim.published.items()},
            "test": decision.test,
            "error_rate": claim.error_rate,
            "looks": list(claim.looks),
            "seeds": decision.seeds,
            "values": {name: list(map(json_number, side)) for name, side in values.items()},
            "command": _command(claim, overrides, modules),
            "seconds": round(seconds, 1),
            "asked": asked,
            "configs": verdicts.stated_configs(configs),
            "modules": [module.name for module in user_modules],
            "digests": _digests(claim, configs, modules, folder, decision.seeds),
            "machine": provenance.machine_provenance(),
        }
        write_atomic(path, json.dumps(verdict, indent=2) + "\n")
    return verdicts.verdict_report(verdict)


def _rows_folder(claim: Claim, workdir: Path, configs: Mapping[str, Settings]) -> Path:
    """Folder of a claim's rows: the workdir, which others share, or one in it."""
    for row, settings in configs.items():
        path = workdir / folder_name(row) / RESULT
        if is_of_other_config(path, claim.sweep(1).asked(settings)):
            return workdir_within(workdir, claim.name or "claim")
    return workdir


def _decide(
    claim: Claim, folder: Path, configs: Mapping[str, Settings], modules: Modules, progress: bool
) -> tuple[dict[str, list[float]], float, sequential.Look]:
    """Adds seeds until a look decides: values of each side, seconds, and the last decision."""
    values: dict[str, list[float]] = {name: [] for name in claim.sides}
    seconds = 0.0
    for start, count in itertools.pairwise([0, *claim.looks]):
        added, spent = _values(claim, range(start, count), folder, configs, modules, progress)
        for name in values:
            values[name] += added[name]
        seconds += spent
        first, second = (sequential.oriented(side, claim.better) for side in values.values())
        differences = sequential.paired_differences(first, second)
        decision = sequential.decide(differences.tolist(), claim.plan)
        interval = f"[{decision.low:.4g}, {decision.high:.4g}]"
        logger.info("%d seeds: %s, %.4g %s", count, decision.verdict, decision.mean, interval)
        if decision.verdict != sequential.UNDECIDED:
            break
    return values, seconds, decision


_VERSIONS = {
    provenance.LIBRARIES: ("jax version or XLA flag", fingerprints.PROGRAMS),
    provenance.PYTHON: ("Python version", (STATISTIC, "metrics", "loop")),
    provenance.PROCESSOR: ("processor, where the last bits may differ", ()),
    provenance.CORES: ("number of cores, where the last bits may differ", ()),
}
"""Parts of `machine_provenance`, and the fingerprints that cannot be compared with another one."""


class Freshness(NamedTuple):
    """Result of `check_claim`.

    Attributes:
      changed: parts that differ from those of the verdict.
      unchecked: why parts could not be compared; empty if all were.
    """

    changed: list[str]
    unchecked: str

    def __str__(self) -> str:
        if self.changed:
            state = f"out of date: {', '.join(self.changed)} changed"
            return state + (f"; not all was checked: {self.unchecked}" if self.unchecked else "")
        return self.unchecked or "fresh"


def check_claim(
    verdict: Mapping[str, Any],
    claim: Claim,
    overrides: Mapping[str, Any] | None = None,
    modules: Modules = (),
) -> Freshness:
    """Compares what a verdict's numbers were computed from with what is here now, without training:
    if nothing changed, they would be the same.

    Args:
      verdict: as `read_verdict` returns it.
      claim: the present claim.
      overrides: places of data (`data.dir`), for claims that read them; other fields are those of
        the verdict.
      modules: the user's own; shipped ones that the verdict names are added.
    """
    saved = {**verdict["digests"], "claim": verdict["asked"].get("claim")}
    if STATISTIC not in saved:
        return Freshness([], "decided before fingerprints; decide again")
    paths = [modules] if isinstance(modules, str | Path) else [*modules]
    shipped = shipped_modules()
    paths += [shipped[name] for name in verdict.get("modules", ()) if name in shipped]
    now = {"claim": claim.identity}
    changed_parts: list[str] = []
    unchecked = []
    try:
        load_modules(paths)
        configs = _configs_with_places(claim, verdict["asked"]["overrides"], overrides or {})
        before = verdict["configs"]
        stated = verdicts.stated_configs(configs)
        fields: set[str] = set()
        for row, fields_of_row in stated.items():
            fields |= {*verdicts.changed_fields(before.get(row, {}), fields_of_row)}
        changed_parts = [f"config ({', '.join(sorted(fields))})"] if fields else []
        now |= _fingerprints(claim, configs, paths)
    except UserError as error:
        unchecked.append(str(error))
    here = provenance.machine_provenance()
    there = verdict["machine"]
    incomparable: set[str] = set()
    for name, (title, depending) in _VERSIONS.items():
        if here.get(name) != there.get(name, here.get(name)):
            incomparable |= {*depending}
            unchecked.append(f"another {title} ({there[name]}; here: {here.get(name)})")
    unknown = [row for row in claim.rows if f"step of {row}" in now.keys() - saved.keys()]
    if unknown:
        rows = ", ".join(unknown)
        unchecked.append(f"{rows} were trained by other code or elsewhere, before the decision")
    of_runs = ("checkpoints", "config")
    gone = [name for name in saved if name not in now and _kind(name) not in of_runs]
    compared = [*(name for name in now if name in saved), *(gone if STATISTIC in now else [])]
    differing = [_kind(name) for name in compared if now.get(name) != saved[name]]
    changed = [name for name in differing if name not in incomparable]
    return Freshness([*dict.fromkeys([*changed_parts, *changed])], "; ".join(unchecked))


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


def _kind(name: str) -> str:
    """A digest's name without the row."""
    return name.partition(" of ")[0]


def _statistic(claim: Claim) -> str:
    """Fingerprint of the code that makes values of runs, and the verdict of values."""
    measures = claim.measure.values() if isinstance(claim.measure, Mapping) else [claim.measure]
    functions = [f for f in (*measures, claim.experiment) if f is not None]
    return fingerprints.code_fingerprint(
        *functions, sequential.oriented, sequential.paired_differences, sequential.decide
    )


def _fingerprints(
    claim: Claim, configs: Mapping[str, Settings], modules: Modules
) -> dict[str, str]:
    """Fingerprints of all that the claim's numbers are computed from (`fingerprints`).

    Raises:
      UserError: as `row_fingerprints`.
    """
    digests = {STATISTIC: _statistic(claim)}
    if claim.experiment is not None:
        return digests | {"programs": fingerprints.experiment_fingerprint(claim.experiment)}
    rows = fingerprints.row_fingerprints(configs, modules, claim.measure is not None)
    return digests | {f"{part} of {row}": rows[row][part] for row in rows for part in rows[row]}


def _values(
    claim: Claim,
    seeds: range,
    folder: Path,
    configs: Mapping[str, Settings],
    modules: Modules,
    progress: bool,
) -> tuple[dict[str, list[float]], float]:
    """Values of some seeds of each row, and the seconds to train and measure them.

    Seeds that are trained, by this claim or another one, are only read.
    """
    start = time.perf_counter()
    values: dict[str, list[float]] = {}
    if claim.experiment is not None:
        pairs = [claim.experiment(seed) for seed in seeds]
        for name, side in zip(claim.rows, zip(*pairs, strict=True), strict=True):
            values[name] = list(map(float, side))
        return values, time.perf_counter() - start
    rows = run_sweep(claim.sweep(seeds.stop), folder, modules=modules, progress=progress)
    start = time.perf_counter()  # the rows say how long they trained, now or earlier
    for row in rows:
        if claim.measure is None:
            of_row = row.metrics[claim.metric][seeds.start :]
            values[row.name] = [value for value in of_row if value is not None]
            if None in of_row:
                raise UserError(f"claim: {row.name} has no validation metric {claim.metric!r}")
            continue
        of_all = claim.measure
        measures = of_all if isinstance(of_all, Mapping) else {row.name: of_all}
        workdirs = _seed_workdirs(folder, row.name, configs[row.name], seeds.stop)[seeds.start :]
        values |= {name: [] for name in measures}
        for workdir, has_diverged in zip(workdirs, row.diverged[seeds.start :], strict=True):
            # The checkpoint of a seed that diverged is from before that: no measure of the seed.
            run = None if has_diverged else load(workdir, modules=modules)
            for name, measure in measures.items():
                values[name].append(math.nan if run is None else float(measure(run)))
    trained = sum(row.seconds for row in rows) * len(seeds) / seeds.stop
    return values, trained + time.perf_counter() - start


def _seed_workdirs(folder: Path, row: str, settings: Settings, count: int) -> list[Path]:
    """Workdirs of the first seeds of a row, wherever the sweep has put them; other seeds may be
    there, too, of the same row in another claim or from another first seed."""
    paths = (folder / folder_name(row)).glob(f"**/seed_*/{CONFIG}")
    workdirs = {load_json(path).seed: path.parent for path in paths}
    seeds = range(settings.seed, settings.seed + count)
    return [workdirs[seed] for seed in seeds if seed in workdirs]


def _digests(
    claim: Claim, configs: Mapping[str, Settings], modules: Modules, folder: Path, count: int
) -> dict[str, str]:
    """Digests of all that made the values; no fingerprints of a row that was trained otherwise."""
    trained_here = dict(configs)
    of_runs: dict[str, str] = {}
    for row, settings in configs.items():
        workdirs = _seed_workdirs(folder, row, settings, count)
        with contextlib.suppress(UserError):  # a row that diverged has no checkpoint
            of_row = run_digests(workdirs)
            if not all(map(_is_trained_here, workdirs)):
                del trained_here[row]
            of_runs |= {f"{part} of {row}": of_row[part] for part in ("checkpoints", "config")}
    fingerprints.of_row.cache_clear()  # files may have changed since this process read them
    return _fingerprints(claim, trained_here, modules) | of_runs


def _is_trained_here(workdir: Path) -> bool:
    """Returns True if a run's code, libraries, processor and modules are those of this process."""
    here = {**provenance.machine_provenance(), provenance.CODE: provenance.code_version()}
    saved = provenance_of(workdir)
    with contextlib.suppress(UserError):  # a module that it was given is not here
        is_same = load_modules((), workdir) == recorded_modules(workdir)
        return is_same and all(saved.get(name) == here[name] for name in here)
    return False


def _command(claim: Claim, overrides: Mapping[str, Any], modules: Modules) -> str:
    """The command of a decision, without the places of files on this machine."""
    words = ["transformer_jax", "claim", claim.name or "FILE", "--workdir=DIR"]
    for module in [modules] if isinstance(modules, str | Path) else modules:
        words.append(f"--modules={Path(module).name if Path(module).is_absolute() else module}")
    for name, value in overrides.items():
        words.append(f"--config.{name}={'DIR' if name in PLACES else as_override(value)}")
    return shlex.join(words)
