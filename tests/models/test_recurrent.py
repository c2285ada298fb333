# SPDX-License-Identifier: Apache-2.0
"""Recurrent encoder-decoders equal their papers' equations; packed, cached and reversed results
are consistent."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.test_encoder_decoder import PACKED, PADDED, SOURCES, TARGETS, together
from tests.nn.recurrent import recurrent_oracle as oracle
from tests.refusals import assert_refused
from transformer_jax.models import recurrent
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.patches import find_hook_points, patched_model
from transformer_jax.models.recurrent import RecurrentEncoderDecoder

CONFIG = ModelConfig(
    **{"architecture": "recurrent", "d_model": 8, "num_heads": 1, "positions": "none"},
    **{"num_encoder_layers": 2, "num_decoder_layers": 2, "dtype": "float32"},
    **{"source_vocab_size": 11, "target_vocab_size": 11},
)
SHALLOW = {"num_encoder_layers": 1, "num_decoder_layers": 1}
SIDES = ("source", "target")
KINDS = {
    "bahdanau": {"cell": "gru"},
    "luong": {"attention_score": "general", "attention_span": "local_p"}
    | {"input_feeding": True, "encoder_direction": "forward"},
    "dot": {"attention_score": "dot", "cell": "gru", **SHALLOW},
    "concat": {"attention_score": "concat", **SHALLOW},
    "sutskever": {"attention_score": "none", "encoder_direction": "backward"},
}
"""Every cell, direction and score, and attention at each of its three places."""


@pytest.fixture(scope="module", autouse=True)
def radius():
    """A radius of local attention that is shorter than the sentences here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent, "RADIUS", 2)
        yield


@pytest.fixture(scope="module", params=KINDS)
def kind(request, random_params, radius):
    """A model, its options and parameters, and its logits of `together()`."""
    model = RecurrentEncoderDecoder(dataclasses.replace(CONFIG, **KINDS[request.param]))
    drawn = random_params(model, **PACKED)
    return model, KINDS[request.param], drawn, jax.jit(model.apply)(drawn, **together())


