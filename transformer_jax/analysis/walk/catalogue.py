"""The kinds of steps: formula, section of the paper and code of each.

A step may say more exactly what a config chose in the place of the paper's formula.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple


class Where(NamedTuple):
    """A function or method of the project: its file, and its name there."""

    file: str
    function: str

    @classmethod
    def of(cls, owner: Any, name: str) -> "Where":
        """A method, in the class that defines it."""
        method = inspect.unwrap(getattr(owner, name))
        return cls(f"{method.__module__.replace('.', '/')}.py", method.__qualname__)


class Kind(NamedTuple):
    """What steps of a kind share."""

    title: str
    formula: str
    section: str
    where: Where


def _kind(title: str, formula: str, section: str, file: str, function: str) -> Kind:
    return Kind(title, formula, section, Where(f"transformer_jax/{file}.py", function))


_ATTENTION, _NORM = "nn/attention", "section 3.1"

KINDS: Mapping[str, Kind] = {
    "tokens": _kind(
        "Tokens",
        '"text" → (w_1, …, w_n)',
        "section 5.1",
        "tokenization/tokenizer",
        "Tokenizer.encode",
    ),
    "ids": _kind("Token ids", "t_i ∈ {0, …, V−1}", "section 5.1", "analysis/reading", "as_row"),
    "embedding": _kind(
        "Embedding", "x_i = E_(t_i)", "section 3.4", "nn/embeddings", "Embedding.embed"
    ),
    "embedding_scale": _kind(
        "Embedding, scaled",
        "x_i = √(d_model) E_(t_i)",
        "section 3.4",
        "nn/embeddings",
        "Embedding.embed",
    ),
    "positions": _kind(
        "Positions",
        "PE_p",
        "section 3.5",
        "nn/positions/base",
        "PositionEncoding.embed",
    ),
    "embedded": _kind(
        "Embedding plus positions",
        "x_i + PE_i",
        "section 3.5",
        "nn/positions/base",
        "PositionEncoding.embed",
    ),
    "token_types": _kind(
        "Token types",
        "x_i + S_(s_i)",
        "Devlin et al. 2019, section 3",
        "nn/embeddings",
        "InputEmbedding.__call__",
    ),
    "embedding_norm": _kind(
        "Norm of the embeddings",
        "norm(x)",
        "Devlin et al. 2019 (published code)",
        "nn/embeddings",
        "InputEmbedding.__call__",
    ),
    "norm_before": _kind("Norm", "norm(x)", _NORM, "nn/residual", "Residual.before"),
    "queries": _kind(
        "Queries", "Q = x W^Q", "section 3.2.2", _ATTENTION, "MultiHeadAttention.projections"
    ),
    "keys": _kind(
        "Keys", "K = x W^K", "section 3.2.2", _ATTENTION, "MultiHeadAttention.projections"
    ),
    "values": _kind(
        "Values", "V = x W^V", "section 3.2.2", _ATTENTION, "MultiHeadAttention.projections"
    ),
    "products": _kind(
        "Products of queries and keys", "Q K^T", "section 3.2.1", "nn/heads", "head_products"
    ),
    "scale": _kind("Scale", "(Q K^T)/√(d_k)", "section 3.2.1", _ATTENTION, "attention_logits"),
    "bias": _kind(
        "Position bias",
        "(Q K^T)/√(d_k) + B",
        "section 3.5",
        "nn/positions/base",
        "PositionEncoding.logit_bias",
    ),
    "cap": _kind("Cap", "c tanh(z/c)", "Gemma 2 (2024), section 2", "nn/softmax", "capped"),
    "mask": _kind(
        "Mask",
        'z_(i j) = −∞ "where" i "does not see" j',
        "section 3.2.3",
        "nn/masks",
        "padding_mask",
    ),
    "softmax": _kind(
        "Softmax",
        "A_(i j) = e^(z_(i j))/(∑_s e^(z_(i s)))",
        "section 3.2.1",
        "nn/softmax",
        "softmax",
    ),
    "heads": _kind(
        "Heads",
        "head = softmax((Q K^T)/√(d_k)) V",
        "section 3.2.1, equation 1",
        "nn/heads",
        "head_sums",
    ),
    "output": _kind(
        "Output matrix",
        "Concat(head_1, …, head_h) W^O",
        "section 3.2.2",
        _ATTENTION,
        "MultiHeadAttention.attend",
    ),
    "hidden": _kind(
        "Feed-forward, inner layer",
        "h = max(0, x W_1 + b_1)",
        "section 3.3, equation 2",
        "nn/feed_forward",
        "FeedForward.__call__",
    ),
    "feed_forward": _kind(
        "Feed-forward, outer layer",
        "FFN(x) = h W_2 + b_2",
        "section 3.3, equation 2",
        "nn/feed_forward",
        "FeedForward.__call__",
    ),
    "norm_after": _kind("Norm", "norm(x)", _NORM, "nn/residual", "Residual.after"),
    "residual": _kind(
        "Residual", "x + Sublayer(x)", "section 3.1", "nn/residual", "Residual.after"
    ),
    "final_norm": _kind("Final norm", "norm(x)", _NORM, "nn/norms", "final_norm"),
    "prediction_head": _kind(
        "Prediction head",
        "norm(activation(x W + b))",
        "Devlin et al. 2019 (published code)",
        "models/encoder_only",
        "PredictionHead.__call__",
    ),
    "logits": _kind("Logits", "z = x E^T", "section 3.4", "nn/embeddings", "Unprojected.logits"),
    "next": _kind(
        "The likeliest next tokens",
        "P(t) = e^(z_t)/(∑_s e^(z_s))",
        "section 3.4",
        "nn/embeddings",
        "Unprojected.logits",
    ),
    "filled": _kind(
        "What belongs here",
        "P(t) = e^(z_t)/(∑_s e^(z_s))",
        "Devlin et al. 2019, section 3.1",
        "models/encoder_only",
        "EncoderOnly.unprojected",
    ),
    "classes": _kind(
        "Classes",
        "P(c) = e^(z_c)/(∑_k e^(z_k))",
        "Devlin et al. 2019, section 3.2",
        "models/classifier",
        "TextClassifier.__call__",
    ),
    "cache": _kind(
        "A token goes in, the cache grows",
        "K ← (K; x_t W^K), V ← (V; x_t W^V)",
        "section 3.1 (auto-regressive)",
        "nn/cache",
        "KVCache.append",
    ),
    "past": _kind(
        "The new query meets the past",
        "softmax((q_t K^T)/√(d_k))",
        "section 3.2.3",
        _ATTENTION,
        "MultiHeadAttention.self_attend",
    ),
    "source": _kind(
        "The new query meets the source",
        "softmax((q_t K^T)/√(d_k))",
        "section 3.2.3",
        _ATTENTION,
        "MultiHeadAttention.cross_attend",
    ),
}
