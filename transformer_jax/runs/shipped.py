# SPDX-License-Identifier: Apache-2.0
"""Files that come with the package: configs, sweeps, claims, and modules of components.

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
    """Shipped files of a kind, a key of `_FOLDERS`, by name without the suffix."""
    folder = _EXAMPLES / Path(_FOLDERS[kind]).name
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def find_file(given: str | Path, kind: str) -> Path:
    """The file that a user names: the file itself if it exists, else a shipped one of that name.

    The suffix may be left out, and of a shipped file also the folder: "quickstart",
    "quickstart.py" and "configs/quickstart.py" are the same. Returns `given` if there is no file.
    """
    path = Path(given)
    named = path if path.suffix == ".py" else Path(f"{path}.py")
    for one in (path, named):
        if one.is_file():
            return one
    by_name = shipped_files(kind) if named.parent in (Path(), Path(_FOLDERS[kind])) else {}
    return by_name.get(named.stem, path)


def suggest_shipped(given: Path, kind: str) -> str:
    """End of a message about a missing file: a near name, of its folder or of shipped files."""
    shipped = shipped_files(kind)
    if hint := suggest_file(given) or suggest(given.stem, shipped):
        return hint
    return f"; shipped are {', '.join(shipped)}"
