# SPDX-License-Identifier: Apache-2.0
"""Optimizers, compared with their formulas written out; also of stacked layers."""

import dataclasses
from functools import partial

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.compiled import assert_near
from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.checkpoints.store import CheckpointConfig, Checkpoints
from transformer_jax.nn.layer_scan import has_stacks, stack_layers, unstack_layers
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.training.optimizer import (
    OPTIMIZERS,
    TRANSFORMS,
    OptimizerConfig,
    count_frozen,
    frozen_labels,
    make_optimizer,
    make_schedule,
    raised_rate,
    stop_frozen_gradients,
    unfinished_decay,
)
from transformer_jax.training.schedules import SCHEDULES
from transformer_jax.training.state import TrainState

D_MODEL = 64
NUM_STEPS = 100


def updated(config, params, gradients):
    """(State of the optimizer, parameters) after each update."""
    optimizer = make_optimizer(config, make_schedule(config, D_MODEL, NUM_STEPS))

    @jax.jit
    def update(grads, state, params):
        updates, state = optimizer.update(grads, state, params)
        return state, optax.apply_updates(params, updates)

    # As in training, the first state is made from single layers.
    state = optimizer.init(unstack_layers(params))
    state = stack_layers(state) if has_stacks(params) else state
    history = []
    for grads in gradients:
        state, params = update(grads, state, params)
        history.append(jax.device_get((state, params)))
    return history


def train(config, params, gradients):
    """Parameters after each update."""
    return [params for _, params in updated(config, params, gradients)]


def changed_paths(before, after):
    """Paths of the parameters that an update has changed."""
    changed = jax.tree.map(lambda a, b: (a != b).any(), before, after)
    return {path for path, is_changed in named_leaves(changed).items() if is_changed}


def paper_rate(n, warmup_steps, factor=1.0):
    """Equation 3 at step n, counted from 1."""
    return factor * D_MODEL**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)


@pytest.fixture
def gradients():
    return np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)


def test_clipping_bounds_the_global_norm_before_adam(gradients):
    norms = np.sqrt((gradients**2).sum(axis=(1, 2)))
    limit = float(np.median(norms))
    clipped = gradients * np.minimum(1, limit / norms)[:, None, None]
    assert (clipped != gradients).any(axis=(1, 2)).tolist() == (norms > limit).tolist()
    start = np.zeros((2, 5), np.float32)
    plain = OptimizerConfig(warmup_steps=1)
    config = OptimizerConfig(warmup_steps=1, clip_norm=limit)
    # Two leaves, because the norm is that of all leaves together.
    got = train(config, tuple(start), [tuple(grads) for grads in gradients])[-1]
    want = train(plain, start, clipped)[-1]
    np.testing.assert_allclose(np.stack(got), want, rtol=1e-5)
    assert not np.allclose(want, train(plain, start, gradients)[-1], rtol=1e-2)


def test_the_schedule_comes_from_the_config():
    def rates(*updates, **options):
        schedule = make_schedule(OptimizerConfig(warmup_steps=4, **options), D_MODEL, NUM_STEPS)
        return [float(schedule(n - 1)) for n in updates]

    paper = [paper_rate(n, 4, factor=2.0) for n in (1, 4, 16)]
    np.testing.assert_allclose(rates(1, 4, 16, learning_rate=2.0), paper, rtol=1e-5)
    for name, last in (("inverse_sqrt", 0.2), ("constant", 0.4)):
        found = rates(1, 4, 16, schedule=name, learning_rate=0.4)
        np.testing.assert_allclose(found, [0.1, 0.4, last], rtol=1e-5)


B1, B2, EPS = 0.9, 0.98, 1e-3
"""Momenta of the formulas; epsilon is so large that its place matters."""


def average(values, beta):
    """Exponential moving average after the last value; it starts from zero."""
    return (1 - beta) * sum(beta**age * value for age, value in enumerate(reversed(values)))


def unbiased(values, beta):
    return average(values, beta) / (1 - beta ** len(values))


