# SPDX-License-Identifier: Apache-2.0
"""Errors about wrong shapes name the function and the argument."""

from functools import partial

import jax
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from transformer_jax.nn.attention import scaled_dot_product_attention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.masks import segment_mask

QUERY, KEY = np.ones((2, 3, 4, 5), np.float32), np.ones((2, 6, 4, 5), np.float32)


def test_wrong_shapes_and_dtypes_are_rejected():
    layer = FeedForward(TransformerConfig(d_model=8, d_ff=16, num_heads=2))
    ids, row = np.ones((1, 3), int), np.ones((3, 8), np.float32)
    calls = {
        r"(?s)scaled_dot_product_attention.*value": partial(
            scaled_dot_product_attention, QUERY, KEY, KEY[:, :5]
        ),
        r"(?s)FeedForward.__call__.*param.* .x": lambda: layer.init(jax.random.key(0), row, True),
        "query_segment_ids": lambda: segment_mask(ids.astype(np.float32), ids),
    }
    for words, call in calls.items():
        with pytest.raises(TypeCheckError, match=words):
            call()
