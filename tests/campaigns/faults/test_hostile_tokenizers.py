# SPDX-License-Identifier: Apache-2.0
"""Hostile tokenizer.json files of each kind are refused with one line, or work in time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "experiments" / "faults"))
import hostile_tokenizers  # noqa: E402


def test_hostile_tokenizers_are_refused_or_work(tmp_path):
    outcomes = [hostile_tokenizers.run_case(number, tmp_path) for number in range(20)]
    assert set(outcomes) == {hostile_tokenizers.REFUSED, hostile_tokenizers.USED}
