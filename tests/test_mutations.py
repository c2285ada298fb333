# SPDX-License-Identifier: Apache-2.0
"""Mutations change one place of code, and are found again in another version of the file."""

import ast

import pytest

from tests.imports import PATHS
from tests.mutations import candidates, mutated

pytestmark = pytest.mark.xdist_group("imports")  # one worker parses all files

MODULE = "transformer_jax.training.step"


def test_each_mutation_changes_one_place_and_is_python():
    text = PATHS[MODULE].read_bytes()
    mutations = candidates(MODULE)
    assert {row["kind"] for row in mutations} == {"sign", "constant", "comparison", "statement"}
    tree = ast.dump(ast.parse(text))
    for row in mutations:
        changed = mutated(text, row)
        assert ast.dump(ast.parse(changed)) != tree, row
        assert len(changed) - len(text) == len(row["after"]) - len(row["before"].encode()), row


def test_docstrings_annotations_and_messages_are_left_alone(monkeypatch, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        'SIZE: int = 3\n"""Rows: -1 + 2."""\ndef f(x: Array[4]) -> Array[5]:\n    """At < 6."""\n'
        '    if x < 7:\n        raise ValueError(f"{8 + x}", -9)\n    logger.info("%s", 10)\n'
    )
    monkeypatch.setitem(PATHS, MODULE, path)
    monkeypatch.setattr("tests.mutations.ROOT", tmp_path)
    places = {(row["line"], row["kind"], row["before"]) for row in candidates(MODULE)}
    raising = 'raise ValueError(f"{8 + x}", -9)'
    assert places == {
        (1, "constant", "3"),
        (5, "comparison", "<"),
        (5, "constant", "7"),
        (6, "statement", raising),
    }


def test_a_place_is_found_in_another_version():
    row = next(row for row in candidates(MODULE) if row["kind"] == "comparison")
    text = b"# A line more.\n" + PATHS[MODULE].read_bytes()
    assert mutated(text, row) == b"# A line more.\n" + mutated(PATHS[MODULE].read_bytes(), row)
    assert mutated(b"nothing", row) is None
