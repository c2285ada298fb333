# SPDX-License-Identifier: Apache-2.0
"""Definition of a night and its proposals, as its folder has them.

`night.py` is Python with a `get_night()` that returns a dict with the fields of `Night`. In the
folder `proposals` are

    NAME.json           {"why": "a sentence", "overrides": {"optimizer.name": "muon"}}
    NAME.py             a component; its docstring says why, OVERRIDES = {...} is read, not run
    NAME/               proposal.json, and the files of components

Names that begin with a dot or end in .partial are still being written.
"""

import ast
import contextlib
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.lab.evidence.fingerprints import code_fingerprint
from transformer_jax.lab.night.decision import CONTROLS, LOOKS
from transformer_jax.lab.sweeps.definition import load_definition
from transformer_jax.lab.sweeps.shared_folder import folder_name
from transformer_jax.runs.user_modules import load_modules
from transformer_jax.runtime.files import parse_json, read_regular

_LONGEST_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9][\w-]{{0,{_LONGEST_NAME - 1}}}", re.ASCII)
BASELINE = "baseline"
"""Name of the baseline among the rows of a night; no proposal may have it."""

RULES: Mapping[str, tuple[str, str]] = {
    "seeds": (r"seed|data\.order_seed", "the night draws the seeds of all rows"),
    "budget": (
        r"train\.(num_steps|tokens_per_batch|accumulation_steps|rows_per_device|scale_to_data"
        r"|init_from|distillation\..*)"
        r"|eval\.patience",
        "a proposal trains as many steps on as many tokens as the baseline, from its own start",
    ),
    "data": (r"data\..*", "a proposal trains on the training data of the baseline"),
    "metric": (
        r"(task|eval|decode|tokenizer)\..*",
        "a proposal is measured as the baseline is: same task, tokens, search and examples",
    ),
    "outside": (
        r"(checkpoint|logging|parallel)\..*|train\.callbacks",
        "this field acts outside of the model and its training step",
    ),
}
"""Rule -> the config fields that a proposal may not set, and why."""

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

    def stated(self) -> dict[str, Any]:
        """Fields that must stay the same while a night is under way, in addition to its config.

        Its budget, limits and question may change.
        """
        tested = ("metric", "better", "smallest", "error_rate", "control", "proposals")
        return {name: getattr(self, name) for name in tested} | {
            "looks": list(self.looks),
            "modules": {module.name: module.sha256 for module in load_modules(self.modules)},
            "price": self.price and code_fingerprint(self.price),
        }


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


@dataclasses.dataclass(frozen=True)
class Proposal:
    """A proposal to change the baseline.

    Attributes:
      why: the sentence that comes with it.
      overrides: config fields that it sets.
      files: of its components: path below the night's folder -> SHA-256.
      digest: SHA-256 of all that states it.
      lines: of code of its components, without blank lines and comments.
      arrived: time at which it was written, in seconds.
      fault: (rule, reason) for which it is refused as it stands; empty if there is none.
    """

    name: str
    why: str
    overrides: Mapping[str, Any]
    files: Mapping[str, str]
    digest: str
    lines: int
    arrived: float
    fault: tuple[str, str] | tuple[()] = ()

    @property
    def row(self) -> str:
        """Name of its row among the runs; a changed proposal has another."""
        return f"{folder_name(self.name)[:_LONGEST_NAME]}-{self.digest[:8]}"

    @property
    def stated(self) -> dict[str, Any]:
        """Fields that every entry of the ledger about it has."""
        named = ("name", "why", "lines", "digest", "overrides", "files")
        return {name: getattr(self, name) for name in named}


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file; empty if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def rule_of(field: str) -> str:
    """Name of the rule that forbids to set a config field; empty if none does."""
    for rule, (pattern, _) in RULES.items():
        if re.fullmatch(pattern, field):
            return rule
    return ""


def read_proposals(folder: Path) -> list[Proposal]:
    """Reads the proposals in the folder of a night, in order of arrival."""
    proposals: list[Proposal] = []
    for path in (folder / "proposals").glob("*"):
        is_partial = path.name.startswith((".", "__")) or path.suffix == ".partial"
        if not is_partial and (path.is_dir() or path.suffix in (".json", ".py")):
            with contextlib.suppress(FileNotFoundError):  # it was just renamed
                proposals.append(_read(path, folder))
    proposals.sort(key=lambda proposal: (proposal.arrived, proposal.name))
    names: set[str] = set()
    for i, proposal in enumerate(proposals):
        if proposal.name in names:
            fault = ("name", f"another proposal has the name {proposal.name}")
            proposals[i] = dataclasses.replace(proposal, fault=fault)
        names.add(proposal.name)
    return proposals


def _read(path: Path, folder: Path) -> Proposal:
    """Reads a proposal of the night in `folder`; one that cannot be read has a fault."""
    arrived = path.lstat().st_mtime
    stated = path / "proposal.json" if path.is_dir() else path
    sources = [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    files: dict[str, str] = {}
    fields: Any = {}
    digest = hashlib.sha256()
    lines = 0
    try:
        content = read_regular(stated)
        digest.update(content)
        fields = _stated_by(content) if stated.suffix == ".py" else parse_json(content)
        fields = json.loads(json.dumps(fields, allow_nan=False))  # as the ledger will have them
        for source in sources:
            content = read_regular(source)
            digest.update(content)
            files[str(source.relative_to(folder))] = hashlib.sha256(content).hexdigest()
            code = (line.strip() for line in content.decode().splitlines())
            lines += sum(bool(line) and not line.startswith("#") for line in code)
        fault = _fault(path.stem, fields)
    except (OSError, ValueError, TypeError, SyntaxError, RecursionError) as error:
        fault = ("form", f"it cannot be read: {type(error).__name__}: {error}")
    if fault[:1] == ("form",):
        fields = {"why": "", "overrides": {}}
    why = " ".join(fields["why"].split())
    return Proposal(
        path.stem, why, fields["overrides"], files, digest.hexdigest(), lines, arrived, fault
    )


def _stated_by(source: bytes) -> dict[str, Any]:
    """The docstring and OVERRIDES of a component's file, which is not executed."""
    tree = ast.parse(source)
    fields: dict[str, Any] = {"why": ast.get_docstring(tree) or "", "overrides": {}}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            (target, *_) = node.targets if isinstance(node, ast.Assign) else [node.target]
            if ast.unparse(target) == "OVERRIDES":
                fields["overrides"] = ast.literal_eval(node.value)
    return fields


def _fault(name: str, fields: Any) -> tuple[str, str] | tuple[()]:
    """(rule, reason) for which a proposal is refused unread by others; empty if there is none."""
    if not isinstance(fields, dict) or not set(fields) <= {"why", "overrides"}:
        return "form", 'write {"why": "a sentence", "overrides": {"section.field": value}}'
    overrides = fields.get("overrides")
    if not isinstance(overrides, dict) or not overrides:
        return "form", "it overrides nothing: a component acts only if a config field names it"
    if not isinstance(fields.get("why"), str) or not fields["why"].strip():
        return "form", "why is missing: a sentence that says what it is expected to improve"
    if not _NAME.fullmatch(name) or name == BASELINE:
        return "name", f"{name!r} cannot name a proposal: letters, digits, _ and -, not {BASELINE}"
    for field in overrides:
        rule = rule_of(str(field))
        if rule:
            return rule, f"it sets {field}: {RULES[rule][1]}"
    return ()
