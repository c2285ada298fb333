# SPDX-License-Identifier: Apache-2.0
"""Claims: what decides them, what a verdict names, and what is refused."""

import dataclasses
import json
import math
import shutil

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from transformer_jax.cli.main import main
from transformer_jax.lab.evidence import claims, fingerprints, verdicts
from transformer_jax.lab.evidence.claims import check_claim, load_claim
from transformer_jax.lab.sweeps import row_training
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.runs import provenance
from transformer_jax.runs.shipped import shipped_files
from transformer_jax.tasks.language_modeling import LanguageModeling

ROWS = {"first": {}, "second": {}}
FILE = """
import numpy as np

def experiment(seed):
    return np.random.default_rng(seed).normal((0.0, {gap}), 0.1)

def get_claim():
    return dict(statement="The first is lower.", rows={{"first": {{}}, "second": {{}}}},
                experiment=experiment, metric="a number", smallest=0.05)
"""


@pytest.fixture(autouse=True)
def compiled_programs_stay(monkeypatch):
    """The experiments of this file run no programs, so that those of other tests need not be
    compiled again after them."""
    monkeypatch.setattr(jax, "clear_caches", lambda: None)


def drawn(gap):
    """Claim on drawn numbers whose second row is worse by `gap`."""

    def experiment(seed):
        return tuple(np.random.default_rng(seed).normal((0.0, gap), 0.1))

    return tj.Claim("It is lower.", ROWS, experiment=experiment, metric="number", smallest=0.05)


@pytest.mark.parametrize(
    "gap, verdict, seeds",
    [(1.0, "holds", 3), (-1.0, "the opposite holds", 3), (0.05, "undecided", 12)],
)
def test_seeds_are_added_until_it_is_decided(gap, verdict, seeds, tmp_path):
    found = tj.decide(drawn(gap), tmp_path / "claim").record
    assert (found["verdict"], found["seeds"]) == (verdict, seeds)
    assert [len(values) for values in found["values"].values()] == [seeds, seeds]
    low, high = found["interval"]
    assert low < found["difference"] < high
    assert verdicts.read_verdict(tmp_path / "claim" / "verdict.json") == found


def test_a_better_value_may_be_higher_and_a_row_that_diverges_is_the_worse_one(tmp_path):
    higher = lambda seed: (2.0 + seed / 10, 1.0)  # noqa: E731
    claim = tj.Claim("It is higher.", ROWS, experiment=higher, better="higher")
    assert tj.decide(claim, tmp_path / "higher").record["verdict"] == "holds"
    claim = tj.Claim("It trains.", ROWS, experiment=lambda seed: (1.0, math.nan))
    found = tj.decide(claim, tmp_path / "claim").record
    assert found["verdict"] == "holds" and found["seeds"] == 8  # 2^-8 is below 0.05 / 4
    assert found["values"]["second"] == [None] * 8


@pytest.fixture(scope="module")
def trained_claim(tiny_language_model, tmp_path_factory):
    """Verdict of a claim whose rows are trained, and its workdir."""
    steps = ("train.num_steps", "eval.every_steps", "checkpoint.every_steps")
    base = tiny_language_model | dict.fromkeys(steps, 24)
    rows = {"learns": {}, "hardly": {"optimizer.learning_rate": 1e-9}}
    fields = dict(config="quickstart", base=base, looks=(2,), smallest=1e-4)
    claim = tj.Claim("A learning rate helps.", rows, **fields)
    workdir = tmp_path_factory.mktemp("claims") / "claim"
    return claim, workdir, tj.decide(claim, workdir, progress=False).record


