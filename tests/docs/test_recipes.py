# SPDX-License-Identifier: Apache-2.0
"""docs/recipes: components outside the package, trained as docs/extending.md says.

Components that do not interfere are trained together, so that few programs are compiled.
"""

import ast
import dataclasses
import json
import re
import shutil
import sqlite3

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.compiled import decode
from tests.conftest import ROOT, records_of
from tests.lab.analysis.drawn import TOKENS, Drawn, reading_of
from transformer_jax.cli.parser import parse
from transformer_jax.data.sources import open_split
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.lab.analysis.activations import hidden
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.patches import find_hook_points, patched_model
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.parameters import named_leaves, parameter_at
from transformer_jax.nn.positions import PositionEncoding
from transformer_jax.nn.sublayers import Sequences
from transformer_jax.runs import user_modules
from transformer_jax.runs.config import flatten
from transformer_jax.runs.settings import CHOICES
from transformer_jax.tokenization import DEFAULT_SPECIALS, SymbolTokenizer

PAGE = ROOT / "docs" / "extending.md"
RECIPES = sorted(ROOT.glob("docs/recipes/*.py"))
STEPS = {"train.num_steps": 3, "eval.every_steps": 3, "checkpoint.every_steps": 3}
STEPS |= {"model.dropout_rate": 0.0}

PAIRS = STEPS | {
    **{"task.name": "seq2seq", "task.metric": "character_accuracy", "data.name": "sums"},
    **{"model.positions": "kerple", "model.attention_layer": "value_residual"},
    **{"model.feed_forward": "switch", "model.switch.num_experts": 3},
    **{"model.activation": "snake", "model.norm": "scale", "model.norm_placement": "pre"},
    **{"tokenizer.kind": "char", "tokenizer.vocab_size": 40},
    **{"optimizer.name": "adabelief", "optimizer.schedule": "plateau"},
    **{"optimizer.transforms": "centralize", "optimizer.decay_steps": 100},
    **{"decode.beam_size": 1},
}
TEXT = STEPS | {
    "model.layers": "attention_layer=gated | attention_layer=compressed compressed.rank=4"
    " | attention_layer=retention retention.slowest=8.0 | attention_layer=canon",
    **{"model.architecture": "parallel_decoder", "model.num_layers": 4, "train.remat": "dots"},
    **{"decode.search": "min_p", "decode.min_p.least": 0.1},
    **{"train.loss": "focal", "train.focal.gamma": 1.0},
    **{"decode.constraint": "no_repeat", "decode.no_repeat.size": 2, "tokenizer.kind": "bytes"},
    **{"train.callbacks": "samples", "logging.trackers": "sqlite"},
}
NUMBERS = STEPS | {
    **{"task.name": "regression", "model.architecture": "encoder_only", "model.num_layers": 1},
    **{"tokenizer.kind": "char", "tokenizer.vocab_size": 40},
    **{"data.name": "table", "data.max_length": 32},
}


@pytest.fixture
def use(tmp_path, tiny_config, forget_modules):
    """`use(names, changes, lines)`: trains with copies of these recipes and returns the loaded run.

    Asserts that loading needs the recipes, and that the loaded run predicts the same.
    """

    def use_recipes(names, changes, lines):
        paths = [tmp_path / f"{name}.py" for name in names]
        for path in paths:
            shutil.copy(ROOT / "docs" / "recipes" / path.name, path)
        user_modules.load_modules(paths)
        run = tj.train(tiny_config(changes), tmp_path / "run", modules=paths)
        outputs = run.predict(lines)
        assert len(outputs) == len(lines)
        forget_modules()
        with pytest.raises(tj.UserError) as refused:
            tj.load(run.workdir)
        assert all(path.name in str(refused.value) for path in paths)
        assert "\n" not in str(refused.value) and "give --modules=" in str(refused.value)
        loaded = tj.load(run.workdir, modules=paths)
        assert loaded.predict(lines) == outputs
        return loaded

    return use_recipes


# --- Components of a translation ---


def test_components_of_one_run_on_pairs(use):
    names = ["position_encoding", "activation_and_norm", "value_residual", "metric", "data_set"]
    names += ["routed_layer", "optimizer_and_schedule"]
    run = use(names, PAIRS, ["1 + 2", "17 + 25"])
    params = named_leaves(run.params)
    assert params["source_positions/kerple"].shape == (2, 2)
    assert parameter_at("target_positions/kerple").kind == "bias"
    assert params["encoder/layer_0/feed_forward_residual/norm_before/scale"].shape == (1,)
    assert len(open_split(run.settings.data, "valid")) == 500
    record, *_, metrics = records_of(run.workdir)
    assert metrics["character_accuracy"] <= 1
    assert record["learning_rate"] == pytest.approx(0.6 * 3e-3)  # three of five steps of the rise
    assert params["decoder/layer_0/feed_forward/switch_inner"].shape[0] == 3
    assert 1 / 3 < record["aux/largest_load"] <= 1 and record["aux/balance"] > 0.5


