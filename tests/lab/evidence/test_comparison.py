# SPDX-License-Identifier: Apache-2.0
"""Comparison of runs: what differs, tests over seeds and examples, and what is refused."""

import json
import math
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import forgetting_modules, records_of, write_records
from tests.refusals import assert_refused
from transformer_jax.cli.main import main
from transformer_jax.data.sources import open_split
from transformer_jax.lab.evidence import comparison
from transformer_jax.tasks.interface import Prediction
from transformer_jax.tokenization import sentencepiece
from transformer_jax.training.evaluation import write_predictions

LOSSES = {"base": [3.0, 3.1, 2.9], "better": [2.0, 2.1, 1.9]}
OUTPUTS = {"base": ["ein Hund", "eine Katze"], "better": ["der Hund", "eine Katze"]}


@pytest.fixture(scope="module")
def runs(trained_workdir, tmp_path_factory):
    """Two runs of three seeds, with drawn losses and outputs."""
    folder = tmp_path_factory.mktemp("compared")
    for name, losses in LOSSES.items():
        for number, loss in enumerate(losses):
            seed = folder / name / f"seed_{number}"
            shutil.copytree(trained_workdir, seed, ignore=shutil.ignore_patterns("tensorboard"))
            scores = {"train_loss": 0.0, "bleu": 10 - loss}
            records = [
                {"step": step, "split": split, "loss": loss + 15 / step} | scores
                for step in (10, 30)
                for split in ("train", "valid")
            ]
            write_records(seed, *records)
        write_outputs(folder / name / "seed_0", OUTPUTS[name])
    change_config(folder / "better" / "seed_0", "train", label_smoothing=0.3)
    return folder


def write_outputs(workdir, outputs, sources=("a dog", "a cat"), step=30, **made_by):
    path = workdir / "predictions" / f"test-{step}.jsonl"
    pairs = zip(sources, OUTPUTS["better"], strict=True)
    examples = [{"source": source, "target": target} for source, target in pairs]
    origin = {"step": step, "checkpoint": None, "average": None, "search": {"beam_size": 4}}
    origin |= {"changed": {}, "data": "2 examples", **made_by}
    write_predictions(path, examples, [Prediction(output, -1.0) for output in outputs], origin)


def change_config(workdir, section=None, **fields):
    config = json.loads((workdir / "config.json").read_text())
    (config[section] if section else config).update(fields)
    (workdir / "config.json").write_text(json.dumps(config))


@pytest.fixture
def copies(runs, tmp_path):
    return shutil.copytree(runs, tmp_path / "copies")


def test_it_says_what_differs_and_whether_the_metrics_do(runs):
    found = tj.compare(runs / "base", runs / "better")
    assert found.title == "base and better"
    assert found.record["differing"] == {"train.label_smoothing": (0.1, 0.3)}
    tests = {test.metric: test for test in found.tests}
    loss = tests["loss"]
    assert loss.difference.mean == pytest.approx(-1.0) and loss.differs
    # t = -1 / sqrt(2 * 0.01 / 3), four degrees of freedom
    assert loss.difference.p == pytest.approx(0.000255, rel=0.01)
    assert loss.p_permutation == pytest.approx(0.1) and loss.seeds_to_decide is None
    assert tests["bleu"].difference.mean == pytest.approx(1.0)
    assert "2.500 ± 0.100 ≠" in found.as_text() and "| loss |" in found.as_markdown()
    assert r"2.500 $\pm$ 0.100 $\neq$" in found.as_latex()
    assert "loss,better,0,2.5\n" in found.as_csv()
    checkpoints = found.digests["better"]["checkpoints"].split("; ")
    assert len(checkpoints) == 3 and "config" in found.digests["base"]

    compared = {test["metric"] for test in found.record["over_examples"]}
    assert compared == {"bleu", "bleu_lowercase", "chrf", "ter"}
    (example,) = found.record["disagreements"]["better"]
    assert example["outputs"] == ("ein Hund", "der Hund")
    assert example["example"]["source"] == "a dog"


def test_a_run_in_the_current_folder_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    monkeypatch.chdir(tmp_path / "base")
    folders = [Path("."), Path("../better")]
    assert comparison._distinct_names(folders) == ["base", "better"]


def test_runs_of_the_same_seeds_are_pairs(copies):
    for number, loss in enumerate((2.0, 2.15, 1.85)):  # differences that do not tie
        record = {"step": 30, "split": "valid", "loss": loss, "train_loss": 0.0}
        write_records(copies / "better" / f"seed_{number}", record)
    (test,) = tj.compare(copies / "base", copies / "better", metrics=["loss"]).tests
    assert test.difference.test == "paired t"
    change_config(copies / "better" / "seed_0", seed=7)
    (test,) = tj.compare(copies / "base", copies / "better", metrics=["loss"]).tests
    assert test.difference.test == "Welch"


