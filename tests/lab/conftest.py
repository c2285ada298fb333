# SPDX-License-Identifier: Apache-2.0
"""A browser, and pages of drawn attention to open in it."""

import os

import pytest

from tests.lab.analysis.browser import Browser, find_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A running browser. Without one on this machine the tests are skipped, or fail where
    REQUIRE_BROWSER is set."""
    program = find_browser()
    if program is None:
        stop = pytest.fail if os.environ.get("REQUIRE_BROWSER") else pytest.skip
        stop("no Chromium here: install it, or name it in TRANSFORMER_JAX_BROWSER")
    running = Browser(program, tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture
def show(browser, tmp_path):
    """`show(html, **options)`: the document, opened from a file in `tmp_path`. After the test it is
    closed, and must not have complained."""
    tabs = []

    def open_(html, **options):
        path = tmp_path / f"{len(tabs)}.html"
        path.write_text(html, encoding="utf-8")
        tabs.append(browser.open(path, **options))
        return tabs[-1]

    yield open_
    for tab in tabs:
        # Chromium advises a test that reads pixels back more than once.
        complaints = map(str, tab.complaints())
        assert [text for text in complaints if "willReadFrequently" not in text] == []
        tab.close()
