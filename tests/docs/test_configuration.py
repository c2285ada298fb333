# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md is equal to the output of its script."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "write_configuration.py"
PRINT_PAGE = "import runpy, sys; sys.stdout.write(runpy.run_path(sys.argv[1])['page']())"


def test_the_page_equals_the_output_of_the_script():
    kept = SCRIPT.with_name("configuration.md").read_text(encoding="utf-8")
    # In a process of its own: other tests may have registered components here.
    page = subprocess.check_output([sys.executable, "-c", PRINT_PAGE, SCRIPT], encoding="utf-8")
    assert kept == page, "run: python docs/write_configuration.py"