def test_a_seed_that_diverged_is_the_worst_or_told(copies, show):
    """One that trained beside others has records without a loss; alone, it has no later ones."""
    seed = copies / "better" / "seed_2"
    records = records_of(seed)
    last = {"step": 30, "split": "valid", "loss": None, "train_loss": None}
    write_records(seed, *records[:-1], last)
    found = tj.compare(copies / "base", copies / "better")
    assert list(found.values) == ["loss"] and math.isnan(found.values["loss"]["better"][2])
    assert found.tests[0].difference.test == "rank permutation"
    assert "different steps" not in " ".join(found.notes)
    page = show(comparison.comparison_page(found))  # its interval has no ends
    assert not page.complaints() and "? undecided" in page.texts(".verdict")[0]
    write_records(seed, *records[:2])
    found = tj.compare(copies / "base", copies / "better")
    assert "diverged or were stopped are (base: [30]; better: [10, 30])" in found.notes[0]


def test_outputs_that_were_made_otherwise_are_left_out_and_told(copies, caplog):
    base, better = (copies / name / "seed_0" for name in LOSSES)

    def note(**made_by):
        write_outputs(better, OUTPUTS["better"], **made_by)
        found = tj.compare(base, better)
        assert found.record["over_examples"] == [] == list(found.record["outputs"])
        return found.notes[-1]

    search = {"beam_size": 4, "temperature": 1.0}
    for words, made_by in {
        "are of another checkpoint of step 30": {"checkpoint": "SHA-256 0"},
        "average of the outputs is None and 2": {"average": 2},
        "changed of the outputs is {} and {'model.d_model': 8}": {"changed": {"model.d_model": 8}},
        "decode.temperature of the outputs is None and 1.0": {"search": search},
    }.items():
        assert words in note(**made_by) and "evaluate --split=test again" in note(**made_by)
    (better / "predictions" / "test-30.json").unlink()
    assert "do not say what made them" in tj.compare(base, better).notes[-1]
    for path in better.glob("predictions/test-30.*"):
        path.unlink()
    assert "are of step 10, its metrics of step 30" in note(step=10)


def test_outputs_of_each_runs_own_search_and_of_best_checkpoints_are_compared(copies, monkeypatch):
    base, better = (copies / name / "seed_0" for name in LOSSES)
    change_config(better, "decode", beam_size=2)
    write_outputs(better, OUTPUTS["better"], search={"beam_size": 2})
    found = tj.compare(base, better)
    assert found.record["over_examples"] and found.record["outputs"]["better/seed_0"]["step"] == 30
    for folder in (base, better):
        records = (folder / "metrics.jsonl").read_text()
        (folder / "metrics.jsonl").write_text(records.replace('"step": 30', '"step": 45'))
    found = tj.compare(base, better)
    assert found.record["over_examples"] and "best checkpoints: step 30 of" in found.notes[-1]


def test_without_seeds_or_outputs_there_is_no_test(runs):
    found = tj.compare(runs / "base" / "seed_0", runs / "better" / "seed_0")
    assert found.tests == [] and found.record["over_examples"]
    assert "one seed" in found.notes[0]
    found = tj.compare(runs / "base", runs / "better", split="valid_2")
    assert found.record["over_examples"] == [] and "evaluate --split=valid_2" in found.notes[-1]


def test_many_runs_are_corrected(copies):
    shutil.copytree(copies / "better", copies / "third")
    found = tj.compare(copies / "base", copies / "better", copies / "third", metrics=["loss"])
    adjusted = [test.p_adjusted for test in found.tests]
    assert adjusted == pytest.approx([2 * test.difference.p for test in found.tests])


def test_the_loss_per_example_is_compared(runs, tmp_path):
    run = tj.load(runs / "base" / "seed_0")
    flat = jax.tree.map(lambda leaf: 0.3 * np.asarray(leaf), run.params)
    run.with_params(flat).save(tmp_path / "flat")
    shutil.copy(runs / "base" / "seed_0" / "metrics.jsonl", tmp_path / "flat")
    found = tj.compare(runs / "base" / "seed_0", tmp_path / "flat", split="valid", loss=True)
    (test,) = found.record["over_examples"]
    examples = list(open_split(run.settings.data, "valid"))
    scores = run.score([one["source"] for one in examples], [one["target"] for one in examples])
    bits = [
        -score / math.log(2) / len(one["target"].encode())
        for score, one in zip(scores, examples, strict=True)
    ]
    assert test["first"] == pytest.approx(np.mean(bits), rel=1e-5)
    low, high = test["interval"]
    assert 0 < low < test["difference"] < high and test["differs"]
    assert "bits per byte" in found.as_text() and f"{low:.3g} to {high:.3g}" in found.as_text()


def test_runs_with_components_of_the_users_own_are_compared(copies, tmp_path):
    module = tmp_path / "mine.py"
    registry = "from transformer_jax.nn.feed_forward import ACTIVATIONS"
    module.write_text(f"{registry}\nACTIVATIONS.register('mine', abs)\n")
    for seed in (copies / "better").glob("seed_*"):
        change_config(seed, "model", activation="mine")
    with forgetting_modules():
        found = tj.compare(copies / "base", copies / "better", modules=module)
    assert found.record["differing"]["model.activation"] == ("relu", "mine")


