"""A page that lists other pages of its folder."""

from collections.abc import Sequence

from transformer_jax.analysis.pages.document import asset, page


def index_page(pages: Sequence[tuple[str, str]]) -> str:
    """A document with a link for each page.

    Args:
      pages: the name of each file, which begins with the number of its line, and the line.
    """
    title = f"{len(pages)} page{'s' if len(pages) != 1 else ''}"
    scripts = [asset("document.js"), asset("index.js")]
    return page(title, asset("index.html"), [asset("theme.css")], scripts, list(pages))