# --- Language models ---


def test_components_of_one_run_on_text(use, tiny_language_model):
    names = ["architecture", "gated_attention", "latent_attention", "linear_attention", "search"]
    names += ["token_loss", "tracker", "callback", "convolution"]
    names += ["constraint", "tokenizer"]
    run = use(names, tiny_language_model | TEXT, ["The dog"])
    layer = run.params["decoder"]["layer_1"]
    assert set(layer) == {"self_attention", "self_attention_residual", "feed_forward"}
    gate = run.params["decoder"]["layer_0"]["self_attention"]["head_gate"]["kernel"]
    assert gate.ndim == 3 and "head_gate" not in layer["self_attention"]
    assert layer["self_attention"]["compress"]["kernel"].shape[1] == 4
    assert parameter_at("layer_0/self_attention/head_gate/kernel").axes[1] == "heads"
    *_, record = records_of(run.workdir)
    assert 0 < record["train_loss"] < 0.998 * record["loss"]  # which is the NLL
    assert record["split"] == "valid" and 0 < record["distinct_words"] <= 1
    (sample,) = (run.workdir / "samples.jsonl").read_text().splitlines()
    assert json.loads(sample)["step"] == record["step"]
    with sqlite3.connect(run.workdir.parent / "transformer_jax.db") as database:
        query = "select value from metrics where run = 'run' and metric = 'valid/loss'"
        assert database.execute(query).fetchone() == (record["loss"],)
    probabilities = jnp.array([[0.0, 0.0, 0.0, 0.1, 0.5, 0.36, 0.04]])
    cut = run.settings.decode.make_search(DEFAULT_SPECIALS).truncated(jnp.log(probabilities))
    assert jnp.isfinite(cut).tolist() == [[False, False, False, True, True, True, False]]
    assert_sentences_stay_apart(run.model, {"params": run.params})


def test_a_residual_stream_of_another_shape(forget_modules, random_params):
    """Streams start as copies of the one stream; hooks and patches follow their axes."""
    user_modules.load_modules([ROOT / "docs" / "recipes" / "residual_stream.py"])
    names = {"architecture": "decoder_only", "positions": "none", "norm_placement": "pre"}
    sizes = {"d_model": 8, "d_ff": 8, "num_heads": 2, "num_layers": 2, "vocab_size": 11}
    plain = TransformerConfig(**names, **sizes, dtype="float32")
    config = dataclasses.replace(plain, residual="streams")
    model, tokens = DecoderOnly(config), np.array([[4, 5, 6, 7], [8, 9, 1, 2]])
    variables = jax.jit(model.init)(jax.random.key(0), tokens)
    logits = jax.jit(model.apply)(variables, tokens)
    same = jax.jit(DecoderOnly(plain).apply)(variables, tokens)  # it ignores the mixing
    np.testing.assert_allclose(logits, same, atol=1e-4)
    points = find_hook_points(lambda key: model.init(key, tokens))
    axes = {"position": None, "stream": 2, "feature": 8}
    layer_0 = points["decoder.layer_0"]
    assert layer_0 == points["decoder.residual"] == axes
    assert points["decoder.layer_0.self_attention.input"] == {"position": None, "feature": 8}
    patched = patched_model(model, {"decoder.layer_1[:, 0]": 0}, points)
    assert np.abs(jax.jit(patched.apply)(variables, tokens) - logits).max() > 1e-3
    found = hidden(Drawn(model, variables["params"], reading_of("decoder_only")), "")
    assert found.streams["decoder"].shape == (3, 4, 2, 8)
    (row,) = jax.jit(model.apply)(variables, np.array([TOKENS["decoder"]]))
    np.testing.assert_allclose(found.lens[-1], jax.nn.log_softmax(row), atol=1e-5)
    assert_sentences_stay_apart(model, variables)


def assert_sentences_stay_apart(model, variables):
    """A packed sentence has the logits of one that is decoded, beside a longer prompt, from the
    caches and states of its layers."""
    tokens, segments = jnp.array([[5, 6, 7, 8, 9, 0]]), jnp.array([[1, 1, 1, 2, 2, 0]])
    packed = jax.jit(model.apply)(variables, tokens, segment_ids=segments)
    results, _ = decode(model, variables, [[5, 6, 0], [8, 0, 0]], [2, 1], [[7, 9]], max_length=4)
    np.testing.assert_allclose(results[1], packed[0, jnp.array([2, 4])], atol=1e-5)


