# SPDX-License-Identifier: Apache-2.0
"""A workdir damaged in each of the campaign's ways is loaded, or refused with one line."""

import random
import sys
from pathlib import Path

import pytest

import transformer_jax as tj

sys.path.insert(0, str(Path(__file__).parent))
import campaign  # noqa: E402
import damage  # noqa: E402
import hostile_workdirs  # noqa: E402


@pytest.mark.parametrize("kind", [kind for kind, _ in damage.KINDS], ids=lambda kind: kind.__name__)
def test_a_workdir_is_loaded_or_refused(workdir, tmp_path, kind):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "it").write_text("the user's own")
    kind(workdir, outside, random.Random(7))
    before = campaign.snapshot(outside)
    try:
        tj.load(workdir)
    except tj.UserError as error:
        assert "\n" not in str(error)
    assert campaign.snapshot(outside) == before


def test_a_case_is_drawn_by_its_number(tmp_path):
    both = [next(hostile_workdirs.hostile_cases(tmp_path, range(n, 9))).name for n in (3, 3)]
    assert both[0] == both[1] and both[0].startswith("3: ")
    names = [case.name for case in hostile_workdirs.hostile_cases(tmp_path, range(300))]
    assert {name.split(": ")[1].split(",")[0] for name in names} == {
        kind.__name__ for kind, _ in damage.KINDS
    }
