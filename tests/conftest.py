# SPDX-License-Identifier: Apache-2.0
"""Fixtures shared by tests of several folders."""

import contextlib
import fcntl
import gc
import hashlib
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

# Test programs run for moments, so most time is compilation; programs with products or a softmax of
# oneDNN cannot be cached. JAX reads this when it starts, here and in processes that tests start.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_disable_hlo_passes=onednn-contraction-rewriter,onednn-ops-rewriter",
)

# The hundred processes that tests start use the modules that the first has compiled: a second less.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tests use buckets in memory and on disk instead of S3 and Cloud Storage.
os.environ["TRANSFORMER_JAX_ALLOW_ADDRESSES"] = "memory,file"

import jax
import jaxlib
import jaxtyping
import numpy as np
import pytest
import shape_checks
from jax._src.compilation_cache import decompress_executable

# Before the package is imported.
sys.dont_write_bytecode = False
jaxtyping.install_import_hook(
    [f"transformer_jax.{name}" for name in shape_checks.CHECKED], "shape_checks.checked"
)

import transformer_jax as tj  # noqa: E402
from tests import refusals  # noqa: E402
from transformer_jax import registry  # noqa: E402
from transformer_jax.checkpoints.step_folder import step_folders  # noqa: E402
from transformer_jax.data.config import DataConfig  # noqa: E402
from transformer_jax.data.sources import open_split  # noqa: E402
from transformer_jax.logs.records import to_json  # noqa: E402
from transformer_jax.nn.parameters import PARAMETERS  # noqa: E402
from transformer_jax.runs import user_modules  # noqa: E402
from transformer_jax.runs.settings import DEFAULTS  # noqa: E402
from transformer_jax.runtime import platform  # noqa: E402
from transformer_jax.runtime.platform import processor_lines  # noqa: E402
from transformer_jax.tasks import TASKS  # noqa: E402

ROOT = Path(__file__).parents[1]


def compilation_cache_folder():
    """Folder of the programs of this jaxlib, these flags and this processor."""
    processor = processor_lines() or tuple(os.uname())
    key = repr((jaxlib.__version__, os.environ["XLA_FLAGS"], processor))
    return ROOT / ".cache" / "xla" / hashlib.sha256(key.encode()).hexdigest()[:16]


# A command in the shell's background ignores interrupts, and so do the processes that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tracing makes objects by the million, few of them in cycles: `pytest_runtest_teardown` collects.
gc.disable()
_collected_at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

CACHE = compilation_cache_folder()
QUICKSTART = ROOT / "configs" / "quickstart.py"

FILE_DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff\xfe{}"),
    "deep": lambda path: path.write_bytes(b"[" * 10**5),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "a folder": lambda path: (path.unlink(), path.mkdir(), (path / "below").write_text("x")),
    "a link": lambda path: (path.unlink(), path.symlink_to("/etc/hostname")),
}
"""What can be in place of a file that was written: path -> None."""
PAIRS = {"train": 300, "valid": 12, "test": 12}
TINY = {
    **{"model.d_model": 16, "model.d_ff": 32, "model.num_heads": 2, "model.dtype": "float32"},
    **{"model.num_encoder_layers": 1, "model.num_decoder_layers": 1},
    **{"tokenizer.vocab_size": 800, "data.name": "parallel_text", "optimizer.warmup_steps": 5},
    **{"train.num_steps": 30, "train.tokens_per_batch": 192},
    **{"eval.every_steps": 15, "eval.num_examples": 3},
    **{"decode.batch_size": 24, "decode.max_extra_length": 8},
    **{"checkpoint.every_steps": 15, "checkpoint.keep_params": 2, "logging.every_steps": 5},
}
"""Changes that shrink the quick start's config to a run of seconds."""
KIB_PER_COLLECTION = 3 * 2**20
"""Memory that a process takes before garbage is collected, which takes seconds."""
LONGEST = ("campaigns", "parallel", "recorded", "experiments", "docs", "cli")
"""Folders whose tests run first, so that both workers end at the same time."""
OF_PAIRS = ["model.num_encoder_layers", "model.num_decoder_layers", "eval.num_examples"]
OF_PAIRS += ["data.max_source_length", "data.max_target_length"]
OF_PAIRS += [f"data.{split}_{side}" for split in PAIRS for side in ("source", "target")]
"""Fields that `TINY` and the quick start set, but other tasks do not read."""


