# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of what a claim's numbers are computed from, made without training.

Of each row: the programs of the training step, the evaluation and the first state
(`parallel.program_fingerprint`), the tokens of the validation split and of training batches, the
data and the tokenizers. Of the claim: the statistic and the training loop, as bytecode without
names, and of an experiment the programs that it runs.
"""

import contextlib
import dataclasses
import dis
import functools
import hashlib
import inspect
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches
from transformer_jax.data.sources import open_split
from transformer_jax.lab.plan.program import lower_search
from transformer_jax.parallel.program_fingerprint import module_fingerprint, program_fingerprint
from transformer_jax.parallel.replicas import ReplicaEngine
from transformer_jax.runs import build
from transformer_jax.runs.evaluate import greedy_search
from transformer_jax.runs.prepare import open_training, prepare, sharing_tokenizers
from transformer_jax.runs.provenance import CODE, STEP, TEST_DATA, newest_checkpoint
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import CHECKPOINTS, open_for_writing, workdir_path
from transformer_jax.runtime import platform
from transformer_jax.scoring import METRICS
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.training.evaluation import Evaluator
from transformer_jax.training.loop import Loop

PROGRAMS = (STEP, "evaluation", "initial parameters", "programs")
"""Fingerprints that another version of jax changes."""
_PACKAGE = Path(__file__).parents[2]
_FOLLOWED = ("scoring", "metrics")
"""Parts of the package whose functions count by their code wherever they are called."""
_DIGITS = 32  # of a SHA-256
_BATCHES = 4
_STARTS = (0, 10**6)
"""Places in the endless order of the examples from which `_BATCHES` batches count."""


def row_fingerprints(
    configs: Mapping[str, Settings], modules: Modules, measures_runs: bool
) -> dict[str, dict[str, str]]:
    """Fingerprints of each row by their names.

    Args:
      measures_runs: a function of the claim measures the runs, and may search with `decode`.

    Raises:
      UserError: data, a module or another run are not here.
    """
    paths = (modules,) if isinstance(modules, str | Path) else tuple(modules)
    with sharing_tokenizers():
        return {row: _of_row(config, paths, measures_runs) for row, config in configs.items()}


@functools.cache  # claims share rows
def _of_row(settings: Settings, modules: Modules, measures_runs: bool) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as scratch, open_for_writing(scratch) as handle:
        training = open_training([settings], modules, handle)
        prepare(training, handle.folder)
        (task,) = training.open_tasks(handle.folder)
        settings = training.settings
        left_out = (CODE,) if measures_runs else (CODE, TEST_DATA)
        provenance = training.checkpoints.provenance
        rows = build.batch_rows(settings, task)
        batches = build.batches_of(settings, task, training.examples, rows, logs_overlong=False)
        with contextlib.closing(batches):
            order = _order(batches)
        return {
            **{name: text for name, text in provenance.items() if name not in left_out},
            "order": order,
            "metrics": _metrics_fingerprint(settings, task),
            "loop": code_fingerprint(Loop, ReplicaEngine, StackedBatches, Evaluator),
            **_programs(settings, task, rows, measures_runs),
        }


def _programs(settings: Settings, task: Task, rows: int, measures_runs: bool) -> dict[str, str]:
    """Fingerprints of a row's programs, lowered for one device, and of its validation tokens."""
    devices = jax.devices()[:1]
    same_bits = platform.reproducible(settings.train.reproducible)
    with platform.compiling_for(devices[0]), same_bits:
        engine = build.build_engine(settings, devices)
        _, step, init_state = build.build_training(settings, task, engine)
        state = build.abstract_state(settings, init_state, engine.mesh)
        batch = batch_shapes(build.training_lengths(task), rows)
        start = [program_fingerprint(init_state.lower(settings.seed)), f"seed {settings.seed}"]
        if settings.train.init_from:
            run = workdir_path(settings.train.init_from)
            start.append(newest_checkpoint(step_folders(run / CHECKPOINTS)))
        examples = open_split(settings.data, "valid")
        evaluator = build.build_evaluator(settings, task, examples, settings.decode, engine.mesh)
        tokens = hashlib.sha256()
        for arrays in evaluator.batches:
            _add(tokens, arrays)
        held = {name: state.frozen[name] for name in build.task_kind(settings).held}
        shapes = batch_shapes(task.lengths, evaluator.rows)
        evaluations = [evaluator.batch_sums.lower(state.model_params, shapes, held)]
        searches = [greedy_search(settings)] if getattr(task, "decodes", True) else []
        searches += [settings.decode] if measures_runs else []
        for decode in searches:
            searching = dataclasses.replace(settings, decode=decode)
            lowered, _, _ = lower_search(searching, task, state.model_params, engine.mesh)
            evaluations += lowered
        return {
            STEP: program_fingerprint(jax.jit(step).lower(state, batch)),
            "initial parameters": ", ".join(start),
            "evaluation": _joined(map(program_fingerprint, evaluations)),
            "validation tokens": _shown(tokens),
        }


def _order(batches: TrainBatches) -> str:
    """Digest of the first training batches, and of some that are far behind."""
    digest = hashlib.sha256()
    first = batches.get_state()
    for start in _STARTS:
        moved = {"group_start": start, "seen": start}
        batches.set_state({name: {**stream, **moved} for name, stream in first.items()})
        for arrays in islice(batches, _BATCHES):
            _add(digest, arrays)
    return _shown(digest)


