# SPDX-License-Identifier: Apache-2.0
"""The messages that the FAQ explains are messages of the package."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_messages_are_those_of_the_package():
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
