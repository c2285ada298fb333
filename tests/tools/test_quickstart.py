# SPDX-License-Identifier: Apache-2.0
"""The quick start: what it trains, its report and its pages."""

import json
from types import SimpleNamespace

from tests.lab.analysis.drawn_attention import SOURCE, TARGET, drawn_attention
from transformer_jax.cli.main import main
from transformer_jax.data.sources import open_split
from transformer_jax.lab.analysis.walk.step import Walk
from transformer_jax.runs.config import load_config, read_settings
from transformer_jax.tools import quickstart
from transformer_jax.tools.quickstart import CONFIG, EXAMPLE, write_pages


def test_it_trains_the_shipped_config_from_any_folder_and_reports(monkeypatch, tmp_path, capsys):
    asked = []

    def evaluate(split):
        lines = [{"source": f"{split} {i}", "output": f"o{i}"} for i in range(5)]
        text = "".join(f"{json.dumps(line | {'target': 'r'})}\n" for line in lines)
        (tmp_path / "predictions").mkdir(exist_ok=True)
        (tmp_path / "predictions" / f"{split}-7.jsonl").write_text(text)
        return {"bleu": 98.26, "signature": "nrefs:1"}

    def train(settings, workdir):
        asked.append((settings.train.num_steps, settings.model.d_model, workdir))
        return SimpleNamespace(workdir=tmp_path, settings=settings, step=7, evaluate=evaluate)

    monkeypatch.setattr(quickstart, "train", train)
    monkeypatch.setattr(quickstart, "write_pages", lambda run: ["the pages"])
    monkeypatch.chdir(tmp_path)
    assert main(["quickstart", "--config.train.num_steps=7"]) == 0
    assert asked == [(7, 128, "runs/quickstart")]
    told = capsys.readouterr().out.splitlines()
    assert told[1:8] == [
        "test: 1000 unseen sentences",
        "  BLEU  98.3  the model's",
        "  BLEU  14.3  of a word-for-word dictionary",
        "  nrefs:1",
        *("    English    test 0", "    model      o0", "    reference  r"),
    ]
    assert "  BLEU  14.8  of a word-for-word dictionary" in told
    assert sum(line.startswith("    English") for line in told) == 6 and told[-1] == "the pages"


def test_the_example_is_a_sentence_of_the_task():
    sources = [e["source"] for e in open_split(read_settings(load_config(CONFIG)).data, "test")]
    assert EXAMPLE in sources


def test_it_names_the_pages_of_the_example(tmp_path):
    attention = drawn_attention({"encoder": SOURCE, "decoder": TARGET}, layers=1, heads=1)
    run = SimpleNamespace(
        workdir=tmp_path,
        attention=lambda source, also: attention,
        walk=lambda text: Walk({"source": text}, ()),
        beam_tree=lambda source: SimpleNamespace(as_json=lambda: None),
    )
    told = list(write_pages(run))
    pages = [tmp_path / "pages" / name for name in ("attention.html", "walk.html")]
    assert [line.split("  ")[0] for line in told if line] == list(map(str, pages))
    for page, walk_flag in zip(pages, ("", "--walk "), strict=True):
        assert f"<title>{EXAMPLE}</title>" in page.read_text()
        command = f"inspect --workdir={tmp_path} {walk_flag}--to=another_page"
        assert command in page.read_text()
