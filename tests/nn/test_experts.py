# SPDX-License-Identifier: Apache-2.0
"""Experts: equal to a slow loop over tokens and to a dense mixture, whatever is routed, padded,
dropped or balanced."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.compiled import apply, assert_near, run
from tests.refusals import assert_refused
from transformer_jax.lab.plan.costs import kernel_costs
from transformer_jax.lab.plan.hlo import parse_module
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn import auxiliary
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.experts import Experts, ExpertsOptions, route
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.layers import count_active
from transformer_jax.training.optimizer import OptimizerConfig, make_optimizer
from transformer_jax.training.profiling import count_products
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import compute_update

E, D, F = 4, 8, 6
REAL = np.arange(12) < np.array([12, 7, 0])[:, None]
DEEPSEEK = ExpertsOptions(E, 2, num_shared=1, router="sigmoid", routed_scale=2.5, bias_rate=0.05)
CASES = {
    "mixtral": ExpertsOptions(E, 2),
    "not renormalized": ExpertsOptions(E, 3, renormalize=False),
    "deepseek": DEEPSEEK,
    "capacity": ExpertsOptions(E, 2, capacity_factor=0.75),
}


def experts_config(options, **changes):
    fields = {"d_model": D, "d_ff": F, "num_heads": 2, "dtype": "float32", "activation": "silu"}
    return TransformerConfig(
        **fields | changes, gated_feed_forward=True, feed_forward="experts", options=(options,)
    )


@pytest.fixture(scope="module")
def inputs():
    return np.random.default_rng(1).normal(size=(*REAL.shape, D)).astype(np.float32)


def make_layer(options, inputs, random_params):
    layer = Experts(experts_config(options))
    params = random_params(layer, inputs, True, REAL)["params"]
    if options.bias_rate:
        params["router_bias_steps"] = np.array([0, 3, -2, 5], np.float32)
    return layer, params


def silu(x):
    return x / (1 + np.exp(-x))


def slow_loop(params, x, options, capacity=False):
    """Experts of one token after another, in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    out = np.zeros(x.shape)
    for n in range(x.shape[0]):
        taken = np.zeros(E, int)
        full = np.ceil((options.capacity_factor or 0) * REAL[n].sum() * options.num_chosen / E)
        for t in range(x.shape[1]):
            token = x[n, t].astype(np.float64)
            if options.num_shared:
                s = {name: p["shared"][name]["kernel"] for name in ("inner", "gate", "outer")}
                out[n, t] += (silu(token @ s["gate"]) * (token @ s["inner"])) @ s["outer"]
            if not REAL[n, t]:
                continue
            logits = token @ p["router"]["kernel"]
            if options.router == "softmax":
                affinities = np.exp(logits) / np.exp(logits).sum()
            else:
                affinities = 1 / (1 + np.exp(-logits))
            bias = options.bias_rate * p["router_bias_steps"] if options.bias_rate else 0
            chosen = np.argsort(-(affinities + bias))[: options.num_chosen]
            total = affinities[chosen].sum() if options.renormalize else 1.0
            for e in chosen:
                taken[e] += 1
                if capacity and taken[e] > full:
                    continue
                hidden = silu(token @ p["expert_gate"][e]) * (token @ p["expert_inner"][e])
                weight = options.routed_scale * affinities[e] / total
                out[n, t] += weight * (hidden @ p["expert_outer"][e])
    return out


@pytest.mark.parametrize("name", ["not renormalized", "deepseek", "capacity"])
def test_experts_equal_a_slow_loop(name, inputs, random_params):
    options = CASES[name]
    layer, params = make_layer(options, inputs, random_params)
    apply = jax.jit(layer.apply, static_argnums=2)
    found = apply({"params": params}, inputs, True, REAL)
    np.testing.assert_allclose(found, slow_loop(params, inputs, options), atol=1e-5)
    if options.capacity_factor:  # dropped in training only
        found = apply({"params": params}, inputs, False, REAL)
        expected = slow_loop(params, inputs, options, capacity=True)
        assert np.abs(expected - slow_loop(params, inputs, options)).max() > 0.1
        np.testing.assert_allclose(found, expected, atol=1e-5)


@dataclasses.dataclass(frozen=True)
class SlopeOptions:
    slope: float = 1.0


