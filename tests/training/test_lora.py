# SPDX-License-Identifier: Apache-2.0
"""The section `lora`: its errors, and the matrices that get adapters."""

from functools import partial

import jax
import jax.numpy as jnp

from tests.refusals import assert_refused
from transformer_jax.training.lora import LoraConfig

SHAPES = {
    "decoder": {
        "layer_0": {
            "self_attention": {
                "query": {"kernel": jax.ShapeDtypeStruct((8, 2, 4), jnp.float32)},
                "output": {"kernel": jax.ShapeDtypeStruct((2, 4, 8), jnp.float32)},
            },
            "feed_forward": {"inner": {"kernel": jax.ShapeDtypeStruct((8, 16), jnp.float32)}},
        },
    },
    "embedding": {"table": jax.ShapeDtypeStruct((20, 8), jnp.float32)},
}


def found(**fields):
    config = LoraConfig(rank=2, **fields)
    adapters = jax.eval_shape(lambda: config.init_adapters(jax.random.key(0), SHAPES))
    return {name: (one.down.shape, one.up.shape) for name, one in adapters.items()}


def test_targets_are_matched_by_their_paths():
    layer = "decoder/layer_0"
    query = {f"{layer}/self_attention/query/kernel": ((8, 2), (2, 8))}
    inner = {f"{layer}/feed_forward/inner/kernel": ((8, 2), (2, 16))}
    output = {f"{layer}/self_attention/output/kernel": ((8, 2), (2, 8))}
    assert found() == query
    assert found(targets="feed_forward") == inner
    assert found(targets=".") == query | inner | output  # no tables
    nothing = partial(found, targets="embedding")
    assert_refused({"lora.targets 'embedding' matches the path of no linear": nothing})


def test_contradictory_fields_are_refused():
    fields = {
        "rank is 0": {"rank": 0},
        "dropout_rate is 1.0": {"rank": 4, "dropout_rate": 1.0},
        "targets is '(', not a regular expression": {"rank": 4, "targets": "("},
        "alpha is 8.0, but there is no rank; set it too": {"alpha": 8.0},
        "rank_stabilized is True, but there is no rank": {"rank_stabilized": True},
    }
    assert_refused({words: partial(LoraConfig, **given) for words, given in fields.items()})
