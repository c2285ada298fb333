# SPDX-License-Identifier: Apache-2.0
"""What a loaded config names outside of its run counts only if the user repeats it."""

import copy
import io
import json
import shlex
import shutil
from pathlib import Path

import fsspec
import pytest

import transformer_jax as tj
from tests.conftest import ROOT
from tests.refusals import message_of
from tests.runs.conftest import with_fields
from transformer_jax.cli.main import main
from transformer_jax.runs.outside import acts_outside

OUTSIDE = {
    "eval.command": "touch executed",
    "train.callbacks": "spy",
    "logging.trackers": "tensorboard,wandb",
    "data.hf_name": "stranger/texts",
    "data.tfds_name": "huggingface:texts",
    "data.train_source": "s3://stranger/train.en",
    "data.cache_dir": "memory://elsewhere",
    "train.init_from": "http://h/b",
    "train.distillation.teacher": "zip://::/b",
    "decode.draft": "file:///b",
    "data.their_set.place": "gs://stranger/x",
}
INSIDE = {
    "logging.trackers": "tensorboard",
    "data.hf_name": str(ROOT),
    "data.tfds_name": "glue/sst2",
    "data.train_source": "/data/train.en",
    "train.init_from": "runs/base",
    "task.template": "see http://h/b",
    "eval.command": None,
    "train.num_steps": 5,
}
ADAPTERS = {"lora.rank": 2, "train.init_from": "s3://stranger/base"}
TEST = {"data.test_source": "s3://stranger/en", "data.test_target": "s3://stranger/de"}
DRAFT = {"decode.draft": "gs://stranger/run"}
TRAIN = {"data.train_source": "s3://stranger/en", "data.train_target": "s3://stranger/de"}
TEACHER = {"train.distillation.teacher": "s3://stranger/run", "train.loss": "distillation"}
COMMAND = {"eval.command": "touch executed"}
VERBS = {
    # name: fields of the loaded config, command line, what repeats the first of them
    **{
        f"train, {field}": ({field: value}, "train --workdir=RUN", f"--config.{field}")
        for field, value in OUTSIDE.items()
        if field.count(".") == 1 and field != "train.callbacks"  # no built-in one
    },
    "train of a student": (TEACHER, "train --workdir=RUN", ""),
    "train of a config": (COMMAND, "train --config=RUN/config.json --workdir=new", ""),
    "train of seeds": (COMMAND, "train --config=RUN/config.json --workdir=new --seeds=2", ""),
    "sweep": (COMMAND, "sweep --sweep=seeds.py --config=RUN/config.json --workdir=new", ""),
    "evaluate": (TEST, "evaluate --workdir=RUN", ""),
    "predict": (DRAFT, "predict --workdir=RUN", "--draft"),
    "chat": (DRAFT, "chat --workdir=TEXT --template=alpaca", "--draft"),
    "compare": (TEST, "compare RUN OTHER --loss", ""),
    "plot": (
        {"data.train_text": "s3://a/b"},
        "plot --workdir=LABELS --errors=frequency --split=valid",
        "",
    ),
    "plan": (TEACHER, "plan --config=RUN/config.json --device=h100:1", ""),
    "verify": (TRAIN, "verify --config=RUN/config.json", ""),
    "score": (ADAPTERS, "score --workdir=RUN --source=lines --target=lines", "--base"),
    "export": (ADAPTERS, "export --workdir=RUN --to=out --format=hf", "--base"),
    "inspect": (ADAPTERS, "inspect --workdir=RUN --to=pages", "--base"),
    "load": (ADAPTERS, "evaluate --workdir=RUN", "--base"),
}


def test_what_acts_outside_of_a_run():
    assert [field for field, value in OUTSIDE.items() if not acts_outside(field, value)] == []
    assert [field for field, value in INSIDE.items() if acts_outside(field, value)] == []


@pytest.fixture
def refused(
    trained_workdir, language_model_workdir, classifier_workdir, tmp_path, monkeypatch, capsys
):
    """`refused(fields, words)`: what a command says that is refused; nothing is contacted."""

    def contact(*_, **__):
        raise AssertionError("something was asked for")

    monkeypatch.setattr(fsspec.core, "url_to_fs", contact)
    monkeypatch.setattr("transformer_jax.lab.plan.plan.require_compiler", lambda target: None)
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("The\n")
    Path("seeds.py").write_text(
        "def get_sweep():\n    return dict(config='quickstart', rows={'a': {}}, seeds=2)\n"
    )
    runs = {"RUN": trained_workdir, "TEXT": language_model_workdir, "LABELS": classifier_workdir}

    def message(fields, words):
        name = next((name for name in runs if name in words), "RUN")
        shutil.rmtree("loaded", ignore_errors=True)
        with_fields(runs[name], Path("loaded"), fields)
        words = words.replace(name, "loaded").replace("OTHER", str(trained_workdir))
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The\n")))
        assert main(shlex.split(words)) == 2
        return capsys.readouterr().err

    return message


def test_every_verb_refuses_what_only_a_loaded_config_names(refused):
    failures = {}
    for name, (fields, words, flag) in VERBS.items():
        field, value = next(item for item in fields.items() if item[0] != "lora.rank")
        repeated = f"repeat it: {flag or f'--config.{field}'}={shlex.quote(value)}"
        message = refused(fields, words)
        if f"its {field} is {value!r}" not in message or repeated not in message:
            failures[name] = message
    assert failures == {}
    assert not Path("executed").exists()


def test_what_the_user_repeats_is_used(workdir, tiny, tmp_path, capsys):
    loaded = with_fields(workdir, tmp_path / "loaded", TEST)
    places = [f"--config.{name}={tiny[name]}" for name in TEST]
    assert main(["evaluate", f"--workdir={loaded}", "--beam_size=1", *places]) == 0
    assert '"bleu"' in capsys.readouterr().out
    other = with_fields(workdir, tmp_path / "other", COMMAND)
    marked = f"sh -c 'touch {tmp_path}/executed; echo {{\\\"own\\\": 1}}'"
    more = [f"--config.eval.command={marked}", "--config.train.num_steps=31"]
    more.append("--config.decode.beam_size=1")
    assert main(["train", f"--workdir={other}", *more]) == 0
    assert (tmp_path / "executed").exists()


def test_configs_of_loaded_runs_keep_their_origins(workdir, tmp_path, fitted):
    loaded = with_fields(workdir, tmp_path / "loaded", COMMAND)
    of_run = tj.load(loaded).config
    copies = (copy.deepcopy(of_run), of_run.copy_and_resolve_references())
    for config in (of_run, tj.config(loaded / "config.json"), *copies):
        assert "its eval.command" in message_of(tj.train, config, tmp_path / "new")
        config.train.num_steps = 40
        assert "its eval.command" in message_of(tj.train, config, tmp_path / "new")
    mine = tj.load(loaded).with_config({"eval.command": None}).config
    tj.train(mine, tmp_path / "new")
    assert [settings.eval.command for settings in fitted] == [None]


def test_a_verdict_alone_names_no_data(tmp_path, monkeypatch, capsys):
    def contact(*_, **__):
        raise AssertionError("something was asked for")

    monkeypatch.setattr(fsspec.core, "url_to_fs", contact)
    verdict = json.loads((ROOT / "experiments/results/claims/one_head.json").read_text())
    verdict["asked"]["overrides"] = {"data.name": "text", "data.train_text": "s3://a/b"}
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    main(["claim", "--check", str(tmp_path / "verdict.json")])
    assert "only the verdict says data.name=text" in capsys.readouterr().out
