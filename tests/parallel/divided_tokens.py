# SPDX-License-Identifier: Apache-2.0
"""Divides the tokens of packed rows among eight devices (see `on_eight_devices.py`)."""

from functools import partial

import eight_devices as runs
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.nn import dropout, ring_attention
from transformer_jax.nn.attention import attention_logits, scaled_dot_product_attention
from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.masks import Segments
from transformer_jax.nn.ops import head_outputs
from transformer_jax.nn.per_device import use_axes
from transformer_jax.nn.positions.relative import alibi_slopes
from transformer_jax.parallel.sharding import LentMesh, ParallelConfig, make_mesh, replicated
from transformer_jax.training.evaluation import Evaluator

ring_attention.BLOCK = 4
LENGTH = runs.LENGTH = 16
SENTENCES = [(16,), (5, 9), (3, 4, 6), (2,)]
runs.LAYOUTS |= {
    "sequence 4 x data 2": ({"sequence": 4}, 8),
    "sequence 2 x fsdp 2 x tensor 2": ({"sequence": 2, "fsdp": 2, "tensor": 2}, 8),
}
runs.TRAIN += ("remat",)
runs.TASKS["language_modeling"] |= {"data.max_length": LENGTH}
runs.TASKS["translation"] |= {"data.max_source_length": 16, "data.max_target_length": 16}


def segment_ids(length, rows=runs.ROWS):
    """Segment ids of rows with one to three sentences and unequal padding."""
    ids = np.zeros((rows, length), np.int32)
    for row, lengths in enumerate((SENTENCES * rows)[:rows]):
        ids[row, : sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    return ids


def mesh_of(layout):
    parallel = ParallelConfig(**runs.LAYOUTS[layout][0])
    return make_mesh(parallel, jax.devices()[: runs.LAYOUTS[layout][1]])


def bias(distance):
    """ALiBi's biases of four heads."""
    return -jnp.array(alibi_slopes(4))[:, None, None] * jnp.abs(distance)[:, None]


def attend(groups, causal, window):
    """Distance of outputs and gradients from plain attention, the largest gradient across
    sentences, and the number of blocks that were computed."""
    rng = np.random.default_rng(1)
    ids = segment_ids(LENGTH, rows=4)
    places = runs.positions(ids)
    segments = Segments(ids, ids, causal)
    query, key, value = (
        rng.normal(size=(4, LENGTH, heads, 4)).astype(np.float32) for heads in (4, groups, groups)
    )
    weights = rng.normal(size=query.shape).astype(np.float32)
    second = weights * (ids == 2)[..., None, None]  # a loss of each row's second sentence
    computed = []

    def inputs_of(query, key, value):
        return AttentionInputs(query, key, value, None, places, places, segments, window)

    def logits(query, key, logit_bias):
        jax.debug.callback(lambda: computed.append(1))
        return attention_logits(query, key, logit_bias, 2.0)

    def outputs(divided, query, key, value):
        inputs = inputs_of(query, key, value)
        if divided:
            sums = partial(head_outputs, dtype="float32")
            return ring_attention.attend(inputs, logits, sums, bias)
        each = inputs.query, inputs.key, inputs.value, inputs.windowed_mask
        return scaled_dot_product_attention(*each, logit_bias=bias(inputs.distance), logit_cap=2.0)

    @partial(jax.jit, static_argnums=0)
    def compute(divided, *heads):
        found, pull = jax.vjp(partial(outputs, divided), *heads)
        return (found, pull(weights)), jax.lax.map(pull, second[None])

    with use_axes(LentMesh(mesh_of("sequence 4 x data 2"))):
        found, of_second = jax.block_until_ready(compute(True, query, key, value))
        jax.effects_barrier()
    expected, _ = compute(False, query, key, value)
    apart = jax.tree.map(lambda a, b: np.abs(a - b).max() / np.abs(b).max(), found, expected)
    across = [np.abs(x[0][ids != 2]).max() for x in of_second]
    mask = np.array(inputs_of(query, key, value).windowed_mask)
    blocks = mask.reshape(2, 2, 4, 4, 4, 4).any((1, 3, 5))  # a device has two rows
    return {
        "apart": float(max(jax.tree.leaves(apart))),
        "across": float(max(across)),
        "blocks": len(computed) / 3,  # one pass forward, two backward
        "blocks with keys": int(blocks.sum()),
        "all blocks": blocks.size,
    }


class Batches(list):
    """Batches of an evaluation."""

    overlong = 0


def evaluate(layout):
    """Summed loss of an evaluation with random parameters on a mesh, and the number of layers that
    divided their tokens."""
    task, settings = runs.task_and_settings("language_modeling", 0.0, positions="rotary")
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(leaf.dtype), shapes)
    params = jax.device_put(params, replicated(mesh_of(layout)))
    vars(task)["metrics"] = lambda sums, examples: sums  # they need a tokenizer
    evaluator = Evaluator(task, [], None, runs.ROWS)
    vars(evaluator)["batches"] = Batches([runs.random_batch(task.lengths)])
    attend, layers = ring_attention.attend, []
    ring_attention.attend = lambda *args: layers.append(1) or attend(*args)
    loss = evaluator.loss_metrics(params, {})["loss"]
    ring_attention.attend = attend
    return {"loss": float(loss), "layers": len(layers)}


def hardware_bits():
    """Distinct bits of the tokens of rows, and all of them."""
    with use_axes(LentMesh(mesh_of("sequence 4 x data 2"))):
        key = jax.random.key_data(jax.random.key(0))
        bits = jax.jit(lambda: dropout.hardware_bits(key, (4, LENGTH, 8)))()
    return [len(np.unique(bits.reshape(-1, 8), axis=0)), 4 * LENGTH]


def main():
    runs.segment_ids = segment_ids
    text = {"name": "language_modeling", "positions": "rotary"}
    text |= {"layers": "d_ff=32 | attention_window=4", "num_layers": 4, "scan_layers": True}
    text |= {"teacher": True}
    by_parts = {"remat": "full", "accumulation_steps": 2}
    one = runs.divided_run("one", **text)
    whole = runs.divided_run("one", positions="t5")
    return {
        "ring": attend(groups=4, causal=True, window=None),
        "gathered": attend(groups=1, causal=False, window=3),
        "language_modeling": runs.compare(
            ["sequence 2 x fsdp 2 x tensor 2"], one, **text, **by_parts
        ),
        "translation": runs.compare(["sequence 4 x data 2"], whole, positions="t5"),
        "hardware bits": hardware_bits(),
        "evaluated": {layout: evaluate(layout) for layout in ("one", "sequence 4 x data 2")},
    }
