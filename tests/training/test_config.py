# SPDX-License-Identifier: Apache-2.0
"""Division of a batch into rows, devices and micro-batches; the matrices that get adapters."""

from functools import partial

import flax.traverse_util
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
    no_room = "tokens_per_batch 1000 has no room for 30 rows of 48"
    unequal = "4 devices cannot share equally at 3 rows each; set it"
    twice = "rows_per_device is 3, but accumulation_steps 2 already"
    assert_refused(
        {
            no_room: partial(Batch(accumulation_steps=30).rows, 48),
            unequal: partial(Batch(rows_per_device=3).micro_batches, 48, 4),
            twice: partial(TrainConfig, accumulation_steps=2, rows_per_device=3),
        }
    )


# --- The section `lora`.

QUERY = "decoder/layer_0/self_attention/query/kernel"
OUTPUT = "decoder/layer_0/self_attention/output/kernel"
INNER = "decoder/layer_0/feed_forward/inner/kernel"
SHAPES = {QUERY: (8, 2, 4), OUTPUT: (2, 4, 8), INNER: (8, 16), "embedding/table": (20, 8)}


def adapter_shapes(**fields):
    config = LoraConfig(rank=2, **fields)
    flat = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
    params = flax.traverse_util.unflatten_dict(flat, sep="/")
    adapters = jax.eval_shape(lambda: config.init_adapters(jax.random.key(0), params))
    return {name: (adapter.down.shape, adapter.up.shape) for name, adapter in adapters.items()}


def test_targets_are_matched_by_their_paths():
    query = {QUERY: ((8, 2), (2, 8))}
    inner = {INNER: ((8, 2), (2, 16))}
    output = {OUTPUT: ((8, 2), (2, 8))}
    assert adapter_shapes() == query
    assert adapter_shapes(targets="feed_forward") == inner
    assert adapter_shapes(targets=".") == query | inner | output  # no tables
    nothing = partial(adapter_shapes, targets="embedding")
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
