# SPDX-License-Identifier: Apache-2.0
"""Trains a small model with experts on eight devices (see `on_eight_devices.py`)."""

import eight_devices as runs
import jax
import numpy as np

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.errors import UserError
from transformer_jax.metrics import compute_metrics

runs.LAYOUTS |= {
    "pmap 4": ({"engine": "pmap"}, 4),
    "expert 2, sequence 2, tensor 2": ({"expert": 2, "sequence": 2, "tensor": 2}, 8),
}
MODEL = {"num_layers": 1, "d_ff": 16, "gated_feed_forward": True, "feed_forward": "experts"}
MODEL |= {"experts.num_experts": 4, "experts.num_shared": 1, "experts.router": "sigmoid"}
MODEL |= {"experts.bias_rate": 0.01, "experts.balance_weight": 1.0, "experts.z_weight": 0.1}
MODEL |= {"experts.capacity_factor": None}  # devices that divide a row's tokens have no other


def run(layout, **changes):
    """Parameters after two steps, and the metrics of the second."""
    engine, step, state, batch = runs.start(layout, "language_modeling", **MODEL | changes)
    for _ in range(2):
        state, sums = step(state, batch)
    metrics = compute_metrics(jax.device_get(sums))
    return jax.device_get(engine.to_portable(state).params), metrics


def compare(layout, reference, **changes):
    """Largest distance of the parameters, whether counters are equal, and relative distances of the
    metrics."""
    (expected, metrics), (params, found) = reference, run(layout, **changes)
    distance = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), params, expected)
    names = [name for name in metrics if name.startswith(("aux/", "loss"))]
    biases = [leaf for path, leaf in named_leaves(params).items() if "router_bias_steps" in path]
    others = [leaf for path, leaf in named_leaves(expected).items() if "router_bias_steps" in path]
    return {
        "params": max(jax.tree.leaves(distance)),
        "counters": [np.array_equal(*pair) for pair in zip(biases, others, strict=True)],
        "metrics": {name: abs(float(found[name] - metrics[name])) for name in names},
        "values": {name: float(metrics[name]) for name in names},
    }


def refusal():
    """Message for three experts on two devices."""
    try:
        run("expert 2, sequence 2, tensor 2", **{"experts.num_experts": 3})
    except UserError as error:
        return str(error)
    return None


def main():
    whole = run("one")
    layouts = ("pmap 4", "expert 2, sequence 2, tensor 2")
    return {layout: compare(layout, whole) for layout in layouts} | {"refusal": refusal()}
