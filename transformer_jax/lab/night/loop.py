# SPDX-License-Identifier: Apache-2.0
"""The loop of a night: takes proposals from its folder, tests each beside the baseline, and
promotes those that are better.

Any number of processes may work on one night; each continues where it, or another one, stopped.
"""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import BusyError, UserError
from transformer_jax.lab.evidence.verdicts import describe_machine, stated_configs
from transformer_jax.lab.night.decision import CONTINUE, PROMOTE, ErrorControl, decide_proposal
from transformer_jax.lab.night.definition import (
    DEFINITION,
    RUNS,
    load_night,
    sha256_of,
    stated,
)
from transformer_jax.lab.night.jobs import JobError, Limits, raise_if_stopped, run_job
from transformer_jax.lab.night.ledger import PROMOTED, REFUSED, SUPERSEDED, Ledger, Line, Stage
from transformer_jax.lab.night.proposals import BASELINE, RULES, Proposal, read_proposals
from transformer_jax.parallel import hosts
from transformer_jax.runs.config import resolve_file
from transformer_jax.runs.workdir import SWEEP, lock_workdir
from transformer_jax.runtime.files import remove
from transformer_jax.runtime.progress import set_title
from transformer_jax.scoring.sequential import Plan, decide

_POLL_SECONDS = 1.0
_SECONDS_TO_START = 120  # a process: imports, data, compilation
_SECONDS_TO_CHECK = 600
_SEEDS_APART = 1000  # of successive baselines, more than any proposal is tested with
FINISH = "finish"
WINNER = "winner"

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of a night: what it overrides in the config, and the files of its components."""

    overrides: Mapping[str, Any]
    modules: Sequence[str]


class OpenNight:
    """A night under way.

    Args:
      folder: of the night.
      begins: begin the night if it is new, which checks the baseline.

    Attributes:
      night: its definition.
      ledger: what happened so far.
      first_seed: of the first baseline.

    Raises:
      UserError: the definition or the ledger cannot be used, the night began with another
        definition, or the baseline cannot train or fails its own oracles.
    """

    def __init__(self, folder: str | Path, *, begins: bool = True) -> None:
        self.folder = Path(folder)
        self.night = load_night(self.folder)
        self._watched: dict[Path, str] = {}
        self.control = ErrorControl(self.night.control, self.night.error_rate)
        self.ledger = Ledger(self.folder)
        settings = resolve_file(self.night.config, self.night.base, self.night.modules)
        self.first_seed = settings.seed
        asked = stated(self.night, self.folder)
        asked["fields of the config"] = stated_configs({BASELINE: settings})[BASELINE]
        if begins and not self.ledger.lines:
            self._begin(asked)
        for line in self.ledger.lines[:1]:
            _require_same(line["asked"], asked)
        self._watched = self._digests()

    def _begin(self, asked: Mapping[str, Any]) -> None:
        """Checks the baseline, and adds the first line."""
        night = self.night
        variant = Variant(night.base, night.modules)
        try:
            failing = self._check(variant, self.folder, verifies=True)
        except JobError as error:
            raise UserError(f"night: the baseline cannot train: {error}") from error
        if failing:
            raise UserError(f"night: the baseline fails its own oracles: {'; '.join(failing)}")
        with self.ledger.adding():
            if not self.ledger.lines:
                machine = describe_machine()
                self.ledger.add("night", question=night.question, asked=asked, machine=machine)

    def _digests(self) -> dict[Path, str]:
        """Digests of the files that define the night and its baseline."""
        names: list[str | Path] = [
            self.folder / DEFINITION,
            self.night.config,
            *self.baseline().modules,
        ]
        paths = [Path(name) for name in names]  # a shipped config has no path
        return {path: sha256_of(path) for path in paths if path.is_file()}

    @property
    def number(self) -> int:
        """Number of the present baseline: of the proposals that were promoted."""
        return len(self.ledger.promoted)

    def baseline(self, number: int | None = None) -> Variant:
        """The present baseline, or that of a number.

        Raises:
          UserError: a component of a promoted proposal has changed.
        """
        overrides = dict(self.night.base)
        modules = list(self.night.modules)
        for line in self.ledger.promoted[:number]:
            overrides |= line["overrides"]
            for name, digest in line["files"].items():
                path = self.folder / name
                if sha256_of(path) != digest:
                    raise UserError(
                        f"night: {path} is part of the baseline and was edited; restore it, or "
                        "begin another night in a new folder"
                    )
                modules.append(str(path.resolve()))
        return Variant(overrides, modules)

    def is_spent(self) -> bool:
        """Returns True if the budget is used up."""
        spent = self.ledger.spent()
        return any(spent[unit] >= most for unit, most in self.night.budget.items())

    def open_proposals(self) -> list[Proposal]:
        """The proposals that are not decided, in the order in which they arrived."""
        decided = self.ledger.decided()
        proposals = read_proposals(self.folder)
        return [p for p in proposals if (p.name, p.digest) not in decided]

    def decide_next(self) -> Line | None:
        """Decides the first open proposal that no other process tests; returns its "end" line, or
        None if there is none or the budget is used up."""
        self.ledger.read()
        for proposal in self.open_proposals():
            self._require_unchanged()
            if proposal.fault:
                with self.ledger.adding():
                    if (proposal.name, proposal.digest) not in self.ledger.decided():
                        return self._end(proposal, None, REFUSED, *proposal.fault)
                continue
            with contextlib.suppress(BusyError), lock_workdir(self._folder(proposal.row), SWEEP):
                self.ledger.read()
                if (proposal.name, proposal.digest) not in self.ledger.decided():
                    line = self._decide(proposal)
                    if line is not None or self.is_spent():
                        return line
        return None

    def _folder(self, row: str, baseline: Stage | None = None) -> Path:
        """Folder of a row's runs beside a baseline, by default the present one."""
        number = self.number if baseline is None else baseline
        return self.folder / RUNS / str(number) / row

    def _require_unchanged(self) -> None:
        for path, digest in self._watched.items():
            if sha256_of(path) != digest:
                raise UserError(f"night: {path} was edited while the night ran; start it again")

    def _decide(self, proposal: Proposal) -> Line | None:
        number = self.number
        base = self.baseline()
        set_title(proposal.name)
        files = [str(file) for file in proposal.files]
        variant = Variant({**base.overrides, **proposal.overrides}, [*base.modules, *files])
        start = self.ledger.start_of(proposal.name, proposal.digest, number)
        try:
            if start is None:
                start = self._start(proposal, variant, number)
            return self._test(proposal, start, base, variant) if start else None
        except JobError as error:
            if error.rule == "disk":
                for path in self._folder(proposal.row, number).glob("*"):
                    remove(path)
            spent = {"runs": 0, "seconds": error.seconds}
            with self.ledger.adding():
                return self._end(proposal, start, REFUSED, error.rule, str(error), spent=spent)

    def _start(self, proposal: Proposal, variant: Variant, baseline: int) -> Line | None:
        """Checks a proposal, and adds the line with which its test begins; None if the baseline
        has changed meanwhile."""
        # The file of one that could not be read may be mended.
        others = [e for e in self.ledger.of_kind("end") if e["digest"] != proposal.digest]
        if proposal.name in {line["name"] for line in others if line["rule"] != "form"}:
            raise JobError("name", "a proposal of this name was decided; give this one a new name")
        folder = self._folder(proposal.row, baseline)
        failing = self._check(variant, folder, verifies=bool(proposal.files))
        if failing:
            raise JobError("oracles", "; ".join(failing))
        with self.ledger.adding():
            if self.number != baseline:
                return None
            outcomes = self.ledger.tests()
            return self.ledger.add(
                "start",
                name=proposal.name,
                digest=proposal.digest,
                number=len(outcomes),
                level=self.control.level(len(outcomes), outcomes),
                baseline=baseline,
            )

    def _check(self, variant: Variant, folder: Path, *, verifies: bool) -> list[str]:
        """Oracles that a row fails; raises JobError if it cannot train."""
        limits = Limits(_SECONDS_TO_CHECK, self.night.gigabytes, folder)
        return self._run(
            "check",
            limits,
            config=self.night.config,
            overrides=variant.overrides,
            modules=variant.modules,
            metric=self.night.metric,
            verifies=verifies,
        )["failing"]

    def _run(self, kind: str, limits: Limits, **arguments: Any) -> dict[str, Any]:
        """Runs a job; JobError also if what a proposal may not edit was edited meanwhile."""
        fault = None
        begun = time.monotonic()
        guarded = [path for path in arguments["modules"] if path not in self.night.modules]
        try:
            result = run_job(kind, limits, **arguments, guarded=guarded)
        except JobError as error:
            fault = error
        if self.ledger.lines and self.ledger.restored():
            fault = JobError("ledger", "the ledger was edited while it ran; it is restored")
        for path, digest in self._watched.items():
            if not path.exists() or sha256_of(path) != digest:
                fault = JobError("baseline", f"{path.name} was edited while it ran")
        if fault:
            fault.seconds = time.monotonic() - begun
            raise fault
        return result

    def _test(
        self, proposal: Proposal, start: Line, base: Variant, variant: Variant
    ) -> Line | None:
        """Adds pairs of seeds until the proposal is decided; None if the budget is used up."""
        number = start["baseline"]
        rows = {BASELINE: base, proposal.row: variant}
        for count in self.night.looks:
            if not self._measure(rows, number, count, proposal):
                return None
            costs = {name: self._costs(name, number) for name in rows}
            lines = sum(line["lines"] for line in self.ledger.promoted[:number])
            costs[BASELINE]["lines"] = lines
            costs[proposal.row]["lines"] = lines + proposal.lines
            price = 0.0
            if self.night.price is not None:
                price = float(self.night.price(costs[proposal.row], costs[BASELINE]))
            values = self.ledger.values(proposal.row, number)[:count]
            differences = paired_differences(
                values, self.ledger.values(BASELINE, number)[:count], self.night.sign
            )
            decision = decide_proposal(
                [difference - price for difference in differences],
                start["level"],
                self.night.smallest,
                self.night.looks,
            )
            logger.info("%s: %d pairs, %s", proposal.name, count, decision.verdict)
            if decision.verdict != CONTINUE:
                break
        rule = "better" if decision.verdict == PROMOTE else "not better"
        if not any(map(math.isfinite, values)):
            rule = "diverged"
        elif rule == "not better" and count == self.night.looks[0]:
            rule = "screening"
        fields = {
            "difference": decision.mean,
            "interval": [decision.low, decision.high],
            "pairs": count,
            "values": values,
            "price": price,
            "costs": costs[proposal.row],
        }
        with self.ledger.adding():
            verdict = PROMOTED if decision.verdict == PROMOTE else REFUSED
            if verdict == PROMOTED and self.number != number:
                verdict = SUPERSEDED
            line = self._end(proposal, start, verdict, rule, _REASONS[rule], **fields)
        self._watched = self._digests()
        return line

    def _costs(self, row: str, baseline: Stage) -> dict[str, float]:
        """Costs of a row at its first look, so that they are the same at all looks."""
        first = self.ledger.measured(row, baseline)[0]
        seconds = first["spent"]["seconds"] / first["spent"]["runs"]
        return {
            "seconds": seconds,
            "memory": first["memory"],
            "parameters": first["parameters"],
            "lines": 0,
        }

    def _measure(
        self, rows: Mapping[str, Variant], baseline: int, count: int, proposal: Proposal
    ) -> bool:
        """Trains and evaluates rows up to a number of seeds; False if the budget is used up."""
        ledger = self.ledger
        folder = self._folder(BASELINE, baseline)
        with lock_workdir(folder, SWEEP, wait=True):
            ledger.read()
            lacking = [name for name in rows if len(ledger.values(name, baseline)) < count]
            timed = bool(ledger.measured(BASELINE, baseline))
            # A component's code runs in a process of its own, and the baseline's time comes first.
            together = timed and not proposal.files
            if BASELINE in lacking:
                if self.is_spent():
                    return False
                group = lacking if together else [BASELINE]
                self.train({name: rows[name] for name in group}, baseline, count)
        lacking = [name for name in rows if len(ledger.values(name, baseline)) < count]
        if lacking and self.is_spent():
            return False
        if lacking:
            self.train({name: rows[name] for name in lacking}, baseline, count)
        return True

    def train(self, rows: Mapping[str, Variant], baseline: Stage, count: int) -> None:
        """Trains rows up to a number of seeds, evaluates them, and adds their values.

        Raises:
          JobError: a proposal fails; the baseline alone: UserError.
        """
        number = baseline if isinstance(baseline, int) else self.number + 1
        seed = self.first_seed + _SEEDS_APART * number
        before = {name: len(self.ledger.values(name, baseline)) for name in rows}
        runs = sum(count - number for number in before.values())
        limits = self._limits([*rows][-1], baseline, runs)
        modules = [*rows.values()][-1].modules
        try:
            trained = self._run(
                "train",
                limits,
                config=self.night.config,
                rows={name: {**row.overrides, "seed": seed} for name, row in rows.items()},
                folders={name: str(self._folder(name, baseline)) for name in rows},
                modules=modules,
                metric=self.night.metric,
                seeds=count,
            )
            for name in rows:
                self._evaluate(name, baseline, modules, trained, before[name])
        except JobError as error:
            if [*rows] == [BASELINE]:
                raise UserError(f"night: the baseline cannot train: {error}") from error
            raise

    def _limits(self, row: str, baseline: Stage, runs: int) -> Limits:
        """Limits of a job that trains or evaluates runs; none in time for the first baseline."""
        measured = self.ledger.measured(BASELINE, baseline)
        seconds = math.inf
        if measured and row != BASELINE:
            of_run = self._costs(BASELINE, baseline)["seconds"]
            seconds = _SECONDS_TO_START + self.night.slower * of_run * runs
        return Limits(seconds, self.night.gigabytes, self._folder(row, baseline))

    def _evaluate(
        self,
        row: str,
        baseline: Stage,
        modules: Sequence[str],
        trained: Mapping[str, Any],
        before: int,
    ) -> None:
        """Evaluates the seeds of a row that are new, and adds their values."""
        of_row = trained["rows"][row]
        diverged = of_row["diverged"][before:]
        workdirs = of_row["workdirs"][before:]
        finite = [path for path, is_lost in zip(workdirs, diverged, strict=True) if not is_lost]
        limits = self._limits(row, baseline, len(workdirs))
        evaluated: dict[str, Any] = {"values": [], "digests": {}}
        if finite:
            evaluated = self._run(
                "evaluate",
                limits,
                workdirs=finite,
                modules=modules,
                metric=self.night.metric,
                split="valid",
            )
        self._require_same_digests(baseline, evaluated["digests"])
        values = iter(evaluated["values"])
        measured = self.ledger.measured(row, baseline)
        seconds = of_row["seconds"] - sum(line["spent"]["seconds"] for line in measured)
        with self.ledger.adding():
            self.ledger.add(
                "measured",
                row=row,
                baseline=baseline,
                values=[None if is_lost else next(values) for is_lost in diverged],
                digests=evaluated["digests"],
                parameters=of_row["parameters"],
                memory=trained["memory"],
                workdirs=[path.removeprefix(f"{self.folder}/") for path in workdirs],
                spent={"runs": len(workdirs), "seconds": seconds},
            )

    def held_out(self, row: str, baseline: Stage, modules: Sequence[str]) -> list[float] | None:
        """Values of a measured row on the test split; None if the data have none."""
        workdirs: list[str] = []
        is_lost: list[bool] = []
        for line in self.ledger.measured(row, baseline):
            workdirs += [str(self.folder / path) for path in line["workdirs"]]
            is_lost += [value is None for value in line["values"]]
        result = self._run(
            "evaluate",
            Limits(math.inf, self.night.gigabytes, self._folder(row, baseline)),
            workdirs=[path for path, lost in zip(workdirs, is_lost, strict=True) if not lost],
            modules=modules,
            metric=self.night.metric,
            split="test",
        )
        if result["values"] is None:
            return None
        finite = iter(result["values"])
        values = [None if lost else next(finite) for lost in is_lost]
        return [math.nan if value is None else value for value in values]

    def _require_same_digests(self, baseline: Stage, digests: Mapping[str, str]) -> None:
        """Raises JobError if a row has not what it must share with the baseline."""
        for line in self.ledger.measured(BASELINE, baseline)[:1]:
            for rule, digest in digests.items():
                if rule in RULES and line["digests"].get(rule, digest) != digest:
                    raise JobError(rule, f"its run differs: {RULES[rule][1]}")

    def _end(
        self,
        proposal: Proposal,
        start: Line | None,
        verdict: str,
        rule: str,
        reason: str,
        **fields: Any,
    ) -> Line:
        """Adds the line of a proposal's end (within `adding`)."""
        files = {str(f.relative_to(self.folder.resolve())): sha256_of(f) for f in proposal.files}
        return self.ledger.add(
            "end",
            name=proposal.name,
            why=proposal.why,
            verdict=verdict,
            rule=rule,
            reason=reason,
            number=start["number"] if start else None,
            level=start["level"] if start else None,
            baseline=start["baseline"] if start else self.number,
            **fields,
            overrides=dict(proposal.overrides),
            files=files,
            lines=proposal.lines,
            digest=proposal.digest,
        )


