"""The page that lists the others."""

from transformer_jax.analysis.pages.attention_page import index_page


def test_it_leads_to_the_pages(browser, tmp_path):
    listed = [("0001.html", "</script><b>"), ("0012.html", "مرحبا")]
    for name, _ in listed:
        (tmp_path / name).write_text(f"<h1>{name}</h1>")
    (tmp_path / "index.html").write_text(index_page(listed), encoding="utf-8")
    tab = browser.open(tmp_path / "index.html")
    assert tab.texts("li") == [line for _, line in listed]
    assert tab.evaluate("Array.from(document.querySelectorAll('li'), (li) => li.value)") == [1, 12]
    tab.point("li:last-child a", x=0.9, click=True)
    tab.wait_for("location.pathname.endsWith('0012.html')")
    assert tab.texts("h1") == ["0012.html"] and tab.complaints() == []
    tab.close()
