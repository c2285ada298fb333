# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoders and encoders that start from a decoder (`train.init_from`)."""

import dataclasses

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.compiled import apply
from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.checkpoints.warm_start import WarmStart
from transformer_jax.models import MODELS


@pytest.fixture(scope="module")
def adapted(tmp_path_factory, tiny_language_model, language_model_workdir):
    """An encoder-decoder that starts from a language model, by prefix language modeling in a step
    that changes next to nothing."""
    of_denoising = {
        "model.architecture": "encoder_decoder",
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "task.name": "denoising",
        "task.objective": "prefix_lm",
        "train.num_steps": 1,
        "optimizer.learning_rate": 1e-12,
    }
    of_text = {k: v for k, v in tiny_language_model.items() if k != "model.num_layers"}
    changes = of_text | of_denoising | {"train.init_from": str(language_model_workdir)}
    workdir = tmp_path_factory.mktemp("adapted") / "run"
    tj.train(tj.config("quickstart", changes), workdir)
    return tj.load(workdir)


def test_it_computes_what_the_decoder_did(adapted, language_model):
    """Whatever the source is, the new cross-attention adds nothing."""
    vocab_size = language_model.model.config.vocab_size
    tokens = np.random.default_rng(0).integers(4, vocab_size, (2, 7))
    expected = apply(language_model.model, {"params": language_model.params}, tokens)
    for source in (tokens[:, ::-1], np.zeros_like(tokens)):
        logits = apply(adapted.model, {"params": adapted.params}, source, target=tokens)
        np.testing.assert_allclose(logits, expected, atol=1e-6)


def fresh(language_model, architecture, **changes):
    """Fresh parameters of another model with the language model's options."""
    config = language_model.model.config
    sizes = {"source_vocab_size": config.vocab_size, "target_vocab_size": config.vocab_size}
    depth = {"num_encoder_layers": config.num_layers, "num_decoder_layers": config.num_layers}
    config = dataclasses.replace(config, architecture=architecture, **(sizes | depth | changes))
    model = MODELS[architecture](config)
    tokens = np.ones((1, 3), np.int32)
    return jax.jit(model.init)(jax.random.key(1), tokens, target=tokens)["params"]


def test_an_encoder_has_the_layers_of_the_decoder(language_model, language_model_workdir):
    config = dataclasses.replace(language_model.model.config, architecture="encoder_only")
    tokens = np.ones((1, 3), np.int32)
    new = jax.jit(MODELS["encoder_only"](config).init)(jax.random.key(1), tokens)["params"]
    loaded = named_leaves(WarmStart(new, language_model_workdir).load(new))
    saved = named_leaves(language_model.params)
    heads = {name for name in loaded if name.startswith("prediction_head/")}
    for name in {*loaded} - heads:
        np.testing.assert_array_equal(loaded[name], saved[name.replace("encoder", "decoder")])
    assert {name.replace("encoder", "decoder") for name in {*loaded} - heads} == {*saved}


def test_merged_attention_has_the_parameters_of_the_decoder(language_model, language_model_workdir):
    """Without a source token it computes what the decoder did."""
    new = fresh(language_model, "encoder_decoder", block="merged")
    params = WarmStart(new, language_model_workdir).load(new)
    assert not any("cross_attention" in name for name in named_leaves(params))
    config = dataclasses.replace(
        language_model.model.config,
        block="merged",
        num_encoder_layers=1,
        num_decoder_layers=1,
        source_vocab_size=language_model.model.config.vocab_size,
        target_vocab_size=language_model.model.config.vocab_size,
    )
    model = MODELS["encoder_decoder"](config)
    tokens = np.random.default_rng(0).integers(4, config.vocab_size, (2, 7))
    expected = apply(language_model.model, {"params": language_model.params}, tokens)
    empty = np.zeros_like(tokens)
    logits = apply(model, {"params": params}, tokens, empty, empty, target=tokens)
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    logits = apply(model, {"params": params}, tokens, target=tokens)
    assert np.abs(logits - expected).max() > 1e-3
