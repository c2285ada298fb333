# SPDX-License-Identifier: Apache-2.0
"""Pages equal the output of their scripts; the messages of the FAQ are those of the package."""

import json
import re
import subprocess
import sys

from tests.conftest import ROOT

PAGES = {
    "docs/claims.md": "write_claims.page",
    "experiments/results/claims.md": "write_claims.settings_page",
    "docs/configuration.md": "write_configuration.page",
    "docs/mistakes.md": "write_mistakes.page",
}
"""The function of a script in docs/ that returns a page."""
PROGRAM = f"""
import json, runpy, sys
pages = {{}}
for path, place in {PAGES}.items():
    script, function = place.split(".")
    pages[path] = runpy.run_path(f"{ROOT}/docs/{{script}}.py")[function]()
json.dump(pages, sys.stdout)
"""


def test_pages_equal_the_output_of_their_scripts():
    """In a process of its own, as other tests may have registered components here."""
    pages = json.loads(subprocess.check_output([sys.executable, "-c", PROGRAM]))
    stale = [path for path in PAGES if pages[path] != (ROOT / path).read_text(encoding="utf-8")]
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
