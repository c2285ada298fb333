# SPDX-License-Identifier: Apache-2.0
"""Patterns of layers: their text, and the config and results of each layer."""

import dataclasses
from functools import partial
from typing import Annotated

import jax
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.texts import PADDED
from tests.refusals import assert_refused
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.models.patches import find_hook_points
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.layer_pattern import pattern_text
from transformer_jax.nn.layers import FEED_FORWARDS
from transformer_jax.nn.positions import encoding_class
from transformer_jax.nn.sublayers import Sequences
from transformer_jax.nn.transformer import Block
from transformer_jax.ranges import Range

CONFIG = TransformerConfig(
    d_model=8, d_ff=8, num_heads=2, num_layers=3, vocab_size=11, positions="rotary", dtype="float32"
)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (" 2 x  qk_norm=true d_ff=3|default ", "2 x d_ff=3 qk_norm=true | default"),
        ("d_ff=8 | d_ff=8 | default | default", "2 x d_ff=8 | 2 x default"),
        (({}, {"logit_cap": None, "qk_norm": True}), "default | logit_cap=none qk_norm=true"),
        ([{"rope_theta": 1e6}], "rope_theta=1000000.0"),
        (None, None),
        (3, 3),
    ],
)
def test_a_pattern_has_one_text(given, text):
    assert pattern_text(given) == text
    assert pattern_text(pattern_text(given)) == text


def test_a_pattern_repeats_through_the_stack():
    config = dataclasses.replace(CONFIG, layers="2 x attention_window=3 | rope_theta=5")
    layers = [config.of_layer(i) for i in range(5)]
    assert [layer.attention_window for layer in layers] == [3, 3, None, 3, 3]
    assert [layer.rope_theta for layer in layers] == [1e4, 1e4, 5.0, 1e4, 1e4]
    assert {layer.layers for layer in layers} == {None}
    assert hash(config) == hash(dataclasses.replace(CONFIG, layers=config.layers))
    assert config == dataclasses.replace(
        CONFIG, layers=({"attention_window": 3},) * 2 + ({"rope_theta": 5},)
    )


def test_bad_patterns_are_refused():
    patterns = {
        "layers has the item ''; write items as in '3 x attention_window=128 | positions": "",
        "layers has the item 'd_ff'": "default | d_ff",
        "layers has the item 'qk_norm=true qk_norm=true'": "qk_norm=true qk_norm=true",
        "layers has the item '0 x default'": "0 x default",
        "layers has 300 layers in a period; at most 256 can be": "300 x default",
        "layers sets d_model; a layer may have its own block, attention_layer, att": "d_model=3",
        "layers sets dense.top_k; a layer may have its own": "dense.top_k=3",
        "attention_window is 'wide'; it must be of type int": "attention_window=wide",
        "attention_window is 0; it must lie in [1, 1_048_576]": "attention_window=0",
        "num_key_value_heads 3 does not divide num_heads 2": "num_key_value_heads=3",
        "parameters is 'first', not the number of a layer": "parameters=first",
        "layer 0 has the parameters of layer 1, which must be": "parameters=1 | parameters=0",
        "so set none here": "default | parameters=0 d_ff=3",
        "a layer has those of the model ('rotary') or none": "positions=alibi",
    }
    change = partial(dataclasses.replace, CONFIG)
    assert_refused({words: partial(change, layers=text) for words, text in patterns.items()})


def test_layers_that_share_parameters_equal_layers_with_copies(random_params):
    """Layers 1 and 2 in turn, between a first and a last layer; each has its hook points."""
    text = "default | parameters=1 | parameters=2 d_ff=4 | parameters=1 | default"
    looped = DecoderOnly(dataclasses.replace(CONFIG, layers=text, num_layers=5))
    variables = random_params(looped, *PADDED)
    stack = variables["params"]["decoder"]
    assert {f"layer_{i}" for i in (0, 1, 2, 4)} == set(stack)
    copies = {f"layer_{i}": stack[f"layer_{j}"] for i, j in enumerate((0, 1, 2, 1, 4))}
    text = "2 x default | d_ff=4 | 2 x default"
    plain = DecoderOnly(dataclasses.replace(CONFIG, layers=text, num_layers=5))
    params = variables["params"] | {"decoder": stack | copies}
    logits = apply(looped, variables, *PADDED)
    np.testing.assert_allclose(logits, apply(plain, {"params": params}, *PADDED), atol=1e-5)
    points = [find_hook_points(lambda key, m=m: m.init(key, *PADDED)) for m in (looped, plain)]
    assert points[0].keys() == points[1].keys()
    too_far = DecoderOnly(
        dataclasses.replace(CONFIG, layers="default | parameters=7", num_layers=3)
    )
    assert_refused(
        {
            "parameters=7, but the stack has 3 layers": partial(random_params, too_far, *PADDED),
            "cannot be scanned": partial(dataclasses.replace, looped.config, scan_layers=True),
        }
    )


