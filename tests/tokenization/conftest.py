# SPDX-License-Identifier: Apache-2.0
"""Fixture: tables of lower case."""

import pytest

from transformer_jax.tokenization import sentencepiece


@pytest.fixture(scope="session", autouse=True)
def lowercase_rules(made_once):
    """Makes the table of each normalization once for all tests: it covers Unicode in 5 seconds."""
    make = sentencepiece._lowercase_rules

    def table(normalization):
        return made_once(f"lowercase_{normalization}.tsv", lambda: make(normalization))

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(sentencepiece, "_lowercase_rules", table)
        yield
