# SPDX-License-Identifier: Apache-2.0
"""Division of a batch into rows, devices and micro-batches; the matrices that get adapters."""

from functools import partial

import jax
import jax.numpy as jnp

from tests.refusals import assert_refused
from transformer_jax.training.config import LoraConfig, TrainConfig

Batch = partial(TrainConfig, tokens_per_batch=1000)


def test_rows_fill_the_tokens_of_a_batch_and_divide_into_micro_batches():
    assert Batch().rows(48) == 20
    assert Batch(accumulation_steps=3).rows(48) == 18
    assert Batch(accumulation_steps=3).micro_batches(48, 6) == 3


def test_rows_per_device_determine_the_number_of_micro_batches():
    train = Batch(rows_per_device=3)
    assert [train.rows(48, shards) for shards in (1, 2, 6)] == [18] * 3
    assert [train.micro_batches(48, shards) for shards in (1, 2, 6)] == [6, 3, 1]
    assert TrainConfig(tokens_per_batch=24 * 48, rows_per_device=3).micro_batches(48, 4) == 2


def test_batches_that_cannot_be_divided_are_refused():
    assert_refused(
        {
            "tokens_per_batch 1000 has no room for 30 rows of 48": lambda: Batch(
                accumulation_steps=30
            ).rows(48),
            "4 devices cannot share equally at 3 rows each; set it": lambda: Batch(
                rows_per_device=3
            ).micro_batches(48, 4),
            "rows_per_device is 3, but accumulation_steps 2 already": lambda: TrainConfig(
                accumulation_steps=2, rows_per_device=3
            ),
        }
    )


# --- The section `lora`.

SHAPES = {
    "decoder": {
        "layer_0": {
            "self_attention": {
                "query": {"kernel": jax.ShapeDtypeStruct((8, 2, 4), jnp.float32)},
                "output": {"kernel": jax.ShapeDtypeStruct((2, 4, 8), jnp.float32)},
            },
            "feed_forward": {"inner": {"kernel": jax.ShapeDtypeStruct((8, 16), jnp.float32)}},
        }
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
