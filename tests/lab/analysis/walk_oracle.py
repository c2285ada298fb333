# SPDX-License-Identifier: Apache-2.0
"""A Transformer in NumPy, from its parameters alone, one example at a time.

Values have the paths of `nn.hooks`; steps of a walk without a hook point are named similarly.
"""

import math

import jax
import numpy as np
from scipy.special import erf, softmax

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_exact": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


class Oracle:
    """`values`: all that the model of `config` computes, float64."""

    def __init__(self, config, params):
        self.config = config
        self.params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
        self.values = {}

    def keep(self, name, x):
        self.values[name] = x
        return x

    def norm(self, p, x):
        eps = self.config.norm_epsilon
        if self.config.norm == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps)
        return x * p["scale"] + p.get("bias", 0)

    def embed(self, stack, table, positions, tokens):
        c = self.config
        x = self.keep(f"{stack} embedding", self.params[table]["table"][tokens])
        if c.scale_embeddings:
            x = self.keep(f"{stack} embedding_scale", x * math.sqrt(c.d_model))
        place = np.arange(len(tokens))
        if c.positions == "sinusoidal":
            angles = place[:, None] / 10_000 ** (np.arange(0, c.d_model, 2) / c.d_model)
            added = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(x.shape)
        elif c.positions == "learned":
            added = positions["table"][place + c.position_offset]
        else:
            return x
        self.keep(f"{stack} positions", added)
        return self.keep(f"{stack} embedded", x + added)

    def linear(self, p, x):
        return np.tensordot(x, p["kernel"], x.ndim - 1) + p.get("bias", 0)

    def attention(self, path, p, x, memory, causal):
        c = self.config
        q = self.linear(p["query"], x).swapaxes(0, 1)
        k, v = (self.linear(p[name], memory).swapaxes(0, 1) for name in ("key", "value"))
        for name, of in (("queries", q), ("keys", k), ("values", v)):
            self.keep(f"{path}.{name}", of)
        k, v = (np.repeat(of, c.num_heads // len(of), axis=0) for of in (k, v))
        products = self.keep(f"{path} products", np.einsum("htk,hsk->hts", q, k))
        logits = self.keep(f"{path} scale", products / math.sqrt(q.shape[-1]))
        distance = np.arange(k.shape[1]) - np.arange(q.shape[1])[:, None]
        if causal and c.positions == "alibi":
            slopes = 2.0 ** (-8 * np.arange(1, c.num_heads + 1) / c.num_heads)
            bias = -slopes[:, None, None] * np.abs(distance)
            logits = self.keep(f"{path} bias", logits + bias)
        if c.logit_cap is not None:
            logits = self.keep(f"{path} cap", c.logit_cap * np.tanh(logits / c.logit_cap))
        window = c.attention_window if causal else c.of_encoder.attention_window
        if x is memory:  # not cross-attention
            hidden = causal & (distance > 0)
            if window is not None:
                hidden |= np.abs(distance) >= window
            logits = np.where(hidden, -np.inf, logits)
        self.keep(f"{path} mask", logits)
        weights = self.keep(f"{path}.weights", softmax(logits, axis=-1))
        heads = self.keep(f"{path}.heads", weights @ v)
        return self.linear(p["output"], heads.swapaxes(0, 1))

    def feed_forward(self, path, p, x):
        act = ACTIVATIONS[self.config.activation]
        if self.config.gated_feed_forward:
            hidden = act(self.linear(p["gate"], x)) * self.linear(p["inner"], x)
        else:
            hidden = act(self.linear(p["inner"], x))
        return self.linear(p["outer"], self.keep(f"{path}.hidden", hidden))

    def sublayer(self, path, p, x, causal, memory):
        name = path.rpartition(".")[2]
        norms = p[f"{name}_residual"]
        placement = self.config.norm_placement
        read = x
        if placement != "post":
            read = self.keep(f"{path} norm_before", self.norm(norms["norm_before"], x))
        if name == "feed_forward":
            y = self.feed_forward(path, p[name], read)
        elif name == "self_attention":
            y = self.attention(path, p[name], read, read, causal)
        else:
            y = self.attention(path, p[name], read, memory, False)
        self.keep(path, y)
        if placement == "sandwich":
            y = self.keep(f"{path} norm_after", self.norm(norms["norm_after"], y))
        x = self.keep(f"{path} residual", x + y)
        if placement == "post":
            x = self.keep(f"{path} norm_after", self.norm(norms["norm_after"], x))
        return x

    def stack(self, stack, x, causal, memory=None):
        params = self.params[stack]
        for layer in sorted(name for name in params if name.startswith("layer_")):
            for name in ("self_attention", "cross_attention", "feed_forward"):
                if name in params[layer]:
                    x = self.sublayer(f"{stack}.{layer}.{name}", params[layer], x, causal, memory)
        if self.config.norm_placement == "post":
            return x
        return self.keep(f"{stack} final_norm", self.norm(params["final_norm"], x))

    def logits(self, x, table):
        return self.keep("logits", x @ self.params[table]["table"].T + self.params.get("c", 0))


def encoder_decoder(config, params, source, target):
    o = Oracle(config, params)
    tied = config.tie_embeddings in ("all", "inputs")
    x = o.embed("encoder", "target_embedding" if tied else "source_embedding", None, source)
    memory = o.stack("encoder", x, causal=False)
    x = o.embed("decoder", "target_embedding", None, target)
    x = o.stack("decoder", x, causal=True, memory=memory)
    o.logits(x, "target_embedding")
    return o.values


def decoder_only(config, params, tokens):
    o = Oracle(config, params)
    x = o.embed("decoder", "embedding", params.get("input", {}).get("positions"), tokens)
    o.logits(o.stack("decoder", x, causal=True), "embedding")
    return o.values


def encoder_only(config, params, tokens):
    o = Oracle(config, params)
    read, head = o.params["input"], o.params["prediction_head"]
    x = o.embed("encoder", "embedding", read["positions"], tokens)
    ends = np.array(tokens) == config.separator_id
    x = o.keep("encoder token_types", x + read["token_types"][np.minimum(ends.cumsum() - ends, 1)])
    x = o.keep("encoder embedding_norm", o.norm(read["norm"], x))
    x = o.stack("encoder", x, causal=False)
    x = ACTIVATIONS[config.activation](o.linear(head["transform"], x))
    x = o.keep("prediction_head", o.norm(head["norm"], x))
    o.params["c"] = head["bias"]
    o.logits(x, "embedding")
    return o.values
