# SPDX-License-Identifier: Apache-2.0
"""Trains a small model on eight devices in many layouts (see `on_eight_devices.py`)."""

import collections
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import optax

import transformer_jax as tj
from transformer_jax.checkpoints.step_folder import fill, named_leaves
from transformer_jax.errors import UserError
from transformer_jax.metrics import compute_metrics
from transformer_jax.nn import dropout
from transformer_jax.nn.attention import scaled_dot_product_attention
from transformer_jax.nn.fused_attention import ATTENTION, AttentionRequirements
from transformer_jax.nn.per_device import sharded_call, use_sharded_call
from transformer_jax.parallel.engines import ScanEngine, make_engine
from transformer_jax.parallel.first_state import create_state
from transformer_jax.parallel.sharding import ParallelConfig, make_mesh
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import DEFAULTS
from transformer_jax.tasks.teachers import ModelTeacher
from transformer_jax.training.config import LoraConfig
from transformer_jax.training.diagnostics import part_of

LENGTH, ROWS, VOCAB = 12, 16, 61
LAYOUTS = {
    "one": ({"engine": "jit"}, 1),
    "pmap 8": ({"engine": "pmap"}, 8),
    "fsdp 8": ({"fsdp": 8}, 8),
    "2 x 2 x 2": ({"data": 2, "fsdp": 2, "tensor": 2}, 8),
    "two slices": ({"data": 2, "fsdp": 2, "tensor": 2}, 8),
    "pmap 4": ({"engine": "pmap"}, 4),
    "expert 2, sequence 2, tensor 2": ({"expert": 2, "sequence": 2, "tensor": 2}, 8),
}
CONFIG = {"model.d_model": 32, "model.d_ff": 64, "model.num_heads": 4, "model.dtype": "float32"}
CONFIG |= {"model.vocab_multiple": 64, "optimizer.warmup_steps": 4, "optimizer.clip_norm": 1e9}
OF_PAIRS = ("model.num_encoder_layers", "model.num_decoder_layers", "eval.num_examples")
OF_PAIRS += ("data.max_source_length", "data.max_target_length")
ONE_STACK = {name: DEFAULTS[name] for name in OF_PAIRS}
ONE_STACK |= {"model.num_layers": 1, "data.max_length": LENGTH}
# Gradients of key biases are 0 except for rounding, so that relative distances would be large.
ONE_STACK |= {"model.attention_bias": "output"}
# Biases before a batch norm have no effect.
BATCH_NORM = {"norm": "batch", "attention_bias": "none", "feed_forward_bias": False}
EXPERTS = {"d_ff": 16, "gated_feed_forward": True, "feed_forward": "experts"}
EXPERTS |= {"experts.num_experts": 4, "experts.num_shared": 1, "experts.router": "sigmoid"}
EXPERTS |= {"experts.bias_rate": 0.01, "experts.balance_weight": 1.0, "experts.z_weight": 0.1}
EXPERTS |= {"experts.capacity_factor": None}  # devices that divide a row's tokens have no other
TASKS = {
    "translation": {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1},
    "language_modeling": ONE_STACK | {"data.name": "text"},
}


class OwnPart:
    """A CPU kernel that records the rows and heads of a device."""

    platform = "cpu"

    def unsupported_reason(self, inputs, requirements):
        return None

    def __call__(self, inputs, requirements):
        heads = (inputs.query, inputs.key, inputs.value)
        return sharded_call(self.attend, heads, (inputs.mask,))

    def attend(self, heads, rows):
        self.seen = tuple(heads[0].shape[i] for i in (0, 2))
        return scaled_dot_product_attention(*heads, *rows)


OWN_PART = ATTENTION.register("own part", OwnPart())
AttentionRequirements.unsupported_reason = lambda self: None  # float32 products too


def engine_of(layout):
    options, count = LAYOUTS[layout]
    parallel = ParallelConfig(**options)
    return make_engine(parallel, make_mesh(parallel, jax.devices()[:count]))


