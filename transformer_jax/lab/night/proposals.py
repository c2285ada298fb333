# SPDX-License-Identifier: Apache-2.0
"""Proposals of a night: what is dropped into its folder `proposals`, and the rules for it.

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
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.lab.sweeps.shared_folder import folder_name
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
    """The proposals in the folder of a night, in the order in which they arrived."""
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
