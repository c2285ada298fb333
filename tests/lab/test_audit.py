# SPDX-License-Identifier: Apache-2.0
"""Audits of altered runs."""

import itertools
import json
import shutil

import pytest

import transformer_jax as tj
from tests.conftest import records_of, write_records
from tests.refusals import assert_refused
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import write_score
from transformer_jax.cli.main import main
from transformer_jax.lab import audit as audits
from transformer_jax.logs.records import chained
from transformer_jax.runs import provenance

OF_LAST_SEGMENT = 0
"""A seed that draws the second of two segments."""


@pytest.fixture
def run(language_model_workdir, tmp_path):
    return shutil.copytree(language_model_workdir, tmp_path / "run")


def flip_bit(run, step, item):
    files = [path for path in (run / "checkpoints" / step / item).rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def test_what_was_edited_is_found_by_digests(run, language_model_workdir, capsys):
    lines = records_of(run)
    lines[1]["loss"] *= 0.99
    del lines[3]
    write_records(run, *lines)
    flip_bit(run, "15", "params")
    flip_bit(run, "30", "training")
    manifest.write_manifest(run / "checkpoints" / "30")
    write_score(run / "checkpoints" / "30", 0.0)
    report = tj.load(language_model_workdir).audit(segments=0)
    assert report.findings == [] and report.as_text().endswith("findings: 0")
    assert main(["audit", f"--workdir={run}"]) == 1
    printed = capsys.readouterr().out
    report = audits.audit(run)
    assert printed == f"{report.as_text()}\n"
    expected = [
        *("line 2 or the one before it was altered", "line 4 or the one before it was altered"),
        *("checkpoint 15: params/", "checkpoint 30: its digest is not the one in metrics.jsonl"),
        "checkpoint 30: its score 0 is not in the records",
    ]
    missing = [text for text in expected if text not in report.as_text()]
    assert not missing and len(report.findings) == len(expected), report.as_text()
    assert not report.retrained and "trained again: nothing" in report.as_text()


def test_a_record_with_new_digests_is_found_by_training_its_segment_again(run):
    """All else of the segment is equal bit for bit."""
    lines = records_of(run)
    before = ""
    for i, line in enumerate(lines):
        if (line["step"], line["split"]) == (20, "train"):
            loss = line["loss"]
            line["loss"] = 0.99 * loss
        lines[i] = chained({name: line[name] for name in line if name != "sha256"}, before)
        before = lines[i]["sha256"]
    write_records(run, *lines)
    report = audits.audit(run, seed=OF_LAST_SEGMENT)
    assert report.retrained == [(15, 30)] and report.same_machine
    place = "15 to 30: the record of train at step 20"
    said = f"loss is {0.99 * loss}; trained again: {loss}"
    assert report.findings == [f"{place}: {said}"]


def test_another_step_is_found_whatever_the_number_of_cores(run, monkeypatch):
    config = json.loads((run / "config.json").read_text())
    config["optimizer"]["learning_rate"] *= 1.001
    (run / "config.json").write_text(json.dumps(config))
    machine = provenance.machine_provenance() | {"number of cores": "another"}
    monkeypatch.setattr(provenance, "machine_provenance", lambda: machine)
    (finding,) = audits.audit(run, seed=OF_LAST_SEGMENT).findings
    assert finding == "15 to 30: the compiled training step is not the recorded one"


def test_on_another_machine_losses_and_movements_may_differ_a_little(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    machine = provenance.machine_provenance() | {"processor": "another"}
    monkeypatch.setattr(provenance, "machine_provenance", lambda: machine)
    report = audits.audit(run.name, seed=OF_LAST_SEGMENT)
    assert not report.same_machine and report.findings == [] and "to 2%" in report.as_text()
    first, last = (run / "checkpoints" / step for step in ("15", "30"))
    assert audits._compare_movements(last, last, first) == []
    assert "apart by 100.0%" in audits._compare_movements(last, first, first)[0]
    assert "those of the checkpoint before" in audits._compare_movements(first, last, first)[0]


@pytest.mark.parametrize("count, drawn, altered", [(5, 2, 1), (5, 2, 3), (4, 1, 4), (3, 0, 1)])
def test_the_chance_to_find_altered_segments_is_the_share_of_draws_with_one(count, drawn, altered):
    segments = [(i, i + 1) for i in range(count)]
    report = audits.Audit(segments, segments[:drawn], 0, True, [])
    draws = list(itertools.combinations(range(count), drawn))
    hits = sum(any(segment < altered for segment in draw) for draw in draws)
    assert report.probability(altered) == pytest.approx(hits / len(draws))


def test_a_run_that_cannot_be_audited_is_refused(run, tmp_path):
    alone = tmp_path / "seeds" / "seed_0"
    shutil.copytree(run, alone)
    (tmp_path / "seeds" / "together").mkdir()
    new = shutil.copytree(run, tmp_path / "new")
    shutil.rmtree(new / "checkpoints")
    old = shutil.copytree(run, tmp_path / "old")
    lines = records_of(run)
    for line in lines:
        del line["sha256"]
    write_records(old, *lines)
    (run / "metrics.jsonl").unlink()
    assert_refused(
        {
            "was trained with others in one program": lambda: audits.audit(alone),
            "has no checkpoint to audit": lambda: audits.audit(new),
            "an earlier version trained the run": lambda: audits.audit(old),
            "has no metrics.jsonl to audit": lambda: audits.audit(run),
            "copy the run to one": lambda: audits.audit("gs://bucket/run"),
        }
    )