METRIC = """
import dataclasses
from transformer_jax.scoring import METRICS, LowerIsBetter

@dataclasses.dataclass(frozen=True)
class Options:
    \"\"\"Options of faults.

    Attributes:
      weight: of an output that is wrong.
    \"\"\"

    weight: float = 1.0

def faults(outputs, references, options):
    return {"faults": options.weight * sum(map(str.__ne__, outputs, references))}

METRICS.register("faults", LowerIsBetter(faults), options=Options)
"""


def test_outputs_are_scored_with_the_options_of_the_metric(copies, tmp_path):
    module = tmp_path / "mine.py"
    module.write_text(METRIC)
    for name in LOSSES:
        fields = {"metric": "faults", "faults": {"weight": 3.0}}
        change_config(copies / name / "seed_0", "task", **fields)
    with forgetting_modules():
        found = tj.compare(*(copies / name / "seed_0" for name in LOSSES), modules=module)
    (test,) = found.record["over_examples"]
    assert (test["metric"], test["first"], test["second"]) == ("faults", 3.0, 0.0)


def test_what_cannot_be_compared_is_refused(copies, monkeypatch):
    base, better = copies / "base", copies / "better"
    first, other_data, other_examples = base / "seed_0", better / "seed_1", better / "seed_2"
    shorter = shutil.copytree(first, copies / "shorter")
    config = json.loads((shorter / "config.json").read_text())
    path = copies / "short.txt"
    lines = Path(config["data"]["valid_source"]).read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    change_config(shorter, "data", valid_source=str(path), valid_target=str(path))
    change_config(better / "seed_0", "data", valid_source="renamed.txt")  # the same content
    assert "loss" in tj.compare(base, better).values
    change_config(other_data, "data", max_source_length=9)
    write_outputs(other_examples, OUTPUTS["better"], sources=("a dog", "a cow"))
    compared = {"base": first, "better": shorter}
    of_valid = lambda: comparison.compare_losses(compared, "valid", True)  # noqa: E731
    assert_refused(
        {
            "at least two": lambda: tj.compare(base),
            "twice": lambda: tj.compare(base, base),
            "missing": lambda: tj.compare(base, copies / "missing"),
            "validated on the same examples": lambda: tj.compare(base, other_data),
            "other examples": lambda: tj.compare(base, other_examples),
            "'blue'; did": lambda: tj.compare(base, better, metrics=["blue"]),
            "base and better have other examples in valid": of_valid,
        }
    )
    monkeypatch.setattr(sentencepiece.SentencePieceTokenizer, "decode", lambda *_: "other")
    changed = lambda: comparison.compare_losses({"base": first}, "valid", False)  # noqa: E731
    assert_refused({"of base changes text": changed})


def test_other_tokens_leave_metrics_per_token_out(runs, monkeypatch):
    other = lambda workdirs: {"tokenizer of source": str(workdirs[0])}  # noqa: E731
    monkeypatch.setattr(comparison, "run_digests", other)
    found = tj.compare(runs / "base", runs / "better")
    assert set(found.values) == {"bleu"} and "per token" in " ".join(found.notes)
    by_loss = lambda: tj.compare(runs / "base", runs / "better", metrics=["loss"])  # noqa: E731
    assert_refused({"per token": by_loss})


def test_labels_are_compared_whatever_the_tokens_are(classifier_workdir, tmp_path, monkeypatch):
    other = lambda workdirs: {"tokenizer of text": str(workdirs[0])}  # noqa: E731
    monkeypatch.setattr(comparison, "run_digests", other)
    copy = shutil.copytree(classifier_workdir, tmp_path / "copy")
    found = tj.compare(classifier_workdir, copy)
    assert {"loss", "accuracy"} <= set(found.values) and "per token" not in " ".join(found.notes)


def test_the_verb_prints_and_writes_a_page(runs, tmp_path, capsys):
    arguments = [str(runs / "base"), str(runs / "better"), "--format=json"]
    assert main(["compare", *arguments, f"--to={tmp_path}/page"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert json.loads(out[0])["differing"] == {"train.label_smoothing": [0.1, 0.3]}
    page = (tmp_path / "page.html").read_text()
    assert "\\u003c" not in page.split('id="data">')[0] and "better" in page


def test_a_page_shows_intervals_and_examples(runs, show):
    page = show(comparison.comparison_page(tj.compare(runs / "base", runs / "better")))
    assert not page.complaints()
    assert "loss" in page.texts("#seeds th") and "≠ differs" in page.texts(".verdict")
    losses = page.texts("#values td")
    assert losses[:2] == ["3.500 ± 0.100", "2.500 ± 0.100"]
    assert page.texts(".example dd")[-2:] == ["ein Hund", "der Hund"]
    assert page.evaluate("document.getElementById('curves').naturalWidth") > 100
