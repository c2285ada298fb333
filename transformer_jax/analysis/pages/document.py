"""HTML files that hold all that they need and can ask for nothing.

The content security policy of a page lets run only the scripts and styles that it was written
with, by their hashes, and forbids every request. Texts of users stand in its data alone, which
scripts show as text.
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ASSETS = Path(__file__).parent / "assets"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
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


def asset(name: str) -> str:
    """A stylesheet or script of `assets/`, such as "theme.css"."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def page(title: str, body: str, styles: Sequence[str], scripts: Sequence[str], data: Any) -> str:
    """A whole HTML document.

    Args:
      title: plain text.
      body: HTML, of the project's own; no text of a user's goes in here.
      styles, scripts: their texts, in order (`asset`).
      data: JSON's kinds of values, which `readData()` of `document.js` returns.
    """
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(map(_hash, scripts)),
        "style-src": " ".join(map(_hash, styles)),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return _PAGE.format(
        policy="; ".join(f"{what} {allowed}" for what, allowed in policy.items()),
        title=html.escape(title.encode("utf-8", "replace").decode("utf-8")),
        styles="\n".join(f"<style>{style}</style>" for style in styles),
        body=body,
        data=_inert(data),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def frame(document: str, height: int = 720) -> str:
    """A document as a part of another one, such as a notebook's; `height` is in pixels."""
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(document)}" width="100%" '
        f'height="{height}" style="border: 1px solid #8884; border-radius: 6px"></iframe>'
    )


def _inert(data: Any) -> str:
    """JSON of ASCII characters, without the one that could end or change the script element."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