def records_of(workdir, split=None):
    """Records of a run's metrics.jsonl; of a split, if one is named."""
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if split is None or record["split"] == split]


def write_records(workdir, *records):
    """Writes a run's metrics.jsonl, and the folder if it is not there."""
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "metrics.jsonl").write_text("".join(f"{to_json(record)}\n" for record in records))


def dotted(changes):
    """Config fields that were given as names of Python: {"train__remat": ...}."""
    return {name.replace("__", "."): value for name, value in changes.items()}


def copy_at_step(workdir, step, copy):
    """Copies a run as it is on a machine that was lost after it had saved `step`, and before it
    saved a later one; returns the copy. A test that resumes it trains its first half no second
    time."""
    shutil.copytree(workdir, copy)
    for saved, folder in step_folders(copy / "checkpoints").items():
        if saved > step:
            shutil.rmtree(folder)
    return copy


def pytest_addoption(parser):
    parser.addoption("--record", action="store_true", help="record tests/recorded/numbers.json")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items):
    """Gives the tests of a module that share its fixtures to one worker, and those that need the
    eight devices, for whose minute another worker would wait; the longest come first."""
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs.values()
        if "eight_devices" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("eight_devices"))
        elif any(fixtures[-1].scope == "module" for fixtures in definitions):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(ROOT).as_posix()))
    items.sort(key=lambda item: item.path.relative_to(ROOT / "tests").parts[0] not in LONGEST)


@pytest.hookimpl(tryfirst=True)  # before the test's fixtures
def pytest_runtest_setup(item):
    """Checks shapes in the tests of modules that have them. Begins the module's `RNG` anew, so that
    a test has the same numbers whichever tests ran before it."""
    checks = shape_checks.is_checking(item.path.relative_to(ROOT / "tests").as_posix())
    jaxtyping.config.update("jaxtyping_disable", not checks)
    if hasattr(item.module, "RNG"):
        item.module.RNG = np.random.default_rng(0)


def pytest_runtest_teardown():
    """Collects garbage when the process has grown, and does not look at what remains again."""
    global _collected_at
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if peak > _collected_at + KIB_PER_COLLECTION:
        gc.collect()
        gc.freeze()
        _collected_at = peak


def pytest_sessionstart(session):
    """Makes and prunes the kept compilation cache, before any worker starts."""
    if not hasattr(session.config, "workerinput"):
        with contextlib.suppress(OSError):  # a checkout that cannot be written
            CACHE.mkdir(parents=True, exist_ok=True)
            prune_cache(CACHE.parent)


def prune_cache(folder, max_bytes=2 << 30):
    """Deletes what a killed process left unfinished, and the least recently used programs.

    JAX writes programs in place, so a process that is killed may leave a part of one. All that
    were written since the last call are checked.
    """
    checked = folder / "checked"
    started = time.time()
    last_check = checked.stat().st_mtime if checked.exists() else 0
    programs = []
    for program in folder.glob("*/*-cache"):
        status = program.stat()
        try:
            if status.st_mtime >= last_check:
                decompress_executable(program.read_bytes())
            programs.append((max(status.st_atime, status.st_mtime), status.st_size, program))
        except Exception:  # zlib's and zstandard's errors
            program.unlink()
    excess = sum(size for _, size, _ in programs) - max_bytes
    for _, size, program in sorted(programs):
        if excess > 0:
            program.unlink()
            excess -= size
    checked.touch()
    os.utime(checked, (started, started))


@pytest.fixture(autouse=True)
def state_of_no_program():
    """Undoes what command lines configure: handlers and level of the root logger, the package's
    level, and the import path of child processes, such as those that import a test's neighbors.

    Command lines of fixtures that many tests share run before this.
    """
    root = logging.getLogger()
    before = list(root.handlers)
    root.setLevel(logging.WARNING)
    logging.getLogger("transformer_jax").setLevel(logging.NOTSET)
    yield
    root.handlers = before
    os.environ.pop("PYTHONSAFEPATH", None)


@pytest.fixture
def with_entries():
    """`with_entries(registry, {name: entry})`: adds or replaces entries until the test ends."""
    with contextlib.ExitStack() as stack:

        def add(registry, entries):
            stack.callback(registry._replace, registry._entries)
            registry.restore({**registry, **entries})

        yield add


