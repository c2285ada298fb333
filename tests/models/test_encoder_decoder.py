# SPDX-License-Identifier: Apache-2.0
"""The Transformer equals the paper's formulas; cached and packed results are consistent."""

import dataclasses
import functools
import math
from functools import partial

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.formulas import stack
from tests.models.texts import small_config
from tests.refusals import assert_refused
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.layers import count_parameters
from transformer_jax.nn.transformer import BLOCKS, MergedBlock

CONFIG = small_config()
DEEP = {"num_encoder_layers": 2, "num_decoder_layers": 2, "norm_placement": "pre"}
SOURCES = [[3, 4, 5, 6], [7, 8]]
TARGETS = [[2, 5, 6, 7], [2, 9, 10]]  # after BOS

# One row with both pairs, and padding in both source and target.
PACKED = {
    "source": np.array([[3, 4, 5, 6, 7, 8, 0]]),
    "source_positions": np.array([[0, 1, 2, 3, 0, 1, 0]]),
    "source_segment_ids": np.array([[1, 1, 1, 1, 2, 2, 0]]),
    "target": np.array([[2, 5, 6, 7, 2, 9, 10, 0, 0]]),
    "target_positions": np.array([[0, 1, 2, 3, 0, 1, 2, 0, 0]]),
    "target_segment_ids": np.array([[1, 1, 1, 1, 2, 2, 2, 0, 0]]),
}


def padded(sources, targets):
    """One pair in each row, padded with 0."""
    batch = {}
    for feature, rows in (("source", sources), ("target", targets)):
        width = max(map(len, rows))
        tokens = np.array([row + [0] * (width - len(row)) for row in rows])
        batch[feature] = tokens
        batch[f"{feature}_positions"] = np.tile(np.arange(width), (len(rows), 1))
        batch[f"{feature}_segment_ids"] = np.array(
            [[int(i < len(row)) for i in range(width)] for row in rows]
        )
    return batch


PADDED = padded(SOURCES, TARGETS)
CONTINUED = [[2, 5, 6, 7], [2, 9, 10, 4]]
"""The targets, with another token of the shorter one."""


def together():
    """Row 0 has both pairs, rows 1 and 2 have one each, with the continued targets."""
    batch = {}
    for name, rows in padded(SOURCES, CONTINUED).items():
        missing = PACKED[name].shape[1] - rows.shape[1]
        batch[name] = np.concatenate([PACKED[name], np.pad(rows, ((0, 0), (0, missing)))])
    return batch


close = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def build(random_params):
    """`build(**changes)`: a model and random parameters, the same for the same changes."""

    @functools.cache
    def build(**changes):
        model = EncoderDecoder(dataclasses.replace(CONFIG, **changes))
        return model, random_params(model, **PADDED)

    return build


# --- The paper's formulas, one sentence at a time.


def embedded(table, tokens):
    """Embeddings times sqrt(d_model), plus interleaved sines and cosines."""
    d_model = table.shape[-1]
    angles = [
        [p / 10_000 ** (i // 2 * 2 / d_model) for i in range(d_model)] for p in range(len(tokens))
    ]
    waves = np.where(np.arange(d_model) % 2 == 0, np.sin(angles), np.cos(angles))
    return math.sqrt(d_model) * table[tokens] + waves


TABLES = {
    "all": ("target_embedding", "target_embedding", "target_embedding"),
    "target": ("source_embedding", "target_embedding", "target_embedding"),
    "none": ("source_embedding", "target_embedding", "projection"),
}
"""The matrix for source tokens, target tokens and logits (section 3.4)."""


def written_out(config, params, source, target):
    tables = [params[name]["table"] for name in TABLES[config.tie_embeddings]]
    encoded = stack(config.norm_placement, params["encoder"], embedded(tables[0], source))
    inputs = embedded(tables[1], target)
    decoded = stack(config.norm_placement, params["decoder"], inputs, encoded, causal=True)
    return decoded @ tables[2].T


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {**DEEP, "tie_embeddings": "none"},
        {"norm_placement": "sandwich"},
        {"block": "merged", "norm_placement": "pre"},
    ],
)
def test_logits_are_those_of_the_formulas(build, changes):
    model, variables = build(**changes)
    logits = model.apply(variables, **PADDED)
    assert logits.shape == (2, 4, 11) and logits.dtype == jnp.float32
    for row, source, target in zip(logits, SOURCES, TARGETS, strict=True):
        expected = written_out(model.config, variables["params"], source, target)
        close(row[: len(target)], expected)