def adam_step(grads):
    """Kingma and Ba (2015), algorithm 1."""
    return unbiased(grads, B1) / (np.sqrt(unbiased(np.square(grads), B2)) + EPS)


def nadam_step(grads):
    """Dozat (2016), algorithm 2 with a constant momentum."""
    n = len(grads)
    ahead = B1 * average(grads, B1) / (1 - B1 ** (n + 1)) + (1 - B1) * grads[-1] / (1 - B1**n)
    return ahead / (np.sqrt(unbiased(np.square(grads), B2)) + EPS)


def sgd_step(grads):
    """torch.optim.SGD(momentum=B1): v = B1 v + g."""
    return average(grads, B1) / (1 - B1)


def rmsprop_step(grads):
    """torch.optim.RMSprop(alpha=B2): g / (sqrt(mean of g^2) + eps)."""
    return grads[-1] / (np.sqrt(average(np.square(grads), B2)) + EPS)


def lion_step(grads):
    """Chen et al. (2023), algorithm 2."""
    return np.sign(B1 * average(grads[:-1], B2) + (1 - B1) * grads[-1])


STEPS = dict.fromkeys(("adam", "adamw", "lamb"), adam_step)
STEPS |= {"nadam": nadam_step, "lion": lion_step, "sgd": sgd_step, "rmsprop": rmsprop_step}
"""Functions (gradients so far) -> update before weight decay and learning rate."""


def normal(rng, shapes):
    """A tree of normal numbers with these shapes."""
    leaves = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def layer(rng):
    """Random parameters of every kind, with the names that models use."""
    shapes = {"embedding/table": (7, 12), "query/kernel": (12, 2, 3), "output/kernel": (2, 3, 12)}
    shapes |= {"inner/kernel": (12, 20), "classifier/kernel": (12, 5), "inner/bias": (20,)}
    return normal(rng, shapes)


@pytest.mark.parametrize("name", STEPS)
def test_updates_are_those_of_the_formula(name):
    rng = np.random.default_rng(0)
    params, *gradients = [layer(rng) for _ in range(4)]
    decay = 0.0 if name == "adam" else 0.1
    fields = dict(beta1=B1, beta2=B2, epsilon=EPS, weight_decay=decay, warmup_steps=1)

    def expected(param, *grads):
        for n in (1, 2, 3):
            update = STEPS[name](grads[:n]) + decay * param * (param.ndim > 1)
            if name == "lamb":  # You et al. (2020), algorithm 2
                update *= np.linalg.norm(param) / np.linalg.norm(update)
            param = param - paper_rate(n, 1) * update
        return param

    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        train(OptimizerConfig(name=name, **fields), params, gradients)[-1],
        jax.tree.map(expected, params, *gradients),
    )


def test_adafactor_scales_by_rows_columns_and_size():
    """Two updates by Shazeer and Stern (2018), algorithm 4: beta2 at step t is 1 - t^-0.8."""
    rng = np.random.default_rng(0)
    param, *grads = rng.normal(size=(3, 40, 48)).astype(np.float32)
    after = train(OptimizerConfig(name="adafactor", warmup_steps=1), param, grads)[-1]
    rows, columns = np.zeros((40, 1)), np.zeros(48)
    for t, grad in enumerate(grads, 1):
        decay, square = 1 - t**-0.8, grad**2
        rows = decay * rows + (1 - decay) * square.mean(1, keepdims=True)
        columns = decay * columns + (1 - decay) * square.mean(0)
        update = grad / np.sqrt(rows * columns / rows.mean())
        update /= max(1.0, np.sqrt((update**2).mean()))
        param = param - paper_rate(t, 1) * np.sqrt((param**2).mean()) * update
    np.testing.assert_allclose(after, param, rtol=1e-4, atol=1e-5)