TRAIN = ("accumulation_steps", "rows_per_device", "tokens_per_batch", "loss_tiles")


def task_and_settings(name, dropout_rate, rank=None, teacher=False, **fields):
    quickstart = Path(__file__).parents[2] / "configs" / "quickstart.py"
    changes = {"task.name": name, "model.dropout_rate": dropout_rate, "model.attention": "plain"}
    for field, value in fields.items():
        changes[f"{'train' if field in TRAIN else 'model'}.{field}"] = value
    settings = read_settings(tj.config(quickstart, CONFIG | TASKS[name] | changes))
    if rank is not None:
        settings = dataclasses.replace(settings, lora=LoraConfig(rank, targets="kernel$"))
    sizes = dict.fromkeys(("source", "target", "text"), VOCAB)
    if not teacher:
        return build.build_task(settings, sizes, None), settings
    model = dataclasses.replace(settings.model, d_model=16, num_layers=2, layers=None)
    of_teacher = build.build_task(dataclasses.replace(settings, model=model), sizes, None)
    train = dataclasses.replace(settings.train, loss="distillation")
    settings = dataclasses.replace(settings, train=train)
    return build.build_task(settings, sizes, None, ModelTeacher(of_teacher)), settings


def segment_ids(length):
    """Rows from nearly empty to full, so that a mean of the devices' means would be wrong."""
    row = np.arange(ROWS)[:, None]
    return (np.arange(length) < 1 + row * (length - 1) // (ROWS - 1)).astype(np.int32)


def positions(ids):
    """Positions of the tokens in their sentences."""
    index = np.arange(ids.shape[1])
    starts = np.where(np.diff(ids, prepend=-1) != 0, index, 0)
    return np.where(ids > 0, index - np.maximum.accumulate(starts, 1), 0).astype(np.int32)


def random_batch(lengths):
    rng = np.random.default_rng(0)
    batch = {}
    for feature, length in lengths.items():
        ids = segment_ids(length)
        tokens = rng.integers(4, VOCAB, ids.shape)
        batch[feature] = np.where(ids > 0, tokens, 0).astype(np.int32)
        batch[f"{feature}_segment_ids"] = ids
        batch[f"{feature}_positions"] = positions(ids)
    return batch


def first_state(abstract):
    """A random state instead of that of `create_state`: no bias is 0, and no program compiled."""
    rng = np.random.default_rng(0)
    leaves = named_leaves(abstract)
    for name, leaf in leaves.items():
        values = np.zeros(leaf.shape, leaf.dtype)
        if name.startswith(("params", "frozen")) and "bias_steps" not in name:
            values += (0.1 * rng.normal(size=leaf.shape)).astype(leaf.dtype)
            values += name.endswith("scale")
        leaves[name] = jax.device_put(values, leaf.sharding)
    return fill(abstract, leaves)


def prepare(layout, name, dropout_rate=0.0, **fields):
    """Parts of a training of which nothing is compiled."""
    # Forced devices have no such attribute; those of TPU slices do.
    type(jax.devices()[0]).slice_index = property(lambda one: one.id % 2 * (layout == "two slices"))
    engine = engine_of(layout)
    task, settings = task_and_settings(name, dropout_rate, **fields)
    if settings.model.scan_layers:
        engine = ScanEngine(engine)
    _, train_step, init_state = build.build_training(settings, task, engine)
    return SimpleNamespace(
        engine=engine,
        task=task,
        settings=settings,
        train_step=train_step,
        init_state=init_state,
        state=build.abstract_state(settings, init_state, engine.mesh),
        batch=random_batch(task.lengths),
    )


def start(layout, name, dropout_rate=0.0, **fields):
    """Engine, compiled step, first state and batch of a training."""
    run = prepare(layout, name, dropout_rate, **fields)
    step = run.engine.compile(run.train_step, run.state, jax.eval_shape(lambda: run.batch))
    return run.engine, step, run.engine.from_portable(first_state(run.state)), run.batch


def divided_run(layout, name="translation", dropout_rate=0.0, steps=1, **fields):
    """Losses, and the gradient of the first step."""
    engine, step, state, batch = start(layout, name, dropout_rate, **fields)
    losses, gradient = [], None
    for _ in range(steps):
        state, sums = step(state, batch)
        losses.append(float(sums["loss"] / sums["weight"]))
        if gradient is None:
            # Adam's first moment after one step: (1 - beta1) times the gradient.
            gradient = jax.tree.map(np.array, optax.tree.get(engine.to_portable(state), "mu"))
    return {"losses": losses, "gradient": gradient}


def gradient_norms(layout, **fields):
    """Norms of the gradient of the first step by part of the model, from diagnostics."""
    run = prepare(layout, **fields)
    diagnose = build.build_diagnostics(run.settings, run.task, run.engine)
    norms = diagnose(first_state(run.state), run.batch)
    return {name.removeprefix("grad/"): norms[name] for name in norms if name.startswith("grad/")}


def norms_by_part(gradient):
    """Norms of a gradient that Adam's first moment holds after one step."""
    squares = collections.Counter()
    for name, leaf in named_leaves(gradient).items():
        squares[part_of(name)] += float(np.square(10 * leaf).sum())  # beta1 is 0.9
    return {part: np.sqrt(total) for part, total in squares.items()}


def created(layout, **fields):
    """The parameters of `create_state`."""
    run = prepare(layout, **fields)
    return jax.device_get(create_state(run.init_state, run.settings.seed, run.state).params)


def share(layout, **fields):
    """Share of the state on one device."""
    leaves = jax.tree.leaves(prepare(layout, "language_modeling", **fields).state)
    held = sum(np.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in leaves)
    return float(held / sum(leaf.size for leaf in leaves))


def jax_pmap_run(**fields):
    """Loss and gradient of the first step under `jax.pmap` on eight devices."""
    run = prepare("pmap 8", **fields)
    batch = {name: rows.reshape(8, -1, *rows.shape[1:]) for name, rows in run.batch.items()}
    step = jax.pmap(run.train_step, run.engine.axis_name, in_axes=(None, 0), out_axes=None)
    state, sums = step(first_state(run.state), batch)
    gradient = jax.tree.map(np.array, optax.tree.get(state, "mu"))
    return {"losses": [float(sums["loss"] / sums["weight"])], "gradient": gradient}


def apart(run, reference):
    """Relative distances of two runs' first steps in loss and gradient; that of the gradient is the
    largest of any parameter, relative to the largest element of its gradient."""
    gradient = jax.tree.map(
        lambda a, b: np.abs(a - b).max() / np.abs(b).max(), run["gradient"], reference["gradient"]
    )
    loss = abs(run["losses"][0] / reference["losses"][0] - 1)
    return {"loss": loss, "gradient": float(max(jax.tree.leaves(gradient)))}


def compare(layouts, reference=None, **options):
    reference = reference or divided_run("one", **options)
    return {layout: apart(divided_run(layout, **options), reference) for layout in layouts}


def hardware_bits():
    """Number of distinct rows that 2 x 2 x 2 devices draw, and whether devices with the same rows
    agree."""
    engine = engine_of("2 x 2 x 2")
    with use_sharded_call(engine.sharded_call):
        key = jax.random.key_data(jax.random.key(0))
        bits = jax.jit(lambda: dropout.hardware_bits(key, (ROWS, 64)))()
    whole = np.array(bits)
    agree = [np.array_equal(part.data, whole[part.index]) for part in bits.addressable_shards]
    return {"distinct": len(np.unique(whole, axis=0)), "agree": all(agree)}


def micro_batches(layout, **fields):
    """Number of micro-batches of a language model's step."""
    engine = engine_of(layout)
    task, settings = task_and_settings("language_modeling", 0.0, **fields)
    return build.micro_batches(settings, task, engine.row_shards)


def experts_run(layout, **changes):
    """Parameters of a language model after two steps, and the metrics of the second."""
    engine, step, state, batch = start(layout, "language_modeling", **EXPERTS | changes)
    for _ in range(2):
        state, sums = step(state, batch)
    metrics = compute_metrics(jax.device_get(sums))
    return named_leaves(jax.device_get(engine.to_portable(state).params)), metrics


def compare_experts(layout, reference):
    """Largest distance of the parameters, whether the biases of routers are equal, and not 0,
    distances of the metrics, and the metrics."""
    expected, alone = reference
    params, metrics = experts_run(layout)
    biases = [name for name in expected if "router_bias_steps" in name]
    names = [name for name in alone if name.startswith(("aux/", "loss"))]
    return {
        "params": max(float(np.abs(params[name] - expected[name]).max()) for name in expected),
        "counters": [np.array_equal(params[name], expected[name]) for name in biases],
        "moved": [bool(expected[name].any()) for name in biases],
        "metrics": {name: abs(float(metrics[name] - alone[name])) for name in names},
        "values": {name: float(alone[name]) for name in names},
    }


def main():
    """Each entry compiles what no other does: a program takes two seconds or more.

    Language models, whose step compiles in half the time of a translator's, stand for all in most
    entries. Kernels come with tiles and batch norm, and meshes with the dropout that they share
    with one device.
    """
    text = {"name": "language_modeling"}
    drops = {**text, "dropout_rate": 0.2}
    normed = {**text, **BATCH_NORM}
    by_layout = {
        layout: (divided_run(layout, **fields, steps=20), divided_run("one", **fields, steps=20))
        for layout, fields in (("two slices", drops), ("pmap 8", normed))
    }
    whole = by_layout["pmap 8"][1]
    by_rows = {"rows_per_device": ROWS // 4 // 2, "tokens_per_batch": ROWS * LENGTH}
    results = {
        "losses": {layout: run["losses"] for layout, (run, _) in by_layout.items()},
        "losses of one": {layout: alone["losses"] for layout, (_, alone) in by_layout.items()},
        "share": {layout: share(layout) for layout in ("fsdp 8", "pmap 8")},
        "share with adapters": share("fsdp 8", rank=4),
        "apart": {layout: apart(run, alone) for layout, (run, alone) in by_layout.items()},
        "jax.pmap": compare(["pmap 8"], jax_pmap_run(**drops), **drops),
        "gradient norms": [gradient_norms("pmap 8", **normed), norms_by_part(whole["gradient"])],
        "micro-batches": [
            micro_batches("2 x 2 x 2", **fields) for fields in ({"accumulation_steps": 2}, by_rows)
        ],
        "kernel": compare(["2 x 2 x 2"], whole, **normed, attention="own part", loss_tiles=4),
        "own part": OWN_PART.seen,
    }
    params = created("one", **text)
    divided = created("fsdp 8", **text)
    distances = jax.tree.map(lambda a, b: np.abs(a - b).max(), divided, params)
    results["created"] = float(max(jax.tree.leaves(distances)))
    # In the first step half of an adapter's gradient is 0, so more steps are compared.
    results["adapters"] = {
        layout: divided_run(layout, **text, steps=3, rank=4, accumulation_steps=parts)["losses"]
        for layout, parts in (("one", 1), ("pmap 8", 2))
    }
    results["hardware"] = hardware_bits()
    whole = experts_run("one")
    layouts = ("pmap 4", "expert 2, sequence 2, tensor 2")
    results["experts"] = {layout: compare_experts(layout, whole) for layout in layouts}
    try:
        experts_run("expert 2, sequence 2, tensor 2", **{"experts.num_experts": 3})
    except UserError as error:
        results["refusal"] = str(error)
    return results
