# SPDX-License-Identifier: Apache-2.0
"""Models trained here, expressed as published families: other options, the same outputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from tests.refusals import assert_refused
from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.errors import UserError
from transformer_jax.interop.family_match import default_model, match_family
from transformer_jax.models import MODELS

SIZES = {"d_model": 12, "d_ff": 20, "num_heads": 2, "dtype": "float32", "norm_epsilon": 1e-5}
PAIRS = {
    **SIZES,
    "architecture": "encoder_decoder",
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "source_vocab_size": 13,
    "target_vocab_size": 13,
}
LANGUAGE = {**SIZES, "architecture": "decoder_only", "num_layers": 1, "vocab_size": 13}
TEXT = {**SIZES, "architecture": "encoder_only", "num_layers": 1, "vocab_size": 13}
LLAMA = {"positions": "rotary", "norm": "rms", "gated_feed_forward": True, "activation": "silu"}
LLAMA |= {"attention_bias": "none", "feed_forward_bias": False}

DEEPSEEK = LANGUAGE | LLAMA | {"attention_layer": "latent", "rope_layout": "pairs"}
DEEPSEEK |= {"norm_epsilon": 1e-6, "latent.kv_rank": 4, "latent.rotary_size": 2, "num_layers": 2}
DEEPSEEK |= {"feed_forward": "experts", "layers": "feed_forward=dense | default"}
DEEPSEEK |= {"experts.renormalize": False}
YARN = {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_length": 16}

TASK = {
    "encoder_decoder": "translation",
    "decoder_only": "language_modeling",
    "encoder_only": "masked_lm",
}

MATCHING = {
    "the paper's": (PAIRS, "marian"),
    "two vocabularies": (PAIRS | {"tie_embeddings": "target", "target_vocab_size": 11}, "marian"),
    "two vocabularies, padded to one size": (
        PAIRS | {"tie_embeddings": "target", "target_vocab_size": 12, "vocab_multiple": 8},
        "marian",
    ),
    "pre-norm": (PAIRS | {"norm_placement": "pre", "attention_bias": "output"}, "pegasus"),
    "a table of padded rows": (PAIRS | {"vocab_multiple": 8}, "marian"),
    "learned positions": (
        PAIRS | {"positions": "learned", "embedding_norm": True, "max_length": 9},
        "bart",
    ),
    "T5's": (
        PAIRS
        | {"positions": "t5", "norm": "rms", "norm_placement": "pre", "attention_scale": 1.0}
        | {"feed_forward_bias": False, "scale_embeddings": False, "tie_embeddings": "inputs"}
        | {"num_buckets": 8, "max_distance": 20},
        "t5",
    ),
    "GPT without biases": (LANGUAGE | {"attention_bias": "none", "max_length": 9}, "gpt2"),
    "rotated pairs": (LANGUAGE | LLAMA | {"num_key_value_heads": 1}, "llama"),
    "rotated pairs, normalized": (LANGUAGE | LLAMA | {"qk_norm": True}, "qwen3"),
    "a window": (LANGUAGE | LLAMA | {"attention_window": 2}, "mistral"),
    "experts": (LANGUAGE | LLAMA | {"feed_forward": "experts"}, "mixtral"),
    "BERT": (TEXT | {"max_length": 9}, "bert"),
    "BERT without token types": (TEXT | {"max_length": 9, "num_token_types": 0}, "bert"),
    "BERT without token types, as DistilBERT": (
        TEXT | {"max_length": 9, "num_token_types": 0, "norm_epsilon": 1e-12},
        "distilbert",
    ),
    "latent attention, YaRN": (DEEPSEEK | YARN, "deepseek_v2"),
    "BERT, pre-norm": (
        TEXT | {"norm_placement": "pre", "max_length": 9, "activation": "gelu_exact"},
        "roberta-prelayernorm",
    ),
}


def inputs_of(architecture):
    rows = np.array([[3, 5, 7, 11, 2, 4], [6, 9, 8, 1, 1, 1]]) % 11
    segment_ids = np.array([[1] * 6, [1, 1, 1, 0, 0, 0]])
    places = np.broadcast_to(np.arange(6), rows.shape)
    row = tuple(jnp.asarray(each, jnp.int32) for each in (rows, places, segment_ids))
    return {"encoder_decoder": (*row, *row), "decoder_only": row, "encoder_only": (*row, row[1])}[
        architecture
    ]


def random_leaves(config):
    """Random arrays of all parameters, so that zero biases and unit scales differ from them."""
    draw, model = np.random.default_rng(0), MODELS[config.architecture](config)
    inputs = inputs_of(config.architecture)
    abstract = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    return {
        path: np.float32(path.endswith("scale") + 0.3 * draw.normal(size=leaf.shape))
        for path, leaf in named_leaves(abstract).items()
    }


def logits_of(config, leaves):
    """Not compiled, as the models share most of their small programs."""
    inputs = inputs_of(config.architecture)
    params = unflatten_dict({path: jnp.asarray(leaf) for path, leaf in leaves.items()}, sep="/")
    logits = MODELS[config.architecture](config).apply({"params": params}, *inputs)
    return np.asarray(logits)[inputs[2] > 0]


@pytest.mark.parametrize("name", MATCHING)
def test_a_matched_family_computes_the_same(name):
    options, model_type = MATCHING[name]
    config = default_model(options)
    leaves = random_leaves(config)
    match = match_family(config, leaves, TASK[config.architecture], {"pad_token_id": 0})
    assert match.family.model_type == model_type
    ours = logits_of(config, leaves)
    theirs = logits_of(match.model, match.leaves)
    np.testing.assert_allclose(theirs, ours, atol=1e-5 * np.abs(ours).max())


def test_a_bert_has_a_token_type_as_transformers_looks_one_up():
    config = default_model(TEXT | {"max_length": 9, "num_token_types": 0})
    match = match_family(config, random_leaves(config), "tagging", {"pad_token_id": 0})
    assert (match.class_name, match.keys["type_vocab_size"]) == ("BertForTokenClassification", 1)
    np.testing.assert_array_equal(match.leaves["input/token_types"], np.zeros((1, 12)))


BART = PAIRS | {"positions": "learned", "embedding_norm": True, "max_length": 9}
HEAD = {
    "pooler/kernel": np.ones((12, 12)),
    "pooler/bias": np.ones(12),
    "classifier/kernel": np.ones((12, 3)),
    "classifier/bias": np.ones(3),
}


def test_a_class_does_its_task_or_writes_targets_as_the_task_does():
    config = default_model(BART | {"logits_bias": True})
    leaves = random_leaves(config)
    names = [match_family(config, leaves, task, {}).class_name for task in ("seq2seq", "parsing")]
    assert names == ["BartForConditionalGeneration"] * 2
    match = match_family(config, leaves | HEAD, "classification", {})
    assert match.class_name == "BartForSequenceClassification"
    assert "logits_bias" in leaves and "logits_bias" not in match.leaves
    assert HEAD.keys() <= match.leaves.keys()
    with pytest.raises(UserError, match=r"positions is 'sinusoidal', and the nearest .*\(bart\)"):
        match_family(default_model(PAIRS), leaves | HEAD, "classification", {})


def test_an_option_of_no_family_is_named():
    refused = {
        "config.model.positions is 'alibi'": PAIRS | {"positions": "alibi"},
        "config.model.norm is 'rms'": PAIRS | {"positions": "sinusoidal", "norm": "rms"},
        "config.model.logit_cap is 5.0": LANGUAGE | {"logit_cap": 5.0},
        "config.model.positions is 'rotary'": TEXT | {"positions": "rotary"},
        "config.model.yarn.truncate is False": DEEPSEEK | YARN | {"yarn.truncate": False},
        "config.model.yarn.attention_factor is 1": DEEPSEEK | YARN | {"yarn.attention_factor": 1.0},
        "config.model.feed_forward_bias is True": DEEPSEEK | {"feed_forward_bias": True},
        "config.model.logit_cap is 7.0": DEEPSEEK | {"logit_cap": 7.0, "latent.query_rank": 3},
        "3 elements of a head's 6 are rotated": LANGUAGE | LLAMA | {"rope_fraction": 0.5},
    }
    calls = {}
    for words, options in refused.items():
        config = default_model(options)
        task = TASK[config.architecture]
        calls[words] = functools.partial(match_family, config, random_leaves(config), task, {})
    assert_refused(calls)
