# SPDX-License-Identifier: Apache-2.0
"""Whole plans, compiled for the CPU as if it were an accelerator, and by the real compilers."""

import json
from functools import partial
from unittest.mock import Mock

import jax
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART
from tests.refusals import assert_refused
from transformer_jax.lab.plan import mesh_search, plan, program, report, target
from transformer_jax.parallel.engines import JitEngine
from transformer_jax.runs.build import build_untokenized_task
from transformer_jax.runs.config import read_settings, resolve_file
from transformer_jax.runtime.accelerators import ACCELERATORS


@pytest.fixture(scope="module")
def planned(tiny_config):
    """`planned(what, changes)`: report on the tiny config, compiled for the CPU as an H100."""

    def make(what="train", changes=None):
        request = {"config": tiny_config(changes).to_dict(), "modules": [], "what": what}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target.Target, "devices", lambda self: jax.devices()[:1])
            answer = plan.answer(request | {"device": "h100:1", "slices": 1})
        return json.loads(json.dumps(answer | {"note": plan.NOTE}))

    return make


@pytest.fixture(scope="module")
def step(planned):
    return planned()


def test_a_plan_of_the_training_step(step, trained):
    assert step["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(trained.params))
    assert step["memory"]["fits"] and step["advice"] == step["warnings"] == []
    assert step["accumulation_steps"] == 1
    nbytes = step["memory"]["parameters_gib"] * 2**30
    assert nbytes == pytest.approx(4 * step["parameters"], rel=0.01)
    assert step["flops"]["program_per_device"] == pytest.approx(step["flops"]["model"], rel=0.05)
    groups = step["kernel_groups"]
    assert sum(group["ms"] for group in groups) == pytest.approx(step["kernels_ms"], rel=0.1)
    assert sum(group["flops"] for group in groups) == step["flops"]["program_per_device"]
    assert groups == sorted(groups, key=lambda group: -group["ms"])
    assert "logits" in max(groups, key=lambda group: group["flops"])["place"]
    assert "layer_N" in str(groups) and "layer_0" not in str(groups)
    assert step["step_ms"] >= step["memory_ms"] and 0 < step["mfu"] < 1
    assert step["interconnect"] == [] and str(step["interconnect_ms"]) == "0.0"


def test_a_plan_of_a_search_and_of_a_continuation(planned, tiny_language_model):
    for changes in (None, tiny_language_model | {"decode.temperature": 1.0}):
        found = planned("decode", changes)
        assert found["mfu"] is None and found["tokens_per_s"] > 0
        assert any("attention" in group["place"] for group in found["kernel_groups"])


def test_a_plan_has_the_bytes_of_a_cache_for_each_attention_layer(tiny_config, tiny_language_model):
    sizes = {"model.num_layers": 2, "model.num_heads": 4, "model.key_size": 8}
    sizes |= {"model.value_size": 8, "model.dtype": "float32", "model.positions": "rotary"}
    latent = {"model.attention_layer": "latent", "model.latent.kv_rank": 12}
    slot = 4  # int32, whose token it is
    for changes, floats in (
        ({}, 2 * 4 * 8),
        ({"model.num_key_value_heads": 2}, 2 * 2 * 8),
        (latent | {"model.latent.rotary_size": 4}, 12 + 4),
    ):
        config = tiny_config(tiny_language_model | sizes | changes)
        cache = program.cache_size(build_untokenized_task(read_settings(config)))
        assert cache["tokens"] == config.data.max_length
        assert cache["bytes"] == 2 * (cache["tokens"] * (4 * floats + slot) + 4), changes
    text = report.plan_as_text({"cache": cache, "device": "none", "note": "", "warnings": []})
    assert "tokens of 136 bytes" in text


def test_a_refused_step_reports_its_memory_and_advice(planned, monkeypatch):
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
    )
    refused = Mock(side_effect=jax.errors.JaxRuntimeError(message))
    monkeypatch.setattr(JitEngine, "compile", refused)
    found = planned()
    memory = found["memory"]
    assert (memory["peak_gib"], memory["left_gib"], memory["fits"]) == (20.5, -4.75, False)
    held = sum(memory[f"{part}_gib"] for part in ("parameters", "optimizer", "batch"))
    assert held > 0 and memory["temporaries_gib"] == pytest.approx(20.5 - held)
    assert "train.accumulation_steps=2" in found["advice"] and "step_ms" not in found
    assert found["parameters"] > 0 and found["engine"] == "jit"
    text = report.plan_as_text(found)
    assert "does not" not in text and "NO, -4.75 GiB left" in text
    by_rows = planned(changes={"train.rows_per_device": 2})  # of 4
    assert by_rows["accumulation_steps"] == 2 and "train.rows_per_device=1" in by_rows["advice"]


