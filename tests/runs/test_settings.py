# SPDX-License-Identifier: Apache-2.0
"""Fields of a config: the values they take, and how wrong values are refused."""

import functools
import math
import re
import typing

import numpy as np
import pytest

from tests.refusals import assert_refused, message_of
from transformer_jax.losses import TOKEN_LOSSES, TokenLoss
from transformer_jax.ranges import Range
from transformer_jax.runs.config import (
    load_config,
    read_settings,
)
from transformer_jax.runs.settings import FIELDS, SECTIONS, Settings

NESTED: list = functools.reduce(lambda inner, _: [inner], range(2000), [])


def test_overrides_are_values_or_texts_or_numbers_of_numpy(path):
    overrides = {
        "model.d_model": ("32", 32),
        "model.num_heads": (2, 2),
        "train.num_steps": ("10_000", 10_000),
        "optimizer.warmup_steps": ("5e3", 5000),
        "eval.every_steps": (5e3, 5000),
        "checkpoint.every_steps": ("5000.0", 5000),
        "model.value_size": ("none", None),
        "data.dir": ("None", None),
        "optimizer.learning_rate": ("2", 2.0),
        "optimizer.epsilon": ("1e-8", 1e-8),
        "optimizer.beta1": (np.float64(0.5), 0.5),
        "optimizer.clip_norm": (np.float32(1), 1.0),
        "model.key_size": (np.int64(24), 24),
        "model.qk_norm": ("true", True),
        "model.embedding_norm": (np.bool_(True), True),
        "data.name": ("parallel_text", "parallel_text"),
        "model.attention_bias": ("none", "none"),
        "seed": ("7", 7),
    }
    given = {name: value for name, (value, _) in overrides.items()}
    values = read_settings(load_config(path, given)).values
    found = {name: values[name] for name in overrides}
    assert found == {name: value for name, (_, value) in overrides.items()}
    assert all(type(found[name]) is type(value) for name, (_, value) in overrides.items())


