# SPDX-License-Identifier: Apache-2.0
"""Loads and changes the committed fixtures: tiny models written by transformers."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from transformer_jax.checkpoints.step_folder import fill, named_leaves
from transformer_jax.interop.config_json import find_family, read_json
from transformer_jax.interop.family_match import default_model
from transformer_jax.interop.weights import WEIGHTS, Tensors, match_tensors, save_tensors
from transformer_jax.models import MODELS

FIXTURES = Path(__file__).parent / "fixtures"
TRANSLATORS = ["marian", "marian_separate", "bart", "mbart", "pegasus", "t5", "t5_v1_1", "t5gemma"]
DECODERS = ["gpt2", "gpt2_bare", "llama", "llama3", "llama_linear", "mistral", "qwen2", "qwen3"]
DECODERS += ["gemma2", "gemma3", "phi3", "mixtral", "qwen3_moe", "deepseek_v2"]
ENCODERS = ["bert", "bert_gamma", "bert_pretraining", "roberta", "distilbert"]
ENCODERS += ["roberta_prelayernorm", "xlm_roberta", "camembert", "modernbert"]
BARE = ["bart_bare"]
"""Encoder-decoders without a head; transformers gives no logits."""


@functools.cache
def published(name):
    """(family, model, params, matched tensors) of a fixture."""
    directory = FIXTURES / name
    keys = read_json(directory / "config.json")
    family, _ = find_family(keys)
    sizes = {"vocab_size": keys["vocab_size"]}
    if family.architecture == "encoder_decoder":
        target = keys.get("decoder_vocab_size", keys["vocab_size"])
        sizes = {"source_vocab_size": keys["vocab_size"], "target_vocab_size": target}
    config = default_model(family.options(keys))
    model = MODELS[family.architecture](dataclasses.replace(config, dtype="float32", **sizes))
    inputs = [jnp.ones((1, 2), jnp.int32)] * (6 if len(sizes) > 1 else 3)
    if family.architecture == "encoder_only":
        inputs.append(inputs[0])
    abstract = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    leaves = named_leaves(abstract)
    found = match_tensors(family, model.config, leaves, Tensors(directory))
    arrays = {
        path: jnp.zeros(leaf.shape)
        if path in found.new
        else jnp.asarray(found.read(path, leaf.shape))
        for path, leaf in leaves.items()
    }
    return family, model, fill(abstract, arrays), found


SAME = {"gpt2_bare": "gpt2", "bert_gamma": "bert"}
"""Older files of a model -> the fixture with its expected numbers."""


def changed_copy(parent, name, keys=(), tensors=(), generation=()):
    """Copies a fixture with other keys of config.json and generation_config.json and other tensors;
    the value ... removes one."""
    directory = shutil.copytree(FIXTURES / name, parent / name)
    for file, changes in {"config.json": keys, "generation_config.json": generation}.items():
        if changes:
            content = read_json(directory / file) | dict(changes)
            content = {key: value for key, value in content.items() if value is not ...}
            (directory / file).write_text(json.dumps(content))
    if tensors:
        arrays = load_file(directory / WEIGHTS) | dict(tensors)
        arrays = {name: array for name, array in arrays.items() if array is not ...}
        save_tensors(arrays, directory / WEIGHTS)
    return directory


def expected(name):
    return dict(np.load(FIXTURES / SAME.get(name, name) / "expected.npz"))


def banned_tokens(name):
    """Tokens that the reference never generated."""
    return json.loads((FIXTURES / name / "expected.json").read_text())["banned"]


def without_padding(rows):
    """Tokens of stored outputs, which are filled with -1."""
    return [row[row >= 0].tolist() for row in rows]


def padded(rows, pad):
    """(tokens, positions, segment ids) of right-padded rows."""
    width = max(map(len, rows))
    tokens = np.array([row + [pad] * (width - len(row)) for row in rows])
    places = np.broadcast_to(np.arange(width), tokens.shape)
    return tokens, places, (places < np.array([[len(row)] for row in rows])).astype(np.int32)
