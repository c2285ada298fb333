"""FLOPs counted by hand, and peaks by name."""

import jax
import jax.numpy as jnp
import pytest

from transformer_jax import build
from transformer_jax.configuration import read_settings
from transformer_jax.parallel.utilization import peak_flops, product_flops


def test_products_are_counted_with_their_loops():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    assert product_flops(jnp.dot, a, b) == 2 * 3 * 4 * 5

    def repeated(a, b):
        return jax.lax.scan(lambda total, _: (total + jnp.exp(a @ b).sum(), None), 0.0, length=7)

    assert product_flops(jax.jit(lambda a, b: repeated(a, b)[0]), a, b) == 7 * 2 * 3 * 4 * 5
    assert product_flops(jnp.add, a, a) == 0


def test_a_training_step_has_the_flops_of_the_textbook(tiny_config):
    """6 a parameter and token (Kaplan et al. 2020), and 12 T D a token for attention's products."""
    settings = read_settings(tiny_config({"model.tie_embeddings": "all"}))
    vocab, d_model, d_ff, rows, length = 48, 16, 32, 4, 48
    task = build.build_task(settings, {"source": vocab, "target": vocab}, None)
    params = jax.eval_shape(task.init, jax.random.key(0))
    batch = build.batch_shapes(task.lengths, rows)
    loss = lambda params, batch: task.loss(params, batch, None)[0]  # noqa: E731
    found = product_flops(jax.grad(loss), params, batch)
    assert build.step_flops(task, params, rows) == found

    attention, feed_forward = 4 * d_model**2, 2 * d_model * d_ff
    matrices = 3 * attention + 2 * feed_forward + vocab * d_model
    products = 3 * 2 * 2 * length * d_model  # weights and values of three attentions, forward
    assert found == rows * length * (6 * matrices + 3 * products)


class Device:
    platform = "gpu"

    def __init__(self, kind):
        self.device_kind = kind


@pytest.mark.parametrize(
    "kind, peak",
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("Abacus", None),
    ],
)
def test_peaks_go_by_the_start_of_the_kind(kind, peak):
    assert peak_flops(Device(kind), jnp.bfloat16) == peak


def test_the_peak_of_a_cpu_is_measured():
    assert 1e9 < peak_flops(jax.devices()[0], jnp.float32) < 1e14
