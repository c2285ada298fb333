# SPDX-License-Identifier: Apache-2.0
"""Warnings about lines: one message of each kind."""

from transformer_jax.tasks.line_warnings import collect_warnings


def test_lines_with_one_problem_share_a_message(caplog):
    with collect_warnings(462) as warnings:
        for number in range(13, 33, 2):
            warnings.about(number).add(f"line {number} is cut", "are cut to 64 tokens")
        warnings.about(14).add("line 14 is blank", "are blank")
    numbers = "13, 15, 17, 19, 21, 23, 25, 27, ..."
    told = [f"10 of 462 lines are cut to 64 tokens: {numbers}", "line 14 is blank"]
    assert caplog.messages == told
