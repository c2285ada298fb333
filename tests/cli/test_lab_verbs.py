# SPDX-License-Identifier: Apache-2.0
"""The verbs `inspect`, `plot` and `plan`: what they write and print."""

import json
import re
import shlex
from types import SimpleNamespace

import pytest

from tests.lab.analysis.drawn_attention import SOURCE, TARGET, drawn_attention
from transformer_jax.cli.parser import parse
from transformer_jax.errors import UserError
from transformer_jax.lab.analysis.walk.step import Walk
from transformer_jax.lab.plan import plan as planning
from transformer_jax.runs import load

QUICKSTART = "--config=configs/quickstart.py"
REPORT = {
    "device": "v5e:1x1",
    "dtype": "bfloat16",
    "accumulation_steps": 1,
    "remat": "none",
    "memory": {"peak_gib": 20.5, "usable_gib": 15.75, "left_gib": -4.75, "fits": False},
    "warnings": [],
    "note": planning.NOTE,
}
"""Report on a step that the compiler refused."""
FITTING = REPORT | {
    "memory": REPORT["memory"] | {"left_gib": 4.75, "fits": True},
    "step_ms": 2.0,
    "tokens_per_s": 1000,
    "mfu": 0.25,
}


@pytest.fixture
def read(monkeypatch):
    """List of the calls that load a fake run and ask it for attention."""
    asked = []

    def attention(source, target=None, also=()):
        if source == "too long":
            raise UserError("50 tokens are too many")
        asked.append((source, tuple(also)))
        return drawn_attention({"encoder": SOURCE, "decoder": TARGET}, layers=1, heads=1)

    def walk(source):
        return Walk({"text": source}, ())

    def load_(workdir, checkpoint="latest", average=None, modules=(), base=None):
        asked.append((workdir, checkpoint, average))
        run = SimpleNamespace(attention=attention, walk=walk, task=None)
        run.patched = lambda changes: run
        return run

    monkeypatch.setattr(load, "load", load_)
    return asked


def test_each_line_has_a_page(shell, read, tmp_path):
    folder = tmp_path / "new" / "pages"
    stdin = b"A dog.\n\n \nb <b>\n"
    answer = shell("inspect", "--workdir=w", f"--to={folder}", stdin=stdin)
    assert answer.status == 0
    written = [folder / name for name in ("0001.html", "0004.html", "index.html")]
    assert answer.out.splitlines() == list(map(str, written))
    assert sorted(folder.iterdir()) == written
    assert answer.err.count("line 2 is blank: it has no page\n") == 1
    assert answer.err.count("is blank") == 2
    of_keys = ("queries", "keys")
    assert read == [("w", "latest", None), ("A dog.", of_keys), ("b <b>", of_keys)]
    assert "<title>A dog.</title>" in written[0].read_text()
    assert '[["0001.html","A dog."],["0004.html","b \\u003cb>"]]' in written[2].read_text()


def test_the_page_of_a_walk_says_how_to_inspect_another_sentence(shell, read, tmp_path):
    """The parser accepts the same command with its flags, quoted for a shell."""
    flags = ["--workdir=it's a $run", "--checkpoint=best", "--patch=decoder.layer_0=0.5", "--walk"]
    answer = shell("inspect", *flags, f"--to={tmp_path}", stdin=b"A dog.\n")
    written = [tmp_path / name for name in ("0001-walk.html", "index.html")]
    assert (answer.status, answer.out.splitlines()) == (0, list(map(str, written)))
    page = written[0].read_text()
    assert '"steps":[]' in page
    assert '[["0001-walk.html","A dog."]]' in written[1].read_text()
    command = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])["command"]
    echo, _, inspect = command.partition(" | ")
    assert shlex.split(echo)[0] == "echo"
    assert shlex.split(inspect) == ["transformer_jax", "inspect", *flags, "--to=another_page"]
    args = parse(shlex.split(inspect)[1:])
    assert (args.workdir, args.checkpoint, args.walk) == ("it's a $run", "best", True)


def test_a_folder_that_is_not_empty_is_rejected_before_a_run_is_loaded(shell, read, tmp_path):
    (tmp_path / "mine").write_text("kept")
    for folder, message in ((tmp_path, "is not empty"), (tmp_path / "mine", "cannot be used")):
        answer = shell("inspect", "--workdir=w", f"--to={folder}", stdin=b"A dog.\n")
        assert answer.status == 2 and f"error: --to: {folder} {message}" in answer.err
    assert read == [] and (tmp_path / "mine").read_text() == "kept"
    answer = shell("inspect", "--workdir=w", f"--to={tmp_path / 'w'}", stdin=b"A dog.\ntoo long\n")
    assert (answer.status, answer.err) == (2, "error: line 2: 50 tokens are too many\n")


