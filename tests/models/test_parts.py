# SPDX-License-Identifier: Apache-2.0
"""Invariants of every option in every architecture: cached decoding, packing, causality; and
derivatives of whole models."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.texts import LAYERS, PACKED, PADDED, TOGETHER, small_config
from transformer_jax.losses import cross_entropy
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.experts import ExpertsOptions
from transformer_jax.nn.gated_delta import GatedDeltaOptions
from transformer_jax.nn.latent_attention import LatentOptions
from transformer_jax.nn.transformer import rematerialized_layers

CONFIG = small_config(norm_placement="pre", tie_embeddings="none")
PARTS = {
    "relative": {"positions": "relative", "max_distance": 2, "num_key_value_heads": 2},
    "t5": {"positions": "t5", "num_buckets": 4, "max_distance": 6, "attention_scale": 1.0}
    | {"norm": "rms", "activation": "silu", "gated_feed_forward": True}
    | {"feed_forward_bias": False, "scale_logits": True},
    "deberta": {"positions": "deberta", "max_distance": 3, "num_key_value_heads": 2}
    | {"attention_scale": 0.3},
    "rotary": {"positions": "rotary", "rope_fraction": 0.5, "rope_scaling": "llama3"}
    | {"rope_original_length": 32, "qk_norm": True, "attention_window": 3}
    | {"attention_bias": "qkv", "block": "merged"},
    "gemma": {"positions": "rotary", "rope_layout": "halves", "rope_scaling": "linear"}
    | {"layers": "attention_window=2 qk_norm=true | positions=none num_key_value_heads=1 d_ff=10"}
    | dict.fromkeys(LAYERS, 2)
    | {"attention_scale": 0.7, "logit_cap": 2.0, "final_logit_cap": 3.0}
    | {"norm": "rms_plus_one", "norm_placement": "sandwich"},
    "bart": {"positions": "learned", "position_offset": 2, "embedding_norm": True}
    | {"logits_bias": True, "norm_placement": "post"},
    "alibi": {"positions": "alibi", "num_key_value_heads": 1, "logit_cap": 2.0}
    | {"attention_bias": "all", "key_size": 6, "value_size": 3, "activation": "gelu"},
}
"""Each position encoding, combined with other options of attention and layers."""

DECODERS = {
    "sinks": {"attention_layer": "sinks", "positions": "rotary", "num_key_value_heads": 2}
    | {"attention_window": 3},
    "additive": {"attention_layer": "additive", "positions": "t5", "num_key_value_heads": 2}
    | {"attention_window": 3},
    "gated_delta": {"attention_layer": "gated_delta", "layers": "default | attention_layer=latent"}
    | {"num_layers": 2, "positions": "rotary", "key_size": 4, "value_size": 5}
    | {"options": (GatedDeltaOptions(2, 4, chunk_size=4), LatentOptions(8, 5, rotary_size=2))},
    "experts": {"feed_forward": "experts", "gated_feed_forward": True, "activation": "silu"}
    | {"options": (ExpertsOptions(4, 2, num_shared=1, capacity_factor=0.6),)},
}
"""Layers of a decoder; tokens that find an expert full are dropped in training only."""

PROMPT, LENGTHS, THEN = np.array([[3, 4, 5], [7, 0, 0]]), np.array([3, 1]), np.array([6, 8])
SOURCE = (jnp.array(PADDED[0]), PADDED[2].sum(axis=1))
close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)


def built(model_class, part, random_params, *args, **changes):
    fields = DECODERS.get(part) or PARTS[part]
    model = model_class(dataclasses.replace(CONFIG, **fields, **changes))
    return model, random_params(model, *args)


def decoded(model, variables, *inputs):
    """Logits after prompts of unequal length, prefilled together, and after one more token."""
    prefilled, memory, state = model.apply(variables, *inputs, PROMPT, LENGTHS, 6, method="prefill")
    return prefilled, model.apply(variables, THEN, memory, state, method="decode_step")[0]


def assert_packed_is_padded(together):
    packed, *padded = together
    close(packed[:5], padded[0][:5])
    close(packed[5:8], padded[1][:3])


def assert_cached_is_full(found, together):
    for step, logits in enumerate(found):
        close(logits, together[[1, 2], LENGTHS + step - 1])


@pytest.mark.parametrize("part", PARTS)
def test_encoder_decoder(random_params, part):
    """Its stacks have all layers of the other models."""
    model, variables = built(EncoderDecoder, part, random_params, *TOGETHER, *TOGETHER)

    @jax.jit
    def run(variables):
        together = model.apply(variables, *TOGETHER, *TOGETHER)
        return together, decoded(model, variables, *SOURCE)

    together, found = run(variables)
    assert_packed_is_padded(together)
    assert_cached_is_full(found, together)


@pytest.mark.parametrize(
    ("model_class", "part"), [(EncoderDecoder, "relative"), (DecoderOnly, "rotary")]
)
def test_bfloat16_caches_equal_caches_rounded_at_each_step(random_params, model_class, part):
    """With a key of one and two heads, rotated, and read by distance."""
    is_pair = model_class is EncoderDecoder
    inputs = PADDED * (1 + is_pair)
    model, variables = built(model_class, part, random_params, *inputs, dtype="bfloat16")

    @jax.jit
    def run(variables):
        full = model.apply(variables, *inputs)
        return full, decoded(model, variables, *(SOURCE if is_pair else ()))

    full, found = run(variables)
    for step, logits in enumerate(found):
        expected = full[[0, 1], LENGTHS + step - 1]
        np.testing.assert_allclose(logits, expected, atol=0.02 * np.abs(full).max())


@pytest.mark.parametrize("part", DECODERS)
def test_decoder_only(random_params, part):
    model, variables = built(DecoderOnly, part, random_params, *TOGETHER)
    apply = jax.jit(model.apply)
    together = apply(variables, *TOGETHER)
    assert_packed_is_padded(together)
    found = jax.jit(functools.partial(decoded, model))(variables)
    assert_cached_is_full(found, together)

    def changes_by(place):
        """Changes of the logits at each position of the packed row, if another token is at one."""
        tokens, *others = TOGETHER
        tokens = tokens.copy()
        tokens[0, place] = 1
        return np.abs(apply(variables, tokens, *others)[0] - together[0]).max(-1)

    changes = np.stack([changes_by(place) for place in range(8)], axis=1)[[3, 6]]
    first = int(model.config.attention_window is None)  # otherwise the window has three tokens
    seen = np.array([[first, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 0]], bool)
    assert changes[seen].min() > 1e-4 and changes[~seen].max() == 0


def test_layers_that_share_a_table_can_be_rematerialized(random_params):
    """The gradient of the table, which is outside the layers, is the same without."""
    changes = {"positions": "deberta", "max_distance": 3, "num_layers": 2}
    model = DecoderOnly(dataclasses.replace(CONFIG, **changes))
    variables = random_params(model, *PADDED)

    @jax.jit
    def gradients(variables):
        def loss(variables):
            return (model.apply(variables, *PADDED) ** 2).mean()

        plain = jax.grad(loss)(variables)
        with rematerialized_layers("dots"):
            return plain, jax.grad(loss)(variables)

    plain, again = gradients(variables)
    jax.tree.map(close, plain, again)
    assert np.abs(plain["params"]["input"]["positions"]["table"]).max() > 0


def test_gpt2_initialization_counts_the_sublayers_of_each_stack():
    """0.02 / sqrt(n), with n = 2 for each layer, 3 with cross-attention."""
    config = dataclasses.replace(CONFIG, d_model=64, d_ff=256, initialization="gpt2", num_layers=2)
    row = jnp.ones((1, 1), jnp.int32)

    def outputs(stack):
        layer = stack["layer_0"]
        names = [name for name in layer if name.endswith("attention")]
        return [layer[name]["output"] for name in names] + [layer["feed_forward"]["outer"]]

    @jax.jit
    def initialized(key):
        both = EncoderDecoder(config).init(key, *[row] * 6)["params"]
        alone = DecoderOnly(config).init(key, *[row] * 3)["params"]
        stacks = {2: both["encoder"], 3: both["decoder"], 4: alone["decoder"]}
        layer = alone["decoder"]["layer_0"]
        others = layer["feed_forward"]["inner"], layer["self_attention"]["query"]
        return {sublayers: outputs(stack) for sublayers, stack in stacks.items()}, others

    by_stack, others = initialized(jax.random.key(0))
    for layer in others:
        assert np.std(layer["kernel"]) == pytest.approx(0.02, rel=0.05)
    for sublayers, layers in by_stack.items():
        assert len(layers) == 2 + (sublayers == 3)
        for layer in layers:
            assert np.std(layer["kernel"]) == pytest.approx(0.02 / np.sqrt(sublayers), rel=0.05)


def test_with_zero_output_initialization_sublayers_add_nothing():
    config = dataclasses.replace(CONFIG, d_model=64, d_ff=256, initialization="zero_output")
    model, row = DecoderOnly(config), jnp.array([[1, 2, 3, 4], [5, 6, 7, 4]])
    params = jax.jit(model.init)(jax.random.key(0), row)["params"]
    kernel = params["decoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]
    assert kernel.std() == pytest.approx(0.02, rel=0.05)
    one, other = jax.jit(model.apply)({"params": params}, row)[:, -1]
    np.testing.assert_array_equal(one, other)  # nothing comes from the tokens before


def test_a_hessian_vector_product_is_the_change_of_the_gradient(random_params):
    """With dropout. The first derivative along the vector is the gradient times the vector, too."""
    smooth = dataclasses.replace(CONFIG, activation="gelu", dropout_rate=0.2)
    model = DecoderOnly(smooth)
    params = jax.tree.map(lambda x: x / 2, random_params(model, *PACKED)["params"])

    def loss(params):
        logits = apply_model(model, params, *PACKED, rng=jax.random.key(1))
        labels = jnp.arange(logits.shape[1])[None] % logits.shape[2]
        return cross_entropy(logits, labels, 0.1).sum()

    rng = np.random.default_rng(0)
    vector = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)

    @jax.jit
    def along_the_vector(step):
        """Gradient after a step along the vector, and derivatives of loss and gradient there."""
        place = jax.tree.map(lambda x, v: x + step * v, params, vector)
        (_, gradient), (slope, product) = jax.jvp(jax.value_and_grad(loss), (place,), (vector,))
        return gradient, slope, product

    gradient, slope, product = along_the_vector(0.0)
    assert slope == pytest.approx(dot(gradient, vector), rel=1e-4)
    after, before = (along_the_vector(step)[0] for step in (1e-3, -1e-3))
    change = jax.tree.map(lambda a, b: (a - b) / 2e-3, after, before)
    error = jax.tree.map(jnp.subtract, product, change)
    assert dot(error, error) < 1e-3 * dot(change, change)


def dot(a, b):
    return float(sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b))))