class ByName(MergedBlock):
    def __call__(self, stream, sequences, memory, deterministic, cache=None):
        named = {"memory": memory, "deterministic": deterministic, "cache": cache}
        return super().__call__(stream, sequences, **named)


def test_a_block_of_a_user_may_name_the_arguments_of_a_merged_block(build, with_entries):
    model, variables = build(block="merged")
    with_entries(BLOCKS, {"by_name": ByName})
    by_name = EncoderDecoder(dataclasses.replace(model.config, block="by_name"))
    close(apply(by_name, variables, **PADDED), apply(model, variables, **PADDED))


# --- Tying, sizes and names of parameters.


def parameter_count(config, **changes):
    model = EncoderDecoder(dataclasses.replace(config, **changes))
    return count_parameters(jax.eval_shape(model.init, jax.random.key(0), **PADDED))


@pytest.mark.parametrize(
    ("d_model", "d_ff", "num_heads", "in_the_paper"),
    [(512, 2048, 8, 65e6), (1024, 4096, 16, 213e6)],
)
def test_parameters_of_the_papers_models(d_model, d_ff, num_heads, in_the_paper):
    """Table 3 has 65 and 213 million, but not how they are counted: 3.5% either way are allowed."""
    vocab_size, num_layers = 37_000, 6
    attention = 4 * d_model * d_model  # W^Q, W^K, W^V and W^O of all heads
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    expected = vocab_size * d_model + num_layers * (encoder_layer + decoder_layer)
    sizes = {"d_model": d_model, "d_ff": d_ff, "num_heads": num_heads}
    sizes |= {"source_vocab_size": vocab_size, "target_vocab_size": vocab_size}
    count = parameter_count(TransformerConfig(**sizes))
    assert count == expected
    assert count == pytest.approx(in_the_paper, rel=0.035)


def test_untied_embeddings_are_separate_tables(build):
    table = 11 * 16
    tied = parameter_count(CONFIG)
    assert parameter_count(CONFIG, tie_embeddings="target") == tied + table
    assert parameter_count(CONFIG, tie_embeddings="none") == tied + 2 * table
    for tying, tables in TABLES.items():
        params = build(tie_embeddings=tying)[1]["params"]
        assert {name for name in params if "table" in params[name]} == set(tables)


def test_tables_and_biases_have_the_sizes_of_their_vocabularies(build):
    params = build(source_vocab_size=20, tie_embeddings="target")[1]["params"]
    assert params["source_embedding"]["table"].shape == (20, 16)
    assert params["target_embedding"]["table"].shape == (11, 16)
    padded_bias = build(logits_bias=True, vocab_multiple=8)[1]["params"]["logits_bias"]
    assert padded_bias.shape == (16,)
    assert_refused(
        {
            "tie_embeddings 'all' needs one joint": partial(build, source_vocab_size=20),
            "positions is 'round', not one of none": partial(build, positions="round"),
        }
    )


def test_paths_of_parameters(build):
    """Checkpoints and sharding rules depend on parameter paths."""
    leaves = jax.tree_util.tree_leaves_with_path(build(**DEEP)[1]["params"])
    paths = {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves}
    attention = {f"{name}/kernel" for name in ("query", "key", "value", "output")}
    layer = {f"self_attention/{name}" for name in attention}
    layer |= {
        f"feed_forward/{name}/{leaf}" for name in ("inner", "outer") for leaf in ("kernel", "bias")
    }
    norm = {"norm_before/scale", "norm_before/bias"}
    layer |= {
        f"{part}_residual/{name}" for part in ("self_attention", "feed_forward") for name in norm
    }
    cross = {f"cross_attention/{name}" for name in attention}
    cross |= {f"cross_attention_residual/{name}" for name in norm}
    expected = {"target_embedding/table"}
    for side, parts in (("encoder", layer), ("decoder", layer | cross)):
        expected |= {f"{side}/layer_{i}/{name}" for i in range(2) for name in parts}
        expected |= {f"{side}/final_norm/scale", f"{side}/final_norm/bias"}
    assert paths == expected


# --- Decoding token by token.