_REASONS = {
    "better": "the difference is above 0, at the level of this test",
    "screening": "the first pairs do not favour it",
    "not better": "no difference was found",
    "diverged": "the loss of every seed was no longer finite",
}


def _require_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UserError if a night began with another definition; it names the first field."""
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            raise UserError(
                f"night: {name} was {before.get(name)!r} when this night began, and is now "
                f"{now.get(name)!r}; restore it, or begin another night in a new folder"
            )


def paired_differences(values: Sequence[float], base: Sequence[float], sign: int) -> list[float]:
    """Differences of pairs of seeds, positive where the values are better; infinite where one of
    the two diverged, 0 where both did."""
    differences = []
    for value, other in zip(values, base, strict=True):
        if math.isfinite(value) and math.isfinite(other):
            differences.append(sign * (value - other))
        else:
            differences.append(math.inf * (math.isfinite(value) - math.isfinite(other) or 0))
    return [0.0 if math.isnan(difference) else difference for difference in differences]


def decide_proposals(folder: str | Path, wait: float = 0.0) -> Iterator[Line]:
    """Decides proposals until none is open; yields the line of each.

    Args:
      wait: seconds to wait for another proposal, after the last one.

    Raises:
      UserError: as `OpenNight`; or the night is finished.
      Stopped: a SIGTERM or an interrupt came; the same call continues.
    """
    night = OpenNight(folder)
    _require_unfinished(night)
    last = time.monotonic()
    while True:
        line = night.decide_next()
        if line is not None:
            yield line
            last = time.monotonic()
        elif night.is_spent() or time.monotonic() >= last + wait:
            return
        else:
            with hosts.catch_stops() as stops:
                time.sleep(_POLL_SECONDS)
                raise_if_stopped(stops)


def finish_night(folder: str | Path) -> Line:
    """Trains the winner and the first baseline with fresh seeds, evaluates both on held-out data
    (the test split), once, and ends the night; returns the "finish" line.

    Raises:
      UserError: as `OpenNight`; or the night is finished.
    """
    night = OpenNight(folder)
    _require_unfinished(night)
    ledger = night.ledger
    rows = {BASELINE: night.baseline(0)}
    if night.number:
        rows[WINNER] = night.baseline()
    key = f"{FINISH}_{night.number}"
    count = night.night.finish_seeds
    values: dict[str, dict[str, Any]] = {}
    with lock_workdir(night.folder / RUNS / key, SWEEP):
        for name, row in rows.items():
            if len(ledger.values(name, key)) < count:
                night.train({name: row}, key, count)
        for name, row in rows.items():
            held_out = night.held_out(name, key, row.modules)
            values[name] = {"valid": ledger.values(name, key), "test": held_out}
    differences = {}
    for split in ("valid", "test") if WINNER in rows else ():
        of_rows = [values[name][split] for name in (WINNER, BASELINE)]
        if None not in of_rows:
            pairs = paired_differences(of_rows[0], of_rows[1], night.night.sign)
            # Both sides together 5%.
            look = decide(pairs, Plan((count,), error_rate=0.025))
            differences[split] = {"difference": look.mean, "interval": [look.low, look.high]}
    with ledger.adding():
        return ledger.add(FINISH, rows=values, differences=differences, promoted=night.number)


def _require_unfinished(night: OpenNight) -> None:
    if night.ledger.of_kind(FINISH):
        raise UserError(
            f"night: {night.folder} is finished, as its held-out data were opened; begin another "
            "night in a new folder, with its winner as the baseline"
        )