def test_a_plan_is_shown_as_tables(step):
    text = report.plan_as_text(step)
    (line,) = (line for line in text.splitlines() if line.startswith("parameters"))
    assert line.split()[1:] == [f"{step['parameters']:,}"]
    assert repr(plan.Plan(step)) == text.rstrip() and "of which a token uses" not in text
    assert "MiB" in text and "0.00 GiB" not in text
    assert "Kernels" not in text and text.rstrip().endswith(plan.NOTE)
    rows = report.plan_as_text(step, 3).partition("\nKernels\n")[2].splitlines()
    for row, group in zip(rows[1:], step["kernel_groups"][:3], strict=False):
        assert row.endswith(group["place"]) and f"  {group['shape']}  " in row
    assert rows[4] == ""


@pytest.mark.parametrize(
    ("mesh", "state", "temporaries", "rows", "expected"),
    [
        ({"data": 8, "fsdp": 1, "tensor": 1}, 80.0, 5.0, 4, ["parallel.fsdp=2"]),
        ({"data": 1, "fsdp": 1, "tensor": 1}, 5.0, 80.0, 4, ["train.accumulation_steps=2"]),
        ({"data": 1, "fsdp": 1, "tensor": 1}, 5.0, 80.0, 1, ["2 such devices"]),  # no rows left
        ({"data": 1, "fsdp": 1, "tensor": 1}, 200.0, 5.0, 4, ["4 such devices"]),
    ],
)
def test_settings_that_would_fit_are_named(mesh, state, temporaries, rows, expected, tiny_config):
    memory = {"fits": False, "parameters_gib": state, "temporaries_gib": temporaries}
    there = type("Mesh", (), {"shape": mesh, "size": mesh["data"]})
    found = mesh_search.suggest_changes(
        memory | {"usable_gib": 55.0}, read_settings(tiny_config()), there, rows
    )
    assert all(any(one.startswith(start) for one in found) for start in expected)
    assert "train.remat=full (not estimated)" in found
    assert any("accumulation" in one for one in found) == (temporaries > 55 and rows > 1)


def test_narrow_shards_of_parameters_cause_a_warning_on_tpus(tiny_config):
    settings = read_settings(tiny_config({"model.d_model": 256, "model.dtype": "bfloat16"}))
    mesh = type("Mesh", (), {"shape": {"data": 1, "fsdp": 4, "tensor": 1}})
    (line,) = mesh_search.warnings(settings, mesh, ACCELERATORS["v5e"])
    assert "d_model 256 / fsdp 4 is below 128" in line and "fsdp 2 or less" in line
    assert mesh_search.warnings(settings, mesh, ACCELERATORS["h100"]) == []
    (line,) = mesh_search.warnings(settings, mesh, ACCELERATORS["t4"])
    assert "does not multiply" in line


@pytest.mark.parametrize(
    ("device", "library", "dtype"),
    [("v5e:1x1", "libtpu", "bfloat16"), ("t4:1", "jax_cuda13_plugin", "float32")],
)
def test_the_real_compilers_plan_the_step(device, library, dtype, tiny_config):
    pytest.importorskip(library)
    found = tj.plan(tiny_config({"model.dtype": "auto"}), device)
    assert found["dtype"] == dtype and found["memory"]["fits"]
    assert found["flops"]["program_per_device"] == pytest.approx(found["flops"]["model"], rel=0.1)
    assert 0 < found["mfu"] < 1


def test_what_cannot_be_planned_is_refused(planned, tiny_config, monkeypatch):
    message = "UNIMPLEMENTED: fusion of two\nstack of the compiler"
    failing = Mock(side_effect=jax.errors.JaxRuntimeError(message))
    tagger = {"task.name": "tagging", "model.architecture": "encoder_only"}
    monkeypatch.setattr(plan.subprocess, "run", lambda *args, **options: pytest.fail("started"))
    monkeypatch.setattr(jax.stages.Lowered, "compile", failing)
    step = partial(program.compile_training_step, read_settings(tiny_config()), jax.devices()[:1])
    assert_refused(
        {
            "--decode: task tagging searches for no outputs": partial(planned, "decode", tagger),
            "no device is called 'v5x'; known: b200": lambda: tj.plan(tiny_config(), "v5x:2x2"),
            "tensor 1: UNIMPLEMENTED: fusion of two; an": step,
        }
    )


def test_tokens_of_the_data_that_are_here_are_packed(tiny_config, monkeypatch):
    monkeypatch.setattr(plan, "_SECONDS", 0.05)
    assert plan.packing_speed(read_settings(tiny_config()))["tokens_per_s"] > 1000


@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"data.name": "multi30k_en_de"}, "is not on this machine"),
        ({"data.name": "tfds", "data.tfds_name": "lm1b"}, "may have to be downloaded"),
    ],
)
def test_other_data_are_not_downloaded(fields, reason, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_JAX_DATA", str(tmp_path))
    settings = resolve_file(QUICKSTART, fields)
    assert plan.packing_speed(settings)["reason"].endswith(reason)
    assert not list(tmp_path.iterdir())