@pytest.mark.parametrize("changes", [{}, {"block": "merged"}])
def test_beams_share_the_memory_of_their_sentence(build, changes):
    model, variables = build(**changes)
    targets = np.array([[2, 5, 6, 7], [2, 8, 9, 3], [2, 9, 10, 3], [2, 4, 4, 5]])  # [B x beams, T]
    batch = padded([SOURCES[i] for i in (0, 0, 1, 1)], targets.tolist())
    full = apply(model, variables, **batch)
    inputs = (PADDED["source"], np.array([4, 2]), np.full((2, 1), 2), np.array([1, 1]), 6)
    logits, memory, state = apply(model, variables, *inputs, method="prefill")
    step = jax.jit(partial(model.apply, method="decode_step"))
    close(np.repeat(logits, 2, 0), full[:, 0])
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=0), state)
    for t in range(1, 4):
        logits, state = step(variables, targets[:, t], memory, state)
        close(logits, full[:, t])
    assert {leaf.shape[0] for leaf in jax.tree.leaves(memory)} == {2}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(state)} == {4}


# --- Masks.


def test_gradients_to_masked_tokens_are_zero(build):
    """d logits[t] / d embedding is exactly zero for masked tokens and nonzero for visible ones."""
    model, variables = build(positions="rotary", tie_embeddings="none")
    direction = np.random.default_rng(1).normal(size=11).astype(np.float32)

    def outputs(shifts):
        def shift(next_fun, args, kwargs, context):
            y = next_fun(*args, **kwargs)
            is_embedding = context.method_name == "embed"
            return y + shifts.get(context.module.name, 0) if is_embedding else y

        with nn.intercept_methods(shift):
            return model.apply(variables, **PACKED)[0] @ direction

    zeros = {"source_embedding": np.zeros((7, 16)), "target_embedding": np.zeros((9, 16))}
    jacobian = jax.jit(jax.jacrev(outputs))(jax.tree.map(jnp.float32, zeros))
    sees = {
        name: ["".join(str(int(any_nonzero)) for any_nonzero in row) for row in np.any(x, axis=-1)]
        for name, x in jacobian.items()
    }
    of_target = "100000000 110000000 111000000 111100000 000010000 000011000 000011100"
    of_target += " 000000010 000000001"  # padding sees itself, by the residual
    assert sees["target_embedding"] == of_target.split()
    assert sees["source_embedding"] == ["1111000"] * 4 + ["0000110"] * 3 + ["0000000"] * 2


def test_weights_of_every_layer_are_sown_on_request(build):
    model, variables = build(**DEEP, tie_embeddings="none")
    _, state = apply(model, variables, **PACKED, mutable="intermediates")
    kept = state["intermediates"]
    own = np.array([[1, 1, 1, 1, 1, 1, 0]])  # rows of padding have no key and sum to 0
    own_target = np.array([[1, 1, 1, 1, 1, 1, 1, 0, 0]])
    for i in range(2):
        encoder, decoder = kept["encoder"][f"layer_{i}"], kept["decoder"][f"layer_{i}"]
        for attention, sums, shape in (
            (encoder["self_attention"], own, (1, 4, 7, 7)),
            (decoder["self_attention"], own_target, (1, 4, 9, 9)),
            (decoder["cross_attention"], own_target, (1, 4, 9, 7)),
        ):
            (weights,) = attention["weights"]
            assert weights.shape == shape
            expected = np.broadcast_to(sums[:, None], shape[:-1])
            np.testing.assert_allclose(weights.sum(-1), expected, atol=1e-5)


# --- Dropout and bfloat16.


@pytest.mark.parametrize(
    "rates", [{"dropout_rate": 0.5}, {"dropout_rate": 0.0, "embedding_dropout_rate": 0.5}]
)
def test_dropout_acts_on_embeddings_plus_positions(build, rates):
    model, variables = build(**rates)
    entered = {}

    def watch(next_fun, args, kwargs, context):
        if context.method_name == "__call__" and context.module.name in ("encoder", "decoder"):
            entered[context.module.name] = np.asarray(args[0])
        return next_fun(*args, **kwargs)

    with nn.intercept_methods(watch):
        model.apply(variables, **PADDED, deterministic=False, rngs={"dropout": jax.random.key(0)})
    table = variables["params"]["target_embedding"]["table"]
    for side, sentence in (("encoder", SOURCES[0]), ("decoder", TARGETS[0])):
        x, whole = entered[side][0], embedded(table, sentence)
        assert 0.25 < np.mean(x == 0) < 0.75
        np.testing.assert_allclose(x, np.where(x == 0, 0, 2 * whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", ["", "embedding_", "attention_", "feed_forward_"])
def test_each_dropout_rate_acts(build, place):
    model, variables = build(**{"dropout_rate": 0.0, f"{place}dropout_rate": 0.5})

    def dropped(**options):
        return model.apply(variables, **PADDED, deterministic=False, **options)

    one, same, other = (dropped(rngs={"dropout": jax.random.key(seed)}) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    with pytest.raises(flax.errors.InvalidRngError):
        dropped()
