# SPDX-License-Identifier: Apache-2.0
"""Formulas of the paper, of GPT and of BERT for one text, in slow NumPy."""

import math

import numpy as np


def layer_norm(params, x):
    centered = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
    return centered / deviation * params["scale"] + params["bias"]


def relu(x):
    return np.maximum(0, x)


def gelu(x):
    """Hendrycks and Gimpel 2016, with the hyperbolic tangent."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attention(params, x, memory=None, causal=False, source=None):
    """Concat(head_1, ..., head_h) W^O: cross-attention with a memory, else self-attention, which
    may see a source, too."""
    memory = x if memory is None else memory
    memory = memory if source is None else np.concatenate([memory, source])
    heads = []
    for h in range(params["query"]["kernel"].shape[1]):
        query, key, value = (
            side @ params[name]["kernel"][:, h] + params[name].get("bias", np.zeros(h + 1))[h]
            for name, side in (("query", x), ("key", memory), ("value", memory))
        )
        logits = query @ key.T / math.sqrt(query.shape[-1])
        if causal:
            visible = np.tri(len(x), len(memory)) > 0
            visible[:, len(x) :] = True  # the source
            logits = np.where(visible, logits, -np.inf)
        weights = np.exp(logits)
        heads.append(weights / weights.sum(-1, keepdims=True) @ value)
    kernel = params["output"]["kernel"]
    concatenated = np.concatenate(heads, -1)
    return concatenated @ kernel.reshape(-1, kernel.shape[-1]) + params["output"].get("bias", 0)


def feed_forward(params, x, activation=relu):
    hidden = activation(x @ params["inner"]["kernel"] + params["inner"]["bias"])
    return hidden @ params["outer"]["kernel"] + params["outer"]["bias"]


def sublayer(placement, layer, name, x, function, **options):
    """A sublayer in its residual connection, with the norm where `norm_placement` says."""
    norms, params = layer[f"{name}_residual"], layer[name]
    inner = x if placement == "post" else layer_norm(norms["norm_before"], x)
    y = function(params, inner, **options)
    match placement:
        case "post":
            return layer_norm(norms["norm_after"], x + y)
        case "pre":
            return x + y
        case "sandwich":
            return x + layer_norm(norms["norm_after"], y)


def stack(placement, params, x, memory=None, causal=False, activation=relu):
    """Encoder stack; a decoder stack is causal, and may have the encoder's output as memory."""
    for name in sorted(name for name in params if name.startswith("layer_")):
        layer = params[name]
        merged = None if "cross_attention" in layer else memory
        x = sublayer(placement, layer, "self_attention", x, attention, causal=causal, source=merged)
        if memory is not None and merged is None:
            x = sublayer(placement, layer, "cross_attention", x, attention, memory=memory)
        x = sublayer(placement, layer, "feed_forward", x, feed_forward, activation=activation)
    return x if placement == "post" else layer_norm(params["final_norm"], x)
