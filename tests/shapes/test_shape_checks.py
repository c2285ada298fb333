# SPDX-License-Identifier: Apache-2.0
"""Errors about wrong shapes name the function and the argument."""

import jax
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from transformer_jax.nn.attention import scaled_dot_product_attention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.masks import segment_mask

QUERY, KEY = np.ones((2, 3, 4, 5), np.float32), np.ones((2, 6, 4, 5), np.float32)


def test_consistent_shapes_pass():
    assert scaled_dot_product_attention(QUERY, KEY, KEY).shape == QUERY.shape


def test_keys_and_values_of_different_lengths_are_rejected():
    with pytest.raises(TypeCheckError, match=r"(?s)scaled_dot_product_attention.*value"):
        scaled_dot_product_attention(QUERY, KEY, KEY[:, :5])


def test_a_missing_axis_is_rejected():
    layer = FeedForward(TransformerConfig(d_model=8, d_ff=16, num_heads=2))
    with pytest.raises(TypeCheckError, match=r"(?s)FeedForward.__call__.*parameter .x"):
        layer.init(jax.random.key(0), np.ones((3, 8), np.float32), True)


def test_a_wrong_dtype_is_rejected():
    with pytest.raises(TypeCheckError, match="query_segment_ids"):
        segment_mask(np.ones((1, 3), np.float32), np.ones((1, 3), int))
