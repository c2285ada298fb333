# SPDX-License-Identifier: Apache-2.0
"""Texts of a walk: title, formula, section, code and explanation of each kind of step.

Formulas are in a linear notation that is readable as text and parses to MathML, a part of
UnicodeMath (Sargent 2016): a_b and a^b are indices, a/b is a fraction, √a a root. Parentheses
around a whole index, numerator, denominator or radicand only group. Quotation marks enclose words.
Example: "softmax((Q K^T)/√(d_k)) V".
"""

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from transformer_jax.nn.config import TransformerConfig


class StepKind(NamedTuple):
    """Texts that all steps of a kind share, unless the config differs from the paper.

    Attributes:
      section: section of "Attention Is All You Need", or a later paper.
      code: the function or method that computes it.
      explanation: what happens; numbers of the example are in braces (`step.Part.step`).
    """

    title: str
    formula: str
    section: str
    code: Callable[..., Any]
    explanation: str


_TEXTS = """
tokens | Tokens | "text" → (w_1, …, w_n) | section 5.1 | tokenization:Tokenizer.encode
    {subject} becomes {count} tokens, numbered from 0, with the tokenizer's special tokens such
    as the end of the text.
ids | Token ids | t_i ∈ {0, …, V−1} | section 5.1 | inference.model_inputs:as_row
    {token} is entry {result} of the vocabulary.
embedding | Embedding | x_i = E_(t_i) | section 3.4 | nn.embeddings:Embedding.embed
    Row {id} of the embedding matrix E is the embedding of {token}: {result}, {width} learned
    numbers.
embedding_scale | Embedding, scaled | x_i = √(d_model) E_(t_i) | section 3.4 | \
nn.embeddings:Embedding.embed
    Each number is multiplied by √d_model = √{width} = {scale}; {token} has {result}.
positions | Positions | PE_p | section 3.5 | nn.positions.base:PositionEncoding.embed
    Attention alone ignores order. {token} is at position {index}, so {result} is added to its
    embedding.
embedded | Embedding plus positions | x_i + PE_i | section 3.5 | \
nn.positions.base:PositionEncoding.embed
    The sum for {token} begins with {result}.
token_types | Token types | x_i + S_(s_i) | Devlin et al. 2019, section 3 | \
nn.embeddings:InputEmbedding.__call__
    {token} belongs to part {type} of the text; adding the vector of that part gives {result}.
embedding_norm | Norm of the embeddings | norm(x) | Devlin et al. 2019 (published code) | \
nn.embeddings:InputEmbedding.__call__
    The norm over the {width} numbers of each token gives {result}.
norm_before | Norm | norm(x) | section 3.1 | nn.transformer:Residual.read
norm_after | Norm | norm(x) | section 3.1 | nn.transformer:Residual.write
final_norm | Final norm | norm(x) | section 3.1 | nn.norms:final_norm
    The {width} numbers of {token} {before}; normalized, then multiplied by learned
    scales{shifted}, they are {result}.
queries | Queries | Q = x W^Q | section 3.2.2 | nn.attention:MultiHeadAttention.projections
keys | Keys | K = x W^K | section 3.2.2 | nn.attention:MultiHeadAttention.projections
values | Values | V = x W^V | section 3.2.2 | nn.attention:MultiHeadAttention.projections
    {matrix} projects {read} {token} to {width} numbers for each of {heads}; head 0 has
    {result}.{changes}
products | Products of queries and keys | Q K^T | section 3.2.1 | nn.ops:head_products
    In head 0 the dot product of the query of {token} and the key of {key}, a sum of {d_k}
    products, is {result}.
scale | Scale | (Q K^T)/√(d_k) | section 3.2.1 | nn.attention:attention_logits
    {product} / √d_k = {product} / √{d_k} = {result}. Products grow with d_k; without the scale
    the softmax would saturate, and its gradient vanish.
bias | Position bias | (Q K^T)/√(d_k) + B | section 3.5 | \
nn.positions.base:PositionEncoding.logit_bias
    The bias of positions {index} and {at_key}, {bias}, gives the logit {result}.
cap | Cap | c tanh(z/c) | Gemma 2 (2024), section 2 | nn.ops:soft_cap
    No logit exceeds {cap}: {result}.
mask | Mask | z_(i j) = −∞ "where" i "does not see" j | section 3.2.3 | nn.masks:padding_mask
    A token attends to those {order}: {hidden} of {size} logits of each head become −∞, and
    their weights 0.
softmax | Softmax | A_(i j) = e^(z_(i j))/(∑_s e^(z_(i s))) | section 3.2.1 | nn.ops:softmax
    Head 0 of {token} gives {result:.1%} of its attention to {key}, its largest weight; each row
    sums to 1.{difference}
heads | Heads | head = softmax((Q K^T)/√(d_k)) V | section 3.2.1, equation 1 | nn.ops:head_outputs
    The sum of all values, weighted by these weights: head 0 of {token} has {result}.{more}
output | Output matrix | Concat(head_1, …, head_h) W^O | section 3.2.2 | \
nn.attention:MultiHeadAttention.attend
    The {heads} heads of {token}, {size} numbers each, are concatenated to {total} numbers; W^O
    projects them to {width}: {result}.
hidden | Feed-forward, inner layer | h = max(0, x W_1 + b_1) | section 3.3, equation 2 | \
nn.feed_forward:FeedForward.__call__
    Each token is processed by itself. Of {width} neurons {active} are above 0 for {token};
    neuron {neuron} has the largest magnitude, {result}.
feed_forward | Feed-forward, outer layer | FFN(x) = h W_2 + b_2 | section 3.3, equation 2 | \
nn.feed_forward:FeedForward.__call__
    The {neurons} neurons of {token} are projected to {width} numbers: {result}.
sublayer | Sublayer | y = Sublayer(x) | section 3.1 | nn.sublayers:AttentionLayer.self_attend
    {name} computes {result} for {token}. How it does so is in its code.
residual | Residual | x + Sublayer(x) | section 3.1 | nn.transformer:Residual.write
    The stream of {token} {stream} plus {addend} {added} is {result}.
prediction_head | Prediction head | norm(activation(x W + b)) | \
Devlin et al. 2019 (published code) | models.encoder_only:PredictionHead.__call__
    A dense layer, {activation} and a norm turn the features of {token} into {result}.
logits | Logits | z = x E^T | section 3.4 | nn.embeddings:Unprojected.logits
    The dot products of the features of {token} with {width:,} {matrix}, one for each token of
    the vocabulary, are its logits; the highest, {result}, is that of {best}.
next | The most likely next tokens | P(t) = e^(z_t)/(∑_s e^(z_s)) | section 3.4 | \
nn.embeddings:Unprojected.logits
filled | Prediction for the masked token | P(t) = e^(z_t)/(∑_s e^(z_s)) | \
Devlin et al. 2019, section 3.1 | models.encoder_only:EncoderOnly.unprojected
classes | Classes | P(c) = e^(z_c)/(∑_k e^(z_k)) | Devlin et al. 2019, section 3.2 | \
models.classifier:TextClassifier.__call__
    The softmax over all {count:,} logits gives probabilities: {best} has {result:.1%}
    {place}.{more}
cache | Cache, one token longer | K ← (K; x_t W^K), V ← (V; x_t W^V) | \
section 3.1 (auto-regressive) | nn.cache:KVCache.append
    The input is {token} alone. Each of the {layers} layers writes its key and value to slot
    {index} of its cache of {heads} × {slots} × {width} numbers; {length} of {slots} slots are
    filled. Shown: the keys of layer {layer}.
past | Attention to the cache | softmax((q_t K^T)/√(d_k)) | section 3.2.3 | \
nn.attention:MultiHeadAttention.self_attend
    The query of {token} attends to the {length} keys of the cache. In the last layer head 0
    gives {result:.1%} to {key}.
source | Attention to the source | softmax((q_t K^T)/√(d_k)) | section 3.2.3 | \
nn.attention:MultiHeadAttention.cross_attend
    The query of {token} attends to the keys of the encoder's output. In the last layer head 0
    gives {result:.1%} to {key}.
"""