def test_logits_equal_the_papers_equations_packed_or_padded(kind):
    _, options, drawn, (packed, *padded) = kind
    defaults = {"cell": CONFIG.cell, "attention_score": CONFIG.attention_score}
    names = ("cell", "attention_score", "input_feeding")
    told = {name: options[name] for name in names if name in options}
    told["radius"] = recurrent.RADIUS if "attention_span" in options else None
    params = jax.tree.map(np.asarray, drawn["params"])
    for row, at, source, target in zip(padded, (0, 4), SOURCES, TARGETS, strict=True):
        expected, _ = oracle.logits(params, source, target, **defaults | told)
        count = len(target)
        np.testing.assert_allclose(row[:count], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(packed[at : at + count], expected, rtol=1e-4, atol=1e-5)


def test_cached_decoding_equals_the_full_forward_pass(kind):
    model, _, drawn, (_, *full) = kind
    lengths, sizes = np.array([2, 1]), np.array([len(source) for source in SOURCES])
    prompt = np.array([[2, 5], [2, 10]])  # the last token is padding
    sides = (PADDED["source"], sizes, prompt, lengths)
    pairs = [*zip(TARGETS, lengths, strict=True)]
    following = np.array([[row[length + step] for row, length in pairs] for step in range(2)])

    @jax.jit
    def decoded(variables):
        first, memory, state = model.apply(variables, *sides, max_length=9, method="prefill")

        def step(state, tokens):  # the second one reads the state of the first
            return model.apply(variables, tokens, memory, state, method="decode_step")[::-1]

        state, others = jax.lax.scan(step, state, following)
        return [first, *others], state

    found, state = decoded(drawn)
    for step, logits in enumerate(found):
        for row, length in enumerate(lengths):
            expected = full[row][length + step - 1]
            np.testing.assert_allclose(logits[row], expected, rtol=1e-4, atol=1e-5)
    # A search reorders rows of the state with their hypotheses.
    assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {2}


def test_state_bytes_are_those_of_the_state(kind):
    model, _, drawn, _ = kind
    row = jnp.ones((1, 1), jnp.int32)
    sides = (row, row[0], row, row[0], 5)
    *_, state = jax.eval_shape(lambda: model.apply(drawn, *sides, method="prefill"))
    assert model.state_bytes(5) == sum(4 * leaf.size for leaf in jax.tree.leaves(state))


def test_reading_backward_equals_reading_the_reversed_source(random_params):
    """Sutskever et al. 2014, section 3.3; each sentence of a packed row by itself."""
    backward, forward = (
        RecurrentEncoderDecoder(
            dataclasses.replace(CONFIG, attention_score="none", encoder_direction=direction)
        )
        for direction in ("backward", "forward")
    )
    drawn = random_params(backward, **PACKED)
    encoder = {
        name: {"forward": layer["backward"]} for name, layer in drawn["params"]["encoder"].items()
    }
    renamed = {"params": {**drawn["params"], "encoder": encoder}}
    turned = PACKED | {"source": np.array([[6, 5, 4, 3, 8, 7, 0]])}
    found, expected = apply(backward, drawn, **PACKED), apply(forward, renamed, **turned)
    np.testing.assert_allclose(found[0, :7], expected[0, :7], rtol=1e-5, atol=1e-6)
    assert np.abs(found - apply(forward, renamed, **PACKED)).max() > 0.1


def test_gradients_to_later_tokens_and_other_sentences_are_zero(random_params):
    """d logits[t] / d embedding is exactly zero for masked tokens and nonzero for visible ones."""
    tied = dataclasses.replace(CONFIG, attention_score="concat", tie_embeddings="none")
    model = RecurrentEncoderDecoder(tied)
    # Each token has its own row of the table.
    batch = PACKED | {"source": np.arange(7)[None], "target": np.arange(9)[None]}
    params = random_params(model, **batch)["params"]

    def outputs(tables):
        own = {side: {"table": table} for side, table in tables.items()}
        return model.apply({"params": {**params, **own}}, **batch)[0].sum(-1)  # [T]

    tables = {f"{side}_embedding": params[f"{side}_embedding"]["table"] for side in SIDES}
    jacobian = jax.jit(jax.jacrev(outputs))(tables)
    reaches = {name: np.abs(x).max(-1) > 0 for name, x in jacobian.items()}
    same = PACKED["target_segment_ids"][0][:, None]
    past = np.tri(9, 11, dtype=bool) & (same == np.pad(same[:, 0], (0, 2))[None])
    source_ids = np.pad(PACKED["source_segment_ids"][0], (0, 4))
    np.testing.assert_array_equal(reaches["target_embedding"][:7], past[:7])
    np.testing.assert_array_equal(reaches["source_embedding"][:7], (same == source_ids)[:7])


def test_conflicting_options_are_refused():
    def init(**options):
        model = RecurrentEncoderDecoder(dataclasses.replace(CONFIG, **options))
        return lambda: jax.eval_shape(model.init, jax.random.key(0), **PACKED)

    none = functools.partial(init, attention_score="none")
    assert_refused(
        {
            "attention_score 'additive' has no vector to feed": init(input_feeding=True),
            "'none' has no vector to feed": none(input_feeding=True),
            "'none' has no attention": none(attention_span="local_p"),
            "d_model is 7; it must be even": init(d_model=7),
            "num_decoder_layers is 3 and num_encoder_layers 2": init(num_decoder_layers=3),
            "cell is 'sru', not one of lstm, gru": init(cell="sru"),
            "needs one joint vocabulary": init(source_vocab_size=12),
        }
    )


def test_a_pattern_leaves_out_the_weights_that_cannot_be_changed(random_params):
    """They are a hook point to look at; "**" matches it, too."""
    model = RecurrentEncoderDecoder(dataclasses.replace(CONFIG, **KINDS["dot"]))
    points = find_hook_points(lambda key: model.init(key, **PACKED))
    patched, drawn = patched_model(model, {"**": 1.0}, points), random_params(model, **PACKED)
    found, logits = (apply(one, drawn, **PACKED) for one in (patched, model))
    np.testing.assert_allclose(found, logits, rtol=1e-5, atol=1e-6)
