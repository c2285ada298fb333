# SPDX-License-Identifier: Apache-2.0
"""Dry run: parameters, batch and memory of a step."""

import jax
import pytest

from transformer_jax.errors import UserError
from transformer_jax.runs.config import read_settings
from transformer_jax.tools.dry_run import describe


def test_a_dry_run_lists_parameters_batch_and_memory(tiny_config, trained):
    config = tiny_config({"data.train_source": "/not/read"})
    summary, arrays = describe(read_settings(config)).split("\n\n")
    found = dict(line.split("  ", 1) for line in summary.replace(" step ", " step  ").splitlines())
    leaves = jax.tree.leaves(trained.params)
    parameters = [line for line in arrays.splitlines() if not line.startswith("batch ")]
    counts = [int(line.split()[-1].replace(",", "")) for line in parameters]
    assert len(counts) == len(leaves)
    assert sum(counts) == sum(leaf.size for leaf in leaves)
    assert found["parameters"].strip() == f"{sum(counts):,}"
    assert arrays.count("batch ") == 6
    assert "source_segment_ids" in arrays and "(4, 48)" in arrays
    assert found["batch"].strip().startswith("4 rows")
    assert " GiB" in found["memory of a step"]
    assert found["task"].strip() == "translation on parallel_text"


def test_a_dry_run_of_an_unknown_data_set_is_refused(tiny_config):
    config = tiny_config()
    config.data.name = "multi30k_en_dd"
    with pytest.raises(UserError, match="data.name.*multi30k_en_de"):
        describe(read_settings(config))
