# SPDX-License-Identifier: Apache-2.0
"""The loop of a night: takes proposals from its folder, tests each beside the baseline, and
promotes those that are better.

Any number of processes may work on one night; each continues where it, or another one, stopped.
"""

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import BusyError, UserError
from transformer_jax.lab.evidence.verdicts import changed_fields, stated_configs
from transformer_jax.lab.night.decision import ErrorControl, Judgements, judge
from transformer_jax.lab.night.definition import (
    BASELINE,
    RULES,
    Costs,
    Proposal,
    digest_of_file,
    load_night,
    read_proposals,
)
from transformer_jax.lab.night.jobs import JobError, Limits, run_job
from transformer_jax.lab.night.ledger import FINISH, Ledger, Line, Stage, Verdict
from transformer_jax.runs.config import resolve_file
from transformer_jax.runs.provenance import code_version
from transformer_jax.runs.user_modules import failing_as
from transformer_jax.runs.workdir import SWEEP, lock_workdir
from transformer_jax.runtime.files import remove
from transformer_jax.runtime.progress import set_title
from transformer_jax.scoring import require_direction
from transformer_jax.scoring.sequential import oriented
from transformer_jax.scoring.statistics import over_paired_seeds

WINNER = "winner"
_UNCLAIMED = (BASELINE, WINNER)
"""Names of rows that no process has claimed, as they are no proposals."""
_FINISHED = f"{FINISH}_"
"""Stage of the rows at the end of a night, before the number of promotions."""
_SECONDS_TO_START = 120  # a process: imports, data, compilation
_SEEDS_APART = 1000  # of successive baselines, more than any proposal is tested with
_REASONS = {
    "better": "the difference is above 0, at the level of this test",
    "screening": "its first seeds do not favour it",
    "not better": "no difference was found",
    "diverged": "the loss of every seed was no longer finite",
}

logger = logging.getLogger(__name__)


class Variant(NamedTuple):
    """A row of a night.

    Attributes:
      overrides: of the night's config.
      files: of components that proposals brought: path below the night's folder -> SHA-256.
      lines: of code in these files.
      stage: the baseline that it is measured beside.
    """

    name: str
    overrides: Mapping[str, Any]
    files: Mapping[str, str]
    lines: int
    stage: Stage

    def changed(self, by: Line) -> "Variant":
        """The variant with what a proposal changes."""
        return self._replace(
            overrides={**self.overrides, **by["overrides"]},
            files={**self.files, **by["files"]},
            lines=self.lines + by["lines"],
        )


