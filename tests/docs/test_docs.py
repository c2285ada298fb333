# SPDX-License-Identifier: Apache-2.0
"""The documentation names files, headings, functions, classes and messages that exist; pages that
are written by scripts equal what these write."""

import functools
import inspect
import json
import re
import subprocess
import sys
import tomllib

from tests.conftest import ROOT
from transformer_jax.models.classifier import TextClassifier, TokenClassifier
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.models.recurrent import RecurrentEncoderDecoder

PAGES = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("experiments/results/*.md")]
NOTEBOOKS = ROOT / "docs" / "notebooks.md"
PAPER_TO_CODE = ROOT / "docs" / "from_paper_to_code.md"

LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")
NAMED_FILE = re.compile(r"`((?:\w+/)*\w+\.py)`((?:(?:, | )`[A-Za-z_]+`)*)")


@functools.cache
def anchors(page):
    """Link fragments that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading).strip() for heading in headings)
    return {heading.lower().replace(" ", "-") for heading in words}


def test_links_have_targets():
    lost = []
    for page in PAGES:
        for target, fragment in LINK.findall(page.read_text()):
            if "://" in target:
                continue
            path = (page.parent / target).resolve() if target else page
            if not path.exists() or (fragment and fragment not in anchors(path)):
                lost.append(f"{page.name}: {target}#{fragment}")
    assert lost == []


def test_files_and_names_of_paper_to_code_exist():
    lost = []
    for path, names in NAMED_FILE.findall(PAPER_TO_CODE.read_text()):
        candidates = [ROOT / folder / path for folder in ("transformer_jax", "tests", ".")]
        texts = [candidate.read_text() for candidate in candidates if candidate.exists()]
        if not texts:
            lost.append(path)
        for name in re.findall(r"`(\w+)`", names):
            defined = re.compile(rf"^\s*(?:(?:class|def) )?{name}\b", re.M)
            if not any(map(defined.search, texts)):
                lost.append(f"{path} {name}")
    assert lost == []


def test_experiments_and_configs_that_are_named_exist():
    folders = (ROOT, ROOT / "tests")
    lost = [
        f"{page.name}: {name}"
        for page in PAGES
        for name in re.findall(r"\b(?:experiments|configs)/[\w/]+\.\w+", page.read_text())
        if not any((folder / name).exists() for folder in folders) and "NAME" not in name
    ]
    assert lost == []


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120 and len(text.split()) <= 950


def test_extras_are_installed_in_one_way():
    """The package is on no registry: `pip install 'transformer_jax[...]'` would find another."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = [*PAGES, ROOT / "Makefile", *(ROOT / "transformer_jax").rglob("*.py")]
    named, others = set(), []
    for path in files:
        text = path.read_text()
        named |= set(re.findall(r"(?:EXTRAS=|install_hint\(['\"])([a-z0-9-]+)", text))
        others += re.findall(r"transformer_jax\[\w+\]", text)
    assert len(named) > 6 and named <= project["optional-dependencies"].keys()
    assert others == []


def test_scripts_are_launched_in_the_way_that_works():
    """A script that imports `experiments` needs `python -m`."""
    texts = [path.read_text() for path in (*PAGES, *(ROOT / "experiments").rglob("*.py"))]
    by_path = set(re.findall(r"python (experiments/[\w/]+)\.py", "\n".join(texts)))
    imports = re.compile(r"^(from|import) experiments\b", re.MULTILINE)
    wrong = [name for name in by_path if imports.search((ROOT / f"{name}.py").read_text())]
    assert len(by_path) > 10 and wrong == []


OF_PAIRS = (EncoderDecoder.unprojected, RecurrentEncoderDecoder.unprojected)
SIGNATURES = {
    "`encoder_decoder`, `recurrent`": OF_PAIRS,
    "`decoder_only`": (DecoderOnly.features,),
    "`encoder_only`": (EncoderOnly.unprojected,),
    "with the head of a classifier": (TextClassifier.__call__,),
    "with the head of a tagger": (TokenClassifier.__call__,),
}


def test_the_table_of_arguments_is_that_of_the_models():
    rows = re.findall(r"^\| (.*) \| `(\w+, .*deterministic=True)` \|$", NOTEBOOKS.read_text(), re.M)
    assert dict(rows).keys() == SIGNATURES.keys()
    for name, written in rows:
        for method in SIGNATURES[name]:
            own = [*inspect.signature(method).parameters.values()][1:]
            shown = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in own]
            assert written == ", ".join(shown)


# --- Pages and the package ---

WRITTEN = {
    "docs/claims.md": "write_claims.page",
    "experiments/results/claims.md": "write_claims.settings_page",
    "docs/configuration.md": "write_configuration.page",
    "docs/mistakes.md": "write_mistakes.page",
}
"""The function of a script in docs/ that returns a page."""
PROGRAM = f"""
import json, runpy, sys
pages = {{}}
for path, place in {WRITTEN}.items():
    script, function = place.split(".")
    pages[path] = runpy.run_path(f"{ROOT}/docs/{{script}}.py")[function]()
json.dump(pages, sys.stdout)
"""


def test_pages_equal_the_output_of_their_scripts():
    """In a process of its own, as other tests may have registered components here."""
    pages = json.loads(subprocess.check_output([sys.executable, "-c", PROGRAM]))
    stale = [path for path in WRITTEN if pages[path] != (ROOT / path).read_text(encoding="utf-8")]
    assert stale == [], "run their scripts, python docs/write_*.py"


def test_messages_of_the_faq_are_those_of_the_package():
    code = "\n".join(path.read_text() for path in (ROOT / "transformer_jax").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # literals over several lines
    code = re.sub(r"\{[^{}]*\}", "...", code)
    page = (ROOT / "docs/faq.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    parts = map(str.strip, re.split(r"\.\.\.|\b[A-Z]\b|\n", "\n".join(messages)))
    missing = [part for part in parts if len(part) > 6 and part not in code]
    assert len(messages) > 12 and missing == []
