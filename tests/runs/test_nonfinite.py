# SPDX-License-Identifier: Apache-2.0
"""Logits that are NaN or infinite are an error that names the parameter or the layer."""

import dataclasses
import functools

import jax
import numpy as np

from tests.refusals import assert_refused

QUERY = "decoder/layer_0/self_attention/query/kernel"


def with_value(run, name, value, index=1):
    """The run with an element of a parameter, or several, replaced."""

    def change(path, leaf):
        if jax.tree_util.keystr(path, simple=True, separator="/") != name:
            return leaf
        changed = np.array(leaf)
        changed.flat[index] = value
        return changed

    return dataclasses.replace(run, params=jax.tree_util.tree_map_with_path(change, run.params))


def test_a_damaged_parameter_is_named(trained):
    message = f"NaN or infinite: so is the parameter {QUERY}; take"
    for value in (np.nan, np.inf):
        damaged = with_value(trained, QUERY, value)
        uses = [
            functools.partial(damaged.predict, ["the dog", "a man"], beam_size=1),
            functools.partial(damaged.predict, ["the dog"], prefixes=["a"]),
            functools.partial(damaged.score, ["the dog"], ["der Hund"]),
            functools.partial(damaged.evaluate, split="valid"),
        ]
        for use in uses:
            assert_refused({message: use})


def test_a_layer_that_overflows_is_named(trained):
    layer = "decoder/layer_0/feed_forward"
    large = with_value(trained, f"{layer}/inner/bias", 1e30)
    large = with_value(large, f"{layer}/outer/kernel", 1e30, slice(None))
    message = "so is decoder.layer_0.feed_forward, although all"
    assert_refused({message: lambda: large.predict(["the dog"], beam_size=1)})


def test_finite_logits_are_no_error(trained):
    assert np.isfinite(trained.score(["the dog"], ["der Hund"])).all()