UNKNOWN = [
    ("train.num_step", "config.train.num_steps"),
    ("num_steps", "config.train.num_steps"),
    ("model", "config.model has fields; set them"),
    ("seed.x", "config.seed"),
    ("optimizer.lr.peak", "config.optimizer."),
    (3, "there is no config.3"),
]
WRONG_TYPES = [
    ("model.d_model", "wide", "'wide'", "int"),
    ("model.d_model", "64.5", "64.5", "int"),
    ("model.d_model", "true", "True", "int"),
    ("model.d_model", None, "None", "int"),
    ("model.d_model", {"size": 3}, "{'size': 3}", "int"),
    ("tokenizer.joint", "1", "1", "bool"),
    ("tokenizer.joint", "yes", "'yes'", "bool"),
    ("optimizer.learning_rate", "fast", "'fast'", "float"),
    ("optimizer.learning_rate", "", "''", "float"),
    ("optimizer.learning_rate", "nan", "'nan'", "float"),
    ("optimizer.learning_rate", "1e999", "'1e999'", "float"),
    ("optimizer.learning_rate", "9" * 400, f"{'9' * 98}...{'9' * 99}", "float"),
    ("train.num_steps", "[" * 9999, f"'{'[' * 97}...{'[' * 98}'", "int"),
    ("train.num_steps", NESTED, "[[[[[[[...]]]]]]]", "int"),
    ("train.num_steps", np.float64(7.5), "7.5", "int"),
    ("data.name", 3, "3", "str"),
    ("train.num_steps", "5e-1", "0.5", "int"),
    ("train.num_steps", "1e999", "'1e999'", "int"),
]
IMPOSSIBLE = [
    ("model.d_model", 0, "config.model: d_model is 0; it must lie in [1, 65_536]"),
    ("model.num_heads", 7, "config.model: num_heads 7 does not divide d_model 64"),
    ("model.norm_placement", "pro", "config.model: norm_placement is 'pro', not one of post"),
    ("model.dtype", "float16", "config.model: dtype is 'float16'"),
    ("tokenizer.kind", "bytes", "config.tokenizer: kind is 'bytes', not one of bpe"),
    ("tokenizer.vocab_size", 4, "config.tokenizer: vocab_size 4 is too small"),
    ("optimizer.name", "sdg", "config.optimizer: name is 'sdg', not one of adam, adamw"),
    ("logging.trackers", "tensorboard,wandbb", "trackers is 'wandbb', not one of tensorboard"),
    ("parallel.engine", "warp", "config.parallel: engine is 'warp', not one of auto"),
    ("seed", 2**31, "config.seed is 2147483648; it must lie in [0, 2_147_483_647]"),
]
SAMPLING = {"tokenizer.kind": "bpe", "tokenizer.sampling": 0.1}
UNREAD = [
    (
        {"model.num_layers": 2},
        "config.model.num_layers is 2, but model.architecture 'encoder_decoder' does "
        "not read it (decoder_only, encoder_only would); leave it out or change model.architecture",
    ),
    ({"model.num_token_types": 2}, "'encoder_decoder' does not read it (encoder_only would)"),
    (
        {
            "model.positions": "rotary",
            "model.rope_scaling": "linear",
            "model.rope_high_factor": 8.0,
        },
        "model.rope_scaling 'linear' does not read it (llama3 would)",
    ),
    (
        {"model.architecture": "recurrent", "model.num_heads": 4},
        "config.model.num_heads is 4, but model.architecture 'recurrent' does not read it "
        "(encoder_decoder, decoder_only, encoder_only would)",
    ),
    ({"model.architecture": "recurrent", "train.remat": "full"}, "'recurrent' does not read"),
    (
        {"task.mask_rate": 0.3},
        "task.name 'translation' does not read it (masked_lm, denoising would)",
    ),
    ({"data.name": "scan_simple,text", "data.tfds_name": "x"}, "data.name 'scan_simple,text'"),
    (
        {"tokenizer.kind": "word_classes", "tokenizer.lowercase": True},
        "tokenizer.kind 'word_classes' does not read it (bpe, unigram, char, word, ... would)",
    ),
    ({"decode.seed": 1}, "decode.search none does not read it (sample, unmask would)"),
    ({"decode.stop": "."}, "task.name 'translation' does not read it (language_modeling, in"),
    ({"decode.temperature": 1.0, "decode.alpha": 1.0}, "decode.search none does not read it"),
    (
        {"tokenizer.joint": False},
        "config.model.tie_embeddings 'all' shares one embedding among all sides, and with "
        "config.tokenizer.joint false each has a vocabulary of its own",
    ),
    (
        {"optimizer.schedule": "cosine", "optimizer.decay_steps": 5000},
        "config.train.num_steps is 100000, but optimizer.schedule 'cosine' ends at a learning "
        "rate of 0 after optimizer.decay_steps 5000",
    ),
    (
        {"optimizer.schedule": "wsd", "optimizer.cooldown_steps": 97_000},
        "config.optimizer.cooldown_steps is 97000, but of 100000 steps warmup_steps 4000 leave "
        "fewer",
    ),
    (
        {"task.name": "masked_lm", "task.mask_schedule": "cosine"},
        "config.task: mask_schedule is set, and the share of masks stays the same; set final_ma",
    ),
    (
        {
            "task.name": "masked_lm",
            "task.final_mask_rate": 0.1,
            "task.mask_schedule": "transformer",
        },
        "config.task.mask_schedule is 'transformer', not a schedule that decays: set it to linear",
    ),
    *(
        (
            {"tokenizer.kind": kind, "tokenizer.sampling": 0.1},
            f"sampling is 0.1, but tokenizer.kind '{kind}' does not read it (bpe, unigram, byte_bp",
        )
        for kind in ("char", "word", "word_classes", "wordpiece")
    ),
    ({"task.name": "preference", **SAMPLING}, "does not go with task.name 'preference'"),
    (
        {
            "task.name": "language_modeling",
            "train.loss": "distillation",
            "train.distillation.teacher": "run",
            "train.distillation.top_k": 4,
            **SAMPLING,
        },
        "tokenizer.sampling does not go with train.distillation.top_k",
    ),
    (
        {
            "task.name": "denoising",
            "task.objective": "diffusion",
            "model.architecture": "encoder_only",
            "decode.beam_size": 8,
        },
        "config.decode.beam_size is 8, but task.objective 'diffusion' does not read it",
    ),
]


