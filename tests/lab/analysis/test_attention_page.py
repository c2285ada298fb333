# SPDX-License-Identifier: Apache-2.0
"""Pages of attention, as a browser shows them."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest

from tests.lab.analysis.drawn_attention import SOURCE, TARGET, drawn_attention, drawn_tree
from transformer_jax.lab.analysis.activations import Attention, Predicted, Predictions
from transformer_jax.lab.analysis.attention_page import BUDGET, attention_page, index_page
from transformer_jax.tasks.interface import Prediction

HOSTILE = [
    *("<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "<!--", "<!--<script>"),
    *("مرحبا", "\u202eturned", "😀👩‍👩‍👧", "\"quoted' & &amp;", "{{7*7}}", "\\u003c", "\x00"),
    *("constructor", "__proto__", "\ud800", "long" * 60),
]


@functools.cache
def translation():
    return drawn_attention({"encoder": SOURCE, "decoder": TARGET}, groups=2)


@pytest.fixture
def tab(show):
    """A page of a translation with its beam."""
    return show(attention_page(translation(), "A brown dog", drawn_tree()))


def status(tab):
    return tab.evaluate("document.getElementById('status').textContent")


def test_every_view_is_drawn_without_complaint_or_request(tab):
    names = ["Head view", "Model view", "Neuron view", "Heat map", "Alignment", "Beam tree"]
    assert tab.texts("#tabs button") == [f"{i}{name}" for i, name in enumerate(names, 1)]
    seen = set()
    for number in "123456":
        tab.press(number, "ArrowDown", "ArrowRight", "k", "l", "h", "q", "t")
        seen |= set(tab.texts("[role=tab][aria-selected=true]"))
        assert tab.evaluate("byId('view').querySelector('canvas, svg').clientWidth") > 50
    assert len(seen) == 6
    assert tab.requests() == []


def test_every_number_is_the_model_s(tab):
    """As the page's own JavaScript reads them: weights to 4 decimals, vectors to their step."""
    attention = translation()
    assert attention.kinds == ["encoder", "decoder", "cross"]
    for kind in attention.kinds:
        for what in ("weights", "queries", "keys"):
            read = f"page.read('{what}', '{kind}', layer).then((a) => Array.from(a.values))"
            shown = tab.evaluate(f"Promise.all([0, 1].map((layer) => {read}))")
            for layer, expected in enumerate(attention.of(kind, what)):
                values = np.array(shown[layer]).reshape(expected.shape)
                half_a_step = 0.51 * np.abs(expected).max() / 32767
                atol = 5.1e-5 if what == "weights" else half_a_step
                np.testing.assert_allclose(values, expected, rtol=0, atol=atol)


def test_layers_may_have_different_numbers_of_heads_of_keys():
    whole = drawn_attention({"decoder": TARGET}, groups=2)
    path = "decoder.layer_0.self_attention.keys"
    uneven = dataclasses.replace(whole, values=whole.values | {path: whole.values[path][:1]})
    (text,) = re.findall(r'id="data">(.*?)</script>', attention_page(uneven, "uneven"))
    packed = json.loads(text)["kinds"]["decoder"]["keys"]
    assert [keys["shape"] for keys in packed] == [[1, 9, 8], [2, 9, 8]]


def test_displayed_numbers_are_the_models(tab):
    weights = translation().weights("cross")[1, 0]
    written = [f"{weight:.4f}" for weight in np.round(weights.astype(np.float64), 4).ravel()]
    tab.evaluate(
        "window.written = []; const fill = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
        "  written.push(text); return fill.call(this, text, ...at); }; 0"
    )
    tab.press("4")
    cells = [text for text in tab.evaluate("written") if re.fullmatch(r"\d\.\d{4}", text)]
    assert cells == written
    tab.press(*["ArrowDown"] * 3, *["ArrowRight"] * 2)
    assert status(tab).endswith(f"(3), key “\u2068▁dog\u2069” (2): {weights[3, 2]:.4f}.")
    tab.press("x")
    row = tab.evaluate("document.querySelectorAll('#text-body tr')[4].innerText")
    best = int(weights[3].argmax())
    assert f"▁Hund\t{SOURCE[best]} ({best}) {weights[3, best]:.4f}," in row


def test_the_neuron_view_shows_products_of_a_query(tab, show):
    """q·k / sqrt(d) of shared keys, and whether they give the weights."""
    attention = translation()
    tab.press("3", "h", "h", "q", "q", "ArrowDown", "ArrowRight")
    query = attention.of("cross", "queries")[1, 2, 2]
    key = attention.of("cross", "keys")[1, 1, 1]
    numbers = re.search(r"q = (.*), k = (.*), q × k = (.*); q·k / √8 = (.*), weight", status(tab))
    expected = [query[1], key[1], query[1] * key[1], query @ key / np.sqrt(8)]
    np.testing.assert_allclose([float(number) for number in numbers.groups()], expected, atol=1e-3)
    assert "The weights are the softmax" in tab.evaluate("byId('note').textContent")
    tab = show(attention_page(drawn_attention({"encoder": SOURCE}, bias=0.5), "biased"))
    tab.press("3")
    assert "position bias" in tab.evaluate("byId('note').textContent")


