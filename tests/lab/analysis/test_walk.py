# SPDX-License-Identifier: Apache-2.0
"""Walks: their numbers against formulas in NumPy, their steps, and their page."""

import ast
import dataclasses
import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import softmax

from tests.lab.analysis import walk_oracle
from tests.lab.analysis.drawn import Drawn, reading_of
from tests.lab.analysis.test_pages import unpack
from transformer_jax.lab.analysis.activations import collect
from transformer_jax.lab.analysis.pages import inspect_command
from transformer_jax.lab.analysis.walk import diagram, walk, walk_page
from transformer_jax.lab.analysis.walk.layer_steps import norm_step
from transformer_jax.lab.analysis.walk.step import Trace, parse_formula
from transformer_jax.models import MODELS
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.tokenization import DEFAULT_SPECIALS

ROOT = Path(__file__).parents[3]
HOSTILE = '</script><script>alert(1)</script><b>"&\u202e שלום \U0001f600'
SIZES = {"d_model": 16, "d_ff": 24, "num_heads": 2, "dtype": "float32", "num_layers": 1}
SIZES |= {"num_encoder_layers": 2, "num_decoder_layers": 2, "max_length": 32, "norm_epsilon": 1e-5}
SIZES |= {name: 30 for name in ("vocab_size", "source_vocab_size", "target_vocab_size")}
MASK, SEPARATOR = 4, 5
OF_BODY = {"num_heads": 4, "num_key_value_heads": 2, "positions": "alibi", "attention_window": 4}
OF_BODY |= {"norm": "rms", "norm_placement": "sandwich", "logit_cap": 3.0, "activation": "silu"}
OF_BODY |= {"gated_feed_forward": True, "feed_forward_bias": False, "num_layers": 1}


def name_of(token):
    return f"<{token}>"


VOCABULARY = SimpleNamespace(
    specials=dataclasses.replace(DEFAULT_SPECIALS, mask=MASK),
    pieces=lambda ids: list(map(name_of, ids)),
)


def build(architecture, **changes):
    model = MODELS[architecture]
    defaults = {name.partition(".")[2]: value for name, value in model.defaults.items()}
    return model(TransformerConfig(**{**SIZES, **defaults, **changes}))


def reading(architecture, tokens):
    pieces = {stack: [HOSTILE, *map(name_of, row[1:])] for stack, row in tokens.items()}
    texts = {"source": HOSTILE, "target": "b"} if len(tokens) == 2 else {"text": HOSTILE}
    return dataclasses.replace(reading_of(architecture, tokens), texts=texts, pieces=pieces)


SOURCE, TARGET, TEXT = [7, 9, 8, 3], [2, 11, 12, 7, 29], [6, 8, MASK, 9, SEPARATOR, 10, MASK, 11]
EXAMPLES = {
    "encoder_decoder": {"encoder": SOURCE, "decoder": TARGET},
    "decoder_only": {"decoder": TEXT},
    "encoder_only": {"encoder": TEXT},
}
KINDS = {
    "post": ("encoder_decoder", {"separator_id": SEPARATOR}),
    "windows": ("encoder_decoder", {"attention_window": 3, "encoder_window": 2}),
    "gpt": ("decoder_only", {}),
    "options": ("decoder_only", OF_BODY),
    "bert": ("encoder_only", {"separator_id": SEPARATOR}),
}


@pytest.fixture(scope="module")
def walked(random_params):
    """`walked(kind)`: of a kind of model its walk, and the oracle's values."""

    def walk_of(kind):
        architecture, changes = KINDS[kind]
        model = build(architecture, **changes)
        given = reading(architecture, EXAMPLES[architecture])
        params = random_params(model, *given.inputs)["params"]
        expected = getattr(walk_oracle, architecture)(model.config, params, *given.tokens.values())
        return model, params, given, walk(Drawn(model, params, given, VOCABULARY), ""), expected

    return functools.cache(walk_of)


def check(walk, expected):
    """Compares each step of the walk, except the tables, with the oracle's value of that name."""
    met = set()
    for step in walk.steps:
        if step.kind in ("tokens", "ids", "next", "filled", "cache", "past", "source"):
            continue
        name = oracle_name(step)
        want = expected[name]
        met.add(name)
        assert step.values.shape == want.shape, name
        finite = np.isfinite(want)
        assert np.array_equal(finite, np.isfinite(step.values)), name
        error = np.abs(step.values[finite] - want[finite]).max()
        assert error <= 1e-5 * np.abs(want[finite]).max(), (name, error)
    assert met == set(expected)


