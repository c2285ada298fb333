# SPDX-License-Identifier: Apache-2.0
"""Oracles of exported weights and of data sets."""

import pytest

from transformer_jax.errors import UserError
from transformer_jax.lab.verification import stored_oracles
from transformer_jax.lab.verification.outcomes import DoesNotApplyError


def test_an_exporter_that_changes_weights_is_found(subject_of, monkeypatch):
    published = subject_of({"model.norm": "layer", "model.feed_forward_bias": True})
    assert stored_oracles.exported(published).is_equal
    other = subject_of({"model.positions": "from_first"})  # of no published model
    with pytest.raises(UserError, match=r"config\.model\.positions is 'from_first'"):
        stored_oracles.exported(other)
    whole = stored_oracles.to_tensors

    def rounded(*args):
        return {name: x.astype("float16").astype(x.dtype) for name, x in whole(*args).items()}

    monkeypatch.setattr(stored_oracles, "to_tensors", rounded)
    found = stored_oracles.exported(published)
    assert not found.is_equal and found.where.startswith("most in ")


def test_examples_that_depend_on_what_was_read_are_found(subject_of, right):
    assert stored_oracles.data(subject_of({"data.name": "lines"})).is_equal
    with pytest.raises(DoesNotApplyError, match="neither data.name nor task.name"):
        stored_oracles.data(right)
    found = stored_oracles.data(subject_of({"data.name": "forgetful"}))
    assert not found.is_equal and found.where == "first at example 0"
