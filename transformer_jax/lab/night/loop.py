# SPDX-License-Identifier: Apache-2.0
"""The loop of a night: takes proposals from its folder, tests each beside the baseline, and
promotes those that are better.

Any number of processes may work on one night; each continues where it, or another one, stopped.
"""

import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import BusyError, UserError
from transformer_jax.lab.evidence.verdicts import stated_configs
from transformer_jax.lab.night.decision import ErrorControl, judge
from transformer_jax.lab.night.definition import load_night, stated
from transformer_jax.lab.night.jobs import JobError, Limits, run_job
from transformer_jax.lab.night.ledger import (
    FINISH,
    PROMOTED,
    REFUSED,
    SUPERSEDED,
    Ledger,
    Line,
    Stage,
)
from transformer_jax.lab.night.proposals import BASELINE, RULES, Proposal, read_proposals
from transformer_jax.runs.config import resolve_file
from transformer_jax.runs.workdir import SWEEP, lock_workdir
from transformer_jax.runtime.files import remove
from transformer_jax.runtime.progress import set_title
from transformer_jax.scoring.sequential import Plan, decide, oriented, paired_differences

WINNER = "winner"
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
    """A row of a night: its name, what it overrides in the config, the files of its components, and
    the baseline that it is measured beside."""

    name: str
    overrides: Mapping[str, Any]
    modules: Sequence[str]
    stage: Stage


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
        self._first_seed = settings.seed
        asked = stated(night) | stated_configs({BASELINE: settings})[BASELINE]
        if works and self.ledger.of_kind(FINISH):
            raise UserError(
                f"night: {folder} is finished, as its held-out data were opened; begin another "
                "night in a new folder, with its winner as the baseline"
            )
        if works and not self.ledger.lines:
            self._begin(asked)
        for line in self.ledger.lines[:1]:
            before = line["asked"]
            for name in {**before, **asked}:
                if before.get(name) != asked.get(name):
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
        with self.ledger.adding():
            if not self.ledger.lines:
                self.ledger.add("night", asked=asked, seconds=seconds)

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
                path = (self.folder / name).resolve()
                if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                    raise UserError(
                        f"night: {path} is part of the baseline and was changed; restore it, or "
                        "begin another night in a new folder"
                    )
                modules.append(str(path))
        return Variant(BASELINE, overrides, modules, self.number if number is None else number)

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
            lock = lock_workdir(self.folder / "runs" / "claimed" / proposal.row, SWEEP)
            with contextlib.suppress(BusyError), lock:
                self.ledger.read()
                if (proposal.name, proposal.digest) not in self.ledger.decided():
                    return self._decide(proposal)
        return None

    def _folder(self, row: Variant) -> Path:
        """Folder of a row's runs."""
        return self.folder / "runs" / str(row.stage) / row.name

    def _decide(self, proposal: Proposal) -> Line | None:
        """Decides a proposal; None if the budget is used up."""
        base = self.baseline()
        set_title(proposal.name)
        modules = [*base.modules, *(str((self.folder / name).resolve()) for name in proposal.files)]
        overrides = {**base.overrides, **proposal.overrides}
        variant = Variant(proposal.row, overrides, modules, base.stage)
        start = self.ledger.start_of(proposal, base.stage)
        try:
            if start is None:
                start = self._start(proposal, variant)
            if start is None:  # the baseline has changed meanwhile
                return self._decide(proposal)
            return self._test(proposal, start, base, variant)
        except JobError as error:
            if error.rule == "disk":
                for path in self._folder(variant).glob("*"):
                    remove(path)
            spent = {"runs": 0, "seconds": error.seconds}
            with self.ledger.adding():
                return self._end(proposal, start, REFUSED, error.rule, str(error), spent=spent)

    def _start(self, proposal: Proposal, variant: Variant) -> Line | None:
        """Checks a proposal, and adds the line with which its test begins; None if the baseline
        has changed meanwhile."""
        # The file of one that could not be read may be mended.
        ends = [end for end in self.ledger.of_kind("end") if end["rule"] != "form"]
        if proposal.fault:
            raise JobError(*proposal.fault)
        if any(e["name"] == proposal.name and e["digest"] != proposal.digest for e in ends):
            raise JobError("name", "a proposal of this name was decided; give this one a new name")
        self._check(variant, verifies=bool(proposal.files))
        with self.ledger.adding():
            if self.number != variant.stage:
                return None
            outcomes = self.ledger.tests()
            level = self.control.level(len(outcomes), outcomes)
            fields = {"name": proposal.name, "digest": proposal.digest, "baseline": variant.stage}
            return self.ledger.add("start", **fields, number=len(outcomes), level=level)

    def _check(self, row: Variant, *, verifies: bool) -> None:
        """Raises JobError if a row cannot train, or an oracle of its components fails."""
        checked = self.run("check", row, overrides=row.overrides, verifies=verifies)
        if checked["failing"]:
            raise JobError("oracles", "; ".join(checked["failing"]))

    def run(self, kind: str, row: Variant, runs: int = 1, **arguments: Any) -> dict[str, Any]:
        """Runs a job of a row on a number of runs. The baseline has all the time; components of
        proposals may not open files."""
        arguments |= {"config": self.night.config, "metric": self.night.metric}
        guarded = [path for path in row.modules if path not in self.night.modules]
        seconds = math.inf
        if row.name != BASELINE:
            # What a job takes depends on the model, and on who else computes here.
            if kind == "check":
                of_baseline = self.ledger.lines[0]["seconds"]
            else:
                of_baseline = self.ledger.measured(BASELINE, row.stage)[0]["costs"]["seconds"]
            seconds = _SECONDS_TO_START + self.night.slower * of_baseline * runs
        limits = Limits(seconds, self.night.gigabytes, self._folder(row))
        start = time.monotonic()
        try:
            return run_job(kind, limits, **arguments, modules=row.modules, guarded=guarded)
        except JobError as error:
            error.seconds = time.monotonic() - start
            raise

    def _test(self, proposal: Proposal, start: Line, base: Variant, row: Variant) -> Line | None:
        """Adds seeds until the proposal is decided; None if the budget is used up."""
        ledger = self.ledger
        night = self.night
        number = start["baseline"]
        lines = sum(line["lines"] for line in ledger.promoted[:number])
        if self.is_spent():
            return None
        self.measure(base, night.looks[0])  # so that costs are of as many seeds
        base_values = self.measure(base, night.looks[-1])
        for count in night.looks:
            if self.is_spent():
                return None
            values = self.measure(row, count)
            # At all looks the costs of the first one, so that all test the same difference.
            base_costs = ledger.measured(BASELINE, number)[0]["costs"] | {"lines": lines}
            costs = ledger.measured(row.name, number)[0]["costs"]
            costs = costs | {"lines": lines + proposal.lines}
            price = night.price(costs, base_costs) if night.price else 0.0
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
        verdict = PROMOTED if judgement.promotes else REFUSED
        rule = "better" if judgement.promotes else "not better"
        if not any(map(math.isfinite, values)):
            rule = "diverged"
        elif judgement.refuses and count < night.looks[-1]:
            rule = "screening"
        fields = {
            "difference": judgement.gain,
            "interval": [judgement.low, judgement.high],
            "seeds": count,
            "values": values,
            "price": price,
            "costs": costs,
        }
        with ledger.adding():
            if verdict == PROMOTED and self.number != number:
                verdict = SUPERSEDED
            return self._end(proposal, start, verdict, rule, _REASONS[rule], **fields)

    def measure(self, row: Variant, count: int) -> list[float]:
        """Values of a row's first seeds; trains and evaluates those that are not there.

        Raises:
          JobError: a proposal fails; the baseline: UserError.
        """
        # Another process may be measuring the baseline; it holds the lock of a proposal already.
        shared = row.name in (BASELINE, WINNER)
        lock = lock_workdir(self._folder(row), SWEEP, wait=True)
        with lock if shared else contextlib.nullcontext():
            self.ledger.read()
            if len(self.ledger.values(row.name, row.stage)) < count:
                try:
                    self._train(row, count)
                except JobError as error:
                    if shared:
                        raise UserError(f"night: the {row.name} cannot train: {error}") from error
                    raise
        return self.ledger.values(row.name, row.stage)[:count]

    def _train(self, row: Variant, count: int) -> None:
        """Trains a row up to a number of seeds, evaluates those that are new, adds their values."""
        stage = row.stage
        earlier = self.ledger.measured(row.name, stage)
        before = sum(line["spent"]["runs"] for line in earlier)
        number = stage if isinstance(stage, int) else self.number + 1
        trained = self.run(
            "train",
            row,
            count - before,
            overrides={**row.overrides, "seed": self._first_seed + _SEEDS_APART * number},
            folder=str(self._folder(row)),
            seeds=count,
        )
        workdirs = trained["workdirs"][before:]
        runs = len(workdirs)
        evaluated = self.run("evaluate", row, runs, workdirs=workdirs, split="valid")
        for line in self.ledger.measured(BASELINE, stage)[:1]:
            for rule, digest in evaluated["digests"].items():
                if line["digests"].get(rule, digest) != digest:
                    raise JobError(rule, f"its run differs: {RULES[rule][1]}")
        seconds = trained["seconds"] - sum(line["spent"]["seconds"] for line in earlier)
        costs = {
            "seconds": seconds / runs,
            "memory": trained["memory"],
            "parameters": trained["parameters"],
        }
        below = [path.removeprefix(f"{self.folder}/") for path in workdirs]
        names = {"row": row.name, "baseline": stage, "workdirs": below}
        spent = {"runs": runs, "seconds": seconds}
        with self.ledger.adding():
            self.ledger.add("measured", **names, **evaluated, costs=costs, spent=spent)

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
        named = ("name", "why", "lines", "digest", "overrides", "files")
        test = {name: start[name] if start else None for name in ("number", "level", "baseline")}
        return self.ledger.add(
            "end",
            **{name: getattr(proposal, name) for name in named},
            **test,
            verdict=verdict,
            rule=rule,
            reason=reason,
            **fields,
        )


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
    ledger = night.ledger
    stage = f"{FINISH}_{night.number}"
    rows = [night.baseline(0)._replace(stage=stage)]
    if night.number:
        rows.append(night.baseline()._replace(name=WINNER, stage=stage))
    count = night.night.finish_seeds
    values: dict[str, dict[str, Any]] = {"valid": {}, "test": {}}
    for row in rows:
        values["valid"][row.name] = night.measure(row, count)
    for row in rows:  # nothing is left to train that could stop before the night ends
        below = [path for line in ledger.measured(row.name, stage) for path in line["workdirs"]]
        workdirs = [path and str(night.folder / path) for path in below[:count]]
        tested = night.run("evaluate", row, count, workdirs=workdirs, split="test")
        values["test"][row.name] = tested["values"]
    differences = {}
    for split, of_rows in values.items():
        if WINNER in of_rows and None not in of_rows.values():
            sides = [oriented(of_rows[name], night.night.better) for name in (WINNER, BASELINE)]
            plan = Plan((count,), error_rate=0.025)  # of each side: a 95% interval
            look = decide(paired_differences(sides[0], sides[1]).tolist(), plan)
            differences[split] = {"difference": look.mean, "interval": [look.low, look.high]}
    with ledger.adding():
        return ledger.add(FINISH, values=values, differences=differences, promoted=night.number)
