# SPDX-License-Identifier: Apache-2.0
"""Configuration of the documentation site, which `make docs` builds into docs/_build.

The source folder is the repository's root, so that links between pages, notebooks, results and
source files are the same on the site and on GitHub.
"""

import json
import os
import re
import sys
from collections import Counter
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes

sys.path.insert(0, str(Path(__file__).parents[1]))  # documents this checkout
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # autodoc imports the package

project = "transformer_jax"
author = "The authors of transformer_jax"
version = release = version_of("transformer_jax")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "CHANGELOG.md",
    "docs/**",
    "experiments/notebooks/*.ipynb",
    "experiments/results/*.md",
]
exclude_patterns = [
    ".*",
    "docs/_build",
    "runs",
    "tests",
    "transformer_jax",
]  # not searched for pages

nb_execution_mode = "off"  # notebooks are shown with the outputs that are saved in them
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the anchors that GitHub makes
suppress_warnings = ["myst.header"]  # a page of outputs begins at level 3

default_role = "code"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "setup"}  # Flax's own, with its own docstring
autodoc_typehints_format = "short"
napoleon_use_ivar = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 80

html_theme = "sphinx_book_theme"
html_title = "transformer_jax"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(Path(__file__).with_name("static") / "scorer.js")
html_copy_source = False
templates_path = ["templates"]
html_additional_pages = {"index": "to_docs.html"}  # the site's root leads to docs/index.html
html_theme_options = {"navbar_persistent": [], "show_navbar_depth": 1, "show_toc_level": 2}


EXAMPLE = re.compile(r"(?<=\n\n)(?: {4,}\S.*\n?|\n(?= {4}))+")
LITERAL = re.compile(r"(``?[^`]+``?|^ *:[^:\n]+:)", re.MULTILINE)  # and the fields of napoleon
RUN = re.compile(r"^```bash run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HIDDEN = "\x00"  # a colon that napoleon would take for the end of a type


def hide_colon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(":", HIDDEN)


def to_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes reStructuredText of a docstring: text stays text, indented examples are code."""
    text = "\n".join(lines).replace(HIDDEN, ":")
    parts, end = [], 0
    for example in EXAMPLE.finditer(text):
        parts += [_escaped(text[end : example.start()]), "::\n\n", example[0]]
        end = example.end()
    lines[:] = "".join([*parts, _escaped(text[end:])]).split("\n")


def _escaped(text: str) -> str:
    pieces = LITERAL.split(text)
    pieces[::2] = (re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", piece) for piece in pieces[::2])
    return "".join(pieces)


NEEDS = {  # what keeps the tests from running a command
    r"--distributed": "several processes",
    r"(gs|s3)://": "a bucket",
    r"hf:": "a download",
    r"plan-|--device=": "a compiler for other devices",
    r"init_from=|(?<!-)\b(evaluate|predict|chat|score|embed|inspect|export)\b": "a trained run",
    r"\bquickstart\b": "minutes",
    r"\btrain --config=|\bsweep --": "its data, or hours",
}


def mark_commands(app: Any, doctree: Any) -> None:
    """Says in a tooltip of each block of commands whether the tests run it, or what it needs.

    The tests check the verbs, flags, configs and fields of all of them.
    """
    run = [block.strip() for block in RUN.findall(Path(doctree["source"]).read_text())]
    for block in list(doctree.findall(nodes.literal_block)):
        text = block.astext()
        if "transformer_jax " not in text or block.get("language") == "python":
            continue
        is_run = text.strip() in run
        needs = next((need for pattern, need in NEEDS.items() if re.search(pattern, text)), "files")
        note = "The tests run this." if is_run else f"The tests check its flags; it needs {needs}."
        before = nodes.raw("", f'<div title="{note}">', format="html")
        at = block.parent.index(block)
        block.parent[at : at + 1] = [before, block, nodes.raw("", "</div>", format="html")]


def index_fields(app: Any, doctree: Any) -> None:
    """Lets the search find each field of the config by its name."""
    docname = app.env.docname
    if docname != "docs/configuration":
        return
    domain = app.env.domains.standard_domain
    for table in doctree.findall(nodes.table):
        section = table.parent[0].astext().partition(".")[0]
        for row in list(table.findall(nodes.row))[1:]:
            for name in row[0].findall(nodes.literal):
                field = f"{section}.{name.astext()}"
                name["ids"].append(nodes.make_id(field))
                domain.note_object("field", field, name["ids"][0], location=name)


WORD_SHARES = "word_shares.js"


def write_word_shares(app: Any, exception: Exception | None) -> None:
    """Writes for each stem how much of a page it is, by which scorer.js orders pages.

    Divided by the root of the page's length: by the length itself, short pages would come first,
    and undivided the long ones.
    """
    shares: dict[str, dict[str, int]] = {}
    language = None if exception else app.builder.indexer.lang
    for page in app.env.found_docs if language else ():
        if not re.fullmatch(r"docs/\w+", page):
            continue
        words = language.split(app.env.get_doctree(page).astext().lower())
        for stem, count in Counter(map(language.stem, words)).items():
            share = round(50 * count / len(words) ** 0.5)
            if share > 1:
                shares.setdefault(stem, {})[page] = share
    script = Path(app.outdir) / "_static" / WORD_SHARES
    script.write_text(f"var WORD_SHARES = {json.dumps(shares, sort_keys=True)};\n")


def add_word_shares(app: Any, page: str, *_: Any) -> None:
    if page == "search":
        app.add_js_file(WORD_SHARES)


def setup(app: Any) -> None:
    import_module("transformer_jax.lab.analysis")  # gives `Run` the methods that look inside it
    app.add_object_type("field", "config-field", objname="config field")
    app.connect("doctree-read", mark_commands)
    app.connect("doctree-read", index_fields)
    app.connect("html-page-context", add_word_shares)
    app.connect("build-finished", write_word_shares)
    app.connect("autodoc-process-docstring", hide_colon, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", to_rst, priority=900)
