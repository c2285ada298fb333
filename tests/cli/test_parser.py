# SPDX-License-Identifier: Apache-2.0
"""Verbs, flags and overrides, and one-line errors."""

from functools import partial

from tests.refusals import assert_refused
from transformer_jax.cli.parser import VERBS, parse

MISTAKES = {
    "unknown verb trian; did you mean train?": "trian --config=a.py",
    "unknown verb translate; did you mean predict?": "translate --workdir=w",
    "unknown verb xyz; known: quickstart, train, evaluate, predict": "xyz",
    "unknown flag --work_dir; did you mean --workdir?": "predict --work_dir=w",
    "unknown flag --beam-size; did you mean --beam_size?": "predict --workdir=w --beam-size 4",
    "did you mean --config.model.d_model=VALUE?": "train --config=a.py --workdir=w --d_model=4",
    "did you mean --config.train.num_steps=VALUE?": "train --config=a.py --workdir=w --epochs 4",
    "unknown flag --output_dir; did you mean --workdir?": "train --config=a.py --output_dir=w",
    "unknown flag --output; did you mean --to?": "export --workdir=w --output=w",
    "did you mean a shell's redirection, < FILE?": "predict --workdir=w --input=a",
    "unknown flag --d_model; known: --workdir, ": "predict --workdir=w --d_model=4",
    "unknown flag --foo; known: --config, ": "train --config=a.py --workdir=w --foo",
    "unexpected argument extra; flags are written --FLAG=VALUE": "evaluate --workdir=w extra",
    "needs a verb: quickstart, train, evaluate, predict": "",
    "benchmark` needs a verb: train, decode": "benchmark",
    "inspect needs --to": "inspect --workdir=w",
    "train needs --config or --workdir": "train",
    "score needs --target": "score --workdir=w --source=a",
    "plot needs --workdir or --config or --tree": "plot",
    "claim needs --workdir or --check": "claim a",
    "--config.seed has no value": "train --config=a.py --workdir=w --config.seed",
    "config.seed has no value": "train --config=a.py --config.seed --dry_run",
    "argument --workdir: expected one argument": "predict --workdir",
    "predict takes no --config.seed: the run uses the": "predict --workdir=w --config.seed=1",
    "table takes no --config.seed": "table w --config.seed=1",
    "invalid int value: 'four'": "predict --workdir=w --beam_size=four",
    "'0' is not a whole number from 1 to 2147483647": "predict --workdir=w --num_outputs=0",
    "is not a whole number from 1 to 1000": "train --config=a.py --workdir=w --seeds=9999",
    "'last' is not latest, best or the number": "predict --workdir=w --checkpoint=last",
    "'-1' is not a whole number from 0": "predict --workdir=w --distributed --process_id=-1",
    "'host' is not HOST:PORT": "predict --workdir=w --distributed --coordinator=host",
    "is not HOST:PORT": "predict --workdir=w --distributed --coordinator=host:99999",
    "'decoder.layer_0' is not HOOK_POINT=X": "predict --workdir=w --patch=decoder.layer_0",
    "'=0' is not HOOK_POINT=X": "predict --workdir=w --patch==0",
    "'a=nan' is not HOOK_POINT=X": "predict --workdir=w --patch=a=nan",
    "'(' is no regular expression": "sweep --sweep=s.py --workdir=w --rows=(",
    "invalid choice: 'onnx' (choose from": "export --workdir=w --to=d --format=onnx",
    "--process_id goes with --distributed": "predict --workdir=w --process_id=1",
    "--seeds goes with --config": "train --workdir=w --seeds=2",
    "--source goes with --target": "evaluate --workdir=w --source=s",
    "--source does not go with --split": "evaluate --workdir=w --source=s --target=t --split=x",
    "--num_outputs does not go with --stream": "predict --workdir=w --stream --num_outputs=1",
    "--config does not go with --workdir": "plot --workdir=w --config=a.py",
    "--attention goes with --workdir": "plot --config=c.py --attention=text",
}


def test_mistakes_are_refused():
    assert_refused({words: partial(parse, line.split()) for words, line in MISTAKES.items()})


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
    expected = {"model.d_model": "64", "optimizer.learning_rate": "-1"}
    assert args.overrides == expected | {"data.name": "", "a.b": "c=d"}
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
    assert (args.verb, args.output_length) == ("benchmark decode", 64)
    assert args.overrides == {"seed": "1"}
    assert parse(["table", "a", "b"]).folders == ["a", "b"]
    assert (parse(["fields"]).pattern, parse(["fields", "lr"]).pattern) == ("", "lr")
    assert parse(["train", "--workdir=w"]).config is None
    assert parse(["train", "--config=a.py", "--dry_run"]).workdir is None
    assert parse(["claim", "--check"]).workdir is None
    assert parse(["sweep", "--sweep=s.py", "--plan"]).workdir is None
