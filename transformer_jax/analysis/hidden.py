"""The residual stream of one example, and what each layer of it would predict.

T tokens, L layers, D model, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_jax.analysis.collecting import collect
from transformer_jax.analysis.reading import Reading
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import taken_back
from transformer_jax.models.apply import apply
from transformer_jax.nn.places import Place, each_place
from transformer_jax.parallel.mesh import place_like, round_up_rows
from transformer_jax.runtime import platform


@dataclasses.dataclass(frozen=True)
class Hidden:
    """What a model holds of one example, layer by layer.

    Attributes:
      texts, tokens: as of `Attention`.
      streams: by the stack, [L + 1, T, D]: the embedded tokens, and the residual stream after each
        layer.
      lens: [L + 1, T, V], log P of the next token (of a masked model: of the token itself) if the
        last stack ended at that layer: its stream through the last norm and the output matrix (the
        logit lens). The last row is the model's own prediction.
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, Sequence[str]]
    streams: Mapping[str, Float[np.ndarray, "L1 T D"]]
    lens: Float[np.ndarray, "L1 T V"]


def hidden(model: Any, params: Any, reading: Reading) -> Hidden:
    """The streams of a reading, and their logit lens.

    Args:
      model: takes `reading.inputs`.
      params: of the model, on the devices that compute.
      reading: the example.

    Raises:
      UserError: one of its stacks has no residual stream, as in a recurrent model.
    """
    found = collect(model, params, reading, ("*.input", "*.layer_*"))  # of the stacks
    streams = {stack: _streams(found, stack) for stack in reading.tokens}
    logits = _logits_of(model, params, reading, streams[reading.last_stack])
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    return Hidden(reading.texts, reading.pieces, streams, log_probs)


def _streams(found: Mapping[str, np.ndarray], stack: str) -> np.ndarray:
    if f"{stack}.input" not in found:
        raise UserError(f"hidden: this model's {stack} has no residual stream that can be seen")
    layers = [found[f"{stack}.input"]]
    while (path := f"{stack}.layer_{len(layers) - 1}") in found:
        layers.append(found[path])
    return np.stack(layers)


def _logits_of(model: Any, params: Any, reading: Reading, streams: np.ndarray) -> np.ndarray:
    """The logits [L + 1, T, V] that each stream would have as the output of the last layer: the
    model reads the example once for each, and the stream takes that output's place."""
    path = f"{reading.last_stack}.layer_{len(streams) - 2}"
    rows = round_up_rows(len(streams), params)
    missing = rows - len(streams), reading.inputs[-1].shape[1] - streams.shape[1]
    streams_padded = np.pad(streams, ((0, missing[0]), (0, missing[1]), (0, 0)))
    inputs = [np.repeat(x, rows, axis=0) for x in reading.inputs]
    placed = place_like(params, {"streams": streams_padded, "inputs": inputs})
    logits = taken_back(_program(model, path)(params, **placed), len(streams))
    return logits[:, : streams.shape[1]]


@functools.lru_cache(maxsize=16)
def _program(model: Any, path: str) -> Callable[..., jax.Array]:
    def logits(params: Any, streams: jax.Array, inputs: Sequence[jax.Array]) -> jax.Array:
        def replace(place: Place, x: jax.Array) -> jax.Array:
            return streams

        with each_place(replace, lambda found: found == path):
            return apply(model, params, *inputs).astype(jnp.float32)

    return jax.jit(logits, compiler_options=platform.compiler_options())