def test_an_activation_of_experts_has_its_options(with_entries, inputs, random_params):
    def sloped(x, options):
        return options.slope * jax.nn.silu(x)

    sloped.options = SlopeOptions
    with_entries(ACTIVATIONS, {"sloped": sloped})
    options = CASES["mixtral"]
    config = experts_config(options, activation="sloped")
    layer = Experts(dataclasses.replace(config, options=(options, SlopeOptions(2.0))))
    variables = random_params(layer, inputs, True, REAL)
    found = jax.jit(layer.apply, static_argnums=2)(variables, inputs, True, REAL)
    expected = 2 * slow_loop(variables["params"], inputs, options)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_gradients_equal_those_of_a_dense_mixture(inputs, random_params):
    layer, params = make_layer(DEEPSEEK, inputs, random_params)

    def dense(params, x):
        bias = DEEPSEEK.bias_rate * params["router_bias_steps"]
        routing = route(x @ params["router"]["kernel"], bias, DEEPSEEK)
        gate, inner = (
            jnp.einsum("ntd,edf->ntef", x, params[f"expert_{name}"]) for name in ("gate", "inner")
        )
        each = jnp.einsum("ntef,efd->nted", jax.nn.silu(gate) * inner, params["expert_outer"])
        weights = (jax.nn.one_hot(routing.experts, E) * routing.weights[..., None]).sum(2)
        shared = {name: params["shared"][name]["kernel"] for name in ("gate", "inner", "outer")}
        y = (jax.nn.silu(x @ shared["gate"]) * (x @ shared["inner"])) @ shared["outer"]
        return y + (each * weights[..., None]).sum(2) * REAL[..., None]

    def sparse(params, x):
        return layer.apply({"params": params}, x, True, REAL)

    def gradients(function):
        loss = lambda *args: jnp.square(function(*args)).sum()  # noqa: E731
        return jax.jit(jax.grad(loss, argnums=(0, 1)))(params, inputs)

    found, expected = gradients(sparse), gradients(dense)
    assert (expected[0].pop("router_bias_steps") == 0).all()
    found[0].pop("router_bias_steps")
    assert_near(found, expected, 1e-5)


def test_the_capacity_is_exact():
    """In float32, 1.2 x 35 / 3 is above 14."""
    capacities = ExpertsOptions(3, 1, capacity_factor=1.2).capacities(35)
    assert capacities[:6] == [0, 1, 1, 2, 2, 2] and capacities[35] == 14


def collected(layer, params, x, real, deterministic=True):
    """Means of what a layer adds, and what it adds."""
    apply = jax.jit(layer.apply, static_argnums=2, static_argnames="mutable")
    _, variables = apply({"params": params}, x, deterministic, real, mutable=("auxiliary",))
    found = auxiliary.Collected()
    found.add(variables)
    sums = found.to_record(1.0)
    counts = {name: sums[f"aux_count/{name}"] for name in found.sums}
    return {name: float(sums[f"aux/{name}"] / count) for name, count in counts.items()}, found


def test_losses_and_loads_are_those_of_the_formulas(inputs, random_params):
    options = CASES["capacity"]
    layer, params = make_layer(options, inputs, random_params)
    found, _ = collected(layer, params, inputs, REAL, deterministic=False)
    logits = inputs @ params["router"]["kernel"]
    affinities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    balance, z, dropped, loads = 0.0, 0.0, 0, 0.0
    for row, real in zip(range(3), REAL, strict=True):
        chosen = np.argsort(-affinities[row, real])[:, :2]
        counts = np.bincount(chosen.ravel(), minlength=E)
        if real.any():
            balance += E * (counts / 2 * affinities[row, real].mean(0)).sum()
            dropped += np.maximum(counts - np.ceil(0.75 * real.sum() * 2 / E), 0).sum()
            loads += counts.max() * E / 2
        z += (np.log(np.exp(logits[row, real]).sum(-1)) ** 2).sum()
    tokens = REAL.sum()
    expected = {
        "balance": balance / tokens,
        "router_z": z / tokens,
        "dropped": dropped / (2 * tokens),
    }
    assert found == pytest.approx(expected | {"load": loads / tokens}, rel=1e-5)