@contextlib.contextmanager
def forgetting_modules():
    """Forgets the user's modules that are loaded in the block, and what they have registered: at
    its end, and when the function that it yields is called."""
    entries = [(names, names._entries) for names in registry._REGISTRIES]
    parameters = list(PARAMETERS)
    loaded = dict(user_modules._loaded)

    def forget():
        for names, before in entries:
            names._replace(before)
        PARAMETERS[:] = parameters
        for name in user_modules._loaded.keys() - loaded.keys():
            del sys.modules[name]
        user_modules._loaded.clear()
        user_modules._loaded.update(loaded)

    yield forget
    forget()


@pytest.fixture
def forget_modules():
    """The function of `forgetting_modules`, which is called after the test too."""
    with forgetting_modules() as forget:
        yield forget


@pytest.fixture(scope="module")
def forget_modules_of_file():
    """The same for the tests of a file."""
    with forgetting_modules() as forget:
        yield forget


@pytest.fixture
def compiling_for():
    """`compiling_for("gpu", "NVIDIA L4")`: from then on programs are traced for such a device."""
    with contextlib.ExitStack() as stack:

        def trace_for(name, kind="of no table"):
            device = types.SimpleNamespace(platform=name, device_kind=kind)
            stack.enter_context(platform.compiling_for(device))

        yield trace_for


@pytest.fixture(scope="session")
def random_params():
    """`draw(module, *args, **kwargs)`: random variables with the shapes of `module.init`.

    All values are random, so that no test passes only because a bias is 0 or a scale is 1.
    """

    def draw(module, *args, **kwargs):
        shapes = jax.eval_shape(lambda key: module.init(key, *args, **kwargs), jax.random.key(0))
        rng = np.random.default_rng(0)
        return jax.tree.map(lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(leaf.dtype), shapes)

    return draw


@pytest.fixture(scope="session")
def shared_dir(tmp_path_factory):
    """Directory shared by all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(shared_dir):
    """Keeps compiled programs for all test processes, their subprocesses, and the next run."""
    folder = CACHE if os.access(CACHE, os.W_OK) else shared_dir / "xla"
    options = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.02,
    }
    for name, value in options.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)


@pytest.fixture(scope="session")
def tiny(shared_dir):
    """Overrides {"section.field": value} that shrink the quick start; they name files of text."""

    def write_text(folder):
        for split, count in PAIRS.items():
            pairs = open_split(DataConfig(), split)[:count]
            for side in ("source", "target"):
                lines = "".join(f"{pair[side]}\n" for pair in pairs)
                (folder / f"{split}.{side}").write_text(lines, encoding="utf-8")

    text = _folder_once(shared_dir / "text", write_text)
    names = [(split, side) for split in PAIRS for side in ("source", "target")]
    return TINY | {f"data.{split}_{side}": str(text / f"{split}.{side}") for split, side in names}


@pytest.fixture(scope="session")
def tiny_language_model(tiny):
    """Overrides for a character language model on one side of the text; its programs are smaller,
    as there is neither a beam search nor dropout."""
    changes = {"task.name": "language_modeling", "model.architecture": "decoder_only"}
    changes |= {"model.num_layers": 1, "model.dropout_rate": 0.0, "decode.beam_size": 1}
    changes |= {"tokenizer.kind": "char", "tokenizer.vocab_size": 100, "data.name": "text"}
    changes |= {f"data.{split}_text": tiny[f"data.{split}_source"] for split in ("train", "valid")}
    changes |= {"data.documents": "line", "data.packing": "apart", "data.max_length": 96}
    return tiny | {name: DEFAULTS[name] for name in OF_PAIRS} | changes


@pytest.fixture(scope="session")
def tiny_classifier(tiny, shared_dir):
    """Overrides for a classifier that tells the language of a line of the text."""

    def write_labeled(folder):
        for split in PAIRS:
            sides = [Path(tiny[f"data.{split}_{side}"]) for side in ("source", "target")]
            texts = [path.read_text(encoding="utf-8").splitlines() for path in sides]
            pairs = zip(*texts, strict=True)
            rows = [f"{source}\tEnglish\n{target}\tGerman\n" for source, target in pairs]
            path = folder / f"{split}.tsv"
            path.write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")

    labeled = _folder_once(shared_dir / "labeled", write_labeled)
    changes = {"task.name": "classification", "model.architecture": "encoder_only"}
    changes |= {"model.num_layers": 1, "model.max_length": 96, "data.max_length": 96}
    changes |= {"model.dropout_rate": 0.0}
    changes |= {"tokenizer.kind": "char", "tokenizer.vocab_size": 100, "data.name": "table"}
    changes |= {f"data.{split}_text": str(labeled / f"{split}.tsv") for split in PAIRS}
    unread = (*OF_PAIRS, "decode.max_extra_length")
    return tiny | {name: DEFAULTS[name] for name in unread} | changes


@pytest.fixture(scope="session")
def tiny_config(tiny):
    """`tiny_config({"section.field": value})`: the shrunk quick start's config with changes."""

    def config(changes=None):
        changes = changes or {}
        task, others = changes.get("task.name", "translation"), []
        if task not in ("translation", "seq2seq"):
            others = [*OF_PAIRS, *(["decode.max_extra_length"] * (task != "language_modeling"))]
            if "data.name" not in changes and task in TASKS:
                places = tuple(f"data.{split}_" for split in PAIRS)
                others += [name for name in tiny if name.startswith(places)]
                changes = {"data.name": TASKS[task].defaults["data.name"], **changes}
        return tj.config(QUICKSTART, tiny | {name: DEFAULTS[name] for name in others} | changes)

    return config