class OpenNight:
    """A night under way.

    Args:
      folder: of the night.
      works: begin the night if it is new, which checks the baseline; else only read it.

    Attributes:
      night: its definition.
      ledger: what happened so far.

    Raises:
      UserError: the definition or the ledger cannot be used, the night began with another
        definition or is finished, or the baseline cannot train or fails its own oracles.
    """

    def __init__(self, folder: str | Path, *, works: bool = True) -> None:
        self.folder = Path(folder)
        night = load_night(self.folder)
        self.night = night
        self.control = ErrorControl(night.control, night.error_rate, night.proposals)
        self.ledger = Ledger(self.folder)
        settings = resolve_file(night.config, night.base, night.modules)
        require_direction(night.metric, night.better)
        self._first_seed = settings.seed
        asked = night.stated() | stated_configs({BASELINE: settings})[BASELINE]
        if works:
            self.ledger.require_open()
            if not self.ledger.lines:
                self._begin(asked)
        for line in self.ledger.lines[:1]:
            before = line["asked"]
            for name in changed_fields(before, asked):
                raise UserError(
                    f"night: {name} was {before.get(name)!r} when this night began, and is now "
                    f"{asked.get(name)!r}; restore it, or begin another night in a new folder"
                )

    def _begin(self, asked: Mapping[str, Any]) -> None:
        """Checks the baseline, and adds the first line."""
        start = time.monotonic()
        try:
            self._check(self.baseline(), verifies=True)
        except JobError as error:
            fails = "fails its own oracles" if error.rule == "oracles" else "cannot train"
            raise UserError(f"night: the baseline {fails}: {error}") from error
        seconds = time.monotonic() - start
        made_by = {"code": _package_here(), "computes": self._fingerprints()}
        with self.ledger.adding():
            if not self.ledger.lines:
                self.ledger.add("night", asked=asked, seconds=seconds, **made_by)

    def _fingerprints(self) -> dict[str, str]:
        """Fingerprints of what the first baseline computes, with the code that is here now."""
        first = self.baseline(0)
        return self.run("fingerprint", first, overrides=first.overrides)

    def require_same_code(self) -> None:
        """Raises UserError if the package was changed since the night began, so that rows are no
        longer comparable with those that were measured before."""
        first = self.ledger.lines[0]
        if first.get("code", _package_here()) == _package_here():
            return
        before = first["computes"]
        now = self._fingerprints()
        changed = [name for name in before if now.get(name) != before[name]]
        if changed:
            raise UserError(
                "night: transformer_jax was changed since this night began, and with it "
                f"{', '.join(changed)} of the baseline; restore its code, or begin another night "
                "in a new folder"
            )

    @property
    def number(self) -> int:
        """Number of the present baseline: of the proposals that were promoted."""
        return len(self.ledger.promoted)

    def baseline(self, number: int | None = None) -> Variant:
        """The present baseline, or that of a number.

        Raises:
          UserError: a component of a promoted proposal has changed.
        """
        number = self.number if number is None else number
        row = Variant(BASELINE, self.night.base, {}, 0, number)
        for line in self.ledger.promoted[:number]:
            row = row.changed(line)
        for name in self._changed(row.files):
            raise UserError(
                f"night: {self.folder / name} is part of the baseline and was changed; restore it, "
                "or begin another night in a new folder"
            )
        return row

    def open_proposals(self) -> list[Proposal]:
        """Reads the proposals that are not decided, in order of arrival."""
        decided = self.ledger.decided()
        proposals = read_proposals(self.folder)
        return [p for p in proposals if (p.name, p.digest) not in decided]

    def is_spent(self) -> bool:
        """Returns True if the budget is used up."""
        spent = self.ledger.spent()
        return any(spent[unit] >= most for unit, most in self.night.budget.items())

    # The walk of a proposal: decide_next, _decide, _start, _test, _end.

    def decide_next(self) -> Line | None:
        """Decides the first open proposal that no other process tests; returns its "end" line, or
        None if there is none or the budget is used up."""
        self.ledger.read()
        for proposal in self.open_proposals():
            lock = lock_workdir(self.folder / "runs" / "claimed" / proposal.row, SWEEP)
            with contextlib.suppress(BusyError), lock:
                self.ledger.read()
                if (proposal.name, proposal.digest) not in self.ledger.decided():
                    return self._decide(proposal)
        return None

    def _decide(self, proposal: Proposal) -> Line | None:
        """Decides a proposal; None if the budget is used up."""
        self.require_same_code()
        set_title(proposal.name)
        base = self.baseline()
        row = base.changed(proposal.stated)._replace(name=proposal.row)
        start = self.ledger.start_of(proposal, base.stage)
        try:
            if start is None:
                self._refuse_unread(proposal)
                if self.is_spent():
                    return None
                self._check(row, verifies=bool(proposal.files))
                start = self._start(proposal, base.stage)
            if start is None:  # the baseline has changed meanwhile
                return self._decide(proposal)
            return self._test(proposal, start, base, row)
        except JobError as error:
            if error.rule == "disk":
                for path in self._folder(row).glob("*"):
                    remove(path)
            refusal = {"verdict": Verdict.REFUSED, "rule": error.rule, "reason": str(error)}
            with self.ledger.adding():
                return self._end(proposal, start, **refusal, spent=error.spent)

    def _refuse_unread(self, proposal: Proposal) -> None:
        """Raises JobError if a proposal breaks a rule before anything is run."""
        if proposal.fault:
            raise JobError(*proposal.fault)
        for end in self.ledger.of_kind("end"):
            is_other = end["name"] == proposal.name and end["digest"] != proposal.digest
            if is_other and end["rule"] != "form":  # a file that could not be read may be mended
                reason = "a proposal of this name was decided; give this one a new name"
                raise JobError("name", reason)

    def _check(self, row: Variant, *, verifies: bool) -> None:
        """Raises JobError if a row cannot train, or an oracle of its components fails."""
        with _spending(runs=0):
            checked = self.run("check", row, overrides=row.overrides, verifies=verifies)
        if checked["failing"]:
            raise JobError("oracles", "; ".join(checked["failing"]))

    def _start(self, proposal: Proposal, number: Stage) -> Line | None:
        """Adds the line with which a test beside a baseline begins; None if that is no longer the
        present one."""
        with self.ledger.adding():
            if self.number != number:
                return None
            outcomes = self.ledger.tests()
            level = self.control.level(len(outcomes), outcomes)
            fields = {"name": proposal.name, "digest": proposal.digest, "baseline": number}
            return self.ledger.add("start", **fields, number=len(outcomes), level=level)

    def _test(self, proposal: Proposal, start: Line, base: Variant, row: Variant) -> Line | None:
        """Adds seeds until the proposal is decided; None if the budget is used up."""
        night = self.night
        for count in night.looks:
            if len(self.ledger.values(row.name, row.stage)) < count and self.is_spent():
                return None
            self.measure(base, night.looks[0])  # so that both have costs of as many seeds
            base_values = self.measure(base, night.looks[-1])
            values = self.measure(row, count)
            price = self._price(row, base)
            judgement = judge(
                oriented(values, night.better) - price,
                oriented(base_values, night.better),
                start["level"],
                night.smallest,
                night.looks,
            )
            logger.info("%s: gain %.4g of %d seeds", proposal.name, judgement.gain, count)
            if judgement.promotes or judgement.refuses:
                break
        rule = _rule_of(judgement, values, is_last=count == night.looks[-1])
        fields = {
            "rule": rule,
            "reason": _REASONS[rule],
            "difference": judgement.gain,
            "interval": [judgement.low, judgement.high],
            "seeds": count,
            "values": values,
            "price": price,
            "costs": self._costs(row),
        }
        with self.ledger.adding():
            verdict = Verdict.REFUSED
            if judgement.promotes:
                is_current = self.number == start["baseline"]
                verdict = Verdict.PROMOTED if is_current else Verdict.SUPERSEDED
            return self._end(proposal, start, verdict=verdict, **fields)

    def _end(self, proposal: Proposal, start: Line | None, **fields: Any) -> Line:
        """Adds the line of a proposal's end (within `adding`)."""
        test = {name: start and start[name] for name in ("number", "level", "baseline")}
        return self.ledger.add("end", **proposal.stated, **test, **fields)

    def _costs(self, row: Variant) -> Costs:
        """Costs of a row, of the first look alone, so that all looks test the same difference."""
        costs: Costs = self.ledger.measured(row.name, row.stage)[0]["costs"]
        return {**costs, "lines": row.lines}

    def _price(self, row: Variant, base: Variant) -> float:
        """The difference that a row must bring to be worth its costs."""
        if self.night.price is None:
            return 0.0
        with failing_as(f"night: price of {self.folder / 'night.py'} fails"):
            return float(self.night.price(self._costs(row), self._costs(base)))

    def measure(self, row: Variant, count: int) -> list[float]:
        """Values of a row's first seeds; trains and evaluates those that are not there.

        Raises:
          JobError: a proposal fails; the baseline: UserError.
        """
        # Another process may be measuring the baseline; it holds the lock of a proposal already.
        lock = lock_workdir(self._folder(row), SWEEP, wait=True)
        with lock if row.name in _UNCLAIMED else contextlib.nullcontext():
            self.ledger.read()
            before = len(self.ledger.values(row.name, row.stage))
            if before < count:
                try:
                    with _spending(count - before):
                        self._train(row, before, count)
                except JobError as error:
                    if row.name in _UNCLAIMED:
                        raise UserError(f"night: the {row.name} cannot train: {error}") from error
                    raise
        return self.ledger.values(row.name, row.stage)[:count]

    def _train(self, row: Variant, before: int, count: int) -> None:
        """Trains the seeds of a row from number `before` to `count`, evaluates them, and adds their
        values to the ledger."""
        stage = row.stage
        runs = count - before
        # At the end of a night the seeds that its next baseline would have: no test has used them.
        number = stage if isinstance(stage, int) else 1 + int(stage.removeprefix(_FINISHED))
        overrides = {**row.overrides, "seed": self._first_seed + _SEEDS_APART * number}
        folder = str(self._folder(row))
        trained = self.run("train", row, runs, overrides=overrides, folder=folder, seeds=count)
        workdirs = trained["workdirs"][before:]
        evaluated = self.run("evaluate", row, runs, workdirs=workdirs, split="valid")
        for line in self.ledger.measured(BASELINE, stage):  # same data and tokens as the baseline
            for rule, digest in evaluated["digests"].items():
                if line["digests"].get(rule, digest) != digest:
                    raise JobError(rule, f"its run differs: {RULES[rule][1]}")
        for name in self._changed(row.files):
            raise JobError("form", f"{name} was changed while it was tested")
        earlier = self.ledger.measured(row.name, stage)
        # The time of `trained` includes earlier seeds.
        seconds = trained["seconds"] - sum(line["spent"]["seconds"] for line in earlier)
        costs = {"seconds": seconds / runs, **trained["costs"]}
        below = [path.removeprefix(f"{self.folder}/") for path in workdirs]
        names = {"row": row.name, "baseline": stage, "workdirs": below}
        spent = {"runs": runs, "seconds": seconds}
        with self.ledger.adding():
            self.ledger.add("measured", **names, **evaluated, costs=costs, spent=spent)

    def run(self, kind: str, row: Variant, runs: int = 1, **arguments: Any) -> dict[str, Any]:
        """Runs a job of a row on `runs` runs. Code of proposals may open no files, and its jobs may
        take `night.slower` times as long as the baseline's."""
        night = self.night
        modules = self.modules(row)
        seconds = math.inf
        if row.name not in _UNCLAIMED:
            # Measured, as it depends on the model, and on who else computes here.
            if kind == "check":
                baseline_seconds = self.ledger.lines[0]["seconds"]
            else:
                baseline_seconds = self.ledger.measured(BASELINE, row.stage)[0]["costs"]["seconds"]
            seconds = _SECONDS_TO_START + night.slower * baseline_seconds * runs
        limits = Limits(seconds, night.gigabytes, self._folder(row))
        arguments |= {"config": night.config, "metric": night.metric}
        proposed = modules[len(night.modules) :]
        return run_job(kind, limits, **arguments, modules=modules, guarded=proposed)

    def modules(self, row: Variant) -> list[str]:
        """Files of components of a row: the night's own, then those of proposals."""
        proposed = [str((self.folder / name).resolve()) for name in row.files]
        return [*self.night.modules, *proposed]

    def _folder(self, row: Variant) -> Path:
        """Folder of a row's runs."""
        return self.folder / "runs" / str(row.stage) / row.name

    def _changed(self, files: Mapping[str, str]) -> list[str]:
        """The files of components, by their digests, that are not what they were."""
        return [name for name in files if digest_of_file(self.folder / name) != files[name]]


