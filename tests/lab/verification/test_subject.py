# SPDX-License-Identifier: Apache-2.0
"""Configs are shrunk by rule, and rows are drawn."""

import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.lab.verification.subject import ROWS, Subject, shrunk
from transformer_jax.nn.experts import ExpertsOptions
from transformer_jax.nn.latent_attention import LatentOptions
from transformer_jax.runs.config import resolve_file


def test_sizes_fall_and_choices_stay():
    small = shrunk(tj.config("decoder_7b")).model
    assert (small.d_model, small.d_ff, small.num_layers) == (32, 64, 2)
    assert (small.num_heads, small.num_key_value_heads) == (4, 2)  # 32 and 8
    assert (small.positions, small.norm, small.gated_feed_forward) == ("rotary", "rms", True)
    small = shrunk(resolve_file("deepseek_v2_lite", {})).model
    latent = small.options_of(LatentOptions)
    experts = small.options_of(ExpertsOptions)
    assert (latent.kv_rank, experts.num_experts, experts.num_chosen) == (8, 8, 6)
    # Fields that are given keep their values.
    config = resolve_file("tiny_shakespeare_cpu", {"model.d_model": 64, "data.max_length": 100})
    small = shrunk(config, ("model.d_model", "data.max_length"))
    assert (small.model.d_model, small.data.max_length, small.model.max_length) == (64, 100, 100)


def test_two_periods_of_a_pattern_are_left():
    layers = "3 x attention_window=128 | feed_forward=experts d_ff=3000 experts.num_experts=64"
    config = resolve_file("tiny_shakespeare_cpu", {"model.layers": layers, "model.num_layers": 12})
    small = shrunk(config).model
    experts = "d_ff=64 experts.num_experts=8 feed_forward=experts"
    assert (small.layers, small.num_layers) == (f"attention_window=4 | {experts}", 4)


@pytest.mark.parametrize(
    "name", ["quickstart", "cola", "pos_gum", "parse_gum", "bert_small", "dpo"]
)
def test_every_example_of_a_drawn_batch_gets_a_row(name):
    subject = Subject(shrunk(resolve_file(name, {})))
    batch, apart, lengths = subject.batch, subject.unpacked, subject.task.lengths
    for feature, length in lengths.items():
        ids, places = (batch[f"{feature}_{what}"] for what in ("segment_ids", "positions"))
        assert ids.shape == (ROWS, length) and ids.max() == min(3, *lengths.values())
        starts = np.diff(np.pad(ids, ((0, 0), (1, 0)))) > 0
        assert (places[starts] == 0).all() and (places[(ids > 0) & ~starts] > 0).all()
        assert (batch[feature] > 0).sum() == (apart[feature] > 0).sum()
        assert len(apart[feature]) == sum(row.max() for row in ids)


def test_a_distilled_model_has_a_teacher_of_its_sizes():
    changes = {"train.loss": "distillation", "train.distillation.teacher": "runs/none"}
    subject = Subject(shrunk(resolve_file("tiny_shakespeare_cpu", changes)))
    assert subject.task.loss_options.teacher.task.model.config.d_model == 32