def test_transforms_of_the_gradient_come_first_in_order(gradients, with_entries):
    """Of stacked layers they get each layer's gradient."""

    def shift(config):
        return optax.stateless(lambda grads, _: jax.tree.map(lambda g: g + 1, grads))

    def centre(config):
        return optax.stateless(lambda grads, _: jax.tree.map(lambda g: g - g.mean(), grads))

    with_entries(TRANSFORMS, {"shift": shift, "centre": centre})
    plain = OptimizerConfig(name="sgd", clip_norm=1e-3)
    config = dataclasses.replace(plain, transforms="centre,shift")
    params = np.zeros((2, 5), np.float32)
    centred = [g - g.mean() + 1 for g in gradients]
    assert_near(train(config, params, gradients), train(plain, params, centred), 1e-5)
    layers = {f"layer_{i}": gradients[i] for i in range(2)}
    stacked = train(config, stack_layers(layers), [stack_layers(layers)])
    assert_near(unstack_layers(stacked[0]), train(config, layers, [layers])[0], 1e-5)


def test_muon_orthogonalizes_only_the_matrices_of_layers():
    """Liu et al. (2025), section 2.2: a first update is 0.2 sqrt(max(A, B)) U V^T of the gradient,
    all heads of a kernel together; Newton's iteration leaves singular values between 0.7 and 1.2.
    """
    rng = np.random.default_rng(0)
    params, grads = layer(rng), layer(rng)
    (after,) = train(OptimizerConfig(name="muon", warmup_steps=1), params, [grads])
    change = jax.tree.map(lambda a, b: np.asarray(b - a) / -paper_rate(1, 1), params, after)
    for name, shape in {"query": (12, 6), "output": (6, 12), "inner": (12, 20)}.items():
        found = change[name]["kernel"].reshape(shape) / (0.2 * max(shape) ** 0.5)
        u, _, v = np.linalg.svd(grads[name]["kernel"].reshape(shape), full_matrices=False)
        inside = u.T @ found @ v.T  # diagonal where found has the gradient's singular vectors
        diagonal = np.diagonal(inside)
        assert diagonal.min() > 0.6 and diagonal.max() < 1.3
        np.testing.assert_allclose(inside - np.diag(diagonal), 0, atol=1e-3)
        np.testing.assert_allclose(found, u @ inside @ v, atol=1e-3)
    (nadam,) = train(OptimizerConfig(name="nadam", warmup_steps=1), params, [grads])
    for module, leaf in [("embedding", "table"), ("classifier", "kernel"), ("inner", "bias")]:
        np.testing.assert_allclose(after[module][leaf], nadam[module][leaf], rtol=1e-5)
    config = OptimizerConfig(name="muon", warmup_steps=1, frozen="^(embedding|query)/")
    changed = changed_paths(params, *train(config, params, [grads]))
    assert changed == named_leaves(params).keys() - {"embedding/table", "query/kernel"}


FLOORED = [name for name, kind in SCHEDULES.items() if "optimizer.final_ratio" in kind.reads]


@pytest.mark.parametrize("num_steps", [30, 100, 997])
@pytest.mark.parametrize("name", FLOORED)
def test_a_decay_ends_at_its_floor_in_the_last_update(name, num_steps):
    """With the defaults of its fields, for each schedule that has a final rate."""
    config = OptimizerConfig(schedule=name, learning_rate=2.0, warmup_steps=7, final_ratio=0.1)
    between = np.linspace(10, num_steps - 3, 8, dtype=int)
    updates = jnp.array([*range(10), *between, num_steps - 2, num_steps - 1])
    rates = np.asarray(make_schedule(config, D_MODEL, num_steps)(updates))
    assert rates[-1] == pytest.approx(0.2, rel=1e-4)
    assert rates[-2] >= rates[-1]
    assert rates.max() == pytest.approx(2.0)  # no overshoot where warm-up ends
    assert unfinished_decay(config, D_MODEL, num_steps) is None


def test_a_run_that_ends_before_its_schedule_is_reported():
    def message(num_steps, **options):
        return unfinished_decay(OptimizerConfig(**options), D_MODEL, num_steps) or ""

    cosine = dict(schedule="cosine", learning_rate=2.0, warmup_steps=10)
    assert message(60, decay_steps=110, **cosine).startswith(
        "the learning rate of the last step is 1, not 0: train.num_steps is 60, but "
        "optimizer.schedule 'cosine' has decay_steps 110; lower"
    )
    assert not message(110, decay_steps=110, **cosine)
    assert "is 1.8, not 0" in message(9, **cosine)
    assert message(9, **cosine).endswith("has warmup_steps 10; lower it")
    assert not message(5) and not message(5, schedule="constant")


