# SPDX-License-Identifier: Apache-2.0
"""Meshes, and the shardings of rows, parameters and optimizer state."""

from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from tests.refusals import assert_refused
from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.nn import parameters
from transformer_jax.nn.parameters import parameters_at
from transformer_jax.parallel import sharding
from transformer_jax.parallel.sharding import ParallelConfig, make_mesh
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import DEFAULTS, Resolved

SLICES = [SimpleNamespace(slice_index=i // 4, process_index=0) for i in range(8)]


def test_axes_that_do_not_fit_the_devices_name_sizes_that_do():
    axes = {
        "sequence 8 must divide each of 2 slices of ": ParallelConfig(sequence=8),
        "fsdp 3 cannot divide the 8 devices": ParallelConfig(fsdp=3),
        "one of 1, 2, 4, 8": ParallelConfig(fsdp=3),
        "expert 4 x sequence 4 cannot divide the 8 devices": ParallelConfig(sequence=4, expert=4),
        "data 2 x tensor 2 has 4 devices; ": ParallelConfig(data=2, tensor=2),
        "set data to 4 or none": ParallelConfig(data=2, tensor=2),
        "the mesh data 1 has 1 devices; here are 8: set data to 8": ParallelConfig(data=1),
        "has 16 devices; here are 8: set data to 8": ParallelConfig(data=16),
    }
    assert_refused({words: partial(make_mesh, sizes, SLICES) for words, sizes in axes.items()})


MODELS = [
    ("translation", "encoder_decoder"),
    ("language_modeling", "decoder_only"),
    ("masked_lm", "encoder_only"),
    ("classification", "encoder_only"),
    ("classification", "decoder_only"),
    ("tagging", "encoder_only"),
]
VARIANTS = [
    {},
    {"attention_bias": "all", "norm_placement": "sandwich", "positions": "learned"}
    | {"embedding_norm": True},
    {"attention_bias": "output", "norm_placement": "post", "tie_embeddings": "none"},
    {"positions": "relative", "norm": "rms", "gated_feed_forward": True}
    | {"tie_embeddings": "target"},
    {"positions": "t5", "num_key_value_heads": 1, "attention_bias": "qkv", "qk_norm": True},
    {"positions": "deberta", "attention_bias": "all", "logits_bias": True}
    | {"norm": "rms_plus_one"},
]
# What the other models name themselves, as they have the layers of the first.
OF_OTHERS = {"positions": "learned", "embedding_norm": True, "logits_bias": True}
OF_OTHERS |= {"num_token_types": 2, "tie_embeddings": "none"}


@pytest.fixture
def params_of(tiny_config):
    """Function that makes abstract parameters for a task, an architecture and changed options."""

    def make(kind, changes):
        model = {f"model.{name}": value for name, value in changes.items()}
        model |= dict(zip(("task.name", "model.architecture"), kind, strict=True))
        if kind[0] == "masked_lm":
            model["tokenizer.kind"] = "wordpiece"
        unread = Resolved.of(DEFAULTS | model).unread
        model = {name: value for name, value in model.items() if name not in unread}
        sizes = dict.fromkeys(("source", "target", "text", "label", "tags"), 48)
        task = build.build_task(read_settings(tiny_config(model)), sizes, None)
        return jax.eval_shape(task.init, jax.random.key(0))

    return make


# Classifiers and taggers have the layers of the others, and heads that no variant changes.
KINDS_AND_VARIANTS = [(MODELS[0], changes) for changes in VARIANTS]
KINDS_AND_VARIANTS += [(MODELS[1], OF_OTHERS), (MODELS[2], OF_OTHERS | {"positions": "t5"})]
KINDS_AND_VARIANTS += [(kind, {}) for kind in MODELS[1:]]


@pytest.mark.parametrize(("kind", "changes"), KINDS_AND_VARIANTS)
def test_every_parameter_of_every_model_has_one_entry_in_the_table(params_of, kind, changes):
    for name, leaf in named_leaves(params_of(kind, changes)).items():
        found = parameters_at(name)
        assert len(found) == 1, name
        assert len(found[0].axes) == leaf.ndim, name


def test_specs_match_whole_names_at_the_end_of_a_path():
    assert sharding.partition_spec("layer_0/monkey/kernel") is None
    assert sharding.partition_spec("query/kernel/count") is None
    found = sharding.partition_spec("opt_state/0/mu/layer_0/key/kernel")
    assert found == PartitionSpec("fsdp", "tensor", None)


def test_the_last_matching_entry_counts(monkeypatch):
    """So that reloading a user's module replaces its entries."""
    monkeypatch.setattr(parameters, "PARAMETERS", list(parameters.PARAMETERS))
    for axes in (("model",), ("rates", "heads")):
        parameters.PARAMETERS.append(parameters.Parameter(r"positions/rates", "bias", axes))
    assert sharding.partition_spec("source_positions/rates") == PartitionSpec(None, "tensor")


def test_optimizer_state_is_sharded_like_its_parameter(params_of):
    params = params_of(MODELS[0], {})
    state = {"params": params, "opt_state": jax.eval_shape(optax.adam(1e-3).init, params)}
    sharded = named_leaves(sharding.add_shardings(state, make_mesh(ParallelConfig())))
    of_params = {n.removeprefix("params/"): leaf for n, leaf in sharded.items() if "params/" in n}
    for moment in ("mu", "nu"):
        for name, leaf in of_params.items():
            mine = sharded[f"opt_state/0/{moment}/{name}"]
            assert mine.sharding == leaf.sharding and leaf.sharding.spec != PartitionSpec()
    assert sharded["opt_state/0/count"].sharding.spec == PartitionSpec()


def test_an_axis_that_cannot_be_divided_names_sizes_that_can():
    mesh = SimpleNamespace(shape={"data": 1, "fsdp": 1, "tensor": 4})
    kernel = {"query": {"kernel": jax.ShapeDtypeStruct((8, 6, 4), "float32")}}
    table = {"embedding": {"table": jax.ShapeDtypeStruct((11, 8), "float32")}}
    sizes = {
        "[8, 6, 4]; set tensor to one of [1, 2, 3]": kernel,
        "tensor 4 does not divide ": kernel,
        "make the 11 a multiple of 4 (model.vocab_multiple=4 does)": table,
    }
    add = sharding.add_shardings
    assert_refused({words: partial(add, tree, mesh) for words, tree in sizes.items()})


def mesh_of(processes):
    """A mesh of devices of several processes."""
    device = np.vectorize(lambda process: SimpleNamespace(process_index=process), otypes=[object])
    shape = dict(zip(sharding.AXIS_NAMES, np.shape(processes), strict=True))
    return SimpleNamespace(shape=shape, devices=device(processes))


@pytest.mark.parametrize(
    "mesh, part",
    [
        ((2, 1, 1, 1, 2), (1, 2)),  # each process has its own rows
        ((1, 2, 1, 2, 1), (1, 2)),
        ((1, 1, 1, 4, 1), (0, 1)),  # two processes divide the tokens of the same rows
        ((1, 1, 2, 1, 2), (1, 2)),  # experts divide rows, too
    ],
)
def test_processes_with_the_same_rows_read_the_same_part(monkeypatch, mesh, part):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert sharding.process_part(mesh_of(np.arange(4).reshape(mesh) // 2)) == part


def test_processes_that_share_some_of_their_rows_are_refused():
    mesh = mesh_of(np.array([0, 0, 0, 1, 1, 1]).reshape(3, 1, 1, 2, 1))
    assert_refused({"choose sizes of sequence and tensor": lambda: sharding.process_part(mesh)})
