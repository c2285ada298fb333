# SPDX-License-Identifier: Apache-2.0
"""Files that come with the package: configs, sweeps, claims, and components.

In a checkout, `transformer_jax/examples` links to the folders of `_FOLDERS`; a wheel has copies of
the files there.
"""

from pathlib import Path

from transformer_jax.suggestions import suggest, suggest_file

_EXAMPLES = Path(__file__).parents[1] / "examples"
_FOLDERS = {
    "config": "configs",
    "sweep": "experiments/sweeps",
    "claim": "experiments/claims",
    "module": "docs/recipes",
}
"""Kind of file -> its folder in a checkout; the last part is its name in `examples`."""


def shipped_files(kind: str) -> dict[str, Path]:
    """Shipped files of a kind, a key of `_FOLDERS`, by path in their folder without the suffix.

    Folders named `modules` have components that these files need; `--modules` takes their paths.
    """
    folder = _EXAMPLES / Path(_FOLDERS[kind]).name
    paths = [path for path in sorted(folder.rglob("*.py")) if path.parent.name != "modules"]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def shipped_modules() -> dict[str, Path]:
    """Shipped files of components by file name: recipes, and those in folders named `modules`."""
    folders = [_EXAMPLES / Path(folder).name for folder in _FOLDERS.values()]
    paths = [path for folder in folders for path in sorted(folder.rglob("modules/*.py"))]
    return {path.name: path for path in [*shipped_files("module").values(), *paths]}


def find_file(given: str | Path, kind: str) -> Path:
    """The file that a user names: the file itself if it exists, else a shipped one of that name.

    The suffix may be left out, and of a shipped file also the folder: "quickstart",
    "quickstart.py" and "configs/quickstart.py" are the same. Returns `given` if there is no file.
    """
    path = Path(given)
    named = path if path.suffix == ".py" else Path(f"{path}.py")
    for candidate in (path, named):
        if candidate.is_file():
            return candidate
    name = named.with_suffix("").as_posix().removeprefix(f"{_FOLDERS[kind]}/")
    return shipped_files(kind).get(name, path)


def suggest_shipped(given: Path, kind: str) -> str:
    """End of a message about a missing file: a near name, of its folder or of shipped files."""
    shipped = shipped_files(kind)
    names = (given.stem, given.as_posix().removesuffix(given.suffix))
    hints = (suggest_file(given), *(suggest(name, shipped) for name in names))
    return next(filter(None, hints), f"; shipped are {', '.join(shipped)}")
