"""Ctrl-C ends the program, whatever it is doing."""

import signal
import subprocess
import sys
import time

import pytest

# A program whose `load` does what a test asks for, and then would run for long.
PROGRAM = """
import gc, os, runpy, signal, sys, time, types
def interrupt(*_):
    gc.callbacks.clear()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.001)
class Held:
    __del__ = interrupt
def load(*_, **__):
    {how}
    print("lost", file=sys.stderr, flush=True)
    time.sleep(20)
stand_in = types.ModuleType("transformer_jax.runs.load")
stand_in.load = load
sys.modules[stand_in.__name__] = stand_in
sys.argv = ["transformer_jax", "evaluate", "--workdir=w"]
runpy.run_module("transformer_jax", run_name="__main__")
"""


def ended(how):
    """(status, stderr, seconds) of the program."""
    start = time.monotonic()
    words = [sys.executable, "-c", PROGRAM.format(how=how)]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stderr, time.monotonic() - start


@pytest.mark.parametrize(
    "how",
    [
        "gc.callbacks.append(interrupt); gc.collect()",
        "Held()",
        "import weakref; held = Held(); weakref.finalize(held, interrupt); del Held.__del__, held",
    ],
    ids=["in a callback of the garbage collector", "in a destructor", "in a weak reference"],
)
def test_an_interrupt_that_python_would_lose_ends_the_program(how):
    status, told, seconds = ended(how)
    assert status == 130
    assert told.strip() in ("", "lost")
    assert seconds < 10


def test_a_second_interrupt_ends_it_at_once():
    how = "try: interrupt()\n    except KeyboardInterrupt: interrupt()"
    assert ended(how)[:2] == (130, "")


def test_an_interrupt_while_it_is_imported_is_quiet():
    words = [sys.executable, "-X", "importtime", "-m", "transformer_jax", "--help"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if line.endswith(b" transformer_jax.cli\n"):
                process.send_signal(signal.SIGINT)
                break
        told = b"".join(line for line in process.stderr if not line.startswith(b"import time:"))
    assert (process.returncode, told) == (130, b"")


def test_an_interrupt_that_is_ignored_stays_so():
    """As under `nohup`."""
    how = "interrupt(); sys.exit(7)"
    ignored = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    words = [sys.executable, "-c", ignored + PROGRAM.format(how=how)]
    assert subprocess.run(words).returncode == 7
