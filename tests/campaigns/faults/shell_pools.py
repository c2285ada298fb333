# SPDX-License-Identifier: Apache-2.0
"""Values for the cases of `fuzz_shell`: flags, their values, inputs, variables, files."""

from transformer_jax.cli.flags import DECODE_OPTIONS


def _split(text: str) -> list[str]:
    """Splits a text into words."""
    return text.split()


NO_TEXT = "\udcff\udc80"  # bytes that are not UTF-8, as Python passes them
PLAUSIBLE = ["1", "2", "3", "0.5"]
NUMBERS = [
    *PLAUSIBLE,
    *_split("0 -1 7 1_0 1.5 1e5 1e999 -inf nan 0x10 1e-300 four none true \\ 100000"),
    *_split("2147483647 2147483648 18446744073709551616 \N{ARABIC-INDIC DIGIT THREE}"),
    *("", " 3", "9" * 30, "9" * 5000, "[" * 5000, NO_TEXT),
]
PATHS = [
    *_split(". run run/.. absent absent/deep fifo dangling loop to_file to_folder a\\b [ * --"),
    *(f"outside/{name}" for name in _split("a.en own empty latin1 broken.gz nul crlf one")),
    *_split("/dev/null /dev/full /dev/stdin /proc/self/nothing /proc/self/mem ~nobody/x"),
    *_split("hf:a/b http://a/b run/checkpoints run/config.json"),
    *("", "two\nlines", "a" * 300, "x/" * 3000, NO_TEXT, "ä\u2028"),
]
PICTURES = ["plot.png", "new/plot.png", "run", "loop", "/dev/full", "a" * 300, NO_TEXT, ""]
MODULES = [*PATHS, "outside/good.py", "outside/bad.py", "outside/exits.py", "json", "a..b"]
VALUES: dict[str, list[str | None]] = {
    "paths": [*PATHS],
    "inputs": [path for path in PATHS if path != "fifo"],  # where reading waits for a writer
    "numbers": [*NUMBERS],
    "few": [*_split("-1 0 1 4 5 six")],
    "output": [*PICTURES],
    "modules": [*MODULES],
    "checkpoint": [*NUMBERS, "latest", "best", "4"],
    "format": ["text", "jsonl", "jsonl", "xml", ""],
    "device": ["h100:8", "v5p:4x4x8", "cpu", "h100:0", "h100:999999999", ":", "", NO_TEXT],
    "split": ["test", "valid", "train", "tset", "", NO_TEXT],
    "search": ["beam", "greedy", "sample", "bem", ""],
    "weights": ["int8", "float32", "int4"],
    "stop": ["a", "|", "", NO_TEXT, "none", "a" * 5000],
    "none": [None],
}
_OF = {
    "inputs": "source target prefixes",
    "paths": "workdir config sweep config.data.train_text workdri"
    " config.train.init_from config.data.nmae config.model",
    "numbers": "average max_length num_outputs rows at_once batch_size source_length beam_size"
    " config.seed config.model.d_model config.optimizer.learning_rate config.decode.top_p",
    "few": "seeds steps config.train.num_steps",
    "none": "stream dry_run help nonsense",
}
KINDS = {
    **{name: name if name in VALUES else "numbers" for name in DECODE_OPTIONS},
    **{name: name for name in _split("output modules checkpoint format split device")},
    **{name: kind for kind, names in _OF.items() for name in names.split()},
}
"""Values of each flag. (`--distributed` is left out: it waits for other processes.)"""

_RUN = ["workdir", "checkpoint", "average", "modules"]
_FIELDS = [name for name in KINDS if name.startswith("config.")]
FLAGS = {
    "predict": [
        *_RUN,
        *DECODE_OPTIONS,
        "max_length",
        "format",
        "num_outputs",
        "prefixes",
        "stream",
    ],
    "evaluate": [*_RUN, *DECODE_OPTIONS, "max_length", "split", "source", "target"],
    "score": [*_RUN, "source", "target"],
    "train": ["config", "workdir", "dry_run", "seeds", "modules", *_FIELDS],
    "plot": ["workdir", "config", "output", "modules", *_FIELDS],
    "sweep": ["workdir", "sweep", "config", "rows", "seeds", "at_once", *_FIELDS],
    "plan": ["config", "device", "modules", *_FIELDS],
    "benchmark": ["config", "batch_size", "source_length", "beam_size", "steps", *_FIELDS],
}
"""Flags of each verb."""

LINE = b"The man sees the film .\n"
INPUTS = [
    *(LINE, LINE * 9, b"", b"\n", b"\n\n\n", b"no end", b"a\r\nb\r\n", b"\xef\xbb\xbfbom\n"),
    *(b"\xff\xfe\x00\n" * 3, b"\0\n\0", b"the [MASK] is [MASK]\n", b"the film\tis good\n"),
    *(b"word " * 40_000 + b"\n", b"x" * 300_000 + b"\n", b"[" * 9999 + b"\n", b"\t\n"),
    *("漢字 \u2028 \x85 \N{GRINNING FACE}\n".encode(), rb"a\nb \\ \x" + b"\n"),
    "\udcff\n".encode("utf-8", "surrogatepass"),
]
HARMLESS: list[dict[str, str | None]] = [
    *({"COLUMNS": "0"}, {"COLUMNS": "x"}, {"HOME": None}, {"HOME": "/proc/nothing"}),
    *({"XDG_CACHE_HOME": "/dev/null"}, {"TRANSFORMER_JAX_DATA": "/dev/null"}, {"PATH": None}),
    *({"TMPDIR": "/proc/nothing"}, {"TERM": "nonsense"}, {"TQDM_DISABLE": "1"}),
]
LOCALES = [
    *({"LC_ALL": "C"}, {"LANG": "nonsense"}, {"PYTHONUTF8": "0", "LC_ALL": "C"}),
    *({"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONOPTIMIZE": "2"}),
]
HOSTILE = [
    *({"JAX_PLATFORMS": "cuda"}, {"JAX_PLATFORMS": "abacus"}, {"JAX_ENABLE_X64": "maybe"}),
    *({"XLA_FLAGS": "--nonsense"}, {"XLA_FLAGS": "/nothing"}, {"JAX_NUM_CPU_DEVICES": "x"}),
    *({"JAX_COMPILATION_CACHE_DIR": "/dev/null"}, {"JAX_NUM_CPU_DEVICES": "3"}),
    *({"JAX_DEFAULT_MATMUL_PRECISION": "x"}, {"JAX_LOG_COMPILES": "2"}, {"JAX_DEBUG_NANS": "1"}),
]
FILES = {
    "empty": b"",
    "latin1": b"sch\xf6n\n",
    "broken.gz": b"\x1f\x8b\x08broken",
    "one": LINE,
    "nul": b"\0" * 99,
    "crlf": b"a\r\nb\r\n",
    "good.py": b"x = 1\n",
    "bad.py": b"1 / 0\n",
    "exits.py": b"import sys\nsys.exit(0)\n",
    "sweep.py": b"def get_sweep():\n    return {'config': 'x', 'rows': {'a': {}}, 'seeds': 1}\n",
}
"""The user's files, in `outside/`."""
