"""A manifest finds whatever has changed in the files it lists, and says where."""

import errno
import json
import os

import pytest

from transformer_jax.checkpoints import manifest
from transformer_jax.errors import UserError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "params" / "d").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "params" / "d" / "array").write_bytes(bytes(range(256)))
    (tmp_path / "params" / "empty").touch()
    (tmp_path / "data" / "state").write_text('{"position": 7}')
    (tmp_path / "note").write_text("rewritten later")
    manifest.write(tmp_path)
    return tmp_path


def test_untouched_files_are_intact(folder):
    assert manifest.damage(folder) is None


def test_it_lists_the_files_of_subfolders_with_size_and_hash(folder):
    entries = json.loads((folder / manifest.MANIFEST).read_text())["files"]
    assert set(entries) == {"params/d/array", "params/empty", "data/state"}
    assert entries["params/empty"] == {
        "size": 0,
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    }


@pytest.mark.parametrize("bit", [0, 1000, 2047])
def test_a_flipped_bit_is_found(folder, bit):
    path = folder / "params" / "d" / "array"
    contents = bytearray(path.read_bytes())
    contents[bit // 8] ^= 1 << bit % 8
    path.write_bytes(contents)
    assert "params/d/array" in manifest.damage(folder)


def test_every_flipped_bit_of_the_manifest_is_found(folder):
    """In a name too, where no file would be missed if only some subfolders are read."""
    path = folder / manifest.MANIFEST
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            assert manifest.MANIFEST in (manifest.damage(folder, ["params"]) or ""), (place, bit)


def test_a_manifest_of_before_it_had_a_seal_is_read(folder):
    path = folder / manifest.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text())["files"]))
    assert manifest.damage(folder) is None


def test_a_truncated_file_is_found(folder):
    (folder / "data" / "state").write_text('{"posi')
    assert "data/state" in manifest.damage(folder)


def test_a_missing_file_is_found(folder):
    (folder / "params" / "empty").unlink()
    assert manifest.damage(folder) == "params/empty is missing"


def test_a_folder_in_the_place_of_a_file_is_found(folder):
    (folder / "params" / "empty").unlink()
    (folder / "params" / "empty").mkdir()
    assert manifest.damage(folder) == "params/empty cannot be read"


@pytest.mark.parametrize("name", ["params/d/array", "manifest.json"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_cannot_be_read_now_is_no_damage(folder, name, number, monkeypatch):
    opened = os.open

    def failing(path, *args, **kwargs):
        if path == folder / name:
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(UserError, match=f"{name} cannot be read: {os.strerror(number)}; it may be"):
        manifest.damage(folder)


def test_a_pipe_in_the_place_of_a_file_is_found_and_not_waited_for(folder):
    (folder / "params" / "empty").unlink()
    os.mkfifo(folder / "params" / "empty")
    assert manifest.damage(folder) == "params/empty cannot be read"


def test_a_manifest_that_would_not_end_is_not_read(folder):
    os.truncate(folder / manifest.MANIFEST, 40 * 2**30)  # sparse
    assert manifest.damage(folder) == "manifest.json cannot be read"
    (folder / manifest.MANIFEST).unlink()
    os.mkfifo(folder / manifest.MANIFEST)
    assert manifest.damage(folder) == "manifest.json cannot be read"


@pytest.mark.parametrize(
    "name", ["params/../../{}/secret", "/dev/zero", "params/../../../dev/zero", "params//x"]
)
def test_a_name_that_leaves_the_folder_is_not_followed(folder, tmp_path_factory, name):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").touch()
    name = name.format(outside.name)
    manifest.write_entries(folder, {name: manifest.read_entries(folder)["params/empty"]})
    assert manifest.damage(folder) == f"{name!r} is outside the folder"


def test_a_file_of_another_size_is_not_read(folder, monkeypatch):
    path = folder / "params" / "d" / "array"
    os.truncate(path, 40 * 2**30)  # sparse
    monkeypatch.setattr(manifest, "_entry", None)  # would fail
    assert "params/d/array is not what was written" in manifest.damage(folder, ("params",))


def test_files_it_does_not_list_do_no_harm(folder):
    (folder / "params" / ".nfs0001").touch()
    (folder / "note").write_text("rewritten")
    assert manifest.damage(folder) is None


def test_only_the_subfolders_asked_for_are_checked(folder):
    (folder / "data" / "state").unlink()
    assert manifest.damage(folder, ("params",)) is None
    assert manifest.damage(folder, ("params", "data")) == "data/state is missing"


def test_no_manifest(folder):
    (folder / manifest.MANIFEST).unlink()
    assert manifest.damage(folder) == "manifest.json is missing"


@pytest.mark.parametrize("contents", [b"", b'{"params/empty": {"si', b"[]", b"\xff\xfe"])
def test_an_unreadable_manifest(folder, contents):
    (folder / manifest.MANIFEST).write_bytes(contents)
    assert manifest.damage(folder) == "manifest.json cannot be read"


def test_a_flipped_bit_of_the_manifest_is_found_or_harmless(folder):
    path = folder / manifest.MANIFEST
    written = path.read_bytes()
    entries = json.loads(written)
    for bit in range(0, 8 * len(written), 11):
        contents = bytearray(written)
        contents[bit // 8] ^= 1 << bit % 8
        path.write_bytes(contents)
        # What is found intact must have been read as the same list of files.
        assert manifest.damage(folder) is not None or json.loads(contents) == entries
