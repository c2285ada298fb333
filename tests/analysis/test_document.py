"""Documents that hold all that they need and can ask for nothing."""

import json
import re

import pytest

from transformer_jax.analysis.pages.document import frame, page

DRAWN = "performance.mark('drawn')"


def test_data_comes_back_and_ends_no_script():
    data = {"a": ["</script>", "<!--", "\u2028", "\ud800", "é😀", 1.5, None]}
    html = page("t", "<p>body</p>", [], ["let x"], data)
    kept = re.search(r'id="data">(.*?)</script>', html)[1]
    assert json.loads(kept) == data
    assert kept.isascii() and "<" not in kept
    assert html.encode().decode() == html


def test_a_number_that_json_has_not_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        page("t", "", [], [], {"a": float("nan")})


def test_titles_are_plain_text():
    assert "<title>&lt;/title&gt;&lt;b&gt; ?</title>" in page("</title><b> \ud800", "", [], [], 0)


def test_a_frame_keeps_its_document():
    assert 'srcdoc="&lt;p title=&quot;&amp;amp;&quot;&gt;"' in frame('<p title="&amp;">')


def test_only_the_scripts_and_styles_that_it_was_written_with_work(show):
    """No request, no other script, no event handler in HTML."""
    styles = ["body { color: rgb(1, 2, 3) }"]
    tab = show(page("t", '<p id="p" onclick="window.ran = 1">x</p>', styles, [DRAWN], 0))
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(1, 2, 3)"
    tab.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'ran = 2'}));"
        "document.getElementById('p').click();"
        "document.body.append(Object.assign(new Image(), {src: 'file:///x.png'}))"
    )
    assert (
        tab.evaluate("fetch('http://localhost:9/x').then(() => 'sent', () => 'refused')")
        == "refused"
    )
    assert tab.evaluate("typeof window.ran") == "undefined"
    refused = [one["entry"]["text"] for one in tab.complaints()]
    assert len(refused) >= 4
    assert all("Content Security Policy" in text for text in refused)