def test_pointing_and_keys_change_what_is_drawn(tab):
    lines = ".columns > div:nth-child(3) canvas"
    all_lines = tab.picture(lines)
    tab.point(".queries li:nth-child(3)")
    of_one = tab.picture(lines)
    assert of_one != all_lines and "query “\u2068▁brauner\u2069” (2)" in status(tab)
    tab.point("#title")
    assert tab.picture(lines) == all_lines
    tab.point(".queries li:nth-child(3)", click=True)
    tab.point("#title")
    assert tab.picture(lines) == of_one
    tab.press("Escape")
    assert tab.picture(lines) == all_lines
    pictures = {all_lines, of_one}
    for key in ("ArrowDown", "ArrowRight", "h", "Shift+l", "k", "a", "t"):
        tab.press(key)
        pictures.add(tab.picture(lines))
    assert len(pictures) == 9


def test_a_long_text_opens_with_the_strongest_key_of_each_query(show):
    """Pixels that are drawn grow with the number of keys; a chosen token has all of its lines."""
    attention = drawn_attention({"encoder": [f"▁{i}" for i in range(40)]}, heads=2, vectors=False)
    tab = show(attention_page(attention, "long"))
    drawn = """(() => {
      const canvas = document.querySelector('canvas[aria-label^=Lines]');
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      return data.filter((value, i) => i % 4 === 3 && value > 0).length; })()"""
    slide = "byId('strongest').value = {}; byId('strongest').dispatchEvent(new Event('input'))"
    pixels = [tab.evaluate(drawn)]
    assert "Of each query and head, the strongest." in tab.texts(".legend")[0]
    for count in (3, 40):
        tab.evaluate(slide.format(count))
        tab.settle()
        pixels.append(tab.evaluate(drawn))
    assert 0 < pixels[0] < 0.7 * pixels[1] < 0.5 * pixels[2]
    assert tab.texts("#strongest-control output") == ["all"]


def predicting(stacks, what, *each):
    drawn = drawn_attention(stacks)
    predicted = [
        Predicted(position, tuple(map(Prediction, *zip(*outputs, strict=True))), gold)
        for position, outputs, gold in each
    ]
    return Attention(drawn.texts, drawn.tokens, drawn.values, Predictions(what, tuple(predicted)))


def test_queries_say_which_token_they_predict(show):
    tokens = ["<s>", "▁A", HOSTILE[0]]
    names = ["▁A", *HOSTILE[:2]]
    each = [(i, [(name, 0.75), ("▁x", 0.125)], None) for i, name in enumerate(names)]
    tab = show(attention_page(predicting({"decoder": tokens}, "next token", *each), "next"))
    rows = [f"{token}predicts → {name}" for token, name in zip(tokens, names, strict=True)]
    assert tab.texts(".queries li") == rows and tab.texts(".keys li") == tokens
    assert not tab.evaluate("byId('predictions').checkVisibility()")
    tab.press("ArrowDown")
    assert status(tab).endswith("Predicts “\u2068▁A\u2069” 0.7500, “\u2068▁x\u2069” 0.1250.")


@pytest.mark.parametrize("width", [360, 1280])
def test_labels_of_a_text_and_their_probabilities(show, width):
    outputs = [(HOSTILE[1], 0.625), *((f"label {i}", 0.0125) for i in range(30))]
    attention = predicting({"encoder": SOURCE}, "label", (None, outputs, "label 3"))
    tab = show(attention_page(attention, "text"), width=width)
    assert tab.texts(".outputs th")[:2] == [HOSTILE[1], "label 0"]
    shares = list(map(float, tab.texts(".outputs .number")))
    assert len(shares) == 21 and sum(shares) == pytest.approx(1)
    assert tab.texts(".outputs tr:has(.gold) th") == ["label 3"]
    widths = tab.evaluate("[...document.querySelectorAll('.bar div')].map((b) => b.clientWidth)")
    assert widths[0] / widths[1] == pytest.approx(0.625 / 0.0125, rel=0.2)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_labels_of_tokens(show):
    each = [(1, [("DET", 0.75), (HOSTILE[1], 0.25)], "DET"), (2, [("ADJ", 0.5)], HOSTILE[0])]
    tab = show(attention_page(predicting({"encoder": SOURCE}, "label", *each), "tags"))
    cells = [re.sub("[\u2068\u2069]", "", text) for text in tab.texts(".outputs tr")]
    assert cells == [
        f"▁brownDET0.7500{HOSTILE[1]} 0.2500✓ gold",
        f"▁dogADJ0.5000gold: {HOSTILE[0]}",
    ]
    assert tab.texts(".queries li")[:2] == ["▁A", "▁brownpredicts → DET"]


