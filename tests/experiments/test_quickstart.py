# SPDX-License-Identifier: Apache-2.0
"""The end of the quick start: pages and the summary."""

from types import SimpleNamespace

from experiments.quickstart import EXAMPLE, write_pages
from tests.analysis.drawn_attention import SOURCE, TARGET, drawn_attention
from transformer_jax.analysis.walk.step import Walk


def test_it_names_the_pages_of_its_first_translation_and_of_the_example(trained, tmp_path, capsys):
    asked = []

    def attention(source, also):
        asked.append(source)
        return drawn_attention({"encoder": SOURCE, "decoder": TARGET}, layers=1, heads=1)

    def beam_tree(source):
        return SimpleNamespace(as_json=lambda: None)

    def walk(text):
        return Walk({"source": text}, ())

    parts = {"attention": attention, "walk": walk, "beam_tree": beam_tree}
    write_pages(SimpleNamespace(**parts, workdir=tmp_path, config=trained.config))
    pages = [tmp_path / "pages" / name for name in ("attention.html", "walk.html")]
    told = capsys.readouterr().out.split("\n")
    assert [line.split("  ")[0] for line in told if line] == list(map(str, pages))
    assert f"<title>{asked[0]}</title>" in pages[0].read_text()
    assert f"<title>{EXAMPLE}</title>" in pages[1].read_text()
