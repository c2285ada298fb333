# SPDX-License-Identifier: Apache-2.0
"""Every family gives the logits of transformers, stored by make_fixtures.py."""

import jax
import numpy as np
import pytest

from tests.interop.published import BARE, DECODERS, ENCODERS, SAME, TRANSLATORS, expected, published
from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.interop.weights import to_tensors
from transformer_jax.models import encoder_only

apply = jax.jit(
    lambda model, params, *inputs: model.apply({"params": params}, *inputs), static_argnums=0
)


@pytest.mark.parametrize("name", TRANSLATORS + BARE + DECODERS + ENCODERS)
def test_logits_and_exported_tensors_are_those_of_transformers(name, monkeypatch):
    assert_converted_back(name)
    if name not in SAME:
        assert_logits(name, monkeypatch)


def assert_logits(name, monkeypatch):
    """At unpadded positions, up to 1e-5 of the largest entry."""
    _, model, params, _ = published(name)
    want, inputs = expected(name), []
    for side in ("source", "target") if "source" in want else ("tokens",):
        tokens, lengths = want[side], want["lengths" if side == "tokens" else f"{side}_lengths"]
        positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        segment_ids = (positions < lengths[:, None]).astype(np.int32)
        inputs += [tokens, positions, segment_ids]
    if name in ENCODERS:
        inputs.append(positions)  # all are predicted
    if "token_types" in want:  # the random tokens contain no separator
        monkeypatch.setattr(encoder_only, "token_types", lambda *_: want["token_types"])
    if name in BARE:
        want["logits"] = want["features"] @ params["target_embedding"]["table"].T
    theirs = want["logits"][segment_ids > 0]
    ours = np.asarray(apply(model, params, *inputs))[segment_ids > 0]
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def assert_converted_back(name):
    """Exported weights equal the original tensors."""
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
