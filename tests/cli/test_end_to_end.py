# SPDX-License-Identifier: Apache-2.0
"""Translation through the command line: train, evaluate, predict, score, plot; and mistakes."""

import json
import shlex
import shutil
from unittest.mock import Mock

import pytest

import transformer_jax as tj
from tests.campaigns.faults import kill_resume
from tests.conftest import QUICKSTART, copy_at_step, records_of
from tests.runs.conftest import with_fields
from transformer_jax.cli import verbs
from transformer_jax.cli.parser import parse
from transformer_jax.data.sources import open_split
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.runs.workdir import MARK

pytestmark = pytest.mark.usefixtures("shared_runs")
FIGURES = {"bleu", "chrf", "signature", "loss", "perplexity", "accuracy", "step", "split"}


def words_of(overrides):
    """`train` with the shrunk quick start's config, without --workdir."""
    fields = [f"--config.{name}={value}" for name, value in overrides.items()]
    return ["train", f"--config={QUICKSTART}", *fields]


@pytest.fixture(scope="session")
def train_words(tiny):
    """`train` with the config of `trained_workdir`, without --workdir."""
    return words_of(tiny)


def parse_object(text):
    """The one JSON object on stdout."""
    assert text.endswith("}\n") and text.count("\n") == 1
    return json.loads(text)


@pytest.fixture
def files(tmp_path):
    """Folder of text files of three and four lines."""
    (tmp_path / "four").write_text("The dog.\nA cat.\nA man.\nThe house.\n")
    (tmp_path / "three").write_text("Der Hund.\nEine Katze.\nEin Mann.\n")
    return tmp_path


