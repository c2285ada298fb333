# SPDX-License-Identifier: Apache-2.0
"""Addresses in place of paths: for a workdir, a sweep's folder, data, tokens, a config."""

import itertools
from pathlib import Path

import fsspec
import pytest

import transformer_jax as tj
from tests.campaigns.faults.kill_resume import differences, metrics
from tests.conftest import QUICKSTART, copy_at_step
from tests.refusals import assert_refused
from transformer_jax.buckets.bucket import Bucket, BucketError
from transformer_jax.buckets.lease import LEASE_FOLDER
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.cli.main import main
from transformer_jax.data.batches import token_cache
from transformer_jax.runs.workdir import lock_workdir, open_for_writing

LINES = ["The dog sees a cat.", "The old teacher reads the new books."]
_numbers = itertools.count()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(name)`: simulates another machine from then on."""

    def at_machine(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    at_machine("cache")
    return at_machine


@pytest.fixture
def address(machine):
    return f"memory://of-runs-{next(_numbers)}/run"


def put(folder, address):
    fsspec.filesystem("memory").put(f"{folder}/", address, recursive=True)


def get(address, folder):
    fsspec.filesystem("memory").get(f"{address}/", str(folder), recursive=True)


def test_a_run_moves_between_disk_and_bucket(
    language_model_workdir, tiny_config, tiny_language_model, address, tmp_path
):
    """Fifteen steps on disk, five in a bucket and ten on another disk equal thirty on one disk."""
    config = tiny_config(tiny_language_model)
    copy_at_step(language_model_workdir, 15, tmp_path / "disk")
    put(tmp_path / "disk", address)
    tj.train(config, address, until=20)
    get(address, tmp_path / "moved")
    assert 20 in step_folders(tmp_path / "moved" / "checkpoints")
    tj.train(config, tmp_path / "moved")
    assert not differences(language_model_workdir, tmp_path / "moved")
    assert metrics(language_model_workdir) == metrics(tmp_path / "moved")


def test_a_run_in_a_bucket_is_used_on_another_machine(workdir, address, machine):
    put(workdir, address)
    machine("another")
    loaded = tj.load(address, average=2)
    expected = tj.load(workdir, average=2).predict(LINES, beam_size=1)
    assert loaded.predict(LINES, beam_size=1) == expected
    # What is of use for training alone stays where it is.
    assert loaded.workdir.name == "run" and not list(loaded.workdir.rglob("training"))
    examples = loaded.evaluate("valid", beam_size=1)["num_examples"]
    kept = Bucket(address).read("predictions/valid-30.jsonl")
    assert len(kept.splitlines()) == examples


def test_a_run_continues_whose_machine_was_lost_in_its_first_upload(address, machine, monkeypatch):
    written, write = [], Bucket.write

    def write_once(self, name, content):
        if not name.startswith(LEASE_FOLDER):
            if written:
                raise BucketError("the machine is lost")
            written.append(name)
        write(self, name, content)

    def begin():
        with open_for_writing(f"{address}/row") as place, lock_workdir(place.folder / "seed_0"):
            (place.folder / "seed_0" / "tokenizer").mkdir(exist_ok=True)
            for number in range(9):
                (place.folder / "seed_0" / "tokenizer" / str(number)).touch()

    with monkeypatch.context() as patched, pytest.raises(tj.UserError, match="is lost"):
        patched.setattr(Bucket, "write", write_once)
        begin()
    assert len(written) == 1
    machine("another")
    begin()
    assert len(Bucket(f"{address}/row").entries("seed_0")) == 10


def test_a_sweep_in_a_bucket_continues_on_another_machine(tiny_language_model, address, machine):
    base = tiny_language_model | {"train.num_steps": 2, "eval.every_steps": 2}
    sweep = tj.Sweep(str(QUICKSTART), {"one": {}}, base, seeds=1)
    rows = tj.sweep(sweep, address)
    there = Bucket(address).entries()
    assert {"table.md", "table.png", "one/result.json"} <= there.keys()
    machine("another")
    again = tj.sweep(sweep, address)
    assert [row.metrics for row in again] == [row.metrics for row in rows]
    result = "one/result.json"  # a row that is trained again rewrites it
    assert Bucket(address).entries(result)[result] == there[result]


def test_text_tokens_and_config_come_from_a_bucket(
    tiny_language_model, address, machine, monkeypatch, capsys
):
    monkeypatch.setattr(token_cache, "_MIN_BYTES", 1)
    monkeypatch.setattr(token_cache, "_PART_BYTES", 64)
    at = Bucket(f"{address}/in")
    for split in ("train", "valid"):
        at.write(f"{split}.txt", Path(tiny_language_model[f"data.{split}_text"]).read_bytes())
    fields = tiny_language_model | {
        "data.train_text": f"{address}/in/tr*.txt",
        "data.valid_text": f"{address}/in/valid.txt",
        "data.cache_dir": f"{address}/tokens",
        "data.documents": "line",
        "data.packing": "together",
        "train.num_steps": 1,
    }
    at.write("fields.py", f"FIELDS = {fields!r}\n".encode())
    at.write("small.py", b"import transformer_jax as tj\nfrom fields import FIELDS\n")
    got = f"def get_config():\n    return tj.config({str(QUICKSTART)!r}, FIELDS)\n"
    at.write("small.py", at.read("small.py") + got.encode())
    words = ["train", f"--config={address}/in/small.py"]
    assert main([*words, f"--workdir={address}/a"]) == 0
    tokens = Bucket(f"{address}/tokens").entries()
    assert {name.rpartition("/")[2] for name in tokens} == {"tokens"}
    machine("another")
    with monkeypatch.context() as patched:
        patched.setattr(token_cache._Encoding, "make", None)  # nothing is encoded again
        assert main([*words, f"--workdir={address}/b"]) == 0
    assert main(["train", f"--config={address}/in/none.py", f"--workdir={address}/c"]) == 2
    assert f"there is no config file {address}/in/none.py" in capsys.readouterr().err


def test_mistakes_are_refused(address, tiny_config, capsys):
    other = f"{address}_other"
    Bucket(other).write("config.json", b"of another program")
    Bucket(other).write("metrics.jsonl", b"")
    nowhere = "nowhere://bucket/run"
    assert_refused(
        {
            f"there is nothing at {address}": lambda: tj.load(address),
            "Path drops one": lambda: tj.load(Path("s3://bucket/run")),
            f"{nowhere!r} is no address that may": lambda: tj.train(tiny_config(), nowhere),
            "no mark that a run here made it": lambda: tj.train(tiny_config(), other),
        }
    )
    capsys.readouterr()
    for verb in ("predict", "evaluate", "plot"):
        assert main([verb, f"--workdir={address}"]) == 2
        assert capsys.readouterr().err == f"error: there is nothing at {address}\n"
