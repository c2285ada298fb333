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
import logging
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir

from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.data.sources import open_split
from transformer_jax.lab.plan.program import lower_search
from transformer_jax.parallel.engines import ReplicaEngine
from transformer_jax.parallel.program_fingerprint import module_fingerprint, program_fingerprint
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
_OWN = ("examples",)
"""Parts of the package that count as the user's own code."""
_FOLLOWED = (*_OWN, "scoring", "metrics")
"""Parts of the package whose functions count by their code wherever they are called."""
_FILES_OF_DEFINITIONS = ("__main__", "<run_path>")
"""Names of the modules in which notebooks, and files of claims, are executed."""
_DIGITS = 32  # of a SHA-256
_LOOP = (Loop.run, ReplicaEngine.compile, Evaluator.__call__, Evaluator.loss_metrics)
"""Methods that call the programs."""
_BATCHES = 4
_STARTS = (0, 10**6)
"""Places in the endless order of the examples from which `_BATCHES` batches count."""


def row_fingerprints(
    configs: Mapping[str, Settings], modules: Modules, measures_runs: bool
) -> dict[str, dict[str, str]]:
    """Fingerprints of each row by their names.

    Args:
      measures_runs: a function of the claim measures the runs: `decode` and the test data count.

    Raises:
      UserError: data, a module or another run are not here.
    """
    paths = (modules,) if isinstance(modules, str | Path) else tuple(modules)  # hashable
    with sharing_tokenizers():
        return {row: of_row(config, paths, measures_runs) for row, config in configs.items()}


