"""The routes through the package that `house.py` counts: from a command to where its work is done.

Watches a tiny run in this process. When a target is reached for the first time, the package's
functions on the stack are the route to it.
"""

import contextlib
import dataclasses
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = "transformer_jax"

TINY = {
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "data.num_train_examples": 400,
    "tokenizer.vocab_size": 800,
    "train.num_steps": 2,
    "train.tokens_per_batch": 192,
    "eval.num_examples": 3,
    "decode.max_extra_length": 4,
}
"""What makes the quick start's config a run of seconds."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The function at the end of a route.

    Attributes:
      verb: the command that reaches it.
      functions: its qualified names, in this version and in earlier ones.
      file: the name of its file.
      through: the name of a file that must also be on the stack; None: any stack counts.
      cut: the name of a file of jax where the route ends; None: it ends at the function.
      start: what the stack begins with.
    """

    verb: str
    functions: tuple[str, ...]
    file: str
    through: str | None = None
    cut: str | None = None
    start: str = "the shell"


TARGETS = {
    "a training step": Target("train", ("Compiled.__call__",), "stages.py", through="loop.py"),
    "a predicted line": Target(
        "predict", ("BeamSearch.find", "beam_search"), "beam_search.py", cut="pjit.py"
    ),
    "a packed example": Target(
        "train", ("PackedRows.add",), "packing.py", start="the packing thread"
    ),
}


def measure_routes(root: Path) -> dict[str, list[str]]:
    """Trains and predicts in this process: {what is reached: "file:function", from outside in}."""
    sys.path.insert(0, str(root))
    import transformer_jax
    from transformer_jax.cli.main import main as command_line

    assert Path(transformer_jax.__file__).is_relative_to(root)
    flags = [f"--config.{name}={value}" for name, value in TINY.items()]
    config = f"--config={root / 'configs' / 'quickstart.py'}"
    routes: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines")
        lines.write_text("The old man sees a dog.\n")
        with lines.open() as source, open(os.devnull, "w") as sink, replaced(source, sink):
            for verb, words in (("train", [config, *flags]), ("predict", [])):
                with watch(root, verb, routes):
                    status = command_line([verb, f"--workdir={folder}/run", *words])
                if status:
                    raise SystemExit(f"error: {verb} ended with status {status}")
    if missing := TARGETS.keys() - routes.keys():
        raise SystemExit(f"error: never reached: {', '.join(sorted(missing))}")
    return {name: routes[name] for name in TARGETS}


@contextlib.contextmanager
def replaced(stdin: io.TextIOBase, stdout: io.TextIOBase) -> Iterator[None]:
    """Replaces the stdin and stdout of this process."""
    own = sys.stdin
    sys.stdin = stdin
    try:
        with contextlib.redirect_stdout(stdout):
            yield
    finally:
        sys.stdin = own


@contextlib.contextmanager
def watch(root: Path, verb: str, routes: dict[str, list[str]]) -> Iterator[None]:
    """Adds the routes to a verb's targets, in any thread, as each is reached for the first time."""
    targets = {name: target for name, target in TARGETS.items() if target.verb == verb}
    events, tool = sys.monitoring.events, sys.monitoring.PROFILER_ID

    def started(code: CodeType, _: int) -> object:
        matched = False
        for name, target in targets.items():
            if code.co_qualname in target.functions and Path(code.co_filename).name == target.file:
                matched = True
                stack = stack_of(sys._getframe(1))
                if name not in routes and passes(stack, target):
                    routes[name] = route(stack, root / PACKAGE, target.cut)
        return None if matched else sys.monitoring.DISABLE  # for other code, no further events

    sys.monitoring.use_tool_id(tool, "house")
    sys.monitoring.register_callback(tool, events.PY_START, started)
    sys.monitoring.set_events(tool, events.PY_START)
    sys.monitoring.restart_events()
    try:
        yield
    finally:
        sys.monitoring.set_events(tool, events.NO_EVENTS)
        sys.monitoring.free_tool_id(tool)


def stack_of(frame: FrameType | None) -> list[CodeType]:
    """The code of a frame and of its callers, from the outermost in."""
    found = []
    while frame is not None:
        found.append(frame.f_code)
        frame = frame.f_back
    return found[::-1]


def passes(stack: list[CodeType], target: Target) -> bool:
    """Whether the stack goes through the file that the target asks for."""
    names = {Path(code.co_filename).name for code in stack}
    return target.through is None or target.through in names


def route(stack: list[CodeType], package: Path, cut: str | None) -> list[str]:
    """The functions of the package on the stack, up to where the file `cut` is entered."""
    found = []
    for code in stack:
        path = Path(code.co_filename)
        if path.name == cut:
            break
        if path.is_relative_to(package):
            found.append(f"{path.relative_to(package)}:{code.co_qualname}")
    return found