def _metrics_fingerprint(settings: Settings, task: Task) -> str:
    """Fingerprint of the code that turns sums and outputs into metrics."""
    name = settings.task.metric or build.task_kind(settings).metric
    metric = [METRICS.find(name)] if name else []
    return code_fingerprint(type(task).metrics, type(task).evaluate, *metric)


def experiment_fingerprint(experiment: Callable[[int], Any], seed: int = 0) -> str:
    """Fingerprint of the programs that an experiment runs for a seed, in any order; it is run."""
    before = jax.config.values["jax_dump_ir_to"]
    with tempfile.TemporaryDirectory() as folder:
        jax.clear_caches()  # a program is written when it is compiled
        jax.config.update("jax_dump_ir_to", folder)
        try:
            experiment(seed)
        finally:
            jax.config.update("jax_dump_ir_to", before)
        texts = [path.read_text() for path in Path(folder).glob("*_compile.mlir")]
    module: Any = jax.jit(lambda: 0).lower().compiler_ir("stablehlo")
    with module.context:
        return _joined({module_fingerprint(ir.Module.parse(text)) for text in texts})


def code_fingerprint(*roots: Any) -> str:
    """Fingerprint of functions and classes by their bytecode, which has no names of variables,
    comments, docstrings or places.

    Functions that they call count by their code if they are in the same file, beside a file outside
    of this package, or in `scoring` or `metrics`; others by their names.
    """
    return _joined(_Code(root).describe(root) for root in roots)


class _Code:
    """Describes the code of a root."""

    def __init__(self, root: Any):
        self._file = _file_of(root)
        self._visited: dict[int, int] = {}

    def describe(self, value: Any) -> str:
        """Text of a function, a class or a constant, without addresses."""
        if isinstance(value, functools.partial):
            return self.describe(["partial", value.func, value.args, value.keywords])
        if callable(value) and hasattr(value, "__wrapped__"):  # by jit, cache or a decorator
            return self.describe(inspect.unwrap(value))
        if isinstance(value, types.ModuleType):
            return value.__name__.rpartition(".")[2]
        if isinstance(value, types.FunctionType | type):
            return self._definition(value)
        if isinstance(value, Mapping):
            return self.describe([pair for pair in value.items()])
        if isinstance(value, list | tuple):
            return f"({', '.join(map(self.describe, value))})"
        if isinstance(value, set | frozenset):
            return self.describe(sorted(value, key=repr))
        if isinstance(value, np.ndarray | jax.Array):
            return f"{value.dtype} {np.asarray(value).tolist()}"
        text = repr(value)
        return type(value).__qualname__ if " at 0x" in text else text

    def _definition(self, value: Any) -> str:
        if not self._is_followed(_file_of(value)):
            return str(value.__qualname__)
        if id(value) in self._visited:  # it may call itself
            return f"definition {self._visited[id(value)]}"
        self._visited[id(value)] = len(self._visited)
        if isinstance(value, types.FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            code = self._instructions(value.__code__, value.__globals__)
            return self.describe([code, value.__defaults__, value.__kwdefaults__, cells])
        members = [(name, _function_of(member)) for name, member in sorted(vars(value).items())]
        return self.describe(
            [
                (name, member)
                for name, member in members
                if not name.startswith("__") or _file_of(member) == _file_of(value)
            ]
        )

    def _instructions(self, code: types.CodeType, names: Mapping[str, Any]) -> str:
        parts = [str(code.co_argcount), str(code.co_kwonlyargcount), code.co_exceptiontable.hex()]
        for instruction in dis.get_instructions(code):
            argument: Any = instruction.arg
            if isinstance(instruction.argval, types.CodeType):
                argument = self._instructions(instruction.argval, names)
            elif instruction.opname in ("LOAD_CONST", "RETURN_CONST", "KW_NAMES"):
                argument = self.describe(instruction.argval)
            elif instruction.opname == "LOAD_GLOBAL" and instruction.argval in names:
                argument = self.describe(names[instruction.argval])
            elif instruction.opcode in dis.hasname:
                argument = instruction.argval
            parts.append(f"{instruction.opname} {argument}")
        return "; ".join(parts)

    def _is_followed(self, file: str) -> bool:
        if not file or file == self._file:
            return file != ""
        if Path(file).is_relative_to(_PACKAGE):
            return Path(file).relative_to(_PACKAGE).parts[0].removesuffix(".py") in _FOLLOWED
        return Path(file).parent == Path(self._file).parent


def _function_of(member: Any) -> Any:
    """The function of a property or a method of a class; other members as they are."""
    for name in ("fget", "func", "__func__"):
        if not isinstance(member, functools.partial) and hasattr(member, name):
            return getattr(member, name)
    return member


def _file_of(value: Any) -> str:
    """File that defines a function or a class; empty for others."""
    if isinstance(value, functools.partial):
        return _file_of(value.func)
    value = inspect.unwrap(value)
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    module = sys.modules.get(value.__module__) if isinstance(value, type) else None
    return getattr(module, "__file__", None) or ""


def _add(digest: Any, arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())


def _joined(texts: Iterable[str]) -> str:
    return _shown(hashlib.sha256("\n".join(sorted(texts)).encode()))


def _shown(digest: Any) -> str:
    return f"SHA-256 {digest.hexdigest()[:_DIGITS]}"