def _package_here() -> str:
    """Version and digest of the package as its files are now, which jobs will execute."""
    return code_version.__wrapped__()


@contextlib.contextmanager
def _spending(runs: int) -> Iterator[None]:
    """Says in a JobError what the block has spent, on a number of runs."""
    start = time.monotonic()
    try:
        yield
    except JobError as error:
        error.spent = {"runs": runs, "seconds": time.monotonic() - start}
        raise


def _rule_of(judgement: Judgements, values: list[float], *, is_last: bool) -> str:
    """The rule that ended a test, a key of `_REASONS`."""
    if judgement.promotes:
        return "better"
    if not any(map(math.isfinite, values)):
        return "diverged"
    return "not better" if is_last else "screening"


def decide_proposals(folder: str | Path) -> Iterator[Line]:
    """Decides proposals until none is open or the budget is used up; yields the line of each.

    Raises:
      UserError: as `OpenNight`.
      Stopped: a SIGTERM or an interrupt came; the same call continues.
    """
    yield from iter(OpenNight(folder).decide_next, None)


def finish_night(folder: str | Path) -> Line:
    """Trains the winner and the first baseline with fresh seeds, evaluates both on held-out data
    (the test split), once, and ends the night; returns the "finish" line.

    Raises:
      UserError: as `OpenNight`.
    """
    night = OpenNight(folder)
    night.require_same_code()
    ledger = night.ledger
    number = night.number
    stage = f"{_FINISHED}{number}"
    rows = [night.baseline(0)._replace(stage=stage)]
    if number:
        rows.append(night.baseline()._replace(name=WINNER, stage=stage))
    count = night.night.finish_seeds
    values: dict[str, dict[str, Any]] = {"valid": {}, "test": {}}
    for row in rows:
        values["valid"][row.name] = night.measure(row, count)
    with ledger.adding():  # while the test split is open, no other process promotes
        if night.number == number:
            for row in rows:
                lines = ledger.measured(row.name, stage)
                below = [path for line in lines for path in line["workdirs"]]
                workdirs = [path and str(night.folder / path) for path in below[:count]]
                tested = night.run("evaluate", row, count, workdirs=workdirs, split="test")
                values["test"][row.name] = tested["values"]
            differences = _differences(values, night.night.better)
            return ledger.add(FINISH, values=values, differences=differences, promoted=number)
    return finish_night(folder)  # of another winner, which was promoted meanwhile


def _differences(values: Mapping[str, Mapping[str, Any]], better: str) -> dict[str, Any]:
    """Split -> difference of the winner from the baseline with its 95% interval, positive if it is
    better; splits without values are left out."""
    differences = {}
    for split, of_rows in values.items():
        if WINNER in of_rows and None not in of_rows.values():
            first, second = (oriented(of_rows[row], better).tolist() for row in _UNCLAIMED)
            test = over_paired_seeds(first, second)
            differences[split] = {"difference": test.mean, "interval": [test.low, test.high]}
    return differences
