# SPDX-License-Identifier: Apache-2.0
"""docs/claims.md is equal to the output of its script."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "write_claims.py"


def test_the_page_equals_the_output_of_the_script():
    kept = SCRIPT.with_name("claims.md").read_text(encoding="utf-8")
    page = runpy.run_path(str(SCRIPT))["page"]
    assert kept == page(), "run: python docs/write_claims.py"
