# SPDX-License-Identifier: Apache-2.0
"""Warm starts load the parameters that both runs have, and log the others; encoders and
encoder-decoders start from a decoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.compiled import apply
from tests.refusals import assert_refused
from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.checkpoints.warm_start import WarmStart
from transformer_jax.models import MODELS


def warm_start(params, workdir, own_target=False):
    return WarmStart(params, workdir, own_target).load(params)


def assert_starts_from(workdir, params):
    """Parameters of another model that are all zero become these from that run."""
    loaded = warm_start(jax.tree.map(jnp.zeros_like, params), workdir)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


@pytest.fixture
def fresh(trained):
    """Parameters with the shapes of the trained run, all zero."""
    return jax.tree.map(np.zeros_like, trained.params)


def test_common_parameters_are_loaded(trained, trained_workdir, fresh, caplog):
    caplog.set_level("INFO")
    loaded = warm_start(fresh, trained_workdir)
    jax.tree.map(np.testing.assert_array_equal, loaded, trained.params)
    count = len(named_leaves(fresh))
    assert f"{count} of {count} parameter arrays loaded from {trained_workdir}" in caplog.text
    assert "new" not in caplog.text and "not in this model" not in caplog.text


def test_parameters_are_read_onto_their_shapes(trained, trained_workdir):
    """Fresh values of the parameters that are replaced need not exist."""
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), trained.params
    )
    abstract["head"] = jax.ShapeDtypeStruct((3,), jnp.float32)
    start = WarmStart(abstract, trained_workdir)
    assert start.replaced == {*named_leaves(abstract)} - {"head"}
    loaded = start.load(abstract | {"head": np.ones(3, np.float32)})
    assert loaded.pop("head").sum() == 3
    jax.tree.map(np.testing.assert_array_equal, loaded, trained.params)


def test_new_and_unused_parameters_are_logged(trained, trained_workdir, fresh, caplog):
    caplog.set_level("INFO")
    decoder = fresh.pop("decoder")
    fresh["head"] = {"kernel": np.full((3, 3), 7.0, np.float32)}
    loaded = warm_start(fresh, trained_workdir)
    np.testing.assert_array_equal(loaded["head"]["kernel"], fresh["head"]["kernel"])
    jax.tree.map(np.testing.assert_array_equal, loaded["encoder"], trained.params["encoder"])
    assert "new, with fresh values: head/kernel" in caplog.text
    assert "there, but not in this model: decoder/" in caplog.text
    more = len(named_leaves(decoder)) - 8
    assert f" and {more} more" in caplog.text


def test_wrong_shapes_are_listed(trained_workdir, fresh):
    """The first of many."""
    misshapen = jax.tree.map(lambda leaf: np.zeros((5, 5), np.float32), fresh)
    first, second = list(named_leaves(fresh))[:2]
    words = rf"{first} is saved as .*{second} is saved as .*\[5, 5\].*; and [0-9]+ more"
    with pytest.raises(tj.UserError, match=words) as caught:
        warm_start(misshapen, trained_workdir)
    assert len(str(caught.value)) < 1000


def test_a_vocabulary_may_be_padded_to_another_size(trained_workdir, fresh):
    table = np.asarray(warm_start(fresh, trained_workdir)["target_embedding"]["table"])
    fresh["target_embedding"]["table"] = jnp.ones((len(table) + 3, table.shape[1]))
    padded = np.asarray(warm_start(fresh, trained_workdir)["target_embedding"]["table"])
    np.testing.assert_array_equal(padded, np.pad(table, ((0, 3), (0, 0))))
    fresh["target_embedding"]["table"] = jnp.ones((len(table) - 1, table.shape[1]))
    words = f"target_embedding/table has {len(table)} rows and the model {len(table) - 1}"
    assert_refused({words: lambda: warm_start(fresh, trained_workdir)})


def test_one_table_of_sources_and_targets_starts_from_that_of_an_encoder(classifier):
    saved = {"target_embedding": classifier.params["embedding"]}
    saved["encoder"] = classifier.params["encoder"]
    assert_starts_from(classifier.workdir, saved)


def test_one_table_of_both_sides_serves_those_of_a_model_with_two(trained, trained_workdir, fresh):
    """As of a parser that starts from a T5; its trees have tokens of their own."""
    table = trained.params["target_embedding"]["table"]
    two = fresh | {"source_embedding": {"table": np.zeros_like(table)}}
    loaded = warm_start(two, trained_workdir)
    np.testing.assert_array_equal(loaded["source_embedding"]["table"], table)
    np.testing.assert_array_equal(loaded["target_embedding"]["table"], table)
    trees = np.ones((table.shape[0] + 3, table.shape[1]), table.dtype)
    two["target_embedding"] = {"table": trees}
    loaded = warm_start(two, trained_workdir, own_target=True)
    np.testing.assert_array_equal(loaded["source_embedding"]["table"], table)
    np.testing.assert_array_equal(loaded["target_embedding"]["table"], trees)


def test_positions_and_norm_of_an_encoder_serve_those_of_sources(classifier):
    """Its first token type is part of what it adds to an embedding; longer rows get new ones."""
    saved = classifier.params["input"]
    positions = saved["positions"]["table"] + saved["token_types"][0]
    padded = np.pad(positions, ((0, 3), (0, 0)))
    expected = {"source_norm": saved["norm"], "source_positions": {"table": padded}}
    assert_starts_from(classifier.workdir, expected)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_model_of_one_stack_starts_from_that_of_both(trained, trained_workdir, stack):
    """As a classifier from a T5."""
    embedding = trained.params["target_embedding"]
    assert_starts_from(trained_workdir, {stack: trained.params[stack], "embedding": embedding})


def test_a_run_with_nothing_in_common_is_refused(trained_workdir, tmp_path):
    other = {"other": np.zeros(3, np.float32)}
    assert_refused(
        {
            "has no parameter of this model": lambda: warm_start(other, trained_workdir),
            "no checkpoint in": lambda: warm_start(other, tmp_path),
        }
    )


# --- From a decoder ---


@pytest.fixture(scope="module")
def of_decoder(language_model):
    """Tokens, and the logits that the language model gives them."""
    tokens = np.random.default_rng(0).integers(4, language_model.model.config.vocab_size, (2, 7))
    return tokens, apply(language_model.model, {"params": language_model.params}, tokens)


def test_an_encoder_decoder_computes_what_the_decoder_did(
    tmp_path, tiny_language_model, language_model_workdir, of_decoder
):
    """Whatever the source is, the new cross-attention adds nothing. It learns prefix language
    modeling in a step that changes next to nothing."""
    changes = {k: v for k, v in tiny_language_model.items() if k != "model.num_layers"}
    changes |= {"model.architecture": "encoder_decoder", "model.num_encoder_layers": 1}
    changes |= {"model.num_decoder_layers": 1, "train.num_steps": 1}
    changes |= {"task.name": "denoising", "task.objective": "prefix_lm"}
    changes |= {"optimizer.learning_rate": 1e-12, "train.init_from": str(language_model_workdir)}
    adapted = tj.train(tj.config("quickstart", changes), tmp_path / "run")
    tokens, expected = of_decoder
    for source in (tokens[:, ::-1], np.zeros_like(tokens)):
        logits = apply(adapted.model, {"params": adapted.params}, source, target=tokens)
        np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_an_encoder_has_the_layers_of_the_decoder(language_model):
    config = dataclasses.replace(language_model.model.config, architecture="encoder_only")
    tokens = np.ones((1, 3), np.int32)
    new = jax.jit(MODELS["encoder_only"](config).init)(jax.random.key(1), tokens)["params"]
    loaded = named_leaves(warm_start(new, language_model.workdir))
    renamed = {
        name.replace("encoder", "decoder"): leaf
        for name, leaf in loaded.items()
        if not name.startswith("prediction_head/")
    }
    jax.tree.map(np.testing.assert_array_equal, renamed, named_leaves(language_model.params))


def test_merged_attention_has_the_parameters_of_the_decoder(language_model, of_decoder):
    """Without a source token it computes what the decoder did."""
    vocab_size = language_model.model.config.vocab_size
    config = dataclasses.replace(
        language_model.model.config,
        architecture="encoder_decoder",
        block="merged",
        num_encoder_layers=1,
        num_decoder_layers=1,
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
    )
    model = MODELS["encoder_decoder"](config)
    tokens, expected = of_decoder
    new = jax.jit(model.init)(jax.random.key(1), tokens, target=tokens)["params"]
    params = warm_start(new, language_model.workdir)
    assert not any("cross_attention" in name for name in named_leaves(params))
    empty = np.zeros_like(tokens)
    logits = apply(model, {"params": params}, tokens, empty, empty, target=tokens)
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    logits = apply(model, {"params": params}, tokens, target=tokens)
    assert np.abs(logits - expected).max() > 1e-3
