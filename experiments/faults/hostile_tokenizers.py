# SPDX-License-Identifier: Apache-2.0
"""Tests hostile tokenizer.json files: each must be refused with one line, or encode text in time.

    python experiments/faults/hostile_tokenizers.py --cases=100

Each case puts one hostile part into a small working tokenizer (see `KINDS`), reads it as an import
does, and encodes long texts, in a process of its own with 2 GB of memory beyond what it has and
20 s. A case is determined by its number: `--first=N --cases=1` repeats one. Prints one JSON object;
exit status 1 if a case ended in a traceback, an abort or a hang.
"""

import argparse
import base64
import collections
import contextlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.tokenization import PublishedTokenizer, import_tokenizer

Content = dict[str, Any]
REFUSED, USED, TRACEBACK, HUNG = "refused", "used", "traceback", "hung"
MEMORY, SECONDS = 2 << 30, 20
TEXTS = (
    "a" * 3000 + "!",
    " " * 3000 + "a",
    "ab " * 3000,
    "ﷺ" * 3000,
    "中文" * 1500,
    "\0\n\r\n" * 999,
)


def working() -> Content:
    """A tokenizer.json that works."""
    pieces = ["</s>", "<unk>", *map(chr, range(32, 127)), "▁"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(0, "</s>"), _added(1, "<unk>")],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "post_processor": None,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
        "model": {
            "type": "BPE",
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": [],
            "unk_token": "<unk>",
        },
    }


def _added(i: int, piece: str) -> Content:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": piece, **flags, "special": True}


def slow_pattern(content: Content, random: random.Random) -> None:
    """A pattern that backtracks."""
    atoms = ["a", r"\w", r"[a-z ]", r"\p{L}", "(a|b)", "(a|a)", r"(?:a\s?)", ".", "(?i:a|b)"]
    repeat = ["+", "*", "{1,}", "{0,500}", "+?", "?", "{2,9}"]
    inner = "".join(
        random.choice(atoms) + random.choice(repeat) for _ in range(random.randint(1, 4))
    )
    forms = [
        "({0})+$",
        "({0})*!b",
        "(?:{0}){{1,100}}c",
        "{0}$",
        r"(x?{0})\1",
        "(?={0}b)",
        "(?>{0})*z",
    ]
    pattern = random.choice(forms).format(inner)
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"}
    where = random.choice(["pre_tokenizer", "normalizer", "decoder"])
    content[where] = split if where == "pre_tokenizer" else replace


def longer_text(content: Content, random: random.Random) -> None:
    """Normalizers or decoders that multiply text."""
    steps = [
        {
            "type": "Replace",
            "pattern": random.choice(
                [{"String": "a"}, {"Regex": "."}, {"String": ""}, {"Regex": "b*"}]
            ),
            "content": "a" * random.choice([2, 10, 1000, 100_000]),
        }
        for _ in range(random.randint(1, 12))
    ]
    steps += [{"type": random.choice(["NFKD", "NFKC", "Lowercase"])}] * random.randint(0, 3)
    name = random.choice(["normalizer", "normalizer", "decoder"])
    key = "normalizers" if name == "normalizer" else "decoders"
    steps = [step for step in steps if name == "normalizer" or step["type"] == "Replace"]
    content[name] = {"type": "Sequence", key: steps}


def charsmap(content: Content, random: random.Random) -> None:
    """A damaged or multiplying table of sentencepiece's normalizer."""
    size = random.choice([0, 4, 1024, 4096])
    trie = random.randbytes(size)
    declared = random.choice([size, size + 1, 2**32 - 1, 0])
    texts = b"\0".join([b"a" * random.choice([1, 50, 5000])] * 3)
    table = declared.to_bytes(4, "little") + trie + texts
    text = base64.b64encode(table[: random.choice([3, 8, len(table)])]).decode()
    broken = random.choice([text, text[:-1], "", "!!", None, 5])
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": broken}


def odd_value(content: Content, random: random.Random) -> None:
    """Some value of the file is replaced by one of another type or size."""
    values = [None, -1, 2**31, 2**32, 2**64, 1e308, "", "a" * 100_000, [], {}, True, [[]] * 1000]
    path, part = [], content
    for _ in range(random.randint(1, 4)):
        keys = [*part] if isinstance(part, dict) else [*range(len(part))]
        if not keys:
            break
        path.append(random.choice(keys))
        inner = part[path[-1]]
        if not isinstance(inner, dict | list):
            break
        part, outer = inner, part
    else:
        part = outer
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = random.choice(values)


