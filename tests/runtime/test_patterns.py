# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of configs, with a time limit."""

import time

import pytest

from transformer_jax.errors import UserError
from transformer_jax.runtime.patterns import check_pattern, matching

PATHS = ["encoder/layer_0/query/kernel", "encoder/layer_0/norm/scale", "é/kernel"]


def test_a_pattern_may_match_anywhere():
    assert matching("a.b", "(query|value)/kernel$", PATHS) == {PATHS[0]}
    assert matching("a.b", "^(encoder|é)/", PATHS) == {*PATHS}
    assert matching("a.b", "(?<!norm)/(?=k)", PATHS) == {PATHS[0], PATHS[2]}
    assert matching("a.b", "^decoder", PATHS) == set()


@pytest.mark.parametrize("pattern", [r"^([\w/]+)+!$", "(.|.)*(.|.)*(.|.)*!"])
def test_a_pattern_that_takes_exponential_time_is_refused(pattern):
    start = time.monotonic()
    with pytest.raises(UserError, match=r"config.a.b '.*' takes more than 0.3 s .* simplify it"):
        matching("a.b", pattern, ["encoder/layer_0/self_attention/query/kernel"], seconds=0.3)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("(", "a is '\\('.*, not a regular expression"), ("x" * 1001, "a has 1001 characters")],
)
def test_what_is_no_pattern_is_refused(pattern, message):
    with pytest.raises(ValueError, match=message):
        check_pattern("a", pattern)
