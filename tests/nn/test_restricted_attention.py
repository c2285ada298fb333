# SPDX-License-Identifier: Apache-2.0
"""Restricted attention in blocks equals windowed attention of whole rows."""

import itertools

import flax.linen as nn
import jax
import numpy as np
import pytest

from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn import restricted_attention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import POSITIONS

WINDOW, LENGTH = 3, 17
RNG = np.random.default_rng(0)
# Two rows: texts of 11 and 4 tokens and padding, and one of 17.
SEGMENTS = np.array([[1] * 11 + [2] * 4 + [0] * 2, [1] * LENGTH])
PLACES = np.array([[*range(11), *range(4), 0, 0], range(LENGTH)])
BATCH = (RNG.integers(4, 20, size=(2, LENGTH)), PLACES, SEGMENTS)


def model_of(kind, **changes):
    sizes = dict(d_model=8, d_ff=16, num_heads=2, num_layers=1, max_length=32, dtype="float32")
    return kind(TransformerConfig(vocab_size=20, attention_window=WINDOW, **sizes, **changes))


def apply(model, variables, **options):
    """Features, and (rows, queries, keys) of each attention's weights."""
    seen = []

    def look(call, args, kwargs, context):
        if context.method_name == "weigh":
            rows, _, queries, keys = args[0].shape
            seen.append((rows, queries, keys))
        return call(*args, **kwargs)

    with nn.intercept_methods(look):
        run = jax.jit(lambda: model.apply(variables, *BATCH, method="features", **options))
        return run(), seen


IN_ATTENTION = [name for name in POSITIONS if not name.startswith(("sinusoidal", "learned"))]
"""Positions that attention knows, or none; the others are in the embeddings."""


@pytest.mark.parametrize(
    ("positions", "kind"), [*zip(IN_ATTENTION, itertools.cycle([DecoderOnly, EncoderOnly]))]
)
def test_features_equal_those_of_whole_rows(random_params, positions, kind):
    model = model_of(kind, positions=positions, num_key_value_heads=1)
    variables = random_params(model, *BATCH, method="features")
    found, seen = apply(model, variables)
    (whole, noted), of_rows = apply(model, variables, mutable="intermediates")
    keys = (2 if kind is DecoderOnly else 3) * WINDOW
    assert seen == [(2 * 6, WINDOW, keys)]
    assert of_rows == [(2, LENGTH, LENGTH)]
    assert jax.tree.leaves(noted)
    is_text = SEGMENTS > 0
    np.testing.assert_allclose(found[is_text], whole[is_text], rtol=1e-4, atol=1e-5)


def test_causal_layers_beside_a_prefix_need_no_keys_after_a_block(random_params):
    layers = "attention_layer=multi_head | attention_layer=prefix"
    model = model_of(DecoderOnly, layers=layers, start_id=1)
    assert apply(model, random_params(model, *BATCH, method="features"))[1][0][-1] == 2 * WINDOW


def test_short_rows_are_not_split(random_params):
    model = model_of(DecoderOnly)
    short = [each[:, :6] for each in BATCH]
    variables = random_params(model, *short, method="features")
    shapes = jax.make_jaxpr(lambda: model.apply(variables, *short, method="features"))()
    assert "2,2,6,6" in str(shapes)  # two rows, two heads: no block of 3 has as many keys


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 3, 7])
def test_blocks_hold_their_neighbors(causal, length):
    x = np.arange(1, 2 * length + 1).reshape(2, length, 1)
    mask = RNG.random((2, 1, length, length)) < 0.5
    keys = np.asarray(restricted_attention.split_keys(x, WINDOW, causal))
    masks = np.asarray(restricted_attention.split_mask(mask, WINDOW, causal))
    num_blocks = -(-length // WINDOW)
    assert keys.shape == (2 * num_blocks, restricted_attention.keys_per_block(WINDOW, causal), 1)
    for row, n, j in np.ndindex(2, num_blocks, keys.shape[1]):
        place, block = (n - 1) * WINDOW + j, row * num_blocks + n
        inside = 0 <= place < length
        assert keys[block, j, 0] == (x[row, place, 0] if inside else 0)
        for i in range(WINDOW):
            query = n * WINDOW + i
            sees = inside and query < length and mask[row, 0, query, place]
            assert masks[block, 0, i, j] == sees
    queries = np.asarray(restricted_attention.split_queries(x, WINDOW))
    np.testing.assert_array_equal(queries.reshape(2, -1, 1)[:, :length], x)
