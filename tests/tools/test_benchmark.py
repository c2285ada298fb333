# SPDX-License-Identifier: Apache-2.0
"""Benchmarks measure the real step and the real search."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tests.refusals import assert_refused
from transformer_jax.logs.records import to_json
from transformer_jax.runs.config import read_settings
from transformer_jax.tools import benchmark
from transformer_jax.tools.benchmark import describe

KEYS = {
    *("device", "jax", "dtype", "parameters", "step_ms", "tokens_per_s", "flops_per_s"),
    *("compile_s", "peak_memory_mb"),
}


def num_parameters(config):
    """Parameters of the tiny model, counted by hand."""
    m, t = config.model, config.tokenizer
    attention, feed_forward = 4 * m.d_model**2, 2 * m.d_model * m.d_ff + m.d_model + m.d_ff
    norm = 2 * m.d_model
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return t.vocab_size * m.d_model + encoder + norm + decoder + norm


def test_the_training_step(tiny_config):
    config = tiny_config({"train.accumulation_steps": 4})
    report = benchmark.train(config, batch_size=4, source_length=48, target_length=48, steps=2)
    assert report.keys() == KEYS
    assert report["parameters"] == num_parameters(config)
    assert (report["dtype"], report["jax"]) == ("float32", jax.__version__)
    tokens = 4 * (48 + 48)
    assert report["tokens_per_s"] == pytest.approx(1e3 * tokens / report["step_ms"], rel=0.02)
    # A multiply and an add for each parameter that a target token meets, and twice that backward;
    # the rest is the source's and attention's.
    at_least = 2 * 3 * (4 * 48) * (800 * 16 + 6000)
    assert at_least < report["flops_per_s"] * report["step_ms"] / 1e3 < 2 * at_least
    assert report["peak_memory_mb"] > 50
    assert json.loads(to_json(report)) == report


def test_the_search(tiny_config):
    config = tiny_config({"decode.weights": "int8"})
    report = benchmark.decode(
        config, batch_size=2, source_length=6, beam_size=3, output_length=4, steps=1
    )
    assert report.keys() == KEYS | {"beam_size", "weights"}
    assert (report["beam_size"], report["weights"]) == (3, "int8")
    assert report["tokens_per_s"] == pytest.approx(1e3 * 2 * 4 / report["step_ms"], rel=0.02)
    assert report["flops_per_s"] is None


def test_no_output_of_an_endless_model_ends():
    """Searches that need hidden states call methods of their own (`Search.needs_hidden`)."""
    result = jnp.zeros((2, 4)), "memory", "state", "hidden"
    model = benchmark.EndlessModel(SimpleNamespace(apply=lambda *_, method: result), 1)
    for method in ("prefill", "prefill_hidden", "decode_step", "decode_step_hidden"):
        logits, *rest = model.apply({}, method=method)
        assert jnp.isneginf(logits).tolist() == [[False, True, False, False]] * 2
        assert rest == [*result[1:]]


def test_generation_by_a_language_model(tiny_config, tiny_language_model):
    changes = {"task.name": "language_modeling", **tiny_language_model}
    config = tiny_config(changes | {"decode.temperature": None, "decode.top_k": None})
    report = benchmark.decode(
        config, batch_size=2, source_length=6, beam_size=1, output_length=20, steps=1
    )
    assert report.keys() == KEYS | {"beam_size", "weights"}
    assert report["tokens_per_s"] == pytest.approx(1e3 * 2 * 20 / report["step_ms"], rel=0.02)


def test_what_cannot_be_measured_is_refused(tiny_config):
    def search(changes, beam_size=2):
        return lambda: benchmark.decode(tiny_config(changes), batch_size=2, beam_size=beam_size)

    tagging = {"task.name": "tagging", "model.num_layers": 1}
    unknown = tiny_config()
    unknown.data.name = "multi30k_en_dd"
    assert_refused(
        {
            "be translation or language_modeli": search(tagging),
            "beam_size is 999; the target vocabulary has 800 pieces": search({}, 999),
            "is 9; it must be at most beam_size 4": search({"decode.num_outputs": 9}, None),
            "in the search that is chosen": search({"decode.search": "greedy"}),
            "did you mean multi30k_en_de": lambda: describe(read_settings(unknown)),
        }
    )


def test_a_dry_run_lists_parameters_batch_and_memory(tiny_config, trained):
    config = tiny_config({"data.train_source": "/not/read", "model.num_encoder_layers": 2})
    arrays, summary = describe(read_settings(config)).split("\n\n")
    found = dict(line.split("  ", 1) for line in summary.replace(" step ", " step  ").splitlines())
    leaves = jax.tree.leaves(trained.params)
    parameters = [line for line in arrays.splitlines() if not line.startswith("batch ")]
    counts = [int(line.split()[-1].replace(",", "")) for line in parameters]
    layer = sum(leaf.size for leaf in jax.tree.leaves(trained.params["encoder"]["layer_0"]))
    assert len(counts) == len(leaves)  # of one layer
    assert any("encoder/layer_*" in line and "2 x (" in line for line in parameters)
    assert sum(counts) == sum(leaf.size for leaf in leaves) + layer
    assert found["parameters"].strip() == f"{sum(counts):,}"
    assert arrays.count("batch ") == 6
    assert "source_segment_ids" in arrays and "(4, 48)" in arrays
    assert found["batch"].strip().endswith("of the source and as many of the target")
    assert " GiB" in found["memory of a step"]
    assert found["task"].strip() == "translation on parallel_text"