def test_trained_rows_are_decided_once_and_named_by_digests(trained_claim, tmp_path, monkeypatch):
    """Also those of another claim that shares the workdir."""
    claim, workdir, before = trained_claim
    assert before["verdict"] == "holds"
    data = ("training data of learns", "tokenizer of text of learns", "checkpoints of learns")
    programs = ("step of learns", "evaluation of hardly", "order of learns", "statistic")
    assert {*programs, *data, "config of hardly"} <= set(before["digests"])
    assert not any(name.startswith("code of") for name in before["digests"])
    assert before["configs"]["learns"]["train.num_steps"] == 24
    copy = shutil.copytree(workdir, tmp_path / "copy")
    monkeypatch.delattr(row_training, "_train_seeds")
    again = tj.decide(claim, copy, progress=False).record
    assert again | {"seconds": before["seconds"]} == before
    other = dataclasses.replace(claim, name="other", metric="perplexity")
    found = tj.decide(other, copy, progress=False).record
    losses, perplexities = before["values"], found["values"]
    for row, values in losses.items():
        assert list(map(math.exp, values)) == pytest.approx(perplexities[row], rel=1e-3)
    assert verdicts.read_verdict(copy / "verdict.json") == before  # beside other.verdict.json
    assert found["command"] == "transformer_jax claim other --workdir=DIR"

    measure = {"late": lambda run: run.step, "early": lambda run: run.step - 1 - run.config.seed}
    two = dict(name="two", rows={"learns": {}}, measure=measure, better="higher")
    claim = dataclasses.replace(claim, **two)
    found = tj.decide(claim, copy, progress=False).record
    assert found["values"] == {"late": [24.0, 24.0], "early": [23.0, 22.0]}
    assert dataclasses.replace(claim, measure=dict(measure)).identity == claim.identity
    from_one = claim.configs({"seed": 1})["learns"]
    (second,) = claims._seed_workdirs(copy, "learns", from_one, 1)
    assert second.name == "seed_1"  # not the first one that is there


def test_a_row_that_another_claim_has_with_another_config_is_trained_apart(
    trained_claim, tmp_path, monkeypatch
):
    none = lambda configs, *_: {row: {} for row in configs}  # noqa: E731
    monkeypatch.setattr(fingerprints, "row_fingerprints", none)  # seconds for each decision
    claim, workdir, before = trained_claim
    copy = shutil.copytree(workdir, tmp_path / "copy")
    wider = dataclasses.replace(claim, name="wider", base={**claim.base, "model.d_ff": 24})
    found = tj.decide(wider, copy, progress=False).record
    assert found["values"] != before["values"] and (copy / "wider" / "learns").exists()
    assert found["configs"]["learns"]["model.d_ff"] == 24
    again = tj.decide(wider, copy, progress=False).record
    assert again["values"] == found["values"] and not (copy / "wider" / "wider").exists()
    digests = tj.decide(claim, copy, progress=False).record["digests"]
    assert digests.items() <= before["digests"].items() and "checkpoints of learns" in digests


def test_a_seed_that_diverged_has_no_measure(monkeypatch, tmp_path):
    row = Row("learns", {"loss": [1.0, math.nan]}, 1, 1.0, 1.0)
    workdirs = [tmp_path / f"seed_{number}" for number in range(2)]
    monkeypatch.setattr(claims, "run_sweep", lambda *_, **__: [row])
    monkeypatch.setattr(claims, "_seed_workdirs", lambda *_: workdirs)
    monkeypatch.setattr(claims, "load", lambda workdir, modules: workdir.name)
    claim = tj.Claim("x", {"learns": {}}, config="quickstart", measure={"a": len, "b": hash})
    values, _ = claims._values(claim, range(2), tmp_path, {"learns": None}, (), False)
    assert values["a"] == pytest.approx([6.0, math.nan], nan_ok=True)
    assert math.isnan(values["b"][1])


def test_what_cannot_be_decided_is_refused(trained_claim, tmp_path):
    def stated(**fields):
        return lambda: tj.Claim(**{"statement": "x", "rows": ROWS, **fields})

    claim, workdir, _ = trained_claim
    copy = shutil.copytree(workdir, tmp_path / "copy")
    tj.decide(drawn(1.0), tmp_path / "claim")
    other = tj.Claim("Else.", ROWS, experiment=lambda seed: (0.0, 1.0 + seed))
    same = dataclasses.replace(claim, rows={"as is": {}, "stated": {"seed": 0}})
    accuracy = dataclasses.replace(claim, name="accuracy", metric="valid/accuracy")
    of_one_row = stated(config="quickstart", measure={"a": len, "b": len})
    assert_refused(
        {
            "another claim": lambda: tj.decide(other, tmp_path / "claim"),
            "higher valid/accuracy is better": lambda: tj.decide(accuracy, copy, progress=False),
            "as is and stated have the same config": lambda: same.configs({}),
            "compares two": stated(rows={"one": {}}),
            "either a config": stated(),
            "better is 'more'": stated(config="quickstart", better="more"),
            "compare the runs of one row": of_one_row,
            "measure has 1 names": stated(rows={"a": {}}, measure={"a": len}),
        }
    )


