# SPDX-License-Identifier: Apache-2.0
"""The documentation site builds without warnings, and its links have targets."""

import importlib.util
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from tests.conftest import ROOT

if importlib.util.find_spec("sphinx_book_theme") is None:
    pytest.skip("make setup installs the extra `docs`", allow_module_level=True)


class Page(HTMLParser):
    """Addresses that a page names, and the fragments that can be named in it."""

    def __init__(self, path):
        super().__init__()
        self.addresses, self.fragments = set(), {"", "top"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.addresses.add(value)
            if name == "id":
                self.fragments.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "html"
    options = ["-q", "-W", "--keep-going", "-c", "docs", ".", folder]
    # The tree of all pages is drawn on each page, for a quarter of the build's time.
    options += ["-D", "html_theme_options.navigation_depth=1"]
    # Collections of garbage would take a third of the time.
    code = "import gc, sys; from sphinx.cmd.build import main; gc.disable(); sys.exit(main())"
    command = [sys.executable, "-c", code, *options]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


def test_links_have_targets(site):
    paths = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    pages = {path.resolve(): Page(path) for path in paths}
    lost = []
    for path, page in pages.items():
        for address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages[target].fragments if target in pages else {"", unquote(parts.fragment)}
            if not target.exists() or unquote(parts.fragment) not in known:
                lost.append(f"{path.relative_to(site)}: {address}")
    assert len(pages) > 30 and lost == []


def test_every_page_is_found_by_the_search(site):
    """The index is a script, which a browser loads without a server."""
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("experiments/notebooks/*.ipynb")]
    missing = [p for p in pages if f'"{p.relative_to(ROOT).with_suffix("")}"' not in index]
    assert missing == []
    assert '"config field"' in index and '"label_smoothing"' in index  # which scorer.js puts first


def test_the_search_knows_which_page_a_word_is_about(site):
    script = (site / "_static" / "word_shares.js").read_text(encoding="utf-8")
    shares = json.loads(script.removeprefix("var WORD_SHARES = ").removesuffix(";\n"))
    first = {stem: max(shares[stem], key=shares[stem].get) for stem in ("notebook", "csv", "lora")}
    pages = {"notebook": "docs/notebooks", "csv": "docs/classification", "lora": "docs/lora"}
    assert first == pages
    assert "word_shares.js" in (site / "search.html").read_text(encoding="utf-8")


def test_the_reference_has_arguments_and_plain_text(site):
    page = (site / "docs/api/run.html").read_text(encoding="utf-8")
    assert "transformer_jax.runs.run.Run.attention" in page
    assert "Parameters" in page and "Raises" in page