def test_evaluate_prints_one_json_object(shell, trained_workdir, tmp_path, monkeypatch):
    """Of unseen combinations of the embedded set."""
    opened = "transformer_jax.runs.outside.open_split"
    monkeypatch.setattr(opened, lambda data, split: open_split(data, split)[:5])
    workdir = with_fields(trained_workdir, tmp_path / "run", {"data.name": "synthetic_en_de"})
    words = ["evaluate", f"--workdir={workdir}", "--split=test_combinations", "--checkpoint=15"]
    answer = shell(*words, "--beam_size=1")
    metrics = parse_object(answer.out)
    assert answer.status == 0 and metrics.keys() >= FIGURES
    assert metrics["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert (metrics["split"], metrics["step"]) == ("test_combinations", 15)
    kept = (workdir / "predictions" / "test_combinations-15.jsonl").read_text()
    assert len(kept.splitlines()) == metrics["num_examples"] == 5


HARD_LINES = [
    b"The dog sees a cat.",
    b"",
    b"the man " * 5000,
    "漢字 Ωμέγα \N{GRINNING FACE} \u2028 \u200b".encode(),
    b"M\xfcnchen \xff\xfe",
    rb"a\nb \\ c\r \x",
    b"\t \x0b",
    b"The last line has no end.",
]


def test_predict_writes_a_line_for_any_input_line(shell, trained_workdir):
    words = ["predict", f"--workdir={trained_workdir}", "--beam_size=1"]
    answer = shell(*words, stdin=b"\n".join(HARD_LINES))
    assert answer.status == 0
    lines = answer.out.split("\n")
    assert len(lines) == len(HARD_LINES) + 1 and lines[-1] == ""
    assert lines[1] == lines[6] == ""
    others = [line for line in answer.err.splitlines() if not line.startswith("warning: ")]
    assert all(f" predicted {len(HARD_LINES)} lines in" in line for line in others)  # if slow
    for message in (
        "2 of 7 lines are blank, and so are their outputs: 2, 7",
        "line 3 has 10000 tokens; only the first 47 are read",
        "2 of 7 lines have pieces unknown to the tokenizer: 4, 6",
        "line 5 of the input is not UTF-8 from byte 2 on",
    ):
        assert message in answer.err


def test_predict_writes_n_best_lists(shell, trained_workdir):
    words = ["predict", f"--workdir={trained_workdir}", "--format=jsonl", "--num_outputs=3"]
    answer = shell(*words, "--checkpoint=best", stdin=b"The dog.\n\nA cat.\n")
    assert answer.status == 0
    found = [json.loads(line)["outputs"] for line in answer.out.splitlines()]
    assert [len(outputs) for outputs in found] == [3, 1, 3]
    assert found[1] == [{"text": "", "score": 0.0}]
    for outputs in found:
        scores = [one["score"] for one in outputs]
        assert scores == sorted(scores, reverse=True)


def test_several_workdirs_are_an_ensemble(shell, language_model_workdir, tmp_path):
    """A run with its own copy predicts as alone; nothing is written."""
    workdir = shutil.copytree(language_model_workdir, tmp_path / "run")
    text, several = b"The old\n", f"--workdir={language_model_workdir},{workdir}"
    before = {*workdir.rglob("*")}
    alone = shell("predict", several.split(",")[0], stdin=text)
    together = shell("predict", several, stdin=text)
    assert (together.status, together.out) == (0, alone.out)
    metrics = parse_object(shell("evaluate", several, "--split=valid", "--checkpoint=15").out)
    assert metrics.keys() >= {"loss", "perplexity", "accuracy", "split"} and "step" not in metrics
    assert metrics["ensemble"] == [str(language_model_workdir), str(workdir)]
    assert metrics["steps"] == [15, 15] and {*workdir.rglob("*")} == before

    renamed = workdir.rename(workdir.with_name("a,b"))
    assert shell("predict", f"--workdir={renamed}").status == 0
    assert_one_line(shell("predict", several, stdin=text), f"{workdir} holds no run")
    with pytest.raises(tj.UserError, match="--distributed: an ensemble runs in one process"):
        verbs.predict(parse(["predict", several, "--distributed"]))


def test_processes_of_a_job_compare_their_overrides(trained_workdir, monkeypatch):
    described = []

    def join_job(job, prepare, heartbeat):
        described.append(prepare()[1])
        raise tj.Stopped("not joined")

    monkeypatch.setattr("transformer_jax.parallel.job.join_job", join_job)
    words = ["evaluate", f"--workdir={trained_workdir}", "--distributed"]
    for name in ("a", "b"):
        with pytest.raises(tj.Stopped):
            verbs.evaluate(parse([*words, f"--config.data.valid_source={name}"]))
    assert [process["data.valid_source"] for process in described] == ["'a'", "'b'"]


def test_predict_takes_prefixes(shell, trained_workdir, tmp_path):
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("Der Hund\n\n")
    words = ["predict", f"--workdir={trained_workdir}", f"--prefixes={prefixes}", "--beam_size=1"]
    answer = shell(*words, stdin=b"The dog.\nThe dog.\n")
    first, second = answer.out.splitlines()
    assert first.startswith("Der Hund") and not second.startswith("Der Hund")
    assert_one_line(shell(*words, stdin=b"a\n" * 3), "--prefixes", "has 2 lines, fewer than")
    answer = shell(*words, stdin=b"a\n")
    assert (answer.status, answer.out.count("\n")) == (2, 1)
    assert "has 2 lines, more than the 1 of the input" in answer.err


def test_score_prints_a_number_for_each_pair(shell, trained_workdir, trained, tmp_path):
    pairs = {"source": ["The dog.", "A cat."], "target": ["Der Hund.", "Eine Katze."]}
    for side, lines in pairs.items():
        (tmp_path / side).write_text("\n".join(lines))
    words = ["score", f"--workdir={trained_workdir}"]
    files = [f"--{side}={tmp_path / side}" for side in pairs]
    answer = shell(*words, *files)
    assert answer.status == 0
    expected = trained.score(pairs["source"], pairs["target"])
    assert [float(line) for line in answer.out.splitlines()] == pytest.approx(expected, abs=1e-5)
    answer = shell(*words, *files, "--format=jsonl")
    as_json = [json.loads(line) for line in answer.out.splitlines()]
    assert [score["log_prob"] for score in as_json] == pytest.approx(expected)
    assert [score["is_greedy"] for score in as_json] == [False, False]


def test_a_finished_run_says_so_and_what_can_be_done_with_it(shell, workdir):
    answer = shell("train", f"--workdir={workdir}")
    assert (answer.status, answer.out) == (0, "")
    raised = "raise train.num_steps and optimizer.decay_steps for more"
    assert f"{workdir} has finished its 30 steps; {raised}" in answer.err
    assert "compiling" not in answer.err
    *_, best, start, evaluate, predict = answer.err.splitlines()
    scores = [record["bleu"] for record in records_of(workdir, "valid")]
    assert f"best bleu {max(scores):.4g} at step" in best and str(workdir) in best
    assert start == "next:"
    for line, verb in [(evaluate, "evaluate"), (predict, "predict")]:
        words = shlex.split(line, comments=True)
        assert words[:3] == ["python", "-m", "transformer_jax"]
        assert parse(words[3:]).verb == verb and f"--workdir={workdir}" in words


@pytest.mark.parametrize("is_terminal", [True, False])
def test_numbers_are_short_on_a_terminal_alone(monkeypatch, is_terminal):
    lines = []
    monkeypatch.setattr(verbs.terminal, "write", lines.append)
    monkeypatch.setattr(verbs.terminal, "is_stdout_terminal", lambda: is_terminal)
    verbs.write_json({"bleu": 98.34567, "speed": 104537.25, "nested": [{"p": 0.0123456}], "n": 7})
    shown = '"bleu": 98.35, "speed": 104537, "nested": [{"p": 0.01235}], "n": 7'
    exact = '"bleu": 98.34567, "speed": 104537.25, "nested": [{"p": 0.0123456}], "n": 7'
    assert lines == [f"{{{shown if is_terminal else exact}}}\n"]


def test_flags_reach_the_tools(shell, train_words, tmp_path, monkeypatch):
    """`train --dry_run`, `train --seeds`, `sweep` and `benchmark`."""
    rows = [Row("few", {"loss": [1.0, 2.0]}, 100, 5.0, 60.0)]
    tools = {
        "tools.benchmark.describe": Mock(return_value="task  translation"),
        "lab.sweeps.sweep.run_seeds": Mock(return_value=rows),
        "lab.sweeps.sweep.run_sweep": Mock(return_value=rows),
        "tools.benchmark.train": Mock(return_value={"step_ms": 1.25, "device": "cpu"}),
        "tools.benchmark.decode": Mock(return_value={"step_ms": 2.5}),
    }
    for place, tool in tools.items():
        monkeypatch.setattr(f"transformer_jax.{place}", tool)
    answer = shell(*train_words, "--dry_run")
    assert (answer.status, answer.out, answer.err) == (0, "task  translation\n", "")
    assert "±" in shell(*train_words, f"--workdir={tmp_path}", "--seeds=2").out
    sweep = ["sweep", "--sweep=quick_positions", f"--workdir={tmp_path}"]
    shell(*sweep, "--seeds=1", "--rows=few", "--at_once=2", "--config.seed=3")
    sizes = {"batch_size": 2, "source_length": 6, "steps": 1}
    flags = [*train_words[1:], *(f"--{name}={value}" for name, value in sizes.items())]
    answer = shell("benchmark", "train", *flags, "--target_length=4")
    assert parse_object(answer.out) == {"step_ms": 1.25, "device": "cpu"}
    assert parse_object(shell("benchmark", "decode", *flags, "--beam_size=3").out)
    describe, seeds, swept, train, decode = (tool.call_args for tool in tools.values())
    assert [call.args[0].model.d_model for call in (describe, seeds, train, decode)] == [16] * 4
    assert seeds.args[1:] == (str(tmp_path), 2, ())
    assert swept.args[0].seeds == 1 and swept.args[1:] == (str(tmp_path), {"seed": "3"}, 2)
    assert swept.kwargs == {"chosen": "few", "modules": ()}
    assert train.kwargs == sizes | {"target_length": 4}
    assert decode.kwargs == sizes | {"beam_size": 3}


def test_a_run_killed_and_stopped_ends_as_the_uninterrupted_one(
    shell, sigterm_at, language_model_workdir, tiny_language_model, tmp_path
):
    """`tests/campaigns/test_faults.py` kills one."""
    # What a SIGKILL leaves while a checkpoint is written.
    workdir = copy_at_step(language_model_workdir, 15, tmp_path / "run")
    (workdir / "checkpoints" / f"30{kill_resume.SAVING[1:]}" / "params").mkdir(parents=True)
    assert kill_resume.saving(workdir)
    command = [*words_of(tiny_language_model), f"--workdir={workdir}"]

    # SIGTERM in a step that saves no checkpoint otherwise.
    with sigterm_at(17):
        answer = shell(*command)
    assert (answer.status, answer.out) == (75, "")
    assert f"{workdir} continues from step 15" in answer.err
    assert "stopped by SIGTERM at step 17 of 30, saved; the same command" in answer.err
    assert kill_resume.last_checkpoint(workdir) == 17

    # The same command continues and finishes.
    answer = shell(*command)
    assert (answer.status, answer.out) == (0, "")
    assert f"{workdir} continues from step 17" in answer.err
    whole, resumed = map(kill_resume.metrics, (language_model_workdir, workdir))
    assert [record["step"] for record in resumed] == [5, 10, 15, 15, 17, 20, 25, 30, 30]
    assert resumed[-2:] == whole[-2:]
    assert kill_resume.differences(language_model_workdir, workdir) == []
    assert not kill_resume.saving(workdir)


def assert_one_line(answer, *message):
    """Status 2, nothing on stdout, and one error line on stderr after any log lines."""
    assert (answer.status, answer.out) == (2, "")
    *logged, error = answer.err.splitlines()
    assert error.startswith("error: ")
    assert not any(line.startswith(("error", "Traceback")) for line in logged)
    for text in message:
        assert str(text) in error


def test_a_mistake_is_one_line_and_writes_nothing(
    shell, trained_workdir, files, tmp_path, monkeypatch
):
    monkeypatch.chdir(files)
    before = sorted(files.iterdir())
    trained = f"--workdir={trained_workdir}"
    train = f"train --config={QUICKSTART} --workdir=w"
    mistakes = {
        f"{train} --config.model.d_modle=3": "did you mean config.model.d_model?",
        f"benchmark train --config={QUICKSTART} --config.model.d_model=-8": "d_model is -8",
        "score --workdir=absent --source=a --target=b": "cannot read a: ",
        f"score {trained} --source=four --target=three": "four has 4 lines but three has 3",
        f"predict {trained} --top_k=3": "decode: top_k is for sampling; set temperature",
        "predict --workdir=absent": "absent holds no run: config.json is missing",
        "train --workdir=w": "w holds no run to continue",
        "sweep --sweep=absent.py --workdir=w": "there is no sweep file",
        "plot --workdir=absent": "absent has no metrics to draw",
        "fields toq_k": ".top_k?",
    }
    for words, message in mistakes.items():
        answer = shell(*words.split(), stdin=b"a\n")
        assert_one_line(answer, message)
        assert answer.err.count("\n") == 1
    assert sorted(files.iterdir()) == before


def test_a_workdir_of_another_run_is_not_touched(shell, workdir, train_words):
    def times():
        return {path: path.stat().st_mtime_ns for path in workdir.rglob("*") if path != lock}

    lock = workdir / MARK  # rewritten by each process that holds the workdir
    before = times()
    answer = shell(*train_words, "--config.seed=5", f"--workdir={workdir}")
    assert_one_line(answer, f"{workdir} holds another run: its seed is 0, the config's is 5")
    assert times() == before
