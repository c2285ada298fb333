# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages, and arrays packed into them.

The content security policy of a page allows only its own scripts and styles, by hash, and no
request. User text is only in the page's data, which scripts show as text.

Values of packed arrays are integers or float32. The first bytes of all values precede the second
bytes, which deflates better. `assets/packed.js` unpacks them.
"""

import base64
import hashlib
import html
import json
import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_ASSETS = Path(__file__).parent / "assets"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src {script_hashes}; style-src {style_hashes}; img-src data:; \
base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
{styles}
</head>
<body>
{body}
<script type="application/json" id="data">{data}</script>
{scripts}
</body>
</html>
"""


def page(title: str, assets: Sequence[str], data: Any) -> str:
    """A complete HTML document.

    Args:
      assets: names of files in `assets/`: stylesheets, the body, and scripts, in order.
      data: JSON value that `readData()` of `document.js` returns.
    """
    texts: dict[str, list[str]] = {".css": [], ".html": [], ".js": []}
    for asset in map(_ASSETS.joinpath, assets):
        texts[asset.suffix].append(asset.read_text(encoding="utf-8"))
    styles, (body,), scripts = texts.values()
    return _PAGE.format(
        script_hashes=" ".join(map(_hash, scripts)),
        style_hashes=" ".join(map(_hash, styles)),
        # A lone surrogate, as in a text that was decoded wrongly, becomes "?".
        title=html.escape(title.encode("utf-8", "replace").decode("utf-8")),
        styles="\n".join(f"<style>{style}</style>" for style in styles),
        body=body,
        # Without "<", which could end the script element.
        data=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def frame(document: str) -> str:
    """An iframe that embeds a document in another, such as a notebook."""
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(document)}" width="100%" '
        'height="720" style="border: 1px solid #8884; border-radius: 6px"></iframe>'
    )


def inspect_command(workdir: str | Path, *flags: str) -> str:
    """Shell command that makes the page of another sentence, with the flags of `inspect` given."""
    words = ["transformer_jax", "inspect", f"--workdir={workdir}", *flags, "--to=another_page"]
    return f"echo 'Another sentence.' | {shlex.join(words)}"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


type Packed = dict[str, Any]
"""{"shape", "type": "uint16", "int16" or "float32", "per": stored value of 1, "data"}."""


def pack_weights(weights: np.ndarray) -> Packed:
    """Packs numbers between 0 and 1, rounded to four decimals."""
    rounded = np.round(np.asarray(weights, np.float64), 4)
    return _pack(np.rint(rounded * 10_000).astype("<u2"), 10_000)


def pack_scaled(values: np.ndarray) -> Packed:
    """Packs finite numbers in steps of their largest magnitude / 32767."""
    values = np.asarray(values, np.float64)
    largest = np.abs(values).max(initial=0)
    per = np.iinfo(np.int16).max / largest if largest > 0 else 1.0
    return _pack(np.rint(values * per).astype("<i2"), per)


def pack_floats(values: np.ndarray) -> Packed:
    """Packs numbers as float32."""
    return _pack(np.asarray(values).astype("<f4"), 1)


def _pack(stored: np.ndarray, per: float) -> Packed:
    # Plane i is byte i of every value.
    planes = np.frombuffer(stored.tobytes(), np.uint8).reshape(-1, stored.itemsize).T
    return {
        "shape": list(stored.shape),
        "type": stored.dtype.newbyteorder("=").name,
        "per": per,
        "data": base64.b64encode(zlib.compress(planes.tobytes())).decode("ascii"),
    }