def test_a_run_extended_at_a_higher_rate_is_reported():
    def message(before=None, now=None, **options):
        own = dict(schedule="cosine", learning_rate=2.0, warmup_steps=10) | options
        configs = (OptimizerConfig(**own, decay_steps=steps) for steps in (before, now))
        return raised_rate(*configs, D_MODEL, 110, 210) or ""

    assert "of step 110, where the run would have ended, is now 1; it was 0" in message()
    assert "final_ratio can be extended" in message()
    floored = message(final_ratio=0.1)
    assert "it was 0.2" in floored and floored.endswith("set optimizer.decay_steps to 110")
    assert not message(now=110, final_ratio=0.1)
    assert not message(before=210, now=210)
    assert not message(schedule="inverse_sqrt")


def decayed_in(stack):
    """Paths of tables and of the kernels of a stack of one layer."""
    names = [f"self_attention/{name}" for name in ("query", "key", "value", "output")]
    names += ["feed_forward/inner", "feed_forward/outer"]
    kernels = {f"{stack}/layer_0/{name}/kernel" for name in names}
    return kernels | {"embedding/table", "input/positions/table"}


GPT2 = {"task.name": "language_modeling", "model.architecture": "decoder_only"}
GPT2 |= {"model.initialization": "gpt2"}
BERT = {"task.name": "masked_lm", "model.architecture": "encoder_only"}
BERT |= {"tokenizer.kind": "wordpiece", "model.initialization": "bert"}
BERT |= {"model.embedding_norm": True, "model.num_token_types": 2}
BERT_DECAYED = decayed_in("encoder") | {"input/token_types", "prediction_head/transform/kernel"}


@pytest.mark.parametrize(
    ("changes", "decayed", "name"),
    [(GPT2, decayed_in("decoder"), "muon"), (BERT, BERT_DECAYED, "adamw")],
)
def test_exactly_the_parameters_listed_decay(tiny_config, random_params, changes, decayed, name):
    """With zero gradients, the update is weight decay. All optimizers but Muon, which has a part of
    its own for the matrices of layers, choose as AdamW does."""
    common = {"model.positions": "learned", "model.attention_bias": "all", "model.num_layers": 1}
    settings = read_settings(tiny_config(common | changes))
    params = random_params(build.build_task(settings, {"text": 20}, tokenizers=None))
    config = OptimizerConfig(name=name, weight_decay=0.1, warmup_steps=1)
    changed = changed_paths(params, *train(config, params, [jax.tree.map(np.zeros_like, params)]))
    assert changed == decayed
    unchanged = {path.rpartition("/")[2] for path in named_leaves(params).keys() - changed}
    assert {"bias", "scale"} <= unchanged


def test_every_optimizers_state_is_restored(tmp_path):
    rng = np.random.default_rng(0)
    params, grads = layer(rng), layer(rng)

    @jax.jit
    def states_after_an_update(params, grads):
        states = {}
        for name in OPTIMIZERS:
            config = OptimizerConfig(name=name)
            optimizer = make_optimizer(config, make_schedule(config, D_MODEL, NUM_STEPS))
            states[name] = optimizer.update(grads, optimizer.init(params), params)[1]
        return states

    states = states_after_an_update(params, grads)
    params = jax.tree.map(jnp.asarray, params)
    saved = TrainState(jnp.int32(1), params, states, jax.random.key_data(jax.random.key(0)))
    with Checkpoints(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, saved, [1])
    target = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), saved)
    restored = checkpoints.snapshot().state(target)
    jax.tree.map(np.testing.assert_array_equal, restored, saved)


