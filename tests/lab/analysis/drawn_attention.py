# SPDX-License-Identifier: Apache-2.0
"""Attention of no model: drawn queries and keys, and the weights that follow from them."""

import numpy as np

from transformer_jax.lab.analysis.activations import KINDS, Attention

SOURCE = ["▁A", "▁brown", "▁dog", "▁runs", "▁over", "▁the", "▁mea", "dow", ".", "</s>", "<pad>"]
TARGET = ["<s>", "▁Ein", "▁brauner", "▁Hund", "▁läuft", "▁über", "▁die", "▁Wiese", "."]


def drawn_attention(
    tokens, *, layers=2, heads=4, groups=None, size=8, sharpness=1.0, vectors=True, bias=0.0
):
    """An Attention of the kinds that the stacks in `tokens` have. A token "<pad>" is masked as a
    key; `bias` is subtracted from a product for each step of distance."""
    rng = np.random.default_rng(0)
    values = {}
    for kind, (queries_of, keys_of) in KINDS.items():
        if not {queries_of, keys_of} <= tokens.keys():
            continue
        T, S = len(tokens[queries_of]), len(tokens[keys_of])
        seen = np.array([token != "<pad>" for token in tokens[keys_of]])[None]
        if kind == "decoder":
            seen = seen & np.tril(np.ones((T, S), bool))
        distance = np.abs(np.arange(T)[:, None] - np.arange(S))
        for layer in range(layers):
            queries = sharpness * rng.normal(size=(heads, T, size)).astype(np.float32)
            keys = rng.normal(size=(groups or heads, S, size)).astype(np.float32)
            shared = np.repeat(keys, heads // len(keys), axis=0)
            products = queries @ shared.transpose(0, 2, 1) / np.sqrt(size) - bias * distance
            weights = np.exp(np.where(seen, products - products.max(-1, keepdims=True), -1e9))
            name = "cross_attention" if kind == "cross" else "self_attention"
            place = f"{queries_of}.layer_{layer}.{name}"
            values[f"{place}.weights"] = weights / weights.sum(-1, keepdims=True)
            if vectors:
                values |= {f"{place}.queries": queries, f"{place}.keys": keys}
    return Attention({"source": "A brown dog runs over the meadow."}, tokens, values)


def drawn_tree():
    """A beam search of size 2 and two steps. The second-best token of step 1 wins."""

    names = ("id", "parent", "step", "token", "log_prob", "state", "score", "why")
    worse = "not among the 2 best of its step"
    nodes = [
        (0, None, 0, "", 0.0, "start", None, ""),
        (1, 0, 1, "▁Ein", -0.25, "kept", None, ""),
        (2, 0, 1, "▁Der", -0.5, "kept", None, ""),
        (3, 0, 1, "▁Das", -2.125, "dropped", None, worse),
        (4, 2, 2, "</s>", -0.625, "ended", -0.5, ""),
        (5, 1, 2, "</s>", -1.5, "ended", -1.25, ""),
        (6, 1, 2, "<b>", -np.inf, "dropped", None, worse),
    ]
    nodes = [dict(zip(names, node, strict=True)) for node in nodes]
    return {"beam_size": 2, "alpha": 0.6, "nodes": nodes, "outputs": [4, 5]}
