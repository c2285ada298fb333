# SPDX-License-Identifier: Apache-2.0
"""Pages equal the output of their scripts; the messages of the FAQ are those of the package."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINT_PAGE = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])[sys.argv[2]]())"


@pytest.mark.parametrize(
    ("path", "script", "function"),
    [
        ("docs/claims.md", "write_claims", "page"),
        ("experiments/results/claims.md", "write_claims", "settings_page"),
        ("docs/configuration.md", "write_configuration", "page"),
        ("docs/mistakes.md", "write_mistakes", "page"),
    ],
)
def test_a_page_equals_the_output_of_its_script(path, script, function):
    """In a process of its own, as other tests may have registered components here."""
    command = [sys.executable, "-c", PRINT_PAGE, ROOT / "docs" / f"{script}.py", function]
    page = subprocess.check_output(command, encoding="utf-8")
    recorded = (ROOT / path).read_text(encoding="utf-8")
    assert recorded == page, f"run: python docs/{script}.py"


def test_messages_of_the_faq_are_those_of_the_package():
    code = "\n".join(path.read_text() for path in (ROOT / "transformer_jax").rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # literals over several lines
    code = re.sub(r"\{[^{}]*\}", "...", code)
    page = (ROOT / "docs/faq.md").read_text()
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    parts = {
        part.strip() for message in messages for part in re.split(r"\.\.\.|\b[A-Z]\b", message)
    }
    missing = [part for part in parts if len(part) > 6 and part not in code]
    assert len(messages) > 12 and missing == []
