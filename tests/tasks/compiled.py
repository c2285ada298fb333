# SPDX-License-Identifier: Apache-2.0
"""Losses and logits of a task, compiled once: eager calls compile each operation by itself."""

import jax
import numpy as np

from transformer_jax.models import apply_model

_PROGRAMS = {}


def _program(task, name, function):
    """The compiled `function` of this task, which stays in memory, so that its id is its own."""
    key = (id(task), name)
    if key not in _PROGRAMS:
        _PROGRAMS[key] = task, jax.jit(function)
    return _PROGRAMS[key][1]


def loss_sums(task, params, batch, rng=None, frozen=None):
    """(loss, weight, sums) of `task.loss`."""
    return _program(task, "loss", task.loss)(params, batch, rng, frozen or {})


def logits(task, params, *inputs, rng=None):
    """Logits of the task's model; with dropout if there is a key."""

    def apply(params, rng, *inputs):
        return apply_model(task.model, params, *inputs, rng=rng)

    return _program(task, "logits", apply)(params, rng, *inputs)


def padded_row(tokens, length):
    """(tokens, positions, segment ids) of one text, [1, length]: equal shapes share programs."""
    row = np.zeros((1, length), np.int32)
    row[0, : len(tokens)] = tokens
    places = np.arange(length, dtype=np.int32)[None]
    return row, places, (places < len(tokens)).astype(np.int32)