def oracle_name(step):
    stack, *inside = step.group
    if stack == "prediction":
        return step.kind
    if len(inside) < 2:
        return f"{stack} {step.kind}"
    path = ".".join([stack, inside[0].replace(" ", "_"), inside[1].replace("-", "_")])
    if step.kind in ("output", "feed_forward"):
        return path
    place = {"queries", "keys", "values", "heads", "hidden"}
    if step.kind in place:
        return f"{path}.{step.kind}"
    return f"{path}.weights" if step.kind == "softmax" else f"{path} {step.kind}"


def test_the_walk_of_a_trained_run(trained):
    """Its numbers are those of the formulas, and it names what is written after a token."""
    texts = ("the old dog sees a cat", "der alte Hund sieht eine Katze")
    found = trained.walk(*texts)
    given = trained.model_inputs(*texts)
    config = trained.model.config
    assert config.norm_placement == "pre"
    check(found, walk_oracle.encoder_decoder(config, trained.params, *given.tokens.values()))
    pieces = trained.tokenizer.text("target").pieces(given.outputs)
    for piece, step in zip(pieces, found.of("next", "decoding"), strict=True):
        assert f"{piece}\u2069”" in step.explanation.split("continues with")[1]


ATTENTION = ["queries", "keys", "values", "products", "scale", "mask", "softmax", "heads", "output"]
EMBEDDING = ["tokens", "ids", "embedding"]


def kinds_of(walk, *group):
    return [step.kind for step in walk.steps if step.group[: len(group)] == group]


def test_steps_come_in_the_order_of_the_computation(walked):
    found = walked("post")[3]
    stacks = list(dict.fromkeys(step.group[0] for step in found.steps))
    assert stacks == ["encoder", "decoder", "prediction", "decoding"]
    for stack in ("encoder", "decoder"):
        embedding = [*EMBEDDING, "embedding_scale", "positions", "embedded"]
        assert kinds_of(found, stack, "embedding") == embedding
        of_layer = [step.group[2] for step in found.steps if step.group[:2] == (stack, "layer 1")]
        cross = ["cross-attention"] * (stack == "decoder")
        assert list(dict.fromkeys(of_layer)) == ["self-attention", *cross, "feed-forward"]
        for sublayer in ("self-attention", *cross):
            kinds = kinds_of(found, stack, "layer 1", sublayer)
            assert kinds == [*ATTENTION, "residual", "norm_after"]
        feed = ["hidden", "feed_forward", "residual", "norm_after"]
        assert kinds_of(found, stack, "layer 0", "feed-forward") == feed
    assert kinds_of(found, "prediction") == ["logits", "next"]
    assert kinds_of(found, "decoding") == ["cache", "past", "source", "next"] * len(TARGET)


def test_options_have_steps_of_their_own(walked):
    found = walked("options")[3]
    kinds = kinds_of(found, "decoder", "layer 0", "self-attention")
    logits = ["products", "scale", "bias", "cap", "mask", "softmax", "heads", "output"]
    assert kinds == ["norm_before", *ATTENTION[:3], *logits, "norm_after", "residual"]
    assert kinds_of(found, "decoder", "embedding") == EMBEDDING
    assert kinds_of(found, "decoder", "output") == ["final_norm"]
    (bias,) = found.of("bias", "decoder")
    assert bias.function == "LinearBiases.bias"
    (hidden,) = found.of("hidden", "decoder")
    assert hidden.formula == "h = SiLU(x W_g) ⊙ (x W_1)"
    (mask,) = found.of("mask", "decoder")
    assert "less than 4 positions away" in mask.explanation


def test_a_masked_model_fills_its_blanks(walked):
    found, logits = walked("bert")[3], walked("bert")[4]["logits"]
    assert kinds_of(found, "decoding") == []
    tables = found.of("filled")
    assert [step.group[1] for step in tables] == ["place 2", "place 6"]
    for place, step in zip((2, 6), tables, strict=True):
        best = np.argsort(-logits[place])[:5]
        assert step.axes[0].labels == tuple(map(name_of, best))
        probabilities = softmax(logits[place])[best]
        np.testing.assert_allclose(step.values[:, 1], probabilities, rtol=1e-5)


