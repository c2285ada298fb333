# SPDX-License-Identifier: Apache-2.0
"""Tables of what a classifier gets wrong, and of what tokenizers make of a text."""

import pytest

from transformer_jax.errors import UserError


def test_errors_are_counted_beside_their_confusion(classifier, monkeypatch):
    found = classifier.errors("valid")
    metrics = classifier.evaluate("valid", progress=False)
    counts = found.confusion.to_numpy()
    assert counts.trace() / counts.sum() == pytest.approx(metrics["accuracy"])
    assert counts.sum() - counts.trace() == found.table["times"].sum() > 0
    assert (found.table["expected"] != found.table["predicted"]).all()
    first = found.table.iloc[0]
    assert classifier.predict([first["text"]]) == [first["predicted"]]
    page = found._repr_html_()
    assert repr(found).startswith(title := page[3 : page.index("</p>")])
    assert title.startswith(f"{counts.sum() - counts.trace()} of {counts.sum()} are wrong")
    assert page.count("<table") == 2


def test_only_tasks_with_labels_have_errors(trained):
    with pytest.raises(UserError, match="only classifiers and taggers have labels"):
        trained.errors("valid")


def test_a_text_by_two_tokenizers(trained, classifier_workdir):
    text = "The old é <b>"
    found = trained.tokens(text, classifier_workdir)
    ours, chars = found.ids
    assert found.ids[ours] == trained.tokenizer["source"].encode(text)
    assert "".join(found.pieces[chars]).replace("▁", " ").strip().startswith("The old")
    row = found.table.loc[ours]
    assert row["tokens"] == len(found.ids[ours]) == len(found.pieces[ours])
    assert row["unknown"] == found.ids[ours].count(1) > 0
    assert row["characters per token"] == pytest.approx(len(text) / row["tokens"], abs=0.01)
    page = found._repr_html_()
    assert "<b>" not in page and page.count("<span") == sum(map(len, found.ids.values()))
    assert page.count("#d55e00") == found.table["unknown"].sum()