def test_a_head_is_opened_from_the_grid(tab):
    tab.press("2")
    tab.wait_for("performance.getEntriesByName('all heads drawn').length > 0")
    tab.press("ArrowUp", "ArrowRight", "ArrowRight", "Enter")
    chosen = tab.evaluate("[page.state.view, page.state.layer, page.state.head]")
    assert chosen == ["heatMap", 0, 2]
    tab.press("2")
    tab.point(".all-heads canvas:last-child", click=True)
    assert tab.evaluate("[page.state.view, page.state.layer, page.state.head]") == ["heatMap", 1, 3]


def test_the_beam_view_says_why_hypotheses_were_dropped(tab):
    tab.press("6")
    assert "▁Der </s>" in status(tab) and "score -0.5000; ended" in status(tab)
    tab.press("ArrowLeft", "ArrowDown")
    expected = "log probability -2.1250; dropped: not among the 2 best of its step."
    assert status(tab).endswith(expected)
    best = [re.sub("(log|score).*", "", text) for text in tab.texts(".tree g.best")]
    assert best == ["start", "▁Der", "</s>"]
    tab.press("x")
    text = tab.evaluate("byId('text-body').innerText")
    assert text.count("not among the 2 best") == 2 and "<b>\u2069: log probability −∞" in text


def test_texts_are_shown_literally_and_run_nothing(show):
    tokens = [*HOSTILE, "\u2028", "\n", "a\nb"]
    attention = drawn_attention({"encoder": tokens, "decoder": tokens}, layers=1, heads=2)
    attention = Attention({"source": HOSTILE[1]}, attention.tokens, attention.values)
    tab = show(attention_page(attention, HOSTILE[0]))
    assert tab.texts("#title, title") == [HOSTILE[0]] * 2
    assert tab.evaluate("byId('texts').innerText") == f"source: {HOSTILE[1]}"
    assert tab.texts(".queries .token") == [*HOSTILE, "⏎", "⏎", "a⏎b"]
    count = "document.querySelectorAll('script, img, iframe').length"
    before = tab.evaluate(count)
    for view in "12345":
        tab.press(view, "ArrowDown", "x")
        assert tab.evaluate(count) == before
        tab.press("x")
    assert tab.requests() == []


def test_views_without_data_are_absent(show):
    attention = drawn_attention({"encoder": ["▁A"]}, layers=1, heads=1, vectors=False)
    tab = show(attention_page(attention, "one token"))
    assert "Alignment" not in (names := tab.evaluate("byId('tabs').innerText"))
    assert "Beam" not in names
    tab.press("3")
    assert "made without queries and keys" in tab.evaluate("byId('view').innerText")
    for number in "124":
        tab.press(number, "ArrowDown")


def test_pages_stay_within_their_budget():
    """12 layers, 16 heads, 64 tokens, whatever the weights; vectors of as many as there is room."""
    tokens = [f"▁word{number}" for number in range(64)]
    both = {"encoder": tokens, "decoder": tokens}
    for stacks, layers, sharpness in (({"encoder": tokens}, 12, 0.1), (both, 6, 1), (both, 6, 3)):
        sizes = dict(layers=layers, heads=16, size=64, sharpness=sharpness)
        html = attention_page(drawn_attention(stacks, **sizes), "long", drawn_tree())
        assert 0.75 * BUDGET < len(html.encode()) <= BUDGET
        assert "are left out: the page would exceed 2 MB" in html


def test_a_notebook_shows_it(show):
    """In a frame that may run its own scripts and nothing else of the notebook's."""
    frame = translation()._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts" srcdoc="&lt;!doctype html&gt;')
    tab = show(f"<!doctype html>{frame}<script>performance.mark('drawn')</script>")
    assert tab.requests() in ([], ["about:srcdoc"])


def test_the_index_links_to_the_pages(show, tmp_path):
    listed = [("0001.html", "</script><b>"), ("0012.html", "مرحبا")]
    for name, _ in listed:
        (tmp_path / name).write_text(f"<h1>{name}</h1>")
    tab = show(index_page(listed))
    assert tab.texts("li") == [line for _, line in listed]
    assert tab.evaluate("Array.from(document.querySelectorAll('li'), (li) => li.value)") == [1, 12]
    tab.point("li:last-child a", x=0.9, click=True)
    tab.wait_for("location.pathname.endsWith('0012.html')")
    assert tab.texts("h1") == ["0012.html"]