@pytest.mark.parametrize("kind", ["post", "options"])
def test_decoding_steps_are_the_full_forward(walked, kind):
    model, params, given, found, expected = walked(kind)
    steps = [step for step in found.steps if step.group[0] == "decoding"]
    for index in range(len(given.tokens["decoder"])):
        mine = [step for step in steps if step.group[1].startswith(f"token {index},")]
        by_kind = {step.kind: step for step in mine}
        past, keys = by_kind["past"].values, by_kind["cache"].values
        for layer in range(len(past)):
            path = f"decoder.layer_{layer}"
            weights = expected[f"{path}.self_attention.weights"][:, index, : index + 1]
            np.testing.assert_allclose(past[layer], weights, atol=1e-5)
            if "source" in by_kind:
                weights = expected[f"{path}.cross_attention.weights"][:, index]
                np.testing.assert_allclose(by_kind["source"].values[layer], weights, atol=1e-5)
        written = expected["decoder.layer_0.self_attention.keys"][:, : index + 1]
        np.testing.assert_allclose(keys[:, : index + 1], written, atol=1e-4)
        assert keys.shape[1] == 16 and not keys[:, index + 1 :].any()
        probabilities = softmax(expected["logits"][index])
        best = np.argsort(-probabilities)[:5]
        assert by_kind["next"].axes[0].labels == tuple(map(name_of, best))
        np.testing.assert_allclose(by_kind["next"].values[:, 1], probabilities[best], rtol=1e-4)
        assert f"{index + 1} of 16 slots are filled" in by_kind["cache"].explanation
    assert by_kind["next"].explanation.endswith("The text ends here.")


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_has_the_numbers_of_the_formulas_and_names_its_code(walked, kind):
    *_, found, expected = walked(kind)
    check(found, expected)
    steps = found.steps
    for step in {(step.file, step.function): step for step in steps}.values():
        tree = ast.parse((ROOT / step.file).read_text())
        for name in step.function.split("."):
            named = [n for n in tree.body if getattr(n, "name", None) == name]
            assert named, (step.file, step.function)
            (tree,) = named
    for step in steps:
        assert step.section and step.explanation.endswith("."), step.kind
        assert len(step.axes) == step.values.ndim
        for axis, size in zip(step.axes, step.values.shape, strict=True):
            assert len(axis.labels) in (0, size), (step.kind, axis.name)
        assert parse_formula(step.formula)
        assert step.formula.count("(") == step.formula.count(")"), step.formula


def test_explanations_contain_the_numbers(walked):
    found = walked("post")[3]
    (scale,) = found.of("scale", "decoder", "layer 0", "self-attention")
    (products,) = found.of("products", "decoder", "layer 0", "self-attention")
    numbers = (each.values[each.example] for each in (products, scale))
    product, logit = (f"{x:.3g}".replace("-", "−") for x in numbers)
    assert scale.explanation.startswith(f"{product} / √d_k = {product} / √8 = {logit}.")
    assert scale.shape == "2 heads × 5 queries × 5 keys"


def test_a_batch_norm_has_its_formula():
    config = TransformerConfig(norm="batch")
    trace = Trace(None, {}, config, reading("decoder_only", {"decoder": TEXT}), {}, VOCABULARY)
    x = np.ones((len(TEXT), 4))
    found = norm_step(trace.part("decoder", "decoder"), "norm_before", x, x)
    assert found.formula.startswith("BatchNorm(x)") and found.function == "BatchNorm.__call__"
    assert found.section == "Ioffe and Szegedy 2015" and "scales and shifted" in found.explanation


