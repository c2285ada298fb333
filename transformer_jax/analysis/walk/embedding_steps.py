"""From text to what the first layer reads (sections 3.4 and 3.5)."""

import math
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from transformer_jax.analysis.walk.catalogue import Where
from transformer_jax.analysis.walk.seen import Seen, quoted, some, step
from transformer_jax.analysis.walk.step import Step
from transformer_jax.models.encoder_only import token_types
from transformer_jax.nn.positions import encoding_class

_WAVES = "PE_(p, 2i) = sin(p/10000^(2i/d_model)), PE_(p, {}) = cos(p/10000^(2i/d_model))"
_ADDED = {
    "SinusoidalPositions": _WAVES.format("2i+1"),
    "SinusoidalHalves": _WAVES.format("d_model/2+i").replace("PE_(p, 2i)", "PE_(p, i)"),
    "LearnedPositions": 'PE_p "is row" p "of a learned table"',
}
"""Formulas of what is added to embeddings, by the name of the encoding's class."""


def embedding_steps(seen: Seen, stack: str) -> Iterator[Step]:
    """Tokens, ids, embeddings and positions of what a stack reads."""
    c, group = seen.config, (stack, "embedding")
    at, tokens = seen.example(stack), seen.tokens(stack)
    ids = np.array(seen.reading.tokens[stack])
    yield from _token_steps(seen, stack, ids)

    place = _positions_place(seen, stack)
    embedded = seen.values[f"{place}.input"]
    axes, places = (tokens, "feature"), (f"{place}.input",)
    scale = math.sqrt(c.d_model) if c.scale_embeddings else 1.0
    said = (
        f"Row {ids[at]} of the embedding matrix E stands for {seen.token(stack, at)}: "
        f"{some(embedded[at] / scale)}, {c.d_model} numbers that were learned."
    )
    yield step("embedding", group, said, embedded / scale, axes, places, (at,))
    if c.scale_embeddings:
        said = (
            f"Each number is multiplied by √d_model = √{c.d_model} = {scale:.4g}: those of "
            f"{seen.token(stack, at)} become {some(embedded[at])}."
        )
        yield step("embedding_scale", group, said, embedded, axes, places, (at,))

    encoding = encoding_class(c)
    x = seen.values[place]
    if encoding.has("embed"):
        added, where = x - embedded, Where.of(encoding, "embed")
        said = (
            f"Attention alone does not know order. {seen.token(stack, at)} stands at position "
            f"{at}, and so {some(added[at])} is added to it."
        )
        how = {"where": where, "formula": _ADDED.get(encoding.__name__)}
        yield step("positions", group, said, added, axes, (place,), (at,), **how)
        said = f"The sum for {seen.token(stack, at)} begins with {some(x[at])}."
        yield step("embedded", group, said, x, axes, (place,), (at,), where=where)
    yield from _type_and_norm_steps(seen, stack, x)


def _token_steps(seen: Seen, stack: str, ids: np.ndarray) -> Iterator[Step]:
    group, tokens = (stack, "embedding"), seen.tokens(stack)
    text = _text(seen, stack)
    given = "The text" if text is None else quoted(text)
    if stack == "decoder" and "encoder" in seen.reading.tokens:
        given += ", shifted right behind a token that starts it,"
    said = (
        f"{given} becomes {len(ids)} tokens, numbered from 0; those that stand for no text, such "
        "as the end, are the tokenizer's."
    )
    yield step("tokens", group, said, np.arange(len(ids)), (tokens,))
    at = seen.example(stack)
    said = f"{seen.token(stack, at)} is entry {ids[at]} of the vocabulary."
    yield step("ids", group, said, ids, (tokens,), example=(at,))


def _text(seen: Seen, stack: str) -> str | None:
    texts = seen.reading.texts
    side = "source" if stack == "encoder" else "target"
    return texts.get(side, texts.get("text"))


def _positions_place(seen: Seen, stack: str) -> str:
    own = {"encoder": "source_positions", "decoder": "target_positions"}[stack]
    return own if f"{own}.input" in seen.values else "input.positions"


def _type_and_norm_steps(seen: Seen, stack: str, x: np.ndarray) -> Iterator[Step]:
    """BERT's token types, and the norm that some models have before their first layer."""
    c, group, axes = seen.config, (stack, "embedding"), (seen.tokens(stack), "feature")
    at, read = seen.example(stack), seen.values[f"{stack}.input"]
    if "token_types" in seen.params.get("input", {}):
        tokens, positions = seen.reading.inputs[:2]
        found = token_types(jnp.asarray(tokens), jnp.asarray(positions), c.separator_id)
        types = np.asarray(found)[0, : len(x)]
        types = np.minimum(types, c.num_token_types - 1)
        x = x + np.asarray(seen.params["input"]["token_types"])[types]
        said = (
            f"{seen.token(stack, at)} belongs to part {types[at]} of the text, and the vector of "
            f"that part is added: {some(x[at])}."
        )
        yield step("token_types", group, said, x, axes, (f"{stack}.input",), (at,))
    if c.embedding_norm:
        said = f"The norm over each token's {c.d_model} numbers makes {some(read[at])} of them."
        is_pair = "input.positions" not in seen.values
        pair = Where("transformer_jax/models/encoder_decoder.py", "EncoderDecoder.encode")
        instead = {"where": pair} if is_pair else {}
        places = (f"{stack}.input",)
        yield step("embedding_norm", group, said, read, axes, places, (at,), **instead)
