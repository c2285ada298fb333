# SPDX-License-Identifier: Apache-2.0
"""Trains small models whose tokens eight forced host devices divide; prints the results as JSON.

Not a test: `tests/nn/test_ring_attention.py` starts it in a process of its own.
"""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import transformer_jax as tj
from transformer_jax.models import MODELS
from transformer_jax.nn import ring_attention
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.per_device import use_axes
from transformer_jax.parallel.sharding import LentMesh, ParallelConfig, make_mesh
from transformer_jax.models.config import ModelConfig

ROWS, LENGTH, VOCAB = 4, 16, 23
SMALL = {"d_model": 16, "d_ff": 16, "num_heads": 4, "dtype": "float32", "dropout_rate": 0.0, "max_length": 16, "num_layers": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}


def packed(rng):
    """Rows with one to three sentences and unequal padding: segment ids and positions."""
    ids = np.zeros((ROWS, LENGTH), np.int32)
    for row, lengths in enumerate([(16,), (5, 9), (3, 4, 6), (2,)]):
        ids[row, : sum(lengths)] = np.repeat(np.arange(len(lengths)) + 1, lengths)
    index = np.arange(LENGTH)
    starts = np.where(np.diff(ids, prepend=-1) != 0, index, 0)
    positions = np.where(ids > 0, index - np.maximum.accumulate(starts, 1), 0).astype(np.int32)
    tokens = np.where(ids > 0, rng.integers(4, VOCAB, ids.shape), 0).astype(np.int32)
    return tokens, positions, ids


def gradient(architecture, mesh=None, **options):
    config = ModelConfig(architecture=architecture, vocab_size=VOCAB, source_vocab_size=VOCAB, target_vocab_size=VOCAB, **SMALL | options)
    model, rng = MODELS.find(architecture)(config), np.random.default_rng(0)
    rows = packed(rng)
    inputs = (*rows, *packed(rng)) if architecture == "encoder_decoder" else rows
    probe = rng.normal(size=(ROWS, LENGTH, VOCAB)).astype(np.float32) * (rows[2] > 0)[..., None]
    params = model.init(jax.random.key(0), *inputs)["params"]
    params = jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params)

    def loss(params):
        return (jnp.tanh(model.apply({"params": params}, *inputs)) * probe).sum()

    with use_axes(mesh and LentMesh(mesh)):
        return jax.jit(jax.value_and_grad(loss))(params)


def apart(one, other):
    each = jax.tree.map(lambda a, b: float(np.abs(a - b).max() / (np.abs(b).max() + 1e-9)), one, other)
    return max(jax.tree.leaves(each))


if __name__ == "__main__":
    import time
    m = {"s4d2": make_mesh(ParallelConfig(sequence=4, data=2)), "s2f2t2": make_mesh(ParallelConfig(sequence=2, fsdp=2, tensor=2))}
    ring_attention.BLOCK = 2
    for arch in ("decoder_only", "encoder_decoder", "encoder_only"):
      for opt in ({"positions": "rotary"}, {"positions":"alibi"},{"positions":"t5"},{"positions":"learned","attention_window":3, "num_key_value_heads":2}, ):
        one = gradient(arch, **opt)
        for name, mesh in m.items():
            t=time.time()
            print(arch, opt, name, apart(gradient(arch, mesh, **opt), one), round(time.time()-t,1), flush=True)
