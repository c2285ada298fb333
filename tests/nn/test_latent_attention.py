# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention equals a slow loop; its absorbed decoding equals the plain form. As a
layer of a model, packed and cached, it is in `models/test_parts`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply, run
from tests.refusals import assert_refused
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.latent_attention import LatentAttention, LatentOptions
from transformer_jax.nn.parameters import parameters_at
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.nn.sublayers import Sequences
from transformer_jax.nn.transformer import init_caches

D, H, K, V, R, Q, P, T = 12, 3, 4, 6, 8, 5, 2, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, T, D)).astype(np.float32)
SEGMENTS = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 2, 2, 2, 0]])
POSITION = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 0]])
TOKENS = RNG.integers(1, 11, (2, T))


def config_of(query_rank=Q, **changes):
    options = LatentOptions(kv_rank=R, query_rank=query_rank, rotary_size=P)
    sizes = {"d_model": D, "d_ff": 8, "num_heads": H, "key_size": K, "value_size": V}
    names = {"attention_layer": "latent", "positions": "rotary", "architecture": "decoder_only"}
    fields = {**sizes, **names, "num_layers": 2, "vocab_size": 11, "dtype": "float32", **changes}
    return TransformerConfig(**fields, options=(options,))


def sequences_of(config):
    encoding = POSITIONS[config.positions](config, causal=True)
    return Sequences.packed(encoding, jnp.array(POSITION), jnp.array(SEGMENTS))


def rotate(x, position):
    """The pair (x_0, x_1), turned by `position` radians (rotary size 2)."""
    turn = np.exp(1j * position) * (x[0] + 1j * x[1])
    return np.array([turn.real, turn.imag])


def rms_norm(x, scale):
    return x / np.sqrt((x**2).mean() + 1e-6) * scale


def slow(params, x, segments, positions):
    """One row, one query and one head at a time, by the equations of section 2.1."""
    w = {name: np.asarray(of.get("kernel", of.get("scale"))) for name, of in params.items()}
    latents = [rms_norm(h @ w["latent"], w["norm_latent"]) for h in x]
    shared = [rotate(h @ w["rotary"][:, 0], p) for h, p in zip(x, positions, strict=True)]
    result = np.zeros((T, D))
    for t, i in np.ndindex(T, H):
        if "query" in w:
            query = x[t] @ w["query"][:, i]
        else:
            query = rms_norm(x[t] @ w["query_down"], w["norm_query"]) @ w["query_up"][:, i]
        query = np.concatenate([query[:K], rotate(query[K:], positions[t])])
        seen = [s for s in range(t + 1) if segments[s] == segments[t] > 0]
        keys = [np.concatenate([latents[s] @ w["key_up"][:, i], shared[s]]) for s in seen]
        logits = np.array([query @ key / np.sqrt(K + P) for key in keys])
        for s, logit in zip(seen, logits, strict=True):
            weight = np.exp(logit) / np.exp(logits).sum()
            result[t] += weight * (latents[s] @ w["value_up"][:, i]) @ w["output"][i]
    return result


@pytest.mark.parametrize("query_rank", [None, Q])
def test_packed_sentences_against_a_slow_loop(random_params, query_rank):
    config = config_of(query_rank)
    module, call = LatentAttention(config), (X, sequences_of(config), True)
    params = random_params(module, *call, method="self_attend")
    found, _ = apply(module, params, *call, method="self_attend")
    for row in range(2):
        expected = slow(params["params"], X[row], SEGMENTS[row], POSITION[row])
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def model(random_params):
    """A model of one layer, and its parameters."""
    made = DecoderOnly(config_of(num_layers=1))
    return made, random_params(made, TOKENS)["params"]


def test_absorbed_decoding_equals_the_plain_form(model, monkeypatch):
    """Of two beams of each sentence, after prompts of 3 and 2 tokens."""
    module, params = model
    variables, lengths, rows = {"params": params}, np.array([3, 2]), np.array([0, 0, 1, 1])
    parents = np.array([[[0, 0], [0, 0]], [[1, 0], [0, 0]], [[1, 1], [0, 1]]])
    forms = []
    for expands in (True, False):
        monkeypatch.setattr(LatentAttention, "exposes", lambda *_, expands=expands: expands)
        inputs = (TOKENS[:, :3], lengths, T)
        logits, memory, state = apply(module, variables, *inputs, method="prefill")
        step = jax.jit(partial(module.apply, method="decode_step"))
        results = [logits]
        for i in range(3):
            state = tuple(cache.reorder(jnp.array(parents[i])) for cache in state)
            tokens = TOKENS[rows, np.minimum(lengths[rows] + i, T - 1)]
            tokens = tokens + np.array([0, 1, 0, 1])  # the second beam has other tokens
            logits, state = step(variables, tokens, memory, state)
            results.append(logits)
        forms.append(results)
    for plain, absorbed in zip(*forms, strict=True):
        np.testing.assert_allclose(absorbed, plain, rtol=1e-4, atol=1e-4)
    assert np.abs(np.diff(forms[0][-1], axis=0)).max() > 0.1  # beams differ


def test_one_token_reads_the_cache_in_the_absorbed_form(model, monkeypatch):
    module, params = model
    caches = jax.eval_shape(lambda: init_caches(module.config, 1, 2, T))
    step = lambda *given: module.apply({"params": params}, *given, method="decode_step")  # noqa: E731
    monkeypatch.setattr(LatentAttention, "expand_latent", None)
    logits, _ = jax.eval_shape(step, jnp.array(TOKENS[:, 0]), (), caches)
    assert logits.shape == (2, 11)


def test_the_cache_holds_a_latent_vector_and_a_rotated_key():
    caches = jax.eval_shape(lambda: init_caches(config_of(), 2, rows=3, max_length=16))
    sizes = [sum(leaf.size for leaf in (cache.keys, cache.values)) for cache in caches]
    assert sizes == [3 * 16 * (R + P)] * 2


def test_the_scale_and_the_window_of_the_config():
    config = config_of(attention_scale=0.5, attention_window=2)
    module, sequences = LatentAttention(config), sequences_of(config)
    params = run(module.init, jax.random.key(0), X, sequences, True, method="self_attend")
    query = apply(module, params, X, method="queries")
    plain = apply(LatentAttention(config_of()), params, X, method="queries")
    np.testing.assert_allclose(query, plain * 0.5 * np.sqrt(K + P), rtol=1e-6)
    found, _ = apply(module, params, X, sequences, True, method="self_attend")
    last = X.copy()
    last[:, :4] = 0  # the last token sees two
    again, _ = apply(module, params, last, sequences, True, method="self_attend")
    np.testing.assert_allclose(again[0, 5], found[0, 5], atol=1e-6)
    assert np.abs(again[0, 4] - found[0, 4]).max() > 1e-3


def test_every_parameter_has_a_row_of_the_table(model):
    paths = jax.tree_util.tree_leaves_with_path(model[1])
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert [len(row.axes) for row in parameters_at(name)] == [leaf.ndim], name


def test_an_odd_rotated_part_is_refused():
    assert_refused({"rotary_size is 3; it must be even": lambda: LatentOptions(rotary_size=3)})
