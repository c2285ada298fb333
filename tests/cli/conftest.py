"""The shell, in this process."""

import io
import logging
import sys
from types import SimpleNamespace

import pytest

from transformer_jax.cli.main import main


@pytest.fixture
def shell(monkeypatch, capsys):
    """`shell(*words, stdin=b"")`: what a command answers; its `status`, `out` and `err`."""
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
