"""The verb `inspect`: its flags, and what it does; and what `plot` draws of attention."""

import argparse
import logging
from pathlib import Path
from typing import Any

from transformer_jax.buckets.bucket import is_address
from transformer_jax.cli import terminal
from transformer_jax.cli.arguments import Verbs, add_max_length, add_patches, add_run, load_run
from transformer_jax.cli.lines import LineCount, read_batches, unescape
from transformer_jax.errors import UserError

logger = logging.getLogger(__name__)

INDEX = "index.html"


def add_inspect(verbs: Verbs) -> None:
    """Declares the verb."""
    inspect = verbs.add_parser(
        "inspect",
        help="read one example a line from stdin, write a page of what the model does with each",
        epilog=f"DIR is new or empty. A page is one HTML file, named after its line; {INDEX} lists "
        "them. Their paths are printed.",
    )
    add_run(inspect)
    add_max_length(inspect)
    add_patches(inspect)
    inspect.add_argument("--to", metavar="DIR", help="where pages are written; made if absent")
    inspect.add_argument(
        "--walk", action="store_true", help="the model step by step, in place of its attention"
    )


def inspect(args: argparse.Namespace) -> None:
    """Writes a page for each line of stdin, and one that lists them; prints their paths."""
    from transformer_jax.analysis.pages.attention_page import index_page

    if is_address(args.to):
        raise UserError(f"--to: {args.to} is no folder of this machine, where pages are written")
    folder = Path(args.to)
    _require_empty(folder)
    stdin, run = terminal.read_stdin(), load_run(args)
    folder.mkdir(parents=True, exist_ok=True)
    pages: list[tuple[str, str]] = []  # the name of a file, and its line
    number = 0
    with LineCount("inspected") as count:
        for lines in read_batches(stdin, most=1):
            number += 1
            count.advance(1)
            text = unescape(lines[0])
            if not text.strip():
                logger.warning("line %d is blank: it has no page", number)
                continue
            name = f"{number:04}-walk.html" if args.walk else f"{number:04}.html"
            _write(folder / name, _page(run, text, number, args.walk))
            pages.append((name, text))
    if pages:
        _write(folder / INDEX, index_page(pages))


def draw_attention(args: argparse.Namespace) -> Path:
    """Draws the attention that `plot` asks for; returns the picture's path."""
    from transformer_jax.runs.load import load
    from transformer_jax.tools.plots import plot_attention

    output = Path(args.output or "attention.png")
    run = load(args.workdir, modules=args.modules, base=args.base)
    plot_attention(run.attention(unescape(args.attention)), output, args.kind, args.layer)
    return output


def _require_empty(folder: Path) -> None:
    try:
        if any(folder.iterdir()):
            raise UserError(f"--to: {folder} is not empty; choose a new directory")
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise UserError(f"--to: {folder} is a file; choose a new directory") from error


def _page(run: Any, text: str, number: int, walks: bool) -> str:
    try:
        return _walk(run, text) if walks else _attention(run, text)
    except UserError as error:
        raise UserError(f"line {number}: {error}") from error


def _walk(run: Any, text: str) -> str:
    from transformer_jax.analysis.walk.walking import walk_page

    return walk_page(run.walk(text), title=text)


def _attention(run: Any, text: str) -> str:
    from transformer_jax.analysis.pages.attention_page import attention_page
    from transformer_jax.tasks.interface import SupportsBeamTree

    has_beams = isinstance(run.task, SupportsBeamTree) and "beam" in run.settings.decode.searches
    attention = run.attention(text, also=("queries", "keys"))
    beams = run.beam_tree(text).as_json() if has_beams else None
    return attention_page(attention, title=text, beams=beams)


def _write(path: Path, html: str) -> None:
    """Writes a new file and prints its path."""
    with path.open("x", encoding="utf-8") as file:
        file.write(html)
    terminal.write(f"{path}\n")
    terminal.flush()