@pytest.fixture(scope="session")
def trained_once(shared_dir):
    """`trained_once(name, config)`: the workdir of a finished run of the config; one test process
    trains it for all."""

    def train(name, config):
        return _folder_once(shared_dir / name, lambda workdir: tj.train(config, workdir))

    return train


@pytest.fixture(scope="session")
def trained_workdir(trained_once, tiny_config):
    """Workdir of a finished run of `tiny_config()`; to change it, use the copy `workdir`."""
    return trained_once("trained", tiny_config())


@pytest.fixture(scope="session")
def language_model_workdir(trained_once, tiny_language_model):
    """Workdir of a finished run of `tj.config(QUICKSTART, tiny_language_model)`; tests that change
    it copy it."""
    return trained_once("trained_language_model", tj.config(QUICKSTART, tiny_language_model))


@pytest.fixture(scope="session")
def classifier_workdir(trained_once, tiny_classifier):
    """Workdir of a finished run of `tj.config(QUICKSTART, tiny_classifier)`; tests that change it
    copy it."""
    return trained_once("trained_classifier", tj.config(QUICKSTART, tiny_classifier))


@pytest.fixture(scope="session")
def made_once(shared_dir):
    """`made_once(name, make)`: the text that `make()` gives; one test process makes it for all."""

    def text(name, make):
        path = shared_dir / name
        with _locked(path):
            if not path.exists():
                path.write_text(make())
        return path.read_text()

    return text


@pytest.fixture(scope="session")
def eight_devices(made_once):
    """Results of `tests/parallel/on_eight_devices.py`, by scenario."""

    def run():
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
        program = Path(__file__).with_name("parallel") / "on_eight_devices.py"
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        options = {"capture_output": True, "text": True, "timeout": 3600}
        completed = subprocess.run([sys.executable, program], env=environment, **options)
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    return json.loads(made_once("eight_devices.json", run))


@pytest.fixture
def workdir(trained_workdir, tmp_path):
    """Copy of the finished run."""
    return shutil.copytree(trained_workdir, tmp_path / "run")


@pytest.fixture(scope="session")
def trained(trained_workdir):
    """`Run` of `trained_workdir`."""
    return tj.load(trained_workdir)


@pytest.fixture(scope="session")
def language_model(language_model_workdir):
    """`Run` of `language_model_workdir`."""
    return tj.load(language_model_workdir)


@pytest.fixture(scope="session")
def classifier(classifier_workdir):
    """`Run` of `classifier_workdir`."""
    return tj.load(classifier_workdir)


@pytest.fixture
def assert_refused():
    """`refusals.assert_refused`."""
    return refusals.assert_refused


@contextlib.contextmanager
def _locked(path):
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder_once(folder, write):
    """A folder that one test process writes for all, by `write(folder)`."""
    with _locked(folder):
        if not folder.exists():
            partial = folder.with_suffix(".partial")
            partial.mkdir(exist_ok=True)
            write(partial)
            partial.rename(folder)
    return folder