def test_each_layer_computes_as_its_config_says(random_params):
    """The patterned stack is a chain of single layers with configs written by hand."""
    text = "default | positions=none | attention_window=2 rope_theta=7"
    model = DecoderOnly(dataclasses.replace(CONFIG, layers=text))
    variables = random_params(model, *PADDED)
    _, state = apply(model, variables, *PADDED, capture_intermediates=True, method="features")
    found = state["intermediates"]["decoder"]
    changes = [{}, {"positions": "none"}, {"attention_window": 2, "rope_theta": 7.0}]
    tokens, positions, segment_ids = PADDED
    x = 8**0.5 * variables["params"]["embedding"]["table"][tokens]
    for i, change in enumerate(changes):
        config = dataclasses.replace(CONFIG, **change)
        encoding = encoding_class(config)(config, causal=True)
        sequences = Sequences.packed(encoding, positions, segment_ids)
        params = {"params": variables["params"]["decoder"][f"layer_{i}"]}
        layer = Block(config, attends_to_encoder=False, depth=3)
        x, _ = apply(layer, params, x, sequences, None, True)
        np.testing.assert_allclose(found[f"layer_{i}"]["__call__"][0][0], x, rtol=1e-5, atol=1e-5)


def test_a_field_of_every_layer_is_that_of_the_model(random_params):
    """DeBERTa's three terms have one scale, that of the layer."""
    changes = {"attention_scale": 0.3, "logit_cap": 2.0, "num_key_value_heads": 1}
    config = dataclasses.replace(CONFIG, positions="deberta", max_distance=3, num_layers=1)
    whole, patterned = (
        DecoderOnly(dataclasses.replace(config, **fields))
        for fields in (changes, {"layers": (changes,)})
    )
    variables = random_params(whole, *PADDED)
    logits = apply(whole, variables, *PADDED)
    np.testing.assert_allclose(apply(patterned, variables, *PADDED), logits, atol=1e-5)


def test_positions_in_embeddings_cannot_be_left_out_by_a_layer():
    config = dataclasses.replace(CONFIG, layers="positions=none", positions="sinusoidal")
    init = partial(jax.eval_shape, EncoderOnly(config).init, jax.random.key(0), PADDED[0])
    assert_refused({"'sinusoidal' are added to the embeddings, so that no layer": init})


@dataclasses.dataclass(frozen=True)
class ScaleOptions:
    factor: Annotated[float, Range(0, 4)] = 1.0
    power: int = 1


class Scaled(FeedForward):
    options = ScaleOptions

    def __call__(self, x, deterministic, real=None):
        return (
            super().__call__(x, deterministic, real) * self.config.options_of(ScaleOptions).factor
        )


def test_a_layer_has_options_of_its_own(with_entries):
    with_entries(FEED_FORWARDS, {"scaled": Scaled})
    layers = "feed_forward=scaled scaled.factor=0.5 | feed_forward=scaled | default"
    config = dataclasses.replace(CONFIG, layers=layers, options=(ScaleOptions(2.0),))
    own = [config.of_layer(i) for i in range(3)]
    assert [one.options_of(ScaleOptions).factor for one in own] == [0.5, 2.0, 2.0]
    assert [one.feed_forward for one in own] == ["scaled", "scaled", "dense"]
    both = dataclasses.replace(config, layers="scaled.factor=0.5 scaled.power=3").of_layer(0)
    assert both.options_of(ScaleOptions) == ScaleOptions(0.5, 3)
    change = partial(dataclasses.replace, config)
    options = "the options of model.scaled are scaled.factor, scaled.power"
    refused = {"layers: factor is 5.0; it must lie in [0, 4]": "scaled.factor=5"}
    refused |= {f"layers sets scaled.faktor; {options}": "scaled.faktor=5"}
    assert_refused({words: partial(change, layers=text) for words, text in refused.items()})
