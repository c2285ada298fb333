# SPDX-License-Identifier: Apache-2.0
"""Completion in a real bash, and the candidates that zsh and fish get."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from transformer_jax.cli.main import main

COMPLETE = """
source "$1"
COMP_LINE=$2 COMP_POINT=${#2} COMP_TYPE=9
_python_argcomplete transformer_jax
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment in which `transformer_jax` is this checkout."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "transformer_jax"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m transformer_jax "$@"\n')
    program.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": f"{folder}/cache"}
    return os.environ | own | {"XLA_FLAGS": ""}  # which another process would check


def output(words, **options):
    return subprocess.run(words, capture_output=True, text=True, check=True, **options).stdout


@pytest.fixture(scope="module")
def complete(environment, tmp_path_factory):
    """`complete(line)`: the candidates that bash offers after a TAB at the end of the line."""
    script = tmp_path_factory.mktemp("script") / "completion.bash"
    script.write_text(output(["transformer_jax", "completion", "bash"], env=environment))

    def run(line):
        bash = ["bash", "--norc", "-c", COMPLETE, "bash", script, f"transformer_jax {line}"]
        return [each.rstrip() for each in output(bash, env=environment, cwd=ROOT).splitlines()]

    return run


def test_verbs_and_flags(complete):
    assert complete("tr") == ["train"]
    assert {"--workdir", "--beam_size"} <= set(complete("predict --"))
    assert complete("export --format ") == ["hf", "ctranslate2"]
    assert complete("train --config=wmt14_en_de") == ["wmt14_en_de_base", "wmt14_en_de_big"]


def test_fields_and_their_choices(complete, environment):
    line = "train --config=quickstart --config.model.norm_p"
    assert complete(line) == ["--config.model.norm_placement"]
    cache = Path(environment["XDG_CACHE_HOME"], "transformer_jax/completion/fields.json")
    written = cache.stat().st_mtime_ns
    assert '"pre"' in cache.read_text()
    choices = complete("train --config.model.norm_placement ")
    assert {"pre", "post"} <= set(choices) and "--workdir" not in choices
    assert cache.stat().st_mtime_ns == written, "read while the code is the same"


def test_zsh_and_fish_get_their_scripts_and_candidates(environment, tmp_path, capsysbinary):
    for shell, start in (("zsh", "#compdef"), ("fish", "\nfunction __fish_")):
        assert main(["completion", shell]) == 0
        assert capsysbinary.readouterr().out.decode().startswith(start)
    line = "transformer_jax trai"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1"}
    asked |= {"_ARGCOMPLETE_SHELL": "fish", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    asked |= {"_ARGCOMPLETE_DFS": "\t", "_ARGCOMPLETE_IFS": "\n"}
    asked |= {"_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "out")}
    assert output(["transformer_jax"], env={**environment, **asked}) == ""
    name, _, meaning = (tmp_path / "out").read_text().partition("\t")
    assert name == "train" and meaning.startswith("Trains a config")
