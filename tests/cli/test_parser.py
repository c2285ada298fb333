# SPDX-License-Identifier: Apache-2.0
"""Verbs, flags and overrides, and one-line errors."""

import functools
import importlib.util
import sys

import pytest

from transformer_jax.cli import flags
from transformer_jax.cli.parser import VERBS, parse

MISTAKES = {
    "trian --config=a.py": "unknown verb trian; did you mean train?",
    "translate --workdir=w": "unknown verb translate; did you mean predict?",
    "benchmark decoed --config=a.py": "unknown verb decoed; did you mean decode?",
    "xyz": "unknown verb xyz; known: quickstart, train, evaluate, predict",
    "predict --work_dir=w": "unknown flag --work_dir; did you mean --workdir?",
    "predict --workdir=w --beam-size 4": "unknown flag --beam-size; did you mean --beam_size?",
    "predict --workdir=w --beam=4": "unknown flag --beam; did you mean --beam_size?",
    "train --config=a.py --workdir=w --d_model=4": "did you mean --config.model.d_model=VALUE?",
    "train --config=a.py --workdir=w --epochs 4": "did you mean --config.train.num_steps=VALUE?",
    "train --config=a.py --output_dir=w": "unknown flag --output_dir; did you mean --workdir?",
    "predict --workdir=w --input=a": "did you mean a shell's redirection, < FILE?",
    "predict --workdir=w --d_model=4": "unknown flag --d_model; known: --workdir, ",
    "train --config=a.py --workdir=w --foo": "unknown flag --foo; known: --config, ",
    "evaluate --workdir=w extra": "unexpected argument extra; flags are written --FLAG=VALUE",
    "benchmark train --config=a.py --beam_size=4": "unknown flag --beam_size",
    "score --workdir=w --source=a --target=b --max_length=9": "unknown flag --max_length",
    "": "needs a verb: quickstart, train, evaluate, predict",
    "benchmark": "benchmark` needs a verb: train, decode",
    "predict": "predict needs --workdir",
    "inspect --workdir=w": "inspect needs --to",
    "train": "train needs --config or --workdir",
    "train --config=a.py": "train needs --workdir or --dry_run",
    "score --workdir=w --source=a": "score needs --target",
    "sweep --workdir=w": "sweep needs --sweep",
    "sweep --sweep=s.py": "sweep needs --workdir",
    "plan --config=a.py": "plan needs --device",
    "plot": "plot needs --workdir or --config or --tree",
    "claim a": "claim needs --workdir or --check",
    "train --config=a.py --workdir=w --config.seed": "--config.seed has no value",
    "train --config=a.py --config.seed --dry_run": "--config.seed has no value",
    "predict --workdir": "argument --workdir: expected one argument",
    "predict --workdir=w --config.seed=1": "predict takes no --config.seed: the run uses the",
    "score --workdir=w --config.seed=1": "score takes no --config.seed: the run uses the",
    "table w --config.seed=1": "table takes no --config.seed",
    "predict --workdir=w --beam_size=four": "invalid int value: 'four'",
    "predict --workdir=w --num_outputs=0": "'0' is not a whole number from 1 to 2147483647",
    "predict --workdir=w --num_outputs=2147483648": "is not a whole number from 1 to 2147483647",
    "train --config=a.py --workdir=w --seeds=9999": "is not a whole number from 1 to 1000",
    "predict --workdir=w --checkpoint=last": "'last' is not latest, best or the number",
    "predict --workdir=w --distributed --process_id=-1": "'-1' is not a whole number from 0",
    "predict --workdir=w --distributed --coordinator=host": "'host' is not HOST:PORT",
    "predict --workdir=w --distributed --coordinator=host:99999": "is not HOST:PORT",
    "predict --workdir=w --distributed --coordinator=:1234": "':1234' is not HOST:PORT",
    "predict --workdir=w --patch=decoder.layer_0": "'decoder.layer_0' is not HOOK_POINT=X",
    "predict --workdir=w --patch==0": "'=0' is not HOOK_POINT=X",
    "predict --workdir=w --patch=a=nan": "'a=nan' is not HOOK_POINT=X",
    "sweep --sweep=s.py --workdir=w --rows=(": "'(' is no regular expression",
    "export --workdir=w --to=d --format=onnx": "invalid choice: 'onnx' (choose from",
    "predict --workdir=w --process_id=1": "--process_id goes with --distributed",
    "train --workdir=w --seeds=2": "--seeds goes with --config",
    "train --config=a.py --dry_run --seeds=2": "--dry_run does not go with --seeds",
    "train --config=a.py --workdir=w --distributed --seeds=2": "does not go with --seeds",
    "evaluate --workdir=w --source=s": "--source goes with --target",
    "evaluate --workdir=w --source=s --target=t --split=x": "--source does not go with --split",
    "evaluate --workdir=w --choices=c --beam_size=2": "--beam_size does not go with --choices",
    "predict --workdir=w --stream --num_outputs=1": "--num_outputs does not go with --stream",
    "predict --workdir=w --stream --format=jsonl": "--format does not go with --stream",
    "predict --workdir=w --stream --prefixes=p": "--prefixes does not go with --stream",
    "predict --workdir=w --stream --distributed": "--distributed does not go with --stream",
    "plan --config=a.py --device=h100:1 --search --decode": "--decode does not go with --search",
    "plan --config=a.py --device=h100:1 --search --kernels=2": "--kernels does not go with",
    "plot --workdir=w --config=a.py": "--config does not go with --workdir",
    "plot --workdir=w --errors=worst --tree=x": "--tree does not go with --errors",
    "plot --tree=x --config=a.py": "--config does not go with --tree",
    "plot --config=c.py --attention=text": "--attention goes with --workdir",
    "plot --workdir=w --split=test": "--split goes with --errors",
    "plot --workdir=w --layer=0": "--layer goes with --attention",
    "plot --workdir=w --base=b": "--base goes with --attention",
    "plot --workdir=w --kind=cross": "--kind goes with --attention",
}


