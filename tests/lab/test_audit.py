# SPDX-License-Identifier: Apache-2.0
"""Audits of altered runs."""

import itertools
import json
import shutil

import pytest

from tests.refusals import assert_refused
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import write_score
from transformer_jax.lab.audit import Audit, audit
from transformer_jax.logs.records import chained, to_json

OF_LAST_SEGMENT = 0
"""A seed that draws the second of two segments."""


@pytest.fixture
def run(language_model_workdir, tmp_path):
    return shutil.copytree(language_model_workdir, tmp_path / "run")


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_records(run, lines):
    (run / "metrics.jsonl").write_text("".join(f"{to_json(line)}\n" for line in lines))


def flip_bit(run, step, item):
    files = [path for path in (run / "checkpoints" / step / item).rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def test_what_was_edited_is_found_by_digests(run):
    lines = records(run)
    lines[1]["loss"] *= 0.99
    del lines[3]  # the records of steps 15
    write_records(run, lines)
    flip_bit(run, "15", "params")
    flip_bit(run, "30", "training")
    manifest.write_manifest(run / "checkpoints" / "30")
    write_score(run / "checkpoints" / "30", 0.0)
    report = audit(run)
    expected = [
        *("line 2 or the one before it was altered", "line 4 or the one before it was altered"),
        *("checkpoint 15: params/", "checkpoint 30: the records name another one"),
        "checkpoint 30: its score 0 is not in the records",
    ]
    missing = [text for text in expected if text not in report.as_text()]
    assert not missing and len(report.findings) == len(expected), report.as_text()
    assert not report.retrained and "trained again: nothing" in report.as_text()


def test_a_record_with_new_digests_is_found_by_training_its_segment_again(run):
    """All else of the segment is equal bit for bit."""
    lines = records(run)
    before = ""
    for i, line in enumerate(lines):
        if (line["step"], line["split"]) == (20, "train"):
            loss = line["loss"]
            line["loss"] = 0.99 * loss
        lines[i] = chained({name: line[name] for name in line if name != "sha256"}, before)
        before = lines[i]["sha256"]
    write_records(run, lines)
    report = audit(run, seed=OF_LAST_SEGMENT)
    assert report.retrained == [(15, 30)] and report.same_machine
    name = "15 to 30: loss of the record of train at step 20"
    assert report.findings == [f"{name}: {0.99 * loss}; here: {loss}"]


@pytest.mark.parametrize("count, drawn, altered", [(5, 2, 1), (5, 2, 3), (4, 1, 4), (3, 0, 1)])
def test_the_chance_to_find_altered_segments_is_the_share_of_draws_with_one(count, drawn, altered):
    segments = [(i, i + 1) for i in range(count)]
    report = Audit(segments, segments[:drawn], 0, True, [])
    draws = list(itertools.combinations(range(count), drawn))
    hits = sum(any(segment < altered for segment in draw) for draw in draws)
    assert report.probability(altered) == pytest.approx(hits / len(draws))


def test_a_run_that_cannot_be_audited_is_refused(run, tmp_path):
    alone = tmp_path / "seeds" / "seed_0"
    shutil.copytree(run, alone)
    (tmp_path / "seeds" / "together").mkdir()
    new = shutil.copytree(run, tmp_path / "new")
    shutil.rmtree(new / "checkpoints")
    assert_refused(
        {
            "was trained with others in one program": lambda: audit(alone),
            "has no checkpoint to audit": lambda: audit(new),
            "copy the run to one": lambda: audit("gs://bucket/run"),
        }
    )
