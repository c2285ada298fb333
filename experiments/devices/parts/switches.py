# SPDX-License-Identifier: Apache-2.0
"""Base with 2 + 2 layers and one change at a time: what each costs.

Differences below that of the two rows "as configured" are noise.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from experiments.devices.check import Check
from experiments.devices.steps import BASE, batch_of, compile_config, time_step
from transformer_jax.nn import ops
from transformer_jax.nn.attention import MultiHeadAttention

LAYERS = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2}
DRY_LAYERS = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}


@dataclasses.dataclass(frozen=True)
class Switch:
    """One change: fields of the config, options of XLA, or a replaced function."""

    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    xla: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    patch: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


def separate_projections() -> AbstractContextManager[Any]:
    """Queries, keys and values are separate products, as on TPUs."""
    return mock.patch.object(
        MultiHeadAttention, "_project", lambda self, maps, x: [linear(x) for linear in maps]
    )


def float32_results() -> AbstractContextManager[Any]:
    """All products write float32."""

    def product(subscripts, a, b, dtype, exact=False):
        precision = ops._PRECISIONS[jnp.dtype(dtype)]
        return jnp.einsum(subscripts, a, b, precision=precision, preferred_element_type=jnp.float32)

    return mock.patch.object(ops, "product", product)


SWITCHES = {
    "as configured": Switch(),
    "as configured, again": Switch(),
    "no Triton products": Switch(xla={"xla_gpu_enable_triton_gemm": False}),
    "products write float32": Switch(patch=float32_results),
    "separate projections": Switch(patch=separate_projections),
    "dropout 0": Switch({"model.dropout_rate": 0.0}),
    "no command buffers": Switch(xla={"xla_gpu_enable_command_buffer": ""}),
    "whole logits (1 tile)": Switch({"train.loss_tiles": 1}),
    "4 tiles": Switch({"train.loss_tiles": 4}),
    "vocab_multiple 128": Switch({"model.vocab_multiple": 128}),
    "latency hiding": Switch(xla={"xla_gpu_enable_latency_hiding_scheduler": True}),
    "dropout bits threefry": Switch({"model.dropout_bits": "threefry"}),
    "attention plain": Switch({"model.attention": "plain"}),
    "RMSNorm": Switch({"model.norm": "rms"}),
}


def few_switches() -> dict[str, Switch]:
    """All changes in few programs."""
    patches = {name: switch for name, switch in SWITCHES.items() if switch.patch != Switch().patch}
    fields = {}
    options = {}
    for switch in SWITCHES.values():
        fields |= switch.fields
        options |= switch.xla
    return patches | {"all fields and options": Switch(fields, options)}


def run(check: Check) -> None:
    layers = DRY_LAYERS if check.dry else LAYERS
    switches = few_switches() if check.dry else SWITCHES
    configured_ms = None
    for name, switch in switches.items():
        jax.clear_caches()  # traces of functions that are replaced, or no longer
        with check.attempt(name), switch.patch():
            program = compile_config(check, BASE, layers | switch.fields, switch.xla)
            ms = time_step(check, name, program, batch_of(check, program))
            configured_ms = configured_ms or ms
            check.record(f"{name}: difference", ms=ms - configured_ms)
            del program  # before the next one needs memory