@functools.cache  # claims share rows
def of_row(settings: Settings, modules: Modules, measures_runs: bool) -> dict[str, str]:
    """Fingerprints of one row, kept while the process lives; see `row_fingerprints`."""
    with tempfile.TemporaryDirectory() as scratch, open_for_writing(scratch) as handle:
        training = open_training([settings], modules, handle)
        prepare(training, handle.folder)
        (task,) = training.open_tasks(handle.folder)
        settings = training.settings
        left_out = (CODE,) if measures_runs else (CODE, TEST_DATA)
        provenance = training.checkpoints.provenance
        name = settings.task.metric or build.task_kind(settings).metric
        metric = [METRICS.find(name)] if name else []
        rows = build.batch_rows(settings, task)
        batches = build.batches_of(settings, task, training.examples, rows, logs_overlong=False)
        with contextlib.closing(batches):
            order = _order(batches)
        return {
            **{name: text for name, text in provenance.items() if name not in left_out},
            "order": order,
            "metrics": code_fingerprint(type(task).metrics, type(task).evaluate, *metric),
            "loop": code_fingerprint(*_LOOP),
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
        first = jax.jit(init_state).lower(settings.seed)
        start = [program_fingerprint(first), f"seed {settings.seed}"]
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
        evaluate: Any = evaluator.batch_sums  # jitted already
        evaluations = [evaluate.lower(state.model_params, shapes, held)]
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
    """Digest of the first training batches, and of some much later ones."""
    digest = hashlib.sha256()
    first = batches.get_state()
    for start in _STARTS:
        moved = {"group_start": start, "seen": start}
        batches.set_state({name: {**stream, **moved} for name, stream in first.items()})
        for arrays in islice(batches, _BATCHES):
            _add(digest, arrays)
    return _shown(digest)


def experiment_fingerprint(experiment: Callable[[int], Any], seed: int = 0) -> str:
    """Fingerprint of the programs that an experiment runs for a seed, in any order; it is run."""
    with tempfile.TemporaryDirectory() as folder:
        # Programs are written before they are compiled, which need not take long.
        options = {"jax_dump_ir_to": folder, "jax_disable_most_optimizations": True}
        before = {name: jax.config.values[name] for name in options}
        jax.clear_caches()
        _update(options)
        try:
            experiment(seed)
        finally:
            _update(before)
            jax.clear_caches()
        texts = [path.read_text() for path in Path(folder).glob("*_compile.mlir")]
    module: Any = jax.jit(lambda: 0).lower().compiler_ir("stablehlo")
    with module.context:
        return _joined({module_fingerprint(ir.Module.parse(text)) for text in texts})


def _update(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        jax.config.update(name, value)


def code_fingerprint(*functions: Any) -> str:
    """Fingerprint of functions by their bytecode, which has no names of variables, comments,
    docstrings or places.

    Functions that they call count by their code if they are in `scoring` or `metrics`, or the
    user's own; so do methods and classes of the user's own, and what is read from modules of the
    user's own. All others count by their names, and instances by their attributes.
    """
    return _joined(_describe(function, [], True) for function in functions)


def _describe(value: Any, visited: list[Any], follows: bool = False) -> str:
    """Text of a function or a constant, without addresses.

    Args:
      visited: functions, classes and instances that were described.
      follows: the function counts by its code, wherever it is.
    """
    value = inspect.unwrap(value)
    if isinstance(value, types.MethodType) and _is_own(value.__self__):
        return f"{_describe(value.__self__, visited)} {value.__name__}"
    if isinstance(value, functools.partial):
        bound = _describe([value.args, value.keywords], visited)
        return _describe(value.func, visited, follows) + bound
    for number, other in enumerate(visited):
        if other is value:  # a function may call itself
            return f"function {number}"
    is_followed = isinstance(value, types.FunctionType) and _is_part(value.__code__.co_filename)
    if isinstance(value, types.FunctionType) and (follows or is_followed):
        visited.append(value)
        cells = {}
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it is empty
                cells[name] = cell.cell_contents
        bound = _describe([value.__defaults__, value.__kwdefaults__, [*cells.values()]], visited)
        return _instructions(value.__code__, {**value.__globals__, **cells}, visited) + bound
    if isinstance(value, Mapping):
        value = [*value.items()]
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return f"({', '.join(_describe(member, visited) for member in value)})"
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype} {np.asarray(value).tolist()}"
    if isinstance(value, types.ModuleType):
        return value.__name__.rpartition(".")[2]
    if isinstance(value, logging.Logger):
        return value.name  # `repr` has its level, too
    if isinstance(value, property | functools.cached_property | staticmethod | classmethod):
        names = ("fget", "fset", "func", "__func__")
        return _describe([getattr(value, name, None) for name in names], visited)
    if _is_own(value) and not isinstance(value, types.ModuleType):
        visited.append(value)
        parts = _members(value) if isinstance(value, type) else [type(value), _attributes(value)]
        return _describe(parts, visited)
    text = getattr(value, "__qualname__", None) or repr(value)
    return type(value).__qualname__ if " at 0x" in text else text


def _instructions(code: types.CodeType, names: Mapping[str, Any], visited: list[Any]) -> str:
    """Text of bytecode, with the values of `names` (globals and closure) in place of the names."""
    parts = [f"{code.co_argcount} {code.co_kwonlyargcount} {code.co_exceptiontable.hex()}"]
    module: Any = None  # a module of the user's own that the last instruction loaded
    for instruction in dis.get_instructions(code):
        argument = instruction.argval
        loaded: Any = None
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            loaded = names.get(argument)
        elif instruction.opname == "LOAD_ATTR":
            loaded = getattr(module, argument, None)
        is_attribute = module is not None and loaded is not None
        if instruction.opname != "EXTENDED_ARG":  # which only widens the next one's argument
            is_module = isinstance(loaded, types.ModuleType) and _is_own(loaded)
            module = loaded if is_module else None
        if isinstance(argument, types.CodeType):
            argument = _instructions(argument, names, visited)
        elif is_attribute or (instruction.opname == "LOAD_GLOBAL" and argument in names):
            argument = _describe(loaded, visited)
        elif instruction.opname in ("LOAD_CONST", "RETURN_CONST", "KW_NAMES"):
            argument = _describe(argument, visited)
        elif instruction.opcode not in dis.hasname:
            argument = instruction.arg  # the number of a local variable, not its name
        parts.append(f"{instruction.opname} {argument}")
    return "; ".join(parts)


def _members(owner: type) -> list[Any]:
    """Members of a class of the user's own and of its bases, without those that Python adds."""
    return [
        (name, member)
        for base in owner.__mro__
        if _is_own(base)
        for name, member in sorted(vars(base).items())
        if not name.startswith("__") or isinstance(member, types.FunctionType)
    ]


def _attributes(instance: Any) -> Any:
    if dataclasses.is_dataclass(instance):
        return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
    text = repr(instance)
    return getattr(instance, "__dict__", "") if " at 0x" in text else text


def _is_own(value: Any) -> bool:
    """Returns True if a module, a class or the class of an instance is the user's own."""
    if isinstance(value, types.ModuleType):
        return _is_part(getattr(value, "__file__", None), _OWN)
    name = (value if isinstance(value, type) else type(value)).__module__
    return name in _FILES_OF_DEFINITIONS or (name in sys.modules and _is_own(sys.modules[name]))


def _is_part(path: str | None, parts: Sequence[str] = _FOLLOWED) -> bool:
    """Returns True if a file is the user's own or in one of these parts of the package."""
    if path is None:  # of a module in Python itself
        return False
    file = Path(path)
    if file.is_relative_to(_PACKAGE):
        return file.relative_to(_PACKAGE).parts[0].removesuffix(".py") in parts
    return not file.is_relative_to(sys.base_prefix) and "site-packages" not in file.parts


def _add(digest: Any, arrays: Mapping[str, np.ndarray]) -> None:
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())


def _joined(texts: Iterable[str]) -> str:
    return _shown(hashlib.sha256("\n".join(sorted(texts)).encode()))


def _shown(digest: Any) -> str:
    return f"SHA-256 {digest.hexdigest()[:_DIGITS]}"
