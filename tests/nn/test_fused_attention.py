# SPDX-License-Identifier: Apache-2.0
"""Fused kernels equal the plain function: Splash in Pallas's interpreter, cuDNN with the
implementation that JAX has for every platform."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.texts import small_config
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn import fused_attention
from transformer_jax.nn.attention import scaled_dot_product_attention
from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.fused_attention import AttentionRequirements, CuDNN, Splash, choose_kernel
from transformer_jax.nn.masks import Segments, look_ahead_mask
from transformer_jax.nn.per_device import use_sharded_call
from transformer_jax.parallel.engines import call_whole

B, T, H, K = 2, 128, 4, 8
KERNELS = [Splash(), CuDNN("xla")]
RNG = np.random.default_rng(0)
LENGTHS = [(50, 60), (3, 90)]  # of the segments of each row; the rest is padding


def packed(lengths, size):
    ids = [np.repeat(range(1, len(row) + 1), row) for row in lengths]
    return np.stack([np.pad(row, (0, size - len(row))) for row in ids]).astype(np.int32)


def positions(ids):
    return np.stack([[np.sum(row[:i] == row[i]) for i in range(len(row))] for row in ids])


def inputs_of(causal=False, groups=H, keys=T, window=None):
    query, key, value = (
        RNG.normal(size=(B, length, heads, K)).astype(np.float32)
        for length, heads in [(T, H), (keys, groups), (keys, groups)]
    )
    of_keys = LENGTHS if keys == T else [(100, 101), (6, 250)]
    segments = Segments(packed(LENGTHS, T), packed(of_keys, keys), causal)
    inputs = AttentionInputs(query, key, value, segments.mask(), segments=segments)
    if keys != T:
        return inputs
    places = positions(segments.query)
    return inputs.replace(query_positions=places, key_positions=places, window=window)


CASES = {
    "cross": ({"keys": 256}, {}),
    "window of a decoder, shared heads": ({"causal": True, "groups": 2, "window": 7}, {}),
    "window of an encoder": ({"window": 7}, {}),
    "cap": ({"causal": True}, {"logit_cap": 0.5}),
}


@pytest.mark.parametrize("kernel", KERNELS, ids=["splash", "cudnn"])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_the_plain_function(kernel, case):
    how, options = CASES[case]
    inputs, requirements = inputs_of(**how), AttentionRequirements(**options)
    if isinstance(kernel, CuDNN) and requirements.logit_cap:
        pytest.skip("cuDNN has no cap")
    compare(kernel, inputs, requirements)


def compare(kernel, inputs, requirements):
    """Outputs of tokens, and gradients, against the plain function. Outputs of padding are finite,
    and have no gradient, as in training."""
    is_token = np.asarray(inputs.segments.query > 0)
    cotangent = RNG.normal(size=inputs.query.shape) * is_token[:, :, None, None]
    cotangent = cotangent.astype(np.float32)

    def plain(query, key, value):
        cap = requirements.logit_cap
        return scaled_dot_product_attention(query, key, value, inputs.windowed_mask, logit_cap=cap)

    def fused(query, key, value):
        with use_sharded_call(call_whole):
            return kernel(inputs.replace(query=query, key=key, value=value), requirements)

    def outputs_and_gradients(attend, *heads):
        outputs, pull_back = jax.vjp(attend, *heads)
        return outputs, *pull_back(cotangent)

    heads = (inputs.query, inputs.key, inputs.value)
    ours, expected = (
        jax.jit(outputs_and_gradients, static_argnums=0)(attend, *heads)
        for attend in (fused, plain)
    )
    assert np.isfinite(ours[0]).all()
    np.testing.assert_allclose(ours[0][is_token], expected[0][is_token], rtol=1e-4, atol=2e-5)
    for gradient, other in zip(ours[1:], expected[1:], strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=2e-5)


SIZES = {"attention_window": 7, "layers": "default | attention_window=none"}
SIZES |= {"attention_scale": 0.7, "num_encoder_layers": 2, "max_length": T, "dtype": "bfloat16"}


@pytest.fixture
def splash_on_a_cpu(monkeypatch):
    """Splash in Pallas's interpreter, chosen as on a TPU."""
    monkeypatch.setattr(Splash, "platform", "cpu")


