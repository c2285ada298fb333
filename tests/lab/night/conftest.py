# SPDX-License-Identifier: Apache-2.0
"""The browser of the other pages' tests."""

from tests.lab.analysis.conftest import browser, show

__all__ = ["browser", "show"]
