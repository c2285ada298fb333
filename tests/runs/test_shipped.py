# SPDX-License-Identifier: Apache-2.0
"""Files that come with the package: found by name from anywhere, and part of the wheel."""

import shutil
import zipfile

import pytest
from setuptools import build_meta

import transformer_jax as tj
from tests.conftest import ROOT
from transformer_jax.runs.shipped import find_file, shipped_files

FOLDERS = {
    "config": ROOT / "configs",
    "sweep": ROOT / "experiments" / "sweeps",
    "module": ROOT / "docs" / "recipes",
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_shipped_are_the_files_of_the_checkout(kind):
    paths = [path.resolve() for path in shipped_files(kind).values()]
    assert paths == sorted(FOLDERS[kind].glob("*.py")) and paths


@pytest.mark.parametrize("given", ["quickstart", "quickstart.py", "configs/quickstart.py"])
def test_a_shipped_config_is_found_by_name_until_a_file_has_it(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tj.config(given).data.name == "synthetic_en_de"
    (tmp_path / "quickstart").mkdir()  # a folder is no config
    assert find_file(given, "config").resolve() == FOLDERS["config"] / "quickstart.py"
    own = tmp_path / given
    own.parent.mkdir(exist_ok=True)
    own = own.with_suffix(".py")
    own.write_text("from ml_collections import ConfigDict\nget_config = ConfigDict\n")
    assert tj.config(given).data.dir is None and find_file(given, "config").resolve() == own


def test_a_near_name_is_suggested_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tj.UserError, match=r"no config file quikstart; did you mean quickstart\?"):
        tj.config("quikstart")


def test_the_wheel_has_the_shipped_files_and_one_top_level_package(tmp_path, monkeypatch):
    """Built from copies of what is packaged, so that the checkout gets no build folder."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in ("transformer_jax", "configs", "experiments/sweeps", "docs/recipes"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=skipped)
    monkeypatch.chdir(checkout)
    wheel = tmp_path / build_meta.build_wheel(str(tmp_path))
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"transformer_jax"}
    for kind in FOLDERS:
        for path in shipped_files(kind).values():
            assert path.relative_to(ROOT).as_posix() in names
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "transformer_jax").rglob("*.*")}
    assert {name for name in files if "__pycache__" not in name} - set(names) == set()