def test_an_update_moves_the_biases_against_the_load(inputs, random_params):
    """By one step each; the load is that of the whole batch, and no norm counts it."""
    layer, params = make_layer(DEEPSEEK, inputs, random_params)
    config = OptimizerConfig(name="adamw", weight_decay=0.1, clip_norm=1e-3)
    optimizer = make_optimizer(config, optax.constant_schedule(1e-3))

    def loss(params, batch, rng, frozen):
        y = layer.apply({"params": params}, batch["x"], True, batch["real"] > 0)
        return jnp.square(y).sum(), jnp.float32(batch["real"].sum()), {}

    def update(params):
        state = TrainState.create(params, optimizer, jax.random.key(0))
        batch = {"x": inputs, "real": REAL.astype(np.int32)}
        options = {"loss_fn": loss, "optimizer": optimizer, "accumulation_steps": 3}
        return compute_update(state, batch, **options)

    found = jax.jit(update)(params)
    bias = DEEPSEEK.bias_rate * params["router_bias_steps"]
    routing = run(route, inputs @ params["router"]["kernel"], bias, DEEPSEEK)
    chosen = routing.experts[REAL]
    loads = np.bincount(np.ravel(chosen), minlength=E)
    np.testing.assert_array_equal(
        found.updates["router_bias_steps"], -np.sign(loads - loads.mean())
    )
    assert len(set(loads)) > 1
    rest = {name: leaf for name, leaf in found.grads.items() if name != "router_bias_steps"}
    assert float(found.sums["grad_norm"]) == pytest.approx(float(optax.tree.norm(rest)), rel=1e-6)


def test_a_tpu_multiplies_ragged_groups(inputs, random_params, compiling_for):
    layer, params = make_layer(DEEPSEEK, inputs, random_params)

    def gradients():
        loss = lambda p, x: jnp.square(layer.apply({"params": p}, x, True, REAL)).sum()  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))

    expected = gradients()(params, inputs)
    compiling_for("tpu")
    program = gradients()
    assert "ragged_dot" in str(jax.make_jaxpr(program)(params, inputs))
    assert_near(program(params, inputs), expected, 1e-5)


def test_compiled_products_are_those_of_the_chosen_experts():
    """Within 1.3 times, in both passes; the model's own count has no padding."""
    options, rows, tokens = ExpertsOptions(16, 4), 8, 128
    layer = Experts(experts_config(options, d_model=32, d_ff=48))
    x = jax.ShapeDtypeStruct((rows, tokens, 32), jnp.float32)
    params = jax.eval_shape(lambda x: layer.init(jax.random.key(0), x, True), x)

    def loss(params, x):
        return jnp.square(layer.apply(params, x, True)).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, x).compile()
    kernels = kernel_costs(parse_module(compiled.as_text()), frozenset({0}))
    flops = sum(kernel.times * kernel.flops for kernel in kernels)
    active = 2 * rows * tokens * (4 * 3 * 32 * 48 + 32 * 16)
    assert 1.0 <= flops / (3 * active) < 1.3
    assert count_products(loss, params, x).flops == active


def test_a_token_uses_the_parameters_of_the_chosen_experts():
    config = experts_config(ExpertsOptions(E, 1), vocab_size=11, num_layers=2)
    config = dataclasses.replace(config, layers=({}, {"feed_forward": "dense"}))
    model, tokens = DecoderOnly(config), jnp.ones((1, 2), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert total - count_active(config, params) == 3 * 3 * D * F


def test_bad_options_are_refused():
    assert_refused(
        {
            "num_chosen is 5, but num_experts is 4": lambda: ExpertsOptions(4, 5),
            "at least 60% of the choices": lambda: ExpertsOptions(capacity_factor=0.4),
            "not one of softmax, sigmoid": lambda: ExpertsOptions(router="tanh"),
        }
    )


def test_bfloat16_is_near_float32(inputs, random_params):
    layer, params = make_layer(CASES["mixtral"], inputs, random_params)
    rounded = Experts(
        dataclasses.replace(layer.config, dtype="bfloat16", activation_dtype="bfloat16")
    )
    found = apply(rounded, {"params": params}, inputs.astype(jnp.bfloat16), True, REAL)
    assert found.dtype == jnp.bfloat16
    expected = apply(layer, {"params": params}, inputs, True, REAL)
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())
