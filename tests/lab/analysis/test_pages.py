# SPDX-License-Identifier: Apache-2.0
"""Pages request nothing and run no text; packed arrays keep their precision."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

from transformer_jax.lab.analysis import pages


@pytest.fixture
def page(tmp_path, monkeypatch):
    """`page(data, title, files)`: a page of assets with these texts."""
    monkeypatch.setattr(pages, "_ASSETS", tmp_path)

    def make(data, title="t", files=None):
        files = {"body.html": "", **(files or {})}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        return pages.page(title, list(files), data)

    return make


def unpack(packed):
    """Values that a page reads from a packed array, float64."""
    dtype = np.dtype(packed["type"]).newbyteorder("<")
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8)
    stored = planes.reshape(dtype.itemsize, -1).T.copy().view(dtype)
    return stored.reshape(packed["shape"]).astype(np.float64) / packed["per"]


def test_data_comes_back_and_ends_no_script(page):
    data = {"a": ["</script>", "<!--", "\u2028", "\ud800", "é😀", 1.5, None]}
    html = page(data, files={"body.html": "<p>body</p>", "x.js": "let x"})
    kept = re.search(r'id="data">(.*?)</script>', html)[1]
    assert json.loads(kept) == data
    assert kept.isascii() and "<" not in kept
    assert html.encode().decode() == html
    assert "<title>&lt;/title&gt;&lt;b&gt; ?</title>" in page(0, "</title><b> \ud800")
    assert 'srcdoc="&lt;p title=&quot;&amp;amp;&quot;&gt;"' in pages.frame('<p title="&amp;">')
    with pytest.raises(ValueError, match="not JSON compliant"):
        page({"a": float("nan")})


def test_only_the_scripts_and_styles_that_it_was_written_with_work(page, browser, tmp_path):
    """No request, no other script, no event handler in HTML."""
    files = {"a.css": "body { color: rgb(1, 2, 3) }", "a.js": "performance.mark('drawn')"}
    files["body.html"] = '<p id="p" onclick="window.ran = 1">x</p>'
    path = tmp_path / "page.html"
    path.write_text(page(0, files=files))
    tab = browser.open(path)
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(1, 2, 3)"
    tab.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'ran = 2'}));"
        "document.getElementById('p').click();"
        "document.body.append(Object.assign(new Image(), {src: 'file:///x.png'}))"
    )
    request = "fetch('http://localhost:9/x').then(() => 'sent', () => 'refused')"
    assert tab.evaluate(request) == "refused"
    assert tab.evaluate("typeof window.ran") == "undefined"
    refused = [one["entry"]["text"] for one in tab.complaints()]
    assert len(refused) >= 4
    assert all("Content Security Policy" in text for text in refused)


def test_packed_arrays_keep_their_precision():
    """Weights have four decimals, scaled numbers half a step; floats are kept to the bit."""
    weights = np.arange(0, 1, 0.00003, np.float32).reshape(2, -1)
    expected = np.round(weights.astype(np.float64), 4)
    np.testing.assert_array_equal(unpack(pages.pack_weights(weights)), expected)
    values = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for scaled in (1e-6 * values, values, 1e6 * values):
        half_a_step = 0.51 * np.abs(scaled).max() / 32767
        read = unpack(pages.pack_scaled(scaled))
        np.testing.assert_allclose(read, scaled, rtol=0, atol=half_a_step)
    values[0] = [np.inf, -np.inf, 0, 1e-40]
    np.testing.assert_array_equal(unpack(pages.pack_floats(values)), values)
    for few in (np.zeros((2, 3)), np.zeros((0, 3)), np.float32(2.5)):
        for pack in (pages.pack_scaled, pages.pack_floats):
            read = unpack(pack(few))
            assert read.shape == np.shape(few)
            np.testing.assert_array_equal(read, few)