def test_overrides_that_no_config_can_have_are_refused(path):
    rows = [({name: "1"}, nearest) for name, nearest in UNKNOWN]
    for name, value, shown, type_ in WRONG_TYPES:
        words = f"override: config.{name} is {shown}; it must be of type {type_}"
        rows.append(({name: value}, words))
    rows += [({name: value}, reason) for name, value, reason in IMPOSSIBLE] + UNREAD
    for changes, words in rows:
        assert_refused({words: functools.partial(load_config, path, changes)})


NUMBERS = [name for name, field in FIELDS.items() if field.type in (int, float)]


def test_every_number_has_a_range():
    """Ranges are finite and far from overflow; True is not a number."""
    accepted = []
    for name in NUMBERS:
        section, _, field = name.rpartition(".")
        owner = SECTIONS.get(section, Settings)
        limits = typing.get_args(hint_of(owner, field))
        (limit,) = (part for part in limits if isinstance(part, Range))
        assert max(abs(limit.least), abs(limit.most)) <= 1e12, name
        outside = (limit.least - 1, limit.most * 2 + 1, math.nan, math.inf, -math.inf)
        for value in (*outside, True, "1"):
            try:
                owner(**required_of(owner) | {field: value})
                accepted.append((name, value))
            except ValueError as error:
                assert re.match(f"{field} is .*; it must ", str(error))
    assert accepted == []


def hint_of(owner, field):
    """The annotated type of a field, without `| None`."""
    hint = typing.get_type_hints(owner, include_extras=True)[field]
    return hint if hasattr(hint, "__metadata__") else typing.get_args(hint)[0]


def required_of(owner):
    """Values for the fields without a default."""
    return SECTIONS if owner is Settings else {}


# --- Fields without an effect ---


def test_options_of_cross_entropy_are_refused_with_another_loss(path, with_entries):
    with_entries(TOKEN_LOSSES, {"own": TokenLoss})
    message = message_of(load_config, path, {"train.loss": "own", "train.z_loss": 0.1})
    assert "train.loss 'own' does not read it (cross_entropy" in message


@pytest.mark.parametrize(
    "changes",
    [
        {"model.num_layers": 6, "optimizer.weight_decay": 0.0},  # the defaults
        {"model.positions": "learned", "model.max_length": 64, "model.position_offset": 2},
        {"model.positions": "rotary", "model.rope_scaling": "llama3", "model.rope_factor": 32.0},
        {"model.embedding_norm": True, "model.logits_bias": True, "model.final_logit_cap": 30.0},
        {"data.name": "scan_simple,json_lines", "data.dir": "/x", "data.train_text": "a"},
        {"optimizer.name": "adamw", "optimizer.weight_decay": 0.1, "optimizer.beta2": 0.9},
        {"optimizer.schedule": "linear"},
        {"logging.trackers": "tensorboard,wandb", "logging.project": "study"},
        {
            "optimizer.schedule": "cosine",
            "optimizer.decay_steps": 5000,
            "optimizer.final_ratio": 0.1,
        },
        {"decode.temperature": 1.0, "decode.top_k": 5, "decode.seed": 1},
        {"task.name": "language_modeling", "decode.repetition_penalty": 1.2, "decode.stop": "|"},
        {"task.name": "language_modeling", "optimizer.name": "sgd"},  # with the task's own beta2
        {"task.name": "tagging", "model.architecture": "decoder_only", "data.max_length": 64},
        {"tokenizer.joint": False, "model.tie_embeddings": "target"},
        {"model.architecture": "recurrent", "model.cell": "gru", "model.initialization": "bert"},
        *(
            {"tokenizer.kind": kind, "tokenizer.sampling": 0.1}
            for kind in ("bpe", "unigram", "byte_bpe")
        ),
    ],
)
def test_defaults_and_fields_with_an_effect_are_accepted(path, changes):
    load_config(path, changes)
