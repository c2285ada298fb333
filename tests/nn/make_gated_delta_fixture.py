# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures/gated_delta.npz: what transformers computes in Qwen3-Next's linear attention.

The tests read only the file. To write it again, in an environment with torch 2.13.0 and
transformers 5.23.0 (tests/interop/make_fixtures.py says how to make one):

    python tests/nn/make_gated_delta_fixture.py

`rule_*` belong to the gated delta rule alone, by `torch_recurrent_gated_delta_rule`; the chunked
function of transformers agrees with it to 1e-3, which the script checks: its differences of sums
lose digits after a decay of -1e4. `layer_*` belong to a
`Qwen3NextGatedDeltaNet` with 2 heads of keys, 4 of values and a convolution of width 4. Gradients
are those of sum(outputs * cotangent), and for the rule + sum(state * state_cotangent).
"""

from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

FILE = Path(__file__).parent / "fixtures" / "gated_delta.npz"
INPUTS = ("query", "key", "value", "log_decay", "strength", "state")


def rule_inputs(rows=2, length=11, heads=2, key_size=5, value_size=3):
    """Random inputs, with tokens that keep everything, forget everything, or write nothing."""
    shapes = [(key_size,), (key_size,), (value_size,), (), ()]
    inputs = [torch.randn(rows, length, heads, *shape) for shape in shapes]
    inputs[3] = -torch.exp(2 * inputs[3])
    inputs[4] = torch.sigmoid(2 * inputs[4])
    inputs[3][:, 3], inputs[3][:, 6], inputs[3][0, 8] = 0.0, -60.0, -1e4
    inputs[4][:, 5], inputs[4][:, 7] = 0.0, 1.0
    inputs += [torch.randn(rows, heads, key_size, value_size)]
    return [x.requires_grad_() for x in inputs]


def rule():
    """Arrays of the rule: inputs, results and gradients."""
    inputs = rule_inputs()
    results, found = [], []
    functions = (
        qwen3_next.torch_recurrent_gated_delta_rule,
        lambda *args, **named: qwen3_next.torch_chunk_gated_delta_rule(
            *args, chunk_size=4, **named
        ),
    )
    for function in functions:
        options = dict(output_final_state=True, use_qk_l2norm_in_kernel=True)
        outputs, state = function(*inputs[:5], initial_state=inputs[5], **options)
        if not results:
            results = [torch.randn_like(outputs), torch.randn_like(state)]
        loss = (outputs * results[0]).sum() + (state * results[1]).sum()
        found.append([outputs, state, *torch.autograd.grad(loss, inputs)])
    for step, chunk in zip(*found, strict=True):
        torch.testing.assert_close(step, chunk, rtol=1e-3, atol=1e-3)
    names = [*INPUTS, "cotangent", "state_cotangent", "outputs", "last_state"]
    names += [f"{name}_gradient" for name in INPUTS]
    return dict(zip(names, [*inputs, *results, *found[0]], strict=True))


def layer():
    """Arrays of the layer: parameters, input, output and gradients."""
    config = Qwen3NextConfig(
        hidden_size=12,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=3,
        linear_value_head_dim=5,
        linear_conv_kernel_dim=4,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    module = qwen3_next.Qwen3NextGatedDeltaNet(config, 0)
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        parameter.data = torch.randn_like(parameter) * (0.5 if "weight" in name else 1.0)
    x = torch.randn(2, 9, 12, requires_grad=True)
    y = module(x)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad((y * cotangent).sum(), [x, *parameters.values()])
    arrays = {"x": x, "y": y, "cotangent": cotangent} | parameters
    names = [f"{name}_gradient" for name in ("x", *parameters)]
    return arrays | dict(zip(names, gradients, strict=True))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arrays = {f"rule_{name}": array for name, array in rule().items()}
    arrays |= {f"layer_{name}": array for name, array in layer().items()}
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **{name: x.detach().numpy() for name, x in arrays.items()})


if __name__ == "__main__":
    main()