def test_plot_draws_attention_a_tree_errors_and_a_sweep(shell, read, tmp_path):
    (tmp_path / "predictions").mkdir()
    line = '{"text": "a cow", "label": "x", "output": "y", "score": 0.75}\n'
    (tmp_path / "predictions" / "valid-10.jsonl").write_text(line)
    (tmp_path / "table.csv").write_text("row,loss_mean\nlr 1,2\nlr 2,3\n")
    for name, loss in (("lr_1", 2), ("lr_2", 3)):
        row = {"metrics": {"loss": [loss]}, "parameters": 1, "tokens_per_s": 1, "seconds": 1}
        (tmp_path / name).mkdir()
        asked = {"config": {"seed": 0}, "seeds": 1, "also": {}}
        (tmp_path / name / "result.json").write_text(json.dumps({"asked": asked, "row": row}))
    output, workdir = tmp_path / "a.svg", f"--workdir={tmp_path}"
    for words, drawn in (
        (["--workdir=w", "--attention=A dog.", "--kind=encoder", "--layer=0"], "self-attention"),
        (["--tree=(S (NP dogs) (VP run))"], "<!-- dogs -->"),
        ([workdir, "--errors=worst", "--split=valid"], "<!-- a cow -->"),
        ([workdir], "<!-- lr 2 -->"),
    ):
        answer = shell("plot", *words, f"--output={output}")
        assert (answer.status, answer.out, answer.err) == (0, f"{output}\n", "")
        assert drawn in output.read_text()
    assert read[-1] == ("A dog.", ())


@pytest.fixture
def reports(monkeypatch):
    """`reports(*found)`: plans to return in place of compilations; returns the list of requests."""
    asked = []

    def use(*found):
        left = iter(found)

        def plan(config, device, slices=1, decode=False, modules=()):
            asked.append((config.parallel.fsdp, device, slices, decode))
            return next(left)

        monkeypatch.setattr(planning, "plan", plan)
        return asked

    return use


def test_json_goes_to_stdout_and_a_table_to_stderr(reports, shell, monkeypatch):
    large = REPORT | {"advice": ["train.remat=full (not estimated)"]}
    asked = reports(FITTING, large)
    speed = {"tokens_per_s": 5000}
    monkeypatch.setattr(planning, "packing_speed", lambda settings: speed)
    words = ["plan", QUICKSTART, "--device=v5p:4x4x8", "--slices=2", "--config.parallel.fsdp=4"]
    answer = shell(*words)
    assert answer.status == 0 and json.loads(answer.out) == FITTING | {"packing": speed}
    assert re.search("tokens/s packed here, one process +5,000\n", answer.err)
    assert "yes, 4.75 GiB left" in answer.err and planning.NOTE in answer.err
    assert asked == [(4, "v5p:4x4x8", 2, False)]
    # A step that does not fit is an error after its report.
    answer = shell("plan", QUICKSTART, "--device=v5e:1x1", "--decode")
    assert answer.status == 2 and json.loads(answer.out)["memory"]["fits"] is False
    assert answer.err.splitlines()[-1] == (
        "error: the step does not fit v5e:1x1: it needs 20.5 GiB of the 15.8 GiB that a device "
        "has, 4.8 GiB too much; to make it fit: train.remat=full (not estimated)"
    )


def test_meshes_are_tried_until_they_fit_and_ranked(reports, monkeypatch, shell):
    sizes = {"devices": 4, "local": 4, "state": 10**9, "rows": 64, "d_model": 256, "heads": 1}
    monkeypatch.setattr(planning, "_run_child", lambda *request: sizes)
    monkeypatch.setattr(planning, "require_compiler", lambda target: None)
    slower = FITTING | {"step_ms": 9.0, "tokens_per_s": 10}
    reports(REPORT, slower, FITTING)  # data 4: only with remat; fsdp 2
    answer = shell("plan", QUICKSTART, "--device=v5e:2x2", "--search")
    meshes = [mesh["settings"] for mesh in json.loads(answer.out)["meshes"]]
    ranked = [(mesh["data"], mesh["fsdp"], mesh["remat"]) for mesh in meshes]
    assert ranked == [(2, 2, "none"), (4, 1, "full"), (4, 1, "none")]
    assert answer.status == 0 and answer.err.rstrip().endswith("does not fit")


def test_tokenize_prints_pieces_and_ids_of_each_line(shell, trained_workdir, trained):
    flag = f"--tokenizer={trained_workdir}"
    answer = shell("tokenize", flag, "--format=jsonl", stdin=b"The old man\nA dog")
    records = [json.loads(line) for line in answer.out.splitlines()]
    tokenizer = trained.tokenizer["source"]
    assert [record["ids"] for record in records] == [
        tokenizer.encode(text) for text in ("The old man", "A dog")
    ]
    text = shell("tokenize", flag, stdin=b"The old man\n").out
    assert text.splitlines()[1] == " ".join(map(str, records[0]["ids"]))
    assert "characters per token" in text
    missing = shell("tokenize", "--tokenizer=none", stdin=b"a\n")
    assert missing.status == 2 and "none: there is no such file" in missing.err
