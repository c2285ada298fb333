# SPDX-License-Identifier: Apache-2.0
"""Dry run: parameters, batch and memory of a step."""

import jax
import pytest

from transformer_jax.errors import UserError
from transformer_jax.tools.dry_run import describe


def test_a_dry_run_lists_parameters_batch_and_memory(tiny_config, trained):
    report = describe(tiny_config())
    lines = report.splitlines()
    num_leaves = len(jax.tree.leaves(trained.params))
    assert lines[0].split()[0].count("/") >= 1
    (total,) = (line.split()[1] for line in lines if line.startswith("parameters "))
    counts = [int(line.split()[-1].replace(",", "")) for line in lines[:num_leaves]]
    leaves = jax.tree.leaves(trained.params)
    assert sum(counts) == int(total.replace(",", "")) == sum(leaf.size for leaf in leaves)
    assert sum(line.startswith("batch ") for line in lines) == 6
    assert any("source_segment_ids" in line and "(4, 48)" in line for line in lines)
    assert lines[-1].startswith("memory of a step: ") and " GiB" in lines[-1]


def test_a_dry_run_of_an_unknown_data_set_is_refused(tiny_config):
    config = tiny_config()
    config.data.name = "multi30k_en_dd"
    with pytest.raises(UserError, match="data.name.*multi30k_en_de"):
        describe(config)