def test_the_states_of_saved_runs_have_kept_their_layout():
    """Checkpoints of earlier runs refer to these positions."""
    params = {"inner": {"bias": jnp.zeros(3)}}
    places = {}
    for name, decay in [("adam", 0.0), ("adamw", 0.0), ("adamw", 0.1), ("adafactor", 0.0)]:
        config = OptimizerConfig(name=name, weight_decay=decay, clip_norm=1.0)
        state = make_optimizer(config, make_schedule(config, D_MODEL, NUM_STEPS)).init(params)
        places[name, decay] = [type(part).__name__.removesuffix("State") for part in state]
    assert places == {
        ("adam", 0.0): ["Empty", "ScaleByAdam", "ScaleBySchedule"],
        ("adamw", 0.0): ["Empty", "ScaleByAdam", "Masked", "ScaleBySchedule"],
        ("adamw", 0.1): ["Empty", "ScaleByAdam", "Masked", "ScaleBySchedule"],
        ("adafactor", 0.0): ["Empty", "Factored", "Empty", "Empty", "ScaleBySchedule"],
    }


def test_a_decay_ends_after_the_warm_up_also_in_a_shorter_run():
    short = make_schedule(OptimizerConfig(schedule="linear", warmup_steps=10), D_MODEL, 4)
    np.testing.assert_allclose([short(n) for n in range(4)], [0.1, 0.2, 0.3, 0.4], rtol=1e-5)
    with pytest.raises(ValueError, match="it must be greater than warmup_steps 4000"):
        OptimizerConfig(schedule="linear", decay_steps=4000)


FROZEN = ["layer_1/", "^decoder/"]
"""One layer of the stack, and the whole stack."""


@pytest.mark.parametrize("frozen", FROZEN)
@pytest.mark.parametrize("stack", [lambda tree: tree, stack_layers])
def test_what_is_frozen_has_no_gradient(frozen, stack):
    params = drawn(np.random.default_rng(0))

    def loss(tree):
        leaves = jax.tree.leaves(stop_frozen_gradients(frozen, tree))
        return sum(jnp.square(leaf).sum() for leaf in leaves) / 2

    labels = frozen_labels(frozen, params)
    expected = jax.tree.map(lambda label, leaf: leaf * (label == "trained"), labels, params)
    gradient = unstack_layers(jax.jit(jax.grad(loss))(stack(params)))
    jax.tree.map(np.testing.assert_array_equal, gradient, expected)
    frozen_leaves = [leaf for leaf in jax.tree.leaves(expected) if not leaf.any()]
    assert count_frozen(frozen, params) == sum(leaf.size for leaf in frozen_leaves)


def drawn(rng):
    """Random parameters or gradients of two layers and an embedding."""
    of_layer = {"self_attention/output/kernel": (2, 16, 32), "feed_forward/inner/kernel": (32, 48)}
    of_layer |= {"feed_forward/inner/bias": (48,)}
    shapes = {f"decoder/layer_{i}/{n}": shape for i in range(2) for n, shape in of_layer.items()}
    return normal(rng, shapes | {"embedding/table": (40, 32)})


ELEMENTWISE = {"adam", "nadam", "sgd", "rmsprop", "lion"}
"""Optimizers whose update of an element, as AdamW's, depends on that element alone."""
OPTIONS = [{"name": name} for name in OPTIMIZERS if name not in ELEMENTWISE]
OPTIONS += [{"frozen": part} for part in FROZEN]


@pytest.mark.parametrize("options", OPTIONS)
def test_stacked_layers_get_the_updates_of_single_layers(options):
    """Up to 1e-6 of an array's largest element, in float32."""
    rng = np.random.default_rng(0)
    params, *gradients = trees = [drawn(rng) for _ in range(3)]
    name = options.get("name", "adamw")
    decay = 0.1 if "optimizer.weight_decay" in OPTIMIZERS[name].reads else 0.0
    config = OptimizerConfig(
        **options, schedule="constant", learning_rate=0.1, weight_decay=decay, clip_norm=1.0
    )
    expected = updated(config, params, gradients)[-1]
    stacked, *stacked_gradients = map(stack_layers, trees)
    found = unstack_layers(updated(config, stacked, stacked_gradients)[-1])
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert_near(found, expected)