def _read_kinds() -> Iterator[tuple[str, StepKind]]:
    """Reads the table: a line for each kind, the explanation that they share below them."""
    for heads, lines in re.findall(r"((?:\S.*\n)+)((?: .*\n)+)", _TEXTS):
        explanation = " ".join(lines.split())
        for head in heads.splitlines():
            name, title, formula, section, code = head.split(" | ")
            function = pkgutil.resolve_name(f"transformer_jax.{code}")
            yield name, StepKind(title, formula, section, function, explanation)


KINDS: Mapping[str, StepKind] = dict(_read_kinds())

NORMS = {
    "layer": ("LayerNorm(x) = γ ⊙ (x − μ)/√(σ^2 + ε) + β", "section 3.1"),
    "layer_unbiased": ("LayerNorm(x) = γ ⊙ (x − μ)/√(σ^2 + ε)", "section 3.1"),
    "rms": ("RMSNorm(x) = γ ⊙ x/√(mean(x^2) + ε)", "Zhang and Sennrich 2019"),
    "batch": ("BatchNorm(x) = γ ⊙ (x − μ)/√(σ^2 + ε) + β", "Ioffe and Szegedy 2015"),
    "rms_plus_one": ("RMSNorm(x) = (1 + γ) ⊙ x/√(mean(x^2) + ε)", "Gemma (2024)"),
}
"""Formula and section of a norm, by `model.norm`."""
RESIDUALS = {
    "post": (None, None),
    "pre": ("x + Sublayer(norm(x))", "section 3.1; Xiong et al. 2020"),
    "sandwich": ("x + norm(Sublayer(norm(x)))", "section 3.1; Ding et al. 2021"),
}
"""Formula and section of a residual connection, by `model.norm_placement`."""
_WAVES = "PE_(p, {}) = sin(p/10000^(2i/d_model)), PE_(p, {}) = cos(p/10000^(2i/d_model))"
POSITIONS = {
    "SinusoidalPositions": _WAVES.format("2i", "2i+1"),
    "SinusoidalHalves": _WAVES.format("i", "d_model/2+i"),
    "LearnedPositions": 'PE_p "is row" p "of a learned table"',
}
"""Formulas of position encodings that are added to embeddings, by class name."""
_ACTIVATIONS = {
    "relu": ("max(0, {})", "equation 2"),
    **dict.fromkeys(("gelu", "gelu_exact"), ("GELU({})", "Hendrycks and Gimpel 2016")),
    **dict.fromkeys(("silu", "swish"), ("SiLU({})", "Ramachandran et al. 2017")),
    "squared_relu": ("max(0, {})^2", "So et al. 2021"),
}


def inner_layer(c: TransformerConfig) -> tuple[str, str]:
    """Formula and section of the inner feed-forward layer of a config."""
    activation, source = _ACTIVATIONS.get(c.activation, (f"{c.activation}({{}})", "equation 2"))
    inner = "x W_1 + b_1" if c.feed_forward_bias else "x W_1"
    if c.gated_feed_forward:
        gate = activation.format(inner.replace("1", "g"))
        return f"h = {gate} ⊙ ({inner})", "section 3.3; Shazeer 2020"
    separator = "," if source == "equation 2" else ";"
    return f"h = {activation.format(inner)}", f"section 3.3{separator} {source}"
