# SPDX-License-Identifier: Apache-2.0
"""Verbs, flags and overrides, and one-line errors."""

import importlib.util

import pytest

from transformer_jax.cli import arguments
from transformer_jax.cli.parser import parse
from transformer_jax.errors import UserError


def test_overrides_are_collected_as_text_in_both_spellings():
    args = parse(
        ["train", "--config.model.d_model=64", "--config=a.py", "--workdir", "w"]
        + ["--config.optimizer.learning_rate", "-1", "--config.data.name=", "--config.a.b=c=d"]
    )
    assert (args.verb, args.config, args.workdir, args.dry_run) == ("train", "a.py", "w", False)
    assert args.overrides == {
        "model.d_model": "64",
        "optimizer.learning_rate": "-1",
        "data.name": "",
        "a.b": "c=d",
    }


def test_predict_flags_have_their_types():
    args = parse(["predict", "--workdir=w", "--checkpoint=200", "--beam_size=8", "--alpha=0.5"])
    assert parse(["predict", "--workdir=w", "--search=greedy"]).search == "greedy"
    assert (args.checkpoint, args.average, args.format) == (200, None, "text")
    assert (args.beam_size, args.alpha, args.batch_size) == (8, 0.5, None)


def test_benchmarks_take_their_own_sizes():
    args = parse(["benchmark", "decode", "--config=a.py", "--output_length=64", "--config.seed=1"])
    assert (args.verb, args.what, args.output_length) == ("benchmark", "decode", 64)
    assert args.overrides == {"seed": "1"}


def test_a_workdir_needs_no_config():
    assert parse(["train", "--workdir=w"]).config is None


def test_a_dry_run_needs_no_workdir():
    assert parse(["train", "--config=a.py", "--dry_run"]).workdir is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian --config=a.py", "unknown verb trian; did you mean train?"),
        ("translate --workdir=w", "unknown verb translate; did you mean predict?"),
        ("benchmark decoed --config=a.py", "unknown verb decoed; did you mean decode?"),
        (
            "xyz",
            "unknown verb xyz; known: quickstart, train, sweep, table, evaluate, predict",
        ),
        ("predict --work_dir=w", "unknown flag --work_dir; did you mean --workdir?"),
        (
            "predict --workdir=w --beam-size 4",
            "unknown flag --beam-size; did you mean --beam_size?",
        ),
        ("predict --workdir=w --beam=4", "unknown flag --beam; did you mean --beam_size?"),
        (
            "train --config=a.py --workdir=w --d_model=4",
            "unknown flag --d_model; did you mean --config.model.d_model=VALUE?",
        ),
        (
            "train --config=a.py --workdir=w --epochs 4",
            "unknown flag --epochs; did you mean --config.train.num_steps=VALUE?",
        ),
        (
            "train --config=a.py --output_dir=w",
            "unknown flag --output_dir; did you mean --workdir?",
        ),
        ("predict --workdir=w --input=a", "did you mean a shell's redirection, < FILE?"),
        ("predict --workdir=w --d_model=4", "unknown flag --d_model; known: --workdir, "),
        ("train --config=a.py --workdir=w --foo", "unknown flag --foo; known: --config, "),
        ("evaluate --workdir=w extra", "unexpected argument extra"),
        ("benchmark train --config=a.py --beam_size=4", "unknown flag --beam_size"),
        ("", "needs a verb: quickstart, train, sweep, table, evaluate, predict"),
        ("benchmark", "benchmark` needs a verb: train, decode"),
        ("predict", "predict needs --workdir"),
        ("train --workdir=w --seeds=2", "train needs --config"),
        ("train", "train needs --config"),
        ("train --config=a.py", "train needs --workdir"),
        ("train --config=a.py --workdir=w --config.seed", "--config.seed has no value"),
        ("train --config=a.py --config.seed --dry_run", "--config.seed has no value"),
        ("predict --workdir=w --config.seed=1", "predict takes no --config.seed"),
        ("predict --workdir=w --beam_size=four", "invalid int value: 'four'"),
        ("predict --workdir=w --num_outputs=0", "'0' is not a positive whole number"),
        ("predict --workdir=w --checkpoint=last", "'last' is not latest, best or the number"),
        ("predict --workdir=w --process_id=1", "--process_id goes with --distributed"),
        ("predict --workdir=w --distributed --process_id=-1", "'-1' is not a whole number from 0"),
        ("predict --workdir=w --distributed --coordinator=host", "'host' is not HOST:PORT"),
        ("predict --workdir=w --distributed --coordinator=host:99999", "is not HOST:PORT"),
        ("predict --workdir=w --distributed --coordinator=:1234", "':1234' is not HOST:PORT"),
        ("score --workdir=w --source=a", "score needs --target"),
        ("score --workdir=w --config.seed=1", "score takes no --config.seed"),
        ("sweep --workdir=w", "sweep needs --sweep"),
        ("sweep --sweep=s.py", "sweep needs --workdir"),
        ("sweep --sweep=s.py --workdir=w --rows=(", "'(' is no regular expression"),
        ("train --config=a.py --workdir=w --seeds=0", "'0' is not a positive whole number"),
        ("plot", "plot needs either --workdir (runs to draw), --config or --tree"),
        ("plot --workdir=w --config=a.py", "needs either --workdir"),
        ("plot --workdir=w --errors=worst --tree=x", "--tree does not go with --errors"),
        ("plot --workdir=w --split=test", "--split goes with --errors"),
        ("plot --tree=x --config=a.py", "--config does not go with --tree"),
        ("predict --workdir=w --num_outputs=2", "--num_outputs above 1 needs --format=jsonl"),
        ("predict --workdir=w --stream --num_outputs=1", "--num_outputs does not go with --stream"),
        ("predict --workdir=w --stream --format=jsonl", "--format does not go with --stream"),
        ("predict --workdir=w --stream --prefixes=p", "--prefixes does not go with --stream"),
        ("predict --workdir=w --stream --distributed", "--distributed does not go with --stream"),
        ("train --config=a.py --dry_run --seeds=2", "--dry_run does not go with --seeds"),
        ("train --config=a.py --workdir=w --distributed --seeds=2", "does not go with --seeds"),
        ("plot --workdir=w --config.seed=1", "plot takes no --config.seed"),
        ("score --workdir=w --source=a --target=b --max_length=9", "unknown flag --max_length"),
        ("predict --workdir=w --num_outputs=2147483648", "is not a positive whole number below"),
        (f"predict --workdir=w --max_length={'9' * 5000}", f"'{'9' * 60}...' is not a positive"),
        ("train --config=a.py --workdir=w --seeds=9999", "9999 seeds; at most 1000 train together"),
        ("train --config=-- --workdir=w", "--config has no value: -- is not a value"),
        ("predict --workdir", "argument --workdir: expected one argument"),
    ],
)
def test_a_mistake_is_one_line(line, message):
    with pytest.raises(UserError) as caught:
        parse(line.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("/env/bin/transformer_jax", "transformer_jax"),
        ("/package/transformer_jax/__main__.py", "python -m transformer_jax"),
    ],
)
def test_messages_name_the_program_as_it_was_called(called, program, monkeypatch):
    monkeypatch.setattr("sys.argv", [called])
    spec = importlib.util.spec_from_file_location("arguments_again", arguments.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert program == again.PROGRAM
