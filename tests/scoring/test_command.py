# SPDX-License-Identifier: Apache-2.0
"""Metrics computed by the user's command."""

import shlex
import sys

import pytest

from transformer_jax.scoring.command import scores_by_command

RECORDS = [{"source": "a", "target": "b c", "output": "b Ü"}, {"output": "x\n"}]


def python(code):
    return shlex.join([sys.executable, "-c", code])


def printing(text):
    return shlex.join(["printf", "%s", text])


def test_it_reads_outputs_and_prints_numbers():
    code = "import sys, json; r = [json.loads(l) for l in sys.stdin.read().splitlines()]; "
    code += "print(json.dumps({'lines': len(r), 'last': float(len(r[0]['output']))}))"
    assert scores_by_command(python(code), RECORDS) == {"lines": 2, "last": 3.0}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("no-such-program", "cannot be run"),
        ("", "cannot be run"),
        ("'unclosed", "cannot be run: No closing quotation"),
        (python("import sys; sys.exit('it broke')"), "ended with status 1: it broke"),
        (printing("0.5"), "must print one JSON object of numbers"),
        (printing("hello"), "must print one JSON object of numbers"),
        (printing("{}"), "must print one JSON object of numbers"),
        (printing('{"a": "b"}'), "one JSON object of numbers"),
        (printing('{"a": 1' + 400 * "0" + "}"), "must print one JSON object of numbers"),
        pytest.param(printing(100_000 * "["), "must print one JSON object", id="too deep"),
        (printing('{"a": NaN}'), "must print one JSON object of numbers"),
    ],
)
def test_errors_are_one_line(command, told):
    with pytest.raises(ValueError, match=told) as caught:
        scores_by_command(command, RECORDS)
    assert "\n" not in str(caught.value)