def test_a_mistake_is_one_line(assert_refused):
    calls = {line: functools.partial(parse, line.split()) for line in MISTAKES}
    assert_refused({line: (calls[line], words) for line, words in MISTAKES.items()})


def test_rules_name_flags_of_their_verb():
    for verb in VERBS.values():
        for flag in verb.flags.values():
            assert {flag.goes_with or "traceback", *flag.excludes} <= verb.flags.keys()
        required = {name for names in verb.requires for name in names.split("|")}
        assert required <= verb.flags.keys() and verb.run.__doc__


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
    assert parse(["predict", "--workdir=w", "--config.decode.beam.x=1"]).overrides


def test_flags_have_their_types_and_defaults():
    args = parse(["predict", "--workdir=w", "--checkpoint=200", "--beam_size=8", "--alpha=0.5"])
    assert (args.checkpoint, args.average, args.format) == (200, None, "text")
    assert (args.beam_size, args.alpha, args.batch_size, args.modules) == (8, 0.5, None, ())
    patches = ["--patch=decoder.layer_*=0.5", "--patch=encoder.heads[1]=0"]
    args = parse(["score", "--workdir=w", "--source=a", "--target=b", "--modules=a.py,b", *patches])
    assert args.patch == [("decoder.layer_*", 0.5), ("encoder.heads[1]", 0.0)]
    assert args.modules == ["a.py", "b"]
    args = parse(["benchmark", "decode", "--config=a.py", "--output_length=64", "--config.seed=1"])
    assert (args.verb, args.output_length, args.overrides) == (
        "benchmark decode",
        64,
        {"seed": "1"},
    )
    assert parse(["table", "a", "b"]).folders == ["a", "b"]
    assert (parse(["fields"]).pattern, parse(["fields", "lr"]).pattern) == ("", "lr")
    assert parse(["train", "--workdir=w"]).config is None
    assert parse(["train", "--config=a.py", "--dry_run"]).workdir is None
    assert parse(["claim", "--check"]).workdir is None
    assert parse(["sweep", "--sweep=s.py", "--plan"]).workdir is None


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("/env/bin/transformer_jax", "transformer_jax"),
        ("/package/transformer_jax/__main__.py", "python -m transformer_jax"),
    ],
)
def test_messages_name_the_program_as_it_was_called(called, program, monkeypatch):
    monkeypatch.setattr("sys.argv", [called])
    spec = importlib.util.spec_from_file_location("flags_again", flags.__file__)
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "flags_again", again)
    spec.loader.exec_module(again)
    assert program == again.PROGRAM