def test_the_verb_decides_checks_and_names_wrong_fields(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(gap=1.0))
    workdir = tmp_path / "run"
    assert main(["claim", str(path), f"--workdir={workdir}"]) == 0
    assert capsys.readouterr().out.startswith("HOLDS: The first is lower.")
    verdict = workdir / "mine.verdict.json"
    check = ["claim", "--check", str(path), str(verdict)]
    path.write_text(f'\ufeff"""Words."""\n{FILE.format(gap=1.0)}')  # as editors on Windows do
    assert main(check) == 0
    assert capsys.readouterr().out == f"{verdict}: holds, fresh\n"
    path.write_text(FILE.format(gap=2.0))
    assert main([*check, "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)[str(verdict)]["changed"] == ["statistic"]
    assert main(["claim", str(path), f"--workdir={workdir}"]) == 2
    assert "another claim of this name" in capsys.readouterr().err
    assert main(["claim", "--check", str(verdict)]) == 2
    assert "no shipped claim 'mine'" in capsys.readouterr().err
    whole = json.loads(verdict.read_text())
    no_machine = {name: whole[name] for name in whole if name != "machine"}
    for damaged in ({"verdict": "x", "name": 1}, {**whole, "configs": {"one": 1}}, no_machine):
        verdict.write_text(json.dumps(damaged))
        assert main(check) == 2
    path.write_text("def get_claim():\n    return dict(statment='x')\n")
    assert main(["claim", str(path), f"--workdir={tmp_path}/other"]) == 2
    assert "statement" in capsys.readouterr().err


TEXT = "a b c d e f\n" * 50


@pytest.fixture(scope="module")
def checked(tiny_language_model, tmp_path_factory):
    """A claim on files of its own, and what its verdict says of them."""
    folder = tmp_path_factory.mktemp("checked")
    texts = {name: folder / name for name in ("train", "valid")}
    for path in texts.values():
        path.write_text(TEXT)
    base = tiny_language_model | {f"data.{name}_text": str(path) for name, path in texts.items()}
    rows = {"narrow": {}, "wide": {"model.d_ff": 48}}
    claim = tj.Claim("Wide is better.", rows, config="quickstart", base=base)
    configs = claim.configs({})
    verdict = {
        "asked": {"claim": claim.identity, "overrides": {}},
        "configs": verdicts.stated_configs(configs),
        "digests": claims._fingerprints(claim, configs, ()),
        "machine": provenance.machine_provenance(),
    }
    return claim, verdict, texts


def test_a_verdict_is_out_of_date_if_code_config_or_data_change(checked, monkeypatch):
    claim, verdict, texts = checked
    assert check_claim(verdict, claim) == ([], "")
    assert check_claim(verdict, claim, {"data.dir": "elsewhere"}) == ([], "")  # it has none
    wider = check_claim(verdict, claim, {"model.d_model": 32, "seed": 1})
    parts = ("step", "initial parameters", "evaluation")
    assert wider.changed == ["config (model.d_model, seed)", *parts]
    with_test = verdict | {"digests": verdict["digests"] | {"test data of wide": "SHA-256 1"}}
    assert check_claim(with_test, claim).changed == ["test data"]  # which is gone
    monkeypatch.setattr(LanguageModeling, "metrics", lambda *_: {})
    texts["valid"].write_text("a b c\n" * 50)
    fingerprints.of_row.cache_clear()
    found = check_claim(verdict, claim)
    assert found.changed == ["validation data", "metrics", "validation tokens"]
    assert str(found) == "out of date: validation data, metrics, validation tokens changed"
    texts["train"].unlink()
    fingerprints.of_row.cache_clear()
    found = check_claim(verdict, claim)
    assert not found.changed and str(texts["train"]) in str(found)
    for path in texts.values():
        path.write_text(TEXT)
    fingerprints.of_row.cache_clear()


def test_another_version_of_a_library_is_its_own_answer(checked):
    claim, verdict, _ = checked
    for name, part, words in (
        ("libraries", "step of wide", "another jax version or XLA flag (jax 0; here: jax"),
        ("python", "statistic", "another Python version (jax 0; here: 3."),
        ("number of cores", "", "another number of cores, where the last bits may differ (jax 0;"),
    ):
        machine = verdict["machine"] | {name: "jax 0"}
        digests = verdict["digests"] | ({part: "SHA-256 1"} if part else {})
        found = check_claim(verdict | {"machine": machine, "digests": digests}, claim)
        assert not found.changed and str(found).startswith(words)


def test_rows_that_were_trained_otherwise_have_no_fingerprints(
    trained_claim, tmp_path, monkeypatch
):
    claim, workdir, _ = trained_claim
    copy = shutil.copytree(workdir, tmp_path / "copy")
    seed = copy / "learns" / "seed_0"
    assert claims._is_trained_here(seed)
    machine = provenance.machine_provenance() | {"number of cores": "64"}
    for name, value in {"code_version": "transformer_jax 9", "machine_provenance": machine}.items():
        with monkeypatch.context() as patch:
            patch.setattr(provenance, name, lambda value=value: value)
            assert not claims._is_trained_here(seed)
    for name in ("gone.py", "tests.conftest"):
        changed = [{"name": name, "sha256": "of its earlier code"}]
        (seed / "modules.json").write_text(json.dumps(changed))
        assert not claims._is_trained_here(seed)
    claim = dataclasses.replace(claim, name="again")
    verdict = tj.decide(claim, copy, progress=False).record
    assert {"statistic", "checkpoints of learns", "step of hardly"} <= set(verdict["digests"])
    assert "step of learns" not in verdict["digests"]
    found = check_claim(verdict, claim)
    assert str(found) == "learns were trained by other code or elsewhere, before the decision"


def test_a_row_keeps_its_fingerprints_if_another_one_was_trained_elsewhere(monkeypatch, tmp_path):
    """Also if the end of its name is that of the other one."""
    rows = {"keys": {}, "half of keys": {}}
    prints = lambda configs, *_: {row: {"step": "SHA-256 1"} for row in configs}  # noqa: E731
    monkeypatch.setattr(fingerprints, "row_fingerprints", prints)
    monkeypatch.setattr(claims, "_seed_workdirs", lambda folder, row, *_: [row])
    monkeypatch.setattr(claims, "_is_trained_here", lambda workdir: workdir != "keys")
    monkeypatch.setattr(claims, "run_digests", lambda _: {"checkpoints": "", "config": ""})
    claim = tj.Claim("x", rows, config="quickstart")
    digests = claims._digests(claim, rows, (), tmp_path, 1)
    assert "step of half of keys" in digests and "step of keys" not in digests


def test_configs_are_compared_by_the_fields_that_they_set(checked):
    """A field that a later version adds, with a default, does not make a verdict out of date."""
    claim, verdict, _ = checked
    assert verdict["configs"]["wide"]["model.d_ff"] == 48
    assert "model.qk_norm" not in verdict["configs"]["wide"]
    (was,) = check_claim({**verdict, "configs": {"narrow": {}, "wide": {}}}, claim).changed
    assert was.startswith("config (") and "model.d_ff" in was


def test_shipped_claims_are_loaded_and_have_verdicts_with_fingerprints(trained_claim, capsys):
    shipped = {name: load_claim(name) for name in shipped_files("claim")}
    assert shipped and all(claim.statement.endswith(".") for claim in shipped.values())
    _, _, verdict = trained_claim
    recorded = {path.stem: verdicts.read_verdict(path) for path in verdicts.recorded_verdicts()}
    assert recorded.keys() == shipped.keys()
    for name, found in recorded.items():
        parts = {part.partition(" of ")[0] for part in found["digests"]}
        expected = {"programs"} if shipped[name].experiment else {"step", "evaluation", "order"}
        assert {"statistic", *expected} <= parts, name
    old = recorded["small_keys"] | {"digests": {}}
    state = check_claim(old, shipped["small_keys"])
    assert state == ([], "decided before fingerprints; decide again")
    assert main(["claim", "--check", "softmax_saturates"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    of_module = verdict | {"modules": ["recall.py"], "configs": {}, "digests": {"statistic": ""}}
    found = check_claim(of_module, shipped["recall_lstm"])  # whose config names its components
    assert "LSTM, RNN were trained by other code" in found.unchecked


def test_published_numbers_stand_beside_and_change_no_claim(tmp_path):
    claim = dataclasses.replace(drawn(1.0), published={"perplexity": (4.92, 5.29)})
    assert claim.identity == drawn(1.0).identity
    report = tj.decide(claim, tmp_path / "claim")
    assert "| published: perplexity | -0.37 (4.92 and 5.29) |" in report.as_markdown()
    assert "metric,row,seed,value\nnumber (lower is better),first,0," in report.as_csv()