def odd_model(content: Content, random: random.Random) -> None:
    """A model whose settings contradict each other."""
    vocab = content["model"]["vocab"]
    scores = [[piece, random.choice([0.0, -1e300, 5.0])] for piece in vocab]
    content["model"] = random.choice(
        [
            {**content["model"], "dropout": 0.5},
            {**content["model"], "unk_token": "missing"},
            {**content["model"], "merges": [["a", "missing"]]},
            {**content["model"], "byte_fallback": True, "unk_token": None},
            {**content["model"], "continuing_subword_prefix": "#" * 10**6},
            {**content["model"], "end_of_word_suffix": "é"},
            {"type": "WordPiece", "vocab": vocab, "unk_token": "missing"},
            {"type": "WordLevel", "vocab": vocab, "unk_token": "missing"},
            {
                "type": "WordPiece",
                "vocab": vocab,
                "unk_token": "<unk>",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 2**63,
            },
            {"type": "Unigram", "vocab": scores, "unk_id": random.choice([None, 10**6, 1])},
            {"type": "Unigram", "vocab": [["", 1e308]], "unk_id": 0},
            {**content["model"], "vocab": {"a": 2**32 - 1}},
        ]
    )


def odd_added_token(content: Content, random: random.Random) -> None:
    """Added tokens that are empty, doubled, far away, or many."""
    content["added_tokens"] += random.choice(
        [
            [_added(97 + 2, "")],
            [_added(2**32 - 1, "far")],
            [_added(0, "other"), _added(0, "</s>")],
            [_added(98 + i, "a" * (i + 1)) for i in range(3000)],
            [_added(99, "\ufffd" * 10**5)],
        ]
    )


def odd_frame(content: Content, random: random.Random) -> None:
    """A post-processor with unknown tokens, many tokens, or tokens alone."""
    special = {"id": "x", "ids": [random.choice([0, 5, 10**6])], "tokens": ["x"]}
    token = {"SpecialToken": {"id": random.choice(["x", "y"]), "type_id": 0}}
    text = {"Sequence": {"id": random.choice("AB"), "type_id": random.choice([0, 2**31])}}
    single = [token] * random.choice([1, 100_000]) + [text] * random.choice([0, 1, 50])
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [token, text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"x": special},
    }


def nested(content: Content, random: random.Random) -> None:
    """Parts nested deeply."""
    name, key = random.choice([("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")])
    part: Content = {"type": "Lowercase"} if name == "normalizer" else {"type": "Whitespace"}
    for _ in range(random.choice([10, 60, 130, 400])):
        part = {"type": "Sequence", key: [part]}
    content[name] = part


KINDS: tuple[Callable[[Content, random.Random], None], ...] = (
    *(slow_pattern, longer_text, charsmap, odd_value, odd_model, odd_added_token, odd_frame),
    *(slow_pattern, longer_text, nested),
)


def use(path: Path) -> str:
    """Imports and uses a tokenizer: REFUSED, USED or TRACEBACK."""
    try:
        tokenizer = PublishedTokenizer(import_tokenizer(path, "text"))
        for text in TEXTS:
            tokenizer.decode(tokenizer.encode(text))
            tokenizer.encode_plain(text)
    except UserError as error:
        return REFUSED if "\n" not in str(error) else TRACEBACK
    except BaseException:
        return TRACEBACK
    return USED


def run_case(number: int, folder: Path) -> str:
    """Outcome of a case, in a process of its own."""
    draw = random.Random(number)
    content = working()
    KINDS[number % len(KINDS)](content, draw)
    path = folder / f"{number}.json"
    path.write_text(json.dumps(content))
    outcome = folder / f"{number}.outcome"
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.dup2(os.open(folder / f"{number}.stderr", os.O_WRONLY | os.O_CREAT), 2)
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            outcome.write_text(use(path))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number_of = os.WTERMSIG(status)
        return HUNG if number_of == signal.SIGALRM else f"signal {number_of}"
    if not outcome.exists() or (folder / f"{number}.stderr").stat().st_size:
        return TRACEBACK
    return outcome.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        numbers = range(args.first, args.first + args.cases)
        outcomes = {number: run_case(number, Path(folder)) for number in numbers}
    wrong = {n: outcome for n, outcome in outcomes.items() if outcome not in (REFUSED, USED)}
    counts = collections.Counter(outcomes.values())
    print(json.dumps({"cases": args.cases, **counts, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
