# SPDX-License-Identifier: Apache-2.0
"""Every family gives the hidden states and logits of transformers, stored by make_fixtures.py."""

import functools

import flax.linen as nn
import jax
import numpy as np
import pytest

from tests.interop.published import BARE, DECODERS, ENCODERS, SAME, TRANSLATORS, expected, published
from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.interop.weights import to_tensors
from transformer_jax.models import encoder_only
from transformer_jax.nn.transformer import Block


def row_of(lengths, width):
    """Positions and segment ids of right-padded rows."""
    positions = np.broadcast_to(np.arange(width), (len(lengths), width))
    return positions, (positions < lengths[:, None]).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)  # equal models share a program
def with_streams(model, params, *inputs):
    """(logits, [encoder streams, decoder streams]): embeddings, then the output of each layer."""
    streams = {"encoder": [], "decoder": []}

    def listen(method, args, kwargs, context):
        result = method(*args, **kwargs)
        if isinstance(context.module, Block) and context.method_name == "__call__":
            kept = streams[context.module.path[0]]
            kept += [] if kept else [args[0]]
            kept.append(result[0] if isinstance(result, tuple) else result)
        return result

    with nn.intercept_methods(listen):
        logits = model.apply({"params": params}, *inputs)
    return logits, list(streams.values())


def assert_close(ours, theirs, real):
    """Compares unpadded positions, up to 1e-5 of the largest entry."""
    ours, theirs = np.asarray(ours)[real], theirs[real]
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def check_streams(streams, want, prefix, real, last_is_normalized):
    for i, stream in enumerate(streams[: -1 if last_is_normalized else None]):
        assert_close(stream, want[f"{prefix}_{i}"], real)


@pytest.mark.parametrize("name", TRANSLATORS + BARE)
def test_an_encoder_decoder_computes_the_same(name):
    _, model, params, _ = published(name)
    want = expected(name)
    source = row_of(want["source_lengths"], want["source"].shape[1])
    target = row_of(want["target_lengths"], want["target"].shape[1])
    inputs = (want["source"], *source, want["target"], *target)
    logits, (encoder, decoder) = with_streams(model, params, *inputs)
    pre = model.config.norm_placement != "post"
    check_streams(encoder, want, "encoder_hidden", source[1] > 0, pre)
    check_streams(decoder, want, "decoder_hidden", target[1] > 0, pre)
    if name not in BARE:
        assert_close(logits, want["logits"], target[1] > 0)


@pytest.mark.parametrize("name", [name for name in DECODERS if name not in SAME])
def test_a_decoder_computes_the_same(name):
    _, model, params, _ = published(name)
    want = expected(name)
    row = row_of(want["lengths"], want["tokens"].shape[1])
    logits, (_, streams) = with_streams(model, params, want["tokens"], *row)
    check_streams(streams, want, "hidden", row[1] > 0, True)
    assert_close(logits, want["logits"], row[1] > 0)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in SAME])
def test_an_encoder_computes_the_same(name, monkeypatch):
    _, model, params, _ = published(name)
    want = expected(name)
    if "token_types" in want:  # the random tokens contain no separator
        monkeypatch.setattr(encoder_only, "token_types", lambda *_: want["token_types"])
    row = row_of(want["lengths"], want["tokens"].shape[1])
    logits, (streams, _) = with_streams(model, params, want["tokens"], *row, row[0])
    check_streams(streams, want, "hidden", row[1] > 0, model.config.norm_placement == "pre")
    assert_close(logits, want["logits"], row[1] > 0)


@pytest.mark.parametrize("name", SAME)
def test_older_files_are_the_same_model(name):
    """Which the tests above compare with transformers."""
    _, model, params, _ = published(name)
    _, expected_model, expected_params, _ = published(SAME[name])
    assert model == expected_model
    jax.tree.map(np.testing.assert_array_equal, params, expected_params)


@pytest.mark.parametrize("name", TRANSLATORS + BARE + DECODERS + ENCODERS)
def test_converted_weights_equal_the_original_tensors(name):
    family, model, params, found = published(name)
    all_leaves = named_leaves(params).items()
    leaves = {path: np.asarray(leaf) for path, leaf in all_leaves if path not in found.new}
    out = to_tensors(family, model.config, leaves)
    for name in out.keys() - family.constant_tensors(model.config).keys():
        actual = {
            found.matches[path][1] for path in found.matches if name in found.matches[path][0].names
        }
        assert len(actual) == 1
        # Gemma 3's norms of queries and keys are stored less 1, which rounds.
        has_offset = model.config.qk_norm and model.config.norm == "rms_plus_one"
        atol = 1e-7 if has_offset and ("q_norm" in name or "k_norm" in name) else 0
        np.testing.assert_allclose(out[name], found.tensors.read(actual.pop()), atol=atol, rtol=0)