def test_formulas_become_trees():
    root = ["msqrt", ["msub", ["mi", "d"], ["mi", "k"]]]
    product = ["mrow", ["mi", "Q"], ["msup", ["mi", "K"], ["mi", "T"]]]
    assert parse_formula("(Q K^T)/√(d_k)") == [
        "mrow",
        ["mfrac", product, ["msqrt", ["mrow", root[1]]]],
    ]
    assert parse_formula('2x "if" y_a^b')[3] == ["mtext", "\u00a0if\u00a0"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_contains_the_numbers_of_the_walk(walked, kind):
    found = walked(kind)[3]
    document = walk_page(found, HOSTILE)
    assert "<b>" not in document and document.count("<script") == document.count("</script")
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', document)
    data = json.loads(text)
    assert data["title"] == HOSTILE
    for step, shown in zip(found.steps, data["steps"], strict=True):
        indices = np.ix_(*(axis["shown"] for axis in shown["axes"]))
        values = step.values[indices].astype(np.float32)
        np.testing.assert_array_equal(unpack(shown["values"]), values)
        assert [axis["size"] for axis in shown["axes"]] == list(step.values.shape)
        assert shown["explanation"] == step.explanation
        for axis in shown["axes"]:
            counted = list(range(len(axis["shown"])))
            assert axis["shown"] == counted or axis["name"] == "vocabulary entry"


def test_a_page_in_the_browser(show, walked):
    found = walked("post")[3]
    steps = found.steps
    tab = show(walk_page(found, HOSTILE))

    def text(name):
        return tab.evaluate(f"document.getElementById('{name}').textContent")

    assert text("name") == "Tokens"
    tab.press("ArrowRight")
    assert text("name") == "Token ids"
    tab.press("End")
    assert text("count") == f"Step {len(steps)} of {len(steps)}"
    tab.press("Home")
    step = [each.kind for each in steps].index("softmax")
    tab.press(*["ArrowRight"] * step, "ArrowDown")
    tab.wait_for(f"document.getElementById('numbers').dataset.shown === '{step}.1'")
    weights = steps[step].values
    cells = list(map(float, tab.texts("#numbers td")))
    np.testing.assert_allclose(cells, weights[1].ravel(), atol=6e-5)
    tab.point("#numbers td")
    said, exact = text("status").rsplit(" ", 1)
    assert said.startswith("head 1, query 0")
    assert float(exact) == pytest.approx(weights[1, 0, 0], rel=1e-6)
    assert text("title") == HOSTILE
    assert tab.requests() == []


PARTS = "[...document.querySelectorAll('.part')].map((part) => part.ariaLabel)"


def test_each_step_belongs_to_one_part_of_the_diagram(walked):
    for kind in KINDS:
        steps = walked(kind)[3].steps
        blocks = [block for stack in diagram(steps) for block in stack["blocks"]]
        parts = [part for block in blocks for part in block["parts"]]
        covered = [i for part in parts for i in range(part["first"], part["last"] + 1)]
        assert covered == list(range(len(steps)))


def test_the_diagram_leads_to_steps_and_shows_where_a_step_is(show, walked):
    found = walked("post")[3]
    tab = show(walk_page(found, "diagram"))
    now = "document.querySelector('.part[aria-current=step]').ariaLabel"
    assert tab.evaluate(now) == "encoder, embedding: Embedding, steps 1 to 4"
    kinds = [(step.group[:2], step.kind) for step in found.steps]
    first = kinds.index((("decoder", "layer 0"), "hidden"))
    tab.point(f".part[data-first='{first}']", click=True)
    assert tab.evaluate("state.step") == first
    assert tab.texts("#group") == ["decoder › layer 0 › feed-forward"]
    assert tab.evaluate(now).startswith("decoder, layer 0: Feed-forward")
    tab.press("ArrowRight", "ArrowRight")  # the part's second step, then the next part
    assert tab.evaluate(now).startswith("decoder, layer 0: Add & norm")
    closed = [label for label in tab.evaluate(PARTS) if label.startswith("decoder, layer 1")]
    assert len(closed) == 1
    layer = kinds.index((("decoder", "layer 1"), "queries"))
    tab.point(f".part[data-first='{layer}']", click=True)
    opened = [label for label in tab.evaluate(PARTS) if label.startswith("decoder, layer 1")]
    assert len(opened) == 6 and tab.evaluate(now) == opened[0]
    tab.evaluate("document.querySelector('.part').focus()")
    tab.press("Tab", "Enter")
    assert tab.texts("#name") == ["Positions"]
    assert tab.evaluate("document.activeElement.ariaLabel").startswith("encoder, embedding: Pos")


def test_a_narrow_page_does_not_scroll_sideways(show, walked):
    command = inspect_command("/a/very/long/path" * 5, "--walk")
    tab = show(walk_page(walked("post")[3], HOSTILE, command), width=360)
    for _ in range(8):
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        tab.press("n")
    box = json.loads(tab.evaluate("JSON.stringify(byId('diagram').getBoundingClientRect())"))
    assert box["width"] > 250 and box["height"] > 250
    tab.point(".part", click=True)
    assert 0 < tab.evaluate("byId('name').getBoundingClientRect().top") < 900
    assert tab.texts("#command code") == [command]
    tab.evaluate("byId('command').scrollIntoView()")
    tab.point("#command button", click=True)
    assert tab.texts("#command button") == ["Copied"]
    assert tab.evaluate("getSelection().toString()") == command


def test_layers_that_a_walk_does_not_explain_show_their_output(random_params):
    """It shows only the output of linear attention and of sinks."""
    layers = "attention_layer=gated_delta | default | attention_layer=sinks"
    sizes = {"num_layers": 3, "d_model": 8, "d_ff": 8}
    model = build("decoder_only", layers=layers, positions="rotary", **sizes)
    given = reading("decoder_only", {"decoder": TEXT[:3]})
    params = random_params(model, *given.inputs)["params"]
    found = walk(Drawn(model, params, given, VOCABULARY), "")
    own = {step.group[1]: step for step in found.steps if step.kind == "sublayer"}
    assert [step.title for step in own.values()] == ["GatedDeltaNet", "SinkAttention"]
    assert list(own) == ["layer 0", "layer 2"]
    values = collect(model, params, given, ["**.self_attention"])
    expected = values["decoder.layer_0.self_attention"]
    np.testing.assert_allclose(own["layer 0"].values, expected, rtol=1e-5, atol=1e-6)
    assert {step.group[1] for step in found.steps if step.kind == "softmax"} == {"layer 1"}
    (cache, *_) = (step for step in found.steps if step.kind == "cache")
    assert "Each of the 1 layers" in cache.explanation and "keys of layer 1" in cache.explanation
