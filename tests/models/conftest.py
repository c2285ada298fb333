# SPDX-License-Identifier: Apache-2.0
"""Formulas of GPT and BERT for one text, in slow NumPy."""

import math

import numpy as np
import pytest


def norm(params, x):
    centered = x - x.mean(-1, keepdims=True)
    return (
        centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * params["scale"]
        + params["bias"]
    )


def gelu(x):
    """Hendrycks and Gimpel 2016, with the hyperbolic tangent."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(params, x, causal):
    heads = []
    for h in range(params["query"]["kernel"].shape[1]):
        query, key, value = (
            x @ params[name]["kernel"][:, h] + params[name]["bias"][h]
            for name in ("query", "key", "value")
        )
        weights = np.exp(query @ key.T / math.sqrt(query.shape[1]))
        if causal:
            weights = np.tril(weights)
        heads.append(weights / weights.sum(-1, keepdims=True) @ value)
    kernel = params["output"]["kernel"]
    return (
        np.concatenate(heads, -1) @ kernel.reshape(-1, kernel.shape[-1]) + params["output"]["bias"]
    )


def feed_forward(params, x):
    hidden = gelu(x @ params["inner"]["kernel"] + params["inner"]["bias"])
    return hidden @ params["outer"]["kernel"] + params["outer"]["bias"]


def gpt_stack(params, x):
    """Pre-norm decoder with a final norm."""
    for i in range(sum(name.startswith("layer_") for name in params)):
        layer = params[f"layer_{i}"]
        y = norm(layer["self_attention_residual"]["norm_before"], x)
        x = x + attention(layer["self_attention"], y, causal=True)
        y = norm(layer["feed_forward_residual"]["norm_before"], x)
        x = x + feed_forward(layer["feed_forward"], y)
    return norm(params["final_norm"], x)


def bert_stack(params, x):
    """Post-norm encoder."""
    for i in range(len(params)):
        layer = params[f"layer_{i}"]
        y = attention(layer["self_attention"], x, causal=False)
        x = norm(layer["self_attention_residual"]["norm_after"], x + y)
        y = feed_forward(layer["feed_forward"], x)
        x = norm(layer["feed_forward_residual"]["norm_after"], x + y)
    return x


@pytest.fixture(scope="session")
def formulas():
    """The functions above."""
    from types import SimpleNamespace

    return SimpleNamespace(norm=norm, gelu=gelu, gpt_stack=gpt_stack, bert_stack=bert_stack)
