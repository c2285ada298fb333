# SPDX-License-Identifier: Apache-2.0
"""Config files, workdirs of earlier versions, and changes while a run is loaded."""

import json
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import transformer_jax as tj
from transformer_jax.checkpoints import step_folder
from transformer_jax.runs.workdir import MARK

HEADER = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    config = ConfigDict()\n"


@pytest.fixture
def write_config(tmp_path):
    """`write_config(line, ...)`: the path of a config file with these lines in `get_config`."""

    def write(*lines):
        path = tmp_path / "experiment.py"
        path.write_text(HEADER + "".join(f"    {line}\n" for line in (*lines, "return config")))
        return path

    return write


@pytest.fixture
def path(write_config):
    """A config file that sets three fields."""
    return write_config("config.model = dict(d_model=64, num_heads=4)", "config.seed = 3")


@pytest.fixture
def meanwhile(monkeypatch):
    """`meanwhile(change)`: calls `change` once, after the provenance of a checkpoint was read."""

    def meanwhile(change):
        read, changes = step_folder.read_provenance, [change]

        def read_and_change(folder):
            provenance = read(folder)
            if changes:
                changes.pop()()
            return provenance

        monkeypatch.setattr(step_folder, "read_provenance", read_and_change)

    return meanwhile


@pytest.fixture
def fitted(monkeypatch):
    """Settings of the runs that would be trained; none is."""
    settings = []

    def fit(trainable, *_):
        settings.append(trainable.settings)
        return SimpleNamespace(params={}, model_params={}, step=0)

    monkeypatch.setattr("transformer_jax.runs.train.fit", fit)
    return settings


@pytest.fixture
def config_of_text(tiny_config, tiny_language_model):
    """`config_of_text(changes)`: the config of `language_model_workdir`, with changes; its programs
    compile in half the time of a translator's."""
    return lambda changes=None: tiny_config(tiny_language_model | (changes or {}))


@pytest.fixture(scope="session")
def used(trained_workdir, tmp_path_factory):
    """The trained run in a copy of its workdir: evaluations write there."""
    return tj.load(shutil.copytree(trained_workdir, tmp_path_factory.mktemp("used") / "run"))


@pytest.fixture
def old_workdir(tmp_path):
    """`old_workdir(name)`: unpacks a run of an earlier version."""

    def unpack(name):
        with tarfile.open(Path(__file__).parent / "old_workdirs" / f"{name}.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / name

    return unpack


def with_fields(workdir, copy, fields):
    """A copy of a run whose config.json has other fields."""
    shutil.copytree(workdir, copy)
    config = json.loads((copy / "config.json").read_text())
    for name, value in fields.items():
        section, *entry, field = name.split(".")
        part = config[section]
        for group in entry:
            part = part.setdefault(group, {})
        part[field] = value
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def contents(folder):
    """Contents of all files except the mark, by path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if path.name != MARK}
