"""Arrays as text that a page carries, as short as numbers that are shown need to be.

The values of an array are stored as integers, or as float32; the first bytes of all values stand
before the second ones, which deflates better. `assets/packed.js` reads them.
"""

import base64
import zlib
from typing import Any

import numpy as np

DECIMALS = 4
"""Of attention weights: what a page shows of them."""
_LARGEST = 32767  # of int16

type Packed = dict[str, Any]
"""{"shape", "type": "uint16", "int16" or "float32", "per": stored values a unit, "data"}."""


def pack_weights(weights: np.ndarray) -> Packed:
    """Numbers between 0 and 1, rounded to `DECIMALS`."""
    per = 10**DECIMALS
    rounded = np.round(np.asarray(weights, np.float64), DECIMALS)
    return _pack(np.rint(rounded * per).astype("<u2"), per)


def pack_scaled(values: np.ndarray) -> Packed:
    """Any finite numbers, in steps of the largest magnitude / 32767."""
    values = np.asarray(values, np.float64)
    largest = np.abs(values).max(initial=0)
    per = _LARGEST / largest if largest > 0 else 1.0
    return _pack(np.rint(values * per).astype("<i2"), per)


def pack_floats(values: np.ndarray) -> Packed:
    """Any numbers, to the last bit of float32."""
    return _pack(np.asarray(values).astype("<f4"), 1)


def unpack(packed: Packed) -> np.ndarray:
    """The values that a page reads, float64."""
    dtype = np.dtype(packed["type"]).newbyteorder("<")
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    stored = planes.reshape(dtype.itemsize, -1).T.copy().view(dtype)
    return stored.reshape(packed["shape"]).astype(np.float64) / packed["per"]


def _pack(stored: np.ndarray, per: float) -> Packed:
    planes = np.frombuffer(stored.tobytes(), np.uint8).reshape(-1, stored.itemsize).T
    return {
        "shape": list(stored.shape),
        "type": stored.dtype.newbyteorder("=").name,
        "per": per,
        "data": base64.b64encode(zlib.compress(planes.tobytes())).decode("ascii"),
    }
