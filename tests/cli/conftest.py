# SPDX-License-Identifier: Apache-2.0
"""The command line, run in this process."""

import contextlib
import io
import logging
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from transformer_jax.cli.main import main
from transformer_jax.parallel import hosts
from transformer_jax.runs import load

# A program whose `predict` writes each line in capitals, without a model.
CAPITALS = """
import sys, types
from types import SimpleNamespace as N
stand_in = types.ModuleType("transformer_jax.runs.load")
outputs_of = lambda lines, first_line: [[N(text=t.upper(), score=-1.5)] for t in lines]
run = N(n_best=outputs_of, task=None)
stand_in.load = lambda workdir, checkpoint, average, modules, base: run
sys.modules["transformer_jax.runs.load"] = stand_in
from transformer_jax.cli.main import main
sys.exit(main(["predict", "--workdir=w", *sys.argv[1:]]))
"""


@pytest.fixture
def without_xla_flags(monkeypatch):
    """Spares the programs of a test that compile nothing the process that checks the flags."""
    monkeypatch.delenv("XLA_FLAGS")


@pytest.fixture
def capitals(without_xla_flags):
    """Command line of a `predict` that writes each line in capitals."""
    return [sys.executable, "-c", CAPITALS]


@pytest.fixture
def shell(monkeypatch, capsys):
    """`shell(*words, stdin=b"")`: `status`, `out` and `err` of a command."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    def run(*words, stdin=b""):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        capsys.readouterr()
        try:
            status = main([str(word) for word in words])
        finally:
            root.handlers = list(handlers)
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    return run


@pytest.fixture
def shared_runs(monkeypatch, trained_workdir, trained, language_model_workdir, language_model):
    """Commands get the latest checkpoints of the two shared runs as they are loaded already, so
    that no command compiles what another has compiled; all others they load."""
    shared = {str(trained_workdir): trained, str(language_model_workdir): language_model}
    latest = {"checkpoint": "latest", "average": None, "modules": (), "base": None}
    load_run = load.load

    def load_once(workdir, *args, **options):
        is_shared = workdir in shared and not args and options == latest
        return shared[workdir] if is_shared else load_run(workdir, *args, **options)

    monkeypatch.setattr(load, "load", load_once)


@pytest.fixture
def sigterm_at(monkeypatch):
    """`with sigterm_at(step):` this process gets a SIGTERM in that step of a training."""

    @contextlib.contextmanager
    def at(wanted):
        after = hosts.Stops.after

        def send_and_ask(stops, step):
            if step == wanted:
                os.kill(os.getpid(), signal.SIGTERM)
            return after(stops, step)

        with monkeypatch.context() as patched:
            patched.setattr(hosts.Stops, "after", send_and_ask)
            yield

    return at
