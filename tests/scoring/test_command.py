# SPDX-License-Identifier: Apache-2.0
"""Metrics computed by the user's command."""

import shlex
import sys

from transformer_jax.scoring.command import scores_by_command

RECORDS = [{"source": "a", "target": "b c", "output": "b Ü"}, {"output": "x\n"}]


def python(code):
    return shlex.join([sys.executable, "-c", code])


def test_it_reads_outputs_and_prints_numbers():
    code = "import sys, json; r = [json.loads(l) for l in sys.stdin.read().splitlines()]; "
    code += "print(json.dumps({'lines': len(r), 'last': float(len(r[0]['output']))}))"
    assert scores_by_command(python(code), RECORDS) == {"lines": 2, "last": 3.0}