def test_packed_sentences_are_sentences_alone(splash_on_a_cpu, random_params):
    """No token sees another sentence of its row, in self-attention or in cross-attention. Layers
    have windows of their own."""
    model = EncoderDecoder(small_config(**SIZES, attention="splash"))
    tokens = RNG.integers(4, 11, (1, T)).astype(np.int32)
    ids = packed([(50, 60)], T)
    side = (tokens, positions(ids).astype(np.int32), ids)
    variables = random_params(model, *side, *side)
    alone = [np.where(ids == 2, each, 0).astype(np.int32) for each in side]
    rows = [np.concatenate(pair) for pair in zip(side, alone, strict=True)]
    with use_sharded_call(call_whole), fused_attention.record_kernel_choices() as choices:
        together, apart = apply(model, variables, *rows, *rows)
    assert choices == [fused_attention.KernelChoice("splash")]
    (second,) = ids == 2
    np.testing.assert_allclose(together[second], apart[second], rtol=1e-5, atol=1e-5)
    plain, _ = apply(model, variables, *rows, *rows)
    (real,) = ids > 0
    np.testing.assert_allclose(together[real], plain[real], rtol=0.05, atol=0.05)


H100 = dict(platform="gpu", kind="NVIDIA H100", capability="9.0")
TPU = dict(platform="tpu", kind="TPU v5e")
BF16 = AttentionRequirements(dtype=jnp.bfloat16)


def needing(**changes):
    return dataclasses.replace(BF16, **changes)


CHOICES = [
    ("auto", H100, BF16, "cudnn", ""),
    ("plain", H100, BF16, "plain", ""),
    ("auto", H100 | {"capability": "7.5"}, BF16, "plain", "from Ampere on"),
    ("auto", H100, AttentionRequirements(), "plain", "not in bfloat16"),
    ("auto", H100, needing(dropout=True), "plain", "attention_dropout_rate"),
    ("auto", H100, needing(weights=True), "plain", "weights are read"),
    ("auto", H100, needing(logit_bias=True), "plain", "add to the logits"),
    ("auto", H100, needing(extra_values=True), "plain", "weights again"),
    ("auto", H100, needing(own_steps=True), "plain", "computes the weights in another way"),
    ("auto", H100, needing(logit_cap=5.0), "plain", "no cap"),
    ("splash", H100, BF16, "plain", "it runs on a tpu, and this is a gpu"),
    ("auto", TPU, BF16, "splash", ""),
    ("auto", TPU, AttentionRequirements(), "plain", "not in bfloat16"),
    ("auto", dict(platform="cpu", kind="cpu"), BF16, "plain", ""),
]


def test_the_fastest_that_is_exact(monkeypatch):
    inputs, wrong = inputs_of(), []
    for name, device, requirements, chosen, reason in CHOICES:
        target = SimpleNamespace(**{"capability": ""} | device)
        monkeypatch.setattr(fused_attention, "target", lambda target=target: target)
        with use_sharded_call(call_whole):
            choice = choose_kernel(name, inputs, requirements)
        explained = reason in choice.reason and bool(choice.reason) == bool(reason)
        if choice.name != chosen or not explained:
            wrong.append((name, device, requirements, choice))
    assert wrong == []


@pytest.mark.parametrize(("length", "causal"), [(64, True), (192, False)])
def test_cudnn_gets_no_query_without_a_key(length, causal, monkeypatch):
    """Else its gradients are NaN with these lengths."""
    ids = np.stack([np.repeat([1, 2, 0], [20, 30, length - 50]), np.zeros(length, int)])
    segments = Segments(ids.astype(np.int32), ids.astype(np.int32), causal)
    query, key, value = RNG.normal(size=(3, 2, length, H, K)).astype(np.float32)
    inputs = AttentionInputs(query, key, value, segments.mask(), segments=segments)
    attend = jax.nn.dot_product_attention
    masks = []

    def recorded(*heads, mask, is_causal, **options):
        masks.append(mask & look_ahead_mask(length) if is_causal else mask)
        return attend(*heads, mask=mask, is_causal=is_causal, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", recorded)
    with use_sharded_call(call_whole):
        CuDNN("xla")(inputs, AttentionRequirements())
    assert masks[0].any(axis=-1).all()
    monkeypatch.setattr(fused_attention, "target", lambda: SimpleNamespace(**H100))
    with use_sharded_call(call_whole):
        assert choose_kernel("auto", inputs, BF16).name == "cudnn"


def test_outside_of_a_training_step_attention_is_plain(splash_on_a_cpu):
    assert choose_kernel("auto", inputs_of(), BF16).name == "plain"
    with use_sharded_call(call_whole):
        assert choose_kernel("auto", inputs_of(), BF16).name == "splash"
        assert choose_kernel("auto", inputs_of().replace(segments=None), BF16).name == "plain"