def test_a_constraint_bars_exactly_what_would_repeat(forget_modules):
    user_modules.load_modules([ROOT / "docs" / "recipes" / "constraint.py"])
    options = CHOICES["decode.constraint"].options("no_repeat")(2)
    decode = DecodeConfig(max_extra_length=12, options=(options,))
    rule = CHOICES["decode.constraint"]["no_repeat"](decode, SymbolTokenizer("a"))  # five tokens
    tokens = np.random.default_rng(0).integers(0, 5, (3, 12))
    state = rule.begin(None, jnp.zeros(3, jnp.int32), None)
    for i, column in enumerate(tokens.T):
        bigrams = [{*zip(row[:i], row[1:i], strict=False)} for row in tokens.tolist()]
        last = tokens[:, i - 1].tolist()
        expected = [
            [not i or (a, b) not in pairs for b in range(5)]
            for a, pairs in zip(last, bigrams, strict=True)
        ]
        np.testing.assert_array_equal(rule.allowed(state), expected)
        state, read = rule.advance(state, jnp.array(column))
        np.testing.assert_array_equal(read, column)


def test_the_gate_of_an_attention_layer_equals_its_formula(forget_modules, random_params):
    user_modules.load_modules([ROOT / "docs" / "recipes" / "gated_attention.py"])
    config = TransformerConfig(d_model=8, num_heads=2, positions="none", dtype="float32")
    layer = ATTENTION_LAYERS["gated"](config)
    x = np.random.default_rng(0).normal(size=(1, 3, 8)).astype(np.float32)
    sequences = Sequences(PositionEncoding(config), np.arange(3)[None], np.tri(3)[None, None] > 0)
    variables = random_params(layer, x, sequences, True, method="self_attend")
    (found, _), state = layer.apply(
        variables, x, sequences, True, method="self_attend", mutable="intermediates"
    )
    gate = np.einsum("btd,dhv->bthv", x, variables["params"]["head_gate"]["kernel"])
    heads = state["intermediates"]["heads"][0] / (1 + np.exp(-gate))
    expected = np.einsum("bthv,hvd->btd", heads, variables["params"]["output"]["kernel"])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# --- A task ---


def test_a_task(use, tmp_path):
    files = {}
    for split, count in (("train", 40), ("valid", 10)):
        path = tmp_path / f"{split}.tsv"
        rows = [f"{'very ' * (i % 5)}good\t{i % 5 + 0.5}" for i in range(count)]
        path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
        files[f"data.{split}_text"] = str(path)
    run = use(["task"], NUMBERS | files, ["good", "very very good"])
    *_, metrics = records_of(run.workdir)
    assert metrics["loss"] > 0 and metrics["absolute_error"] > 0 and "perplexity" not in metrics
    assert all(float(output) for output in run.predict(["good"]))


def test_a_loss_with_frozen_parameters(use, tiny_language_model, language_model):
    near = STEPS | {"task.name": "near_start", "train.init_from": str(language_model.workdir)}
    run = use(["frozen_parameters"], tiny_language_model | near, ["The dog"])
    *_, metrics = records_of(run.workdir)
    start = run.frozen["reference"]
    moved = jax.tree.map(lambda a, b: float(jnp.square(a - b).sum()), run.params, start)
    assert metrics["distance"] == pytest.approx(sum(jax.tree.leaves(moved)), rel=1e-4)
    plain = language_model.with_params(run.params).evaluate(split="valid")
    assert metrics["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    expected = plain["train_loss"] + 0.01 * metrics["distance"]
    assert metrics["train_loss"] == pytest.approx(expected, rel=1e-5)


# --- The page ---


def test_the_page_shows_each_recipe():
    page = PAGE.read_text(encoding="utf-8")
    assert [path.name for path in RECIPES if path.read_text().count("\n") > 71] == []
    included = re.findall(r"^```\{literalinclude\} recipes/(\S+)$", page, re.MULTILINE)
    linked = re.findall(r"\]\(recipes/(\S+)\)$", page, re.MULTILINE)
    assert sorted(included) == sorted(linked) == [path.name for path in RECIPES]


def test_the_command_of_a_recipe_uses_its_component(monkeypatch, forget_modules):
    monkeypatch.chdir(ROOT)
    unused = []
    for recipe in RECIPES:
        lines = ast.get_docstring(ast.parse(recipe.read_text())).replace("\\\n", " ").splitlines()
        (command,) = (line for line in lines if "transformer_jax train" in line)
        args = parse(command.split()[1:])
        config = tj.config(args.config, args.overrides, modules=args.modules)
        fields = flatten(config.to_dict())
        owners = {
            registry.module_of(name)
            for field, registry in CHOICES.items()
            for name in str(fields[field]).split(",")
        }
        if not any(path and path.startswith(recipe.stem) for path in owners):
            unused.append(recipe.name)
        forget_modules()
    assert unused == []


def test_looking_inside(trained_workdir, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "quickstart").symlink_to(trained_workdir)
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text().partition("## Looking inside, and changing it")[2]
    code, *_ = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    names = {}
    exec(code, names)
    weights = names["weights"]
    assert weights.ndim == 4 and float(weights[0, 0, 0].sum()) == pytest.approx(1, abs=1e-5)
    assert float(names["after"]) != float(names["before"])
