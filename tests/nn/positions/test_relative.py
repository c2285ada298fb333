# SPDX-License-Identifier: Apache-2.0
"""Relative positions equal loops over pairs of tokens, ALiBi and T5 the code of their papers."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from tests.compiled import apply
from transformer_jax.nn.attention import MultiHeadAttention, Sequences
from transformer_jax.nn.cache import Memory
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import encoding_class
from transformer_jax.nn.positions.relative import LinearBiases, T5Buckets, alibi_slopes

B, T, H, G, D, K, V, CLIP = 2, 6, 4, 2, 12, 5, 3, 2
X = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
# A sentence longer than the clipping distance, and two sentences in a row.
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 1]])
SENTENCES = np.array([[1] * 6, [1, 1, 1, 1, 2, 2]])
MASK = (SENTENCES[:, :, None] == SENTENCES[:, None])[:, None]


def attention(positions, **changes):
    sizes = {"d_model": D, "num_heads": H, "num_key_value_heads": G, "key_size": K}
    changes = {"value_size": V, "max_distance": CLIP, "dtype": "float32"} | changes
    return MultiHeadAttention(TransformerConfig(positions=positions, **sizes, **changes))


class Layer(MultiHeadAttention):
    """Self-attention with its position encoding, as one module."""

    def setup(self):
        super().setup()
        self.encoding = encoding_class(self.config)(self.config)

    def __call__(self, x):
        return self.self_attend(x, Sequences(self.encoding, POSITIONS, MASK), True)[0]


def assert_equals_slow(module, variables, logit, value):
    """Compares self-attention of X with a loop, from logit and value of each (head, query, key)."""
    output = variables["params"]["output"]["kernel"]
    result = np.zeros((B, T, D))
    for b, h, t in np.ndindex(B, H, T):
        seen = [s for s in range(T) if MASK[b, 0, t, s]]
        exponentials = [math.exp(logit(b, h, t, s)) for s in seen]
        for s, exponential in zip(seen, exponentials, strict=True):
            head = exponential / sum(exponentials) * value(b, h, t, s)
            result[b, t] += head @ output[h]
    np.testing.assert_allclose(apply(module, variables, X), result, rtol=1e-4, atol=1e-4)


def of_heads(params):
    """q(b, h, t), k(b, h, s) and v(b, h, s); two heads of queries share one of keys."""
    return (
        lambda b, h, t: X[b, t] @ params["query"]["kernel"][:, h],
        lambda b, h, s: X[b, s] @ params["key"]["kernel"][:, h // 2],
        lambda b, h, s: X[b, s] @ params["value"]["kernel"][:, h // 2],
    )


@pytest.mark.parametrize("scale", [None, 0.3])  # None: 1 / sqrt(d_k)
def test_shaws_keys_and_values(random_params, scale):
    """Shaw et al. (2018), equations 3 and 4, w_clip(j - i, k) for query i and key j."""
    module = Layer(attention("relative", attention_scale=scale).config)
    variables = random_params(module, X)
    params = variables["params"]
    tables = params["relation"]
    assert tables["keys"].shape == (2 * CLIP + 1, K)
    assert tables["values"].shape == (2 * CLIP + 1, V)
    q, k, v = of_heads(params)

    def row(b, t, s):
        return max(-CLIP, min(CLIP, int(POSITIONS[b, s] - POSITIONS[b, t]))) + CLIP

    def logit(b, h, t, s):
        product = q(b, h, t) @ (k(b, h, s) + tables["keys"][row(b, t, s)])
        return product * (scale or 1 / math.sqrt(K))

    def value(b, h, t, s):
        return v(b, h, s) + tables["values"][row(b, t, s)]

    assert_equals_slow(module, variables, logit, value)


@pytest.mark.parametrize(
    ("positions", "clip", "scale"),
    [("deberta", CLIP, None), ("deberta", 50, 0.3), ("deberta_hf", CLIP, 0.3)],
)
def test_debertas_three_terms(random_params, clip, positions, scale):
    """He et al. (2021), equations 2 to 4; 50 is more than the number of tokens. Hugging Face uses
    the distance from query to key in the third term too."""
    module = Layer(attention(positions, attention_scale=scale, max_distance=clip).config)
    variables = random_params(module, X)
    params = variables["params"]
    table, relation = params["encoding"]["table"], params["relation"]
    assert table.shape == (2 * clip, D)
    q, k, v = of_heads(params)

    def delta(b, i, j):
        distance = int(POSITIONS[b, i] - POSITIONS[b, j])
        if distance <= -clip:
            return 0
        return 2 * clip - 1 if distance >= clip else distance + clip

    def logit(b, h, t, s):
        of_key = delta(b, s, t) if positions == "deberta" else delta(b, t, s)
        query_of_distance = table[of_key] @ relation["query"]["kernel"][:, h]
        key_of_distance = table[delta(b, t, s)] @ relation["key"]["kernel"][:, h // 2]
        content = q(b, h, t) @ k(b, h, s)
        content_to_position = q(b, h, t) @ key_of_distance
        position_to_content = k(b, h, s) @ query_of_distance
        terms = content + content_to_position + position_to_content
        return terms / math.sqrt(3) * (scale or 1 / math.sqrt(K))

    assert_equals_slow(module, variables, logit, lambda b, h, t, s: v(b, h, s))


@pytest.mark.parametrize("positions", ["relative", "deberta"])
def test_cross_attention_has_no_distances(positions):
    def attend(module, x):
        return module.cross_attend(x, Memory.of(*module.keys_values(x), MASK), True)

    module = attention(positions)
    params = jax.eval_shape(lambda: module.init(jax.random.key(0), X, method=attend))["params"]
    assert set(params) == {"query", "key", "value", "output"}


@pytest.mark.parametrize(("positions", "distances"), [("relative", 33), ("deberta", 1024)])
def test_distances_of_the_papers(positions, distances):
    module = Layer(TransformerConfig(d_model=D, num_heads=H, positions=positions))
    shapes = jax.eval_shape(module.init, jax.random.key(0), X)["params"]
    table = shapes["relation"]["keys"] if positions == "relative" else shapes["encoding"]["table"]
    assert table.shape[0] == distances


def test_no_vector_is_stored_for_each_pair():
    """Nothing in the step is larger than the weights or the products with distances."""
    module = Layer(attention("relative").config)
    shapes = jax.eval_shape(module.init, jax.random.key(0), X)
    jaxpr = jax.make_jaxpr(module.apply)(shapes, X)
    sizes = [v.aval.size for equation in jaxpr.eqns for v in equation.outvars]
    assert max(sizes) < B * T * T * min(K, V) * H


# --- Biases of distances.

QUERIES, KEYS = np.array([[0, 1, 3], [5, 6, 7]]), np.array([[0, 1, 2, 3], [4, 0, 1, 7]])
DISTANCES = KEYS[:, None, :] - QUERIES[:, :, None]
BIASED = TransformerConfig(d_model=24, num_heads=3, positions="t5")


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (1, [2**-8]),
        (8, [2**-i for i in range(1, 9)]),
        (16, [2 ** (-i / 2) for i in range(1, 17)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [2**-i for i in range(1, 9)] + [2 ** -(i + 0.5) for i in range(4)]),
    ],
)
def test_slopes(num_heads, expected):
    np.testing.assert_allclose(alibi_slopes(num_heads), expected)


def test_a_bias_is_a_slope_times_the_distance():
    found = apply(LinearBiases(BIASED), {}, DISTANCES, method="bias")
    assert found.shape == (2, 3, 3, 4)
    for b, h, t, s in np.ndindex(found.shape):
        distance = abs(int(QUERIES[b, t]) - int(KEYS[b, s]))
        assert found[b, h, t, s] == pytest.approx(-[2**-4, 2**-8, 2**-2][h] * distance)


def slow_bucket(distance, causal, num_buckets, max_distance):
    """Raffel et al. (2020) in the order of their code, rounded to float32 after each step."""
    ahead, side = 0, num_buckets
    if not causal:
        side //= 2
        ahead = side if distance > 0 else 0
    distance = max(-distance, 0) if causal else abs(distance)
    exact = side // 2
    if distance < exact:
        return ahead + distance
    growth = np.log(np.float32(distance) / np.float32(exact))
    growth = growth / np.float32(math.log(max_distance / exact)) * np.float32(side - exact)
    return ahead + min(exact + int(growth), side - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 800), (4, 16), (33, 40), (100, 128)]
)
def test_each_bucket_has_a_bias_of_each_head(random_params, causal, num_buckets, max_distance):
    """In a decoder 32 buckets up to 128: sixteen of one distance each, then wider and wider; in an
    encoder half of them for each direction. With 800, a distance of 80 is at a bucket's boundary;
    an odd number leaves one unused."""
    distance = np.arange(-2000, 2001)
    expected = [slow_bucket(int(d), causal, num_buckets, max_distance) for d in distance]
    config = dataclasses.replace(BIASED, num_buckets=num_buckets, max_distance=max_distance)
    encoding = T5Buckets(config, causal)
    variables = random_params(encoding, DISTANCES, method="bias")
    found = apply(encoding, variables, distance[None, None], method="bias")
    table = variables["params"]["bucket_biases"]
    assert table.shape == (num_buckets, 3)
    np.testing.assert_array_equal(found[0, :, 0], table[expected].T)


@pytest.mark.parametrize(("causal", "least"), [(False, 9), (True, 17)])
def test_max_distance_must_exceed_the_exact_buckets(random_params, causal, least):
    def encoding(max_distance):
        config = TransformerConfig(positions="t5", max_distance=max_distance)
        return random_params(T5Buckets(config, causal), DISTANCES, method="bias")

    encoding(least)
    with pytest.raises(ValueError, match=f"max_distance is {least - 1}; .* need at least {least}"):
        encoding(least - 1)
