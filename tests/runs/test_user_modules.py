# SPDX-License-Identifier: Apache-2.0
"""The user's modules: loaded, recorded by the run, required again, never executed from it."""

import json
import logging
import shutil
import sys
import textwrap

import pytest

import transformer_jax as tj
from tests.conftest import forgetting_modules
from tests.refusals import message_of
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.runs import user_modules
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.opened import open_workdir
from transformer_jax.runs.seeds import seed_configs, train_replicas
from transformer_jax.runs.user_modules import load_modules

POSITION = """
from transformer_jax.nn.positions import POSITIONS, PositionEncoding

VERSION = 1

@POSITIONS.register("{name}")
class Mine(PositionEncoding):
    '''Adds nothing, in its own way.'''
"""
MOMENTS = {"train.num_steps": 1, "eval.every_steps": 1, "logging.every_steps": 1}


@pytest.fixture
def forgetful():
    """Forgets the modules that a test loads, and what they import."""
    known = set(sys.modules)
    with forgetting_modules():
        yield
    for name in set(sys.modules) - known:
        if not name.startswith(("transformer_jax", "jax")):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path, forgetful):
    """`write(text, name)`: writes a user's Python file; returns its path."""

    def write_file(text, name="mine.py"):
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write_file


# --- Loaded ---


def test_a_file_registers_what_the_config_names(write, tiny_config, tiny):
    path = write(POSITION.format(name="mine"))
    (named,) = load_modules(str(path))
    assert named.name == "mine.py" and len(named.sha256) == 64
    assert POSITIONS["mine"].__doc__ == "Adds nothing, in its own way."
    assert sys.modules[POSITIONS["mine"].__module__].VERSION == 1
    assert tiny_config({"model.positions": "mine"}).model.positions == "mine"


def test_a_file_that_changed_replaces_what_it_registered(write):
    path = write(POSITION.format(name="mine") + POSITION.format(name="other"))
    load_modules(path)
    first = POSITIONS["mine"]
    load_modules([path])
    assert POSITIONS["mine"] is first
    load_modules(write(POSITION.format(name="mine").replace("nothing", "little")))
    assert POSITIONS["mine"].__doc__ == "Adds little, in its own way."
    assert "other" not in POSITIONS


def test_a_file_that_fails_registers_nothing(write):
    before = dict(POSITIONS)
    path = write(POSITION.format(name="mine") + "1 / 0\n")
    message = message_of(load_modules, path)
    assert message == "modules: mine.py, line 9: ZeroDivisionError: division by zero"
    assert dict(POSITIONS) == before
    load_modules(write(POSITION.format(name="mine")))
    working = POSITIONS["mine"]
    message_of(load_modules, write(POSITION.format(name="other") + "1 / 0\n"))
    assert POSITIONS["mine"] is working and "other" not in POSITIONS


def test_a_file_imports_its_neighbour(write):
    """Also after the neighbour was edited; an error in it has its line."""
    neighbour = write("NAME = 'near'\n\ndef fail():\n    raise ValueError('no')\n", "beside.py")
    text = f"import beside\n{POSITION.format(name='mine')}    parts = beside.NAME, beside.fail\n"
    load_modules(write(text))
    name, fail = POSITIONS["mine"].parts
    assert name == "near" and "beside" not in sys.modules
    with pytest.raises(ValueError) as raised:
        fail()
    line = user_modules.describe_module_error(raised.value)
    assert line == f"{neighbour}, line 4: ValueError: no"
    write("NAME = 'nearer'\nfail = None\n", "beside.py")
    load_modules(write(text + "\n"))
    assert POSITIONS["mine"].parts[0] == "nearer"


def test_an_importable_module_and_what_it_imports(write, monkeypatch):
    monkeypatch.syspath_prepend(str(write("", "pack/__init__.py").parents[1]))
    write(POSITION.format(name="far"), "pack/parts.py")
    path = write("import pack.parts\n" + POSITION.format(name="mine"), "pack/positions.py")
    (named,) = load_modules("pack.positions")
    assert named.name == "pack.positions"
    assert POSITIONS["mine"].__module__ == "pack.positions"
    assert POSITIONS.module_of("far") == "pack.parts"
    path.write_text("import pack.parts\n" + POSITION.format(name="renamed"))
    load_modules("pack.positions")
    assert {"renamed", "far"} <= set(POSITIONS) and "mine" not in POSITIONS


def test_a_module_that_fails_can_be_corrected(write, monkeypatch):
    monkeypatch.syspath_prepend(str(write("", "single.py").parent))
    write(POSITION.format(name="far"), "parts.py")
    write("import parts\nraise ValueError('two\\nlines')", "single.py")
    assert message_of(load_modules, "single") == "modules: single, line 2: ValueError: two lines"
    assert "far" not in POSITIONS
    write("import parts\n", "single.py")
    load_modules("single")
    assert "far" in POSITIONS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit()", "modules: mine.py, line 2: it calls exit()"),
        ("exit(3)", "modules: mine.py, line 1: it calls exit()"),
        ("x = 1\ny = (", "modules: mine.py, line 2: SyntaxError: '(' was never closed"),
        ("raise KeyError('a')", "modules: mine.py, line 1: KeyError: 'a'"),
        ("x\0", "modules: mine.py: SyntaxError: source code string cannot contain null bytes"),
        (POSITION.format(name="alibi"), "line 6: model.positions: the name 'alibi' is taken; choo"),
    ],
)
def test_a_file_that_cannot_be_used(write, text, message):
    assert message in message_of(load_modules, write(text))


def test_a_name_of_another_module_is_refused(write):
    load_modules(write(POSITION.format(name="mine"), "first/mine.py"))
    message = message_of(load_modules, write(POSITION.format(name="mine"), "second/mine.py"))
    assert "the name 'mine' is taken" in message


def test_a_module_that_is_not_there(write, tmp_path):
    assert f"cannot read {tmp_path}/absent.py: No such file" in message_of(
        load_modules, str(tmp_path / "absent.py")
    )
    for name in ("absent_module", "absent.module", "sys", "a..b", "my-file"):
        assert "modules: " in message_of(load_modules, name)
    assert "'absent_module' is no module that can be imported" in message_of(
        load_modules, "absent_module"
    )


def test_what_a_module_prints_is_no_result(write, capsys):
    load_modules(write("print('hello')"))
    assert capsys.readouterr() == ("", "hello\n")


SET = """
from transformer_jax.data.sources import SOURCES, SourceSet

SOURCES.register("{name}", SourceSet(lambda config, split: [[{{"text": split}}]]))
"""


def recorded_names(workdir, config):
    """Names of the modules that a run of a config records."""
    user_modules.record_modules(workdir, read_settings(config), [])
    return [module["name"] for module in json.loads((workdir / "modules.json").read_text())]


def test_a_set_of_the_users_own_is_read_and_named_by_the_run(write, tiny_config, tmp_path):
    load_modules(write(SET.format(name="mine")))
    assert list(open_split(DataConfig(name="mine"), "valid")) == [{"text": "valid"}]
    config = tiny_config({"data.name": "parallel_text,mine"})
    assert recorded_names(tmp_path, config) == ["mine.py"]


# --- Named by the run ---


@pytest.fixture(scope="module")
def trained_with(tiny_language_model, tmp_path_factory, tiny_config):
    """The workdir of a run with a position of the user's, and its file."""
    folder = tmp_path_factory.mktemp("modules")
    path = folder / "my_positions.py"
    # Positions as those of the run that other tests train, whose programs it shares.
    text = POSITION.replace("(PositionEncoding)", '(POSITIONS["sinusoidal"])')
    path.write_text(text.format(name="lasting"))
    changes = tiny_language_model | MOMENTS | {"model.positions": "lasting"}
    with forgetting_modules():
        load_modules(path)
        config = tiny_config(changes)
        tj.train(config, folder / "run", modules=path)
    return folder / "run", path, config


@pytest.fixture
def run(trained_with, tmp_path, forgetful):
    """A copy of the workdir, the file, the config."""
    workdir, path, config = trained_with
    own = tmp_path / "own"
    own.mkdir()
    return shutil.copytree(workdir, tmp_path / "run"), shutil.copy(path, own), config


def test_the_workdir_names_its_modules_without_their_code(run, tmp_path, monkeypatch):
    workdir, path, config = run
    load_modules(path)
    (entry,) = json.loads((workdir / "modules.json").read_text())
    assert entry.keys() == {"name", "sha256"} and entry["name"] == "my_positions.py"
    assert list(workdir.rglob("*.py")) == []

    def stop(*_):
        raise tj.Stopped("not trained")

    monkeypatch.setattr("transformer_jax.runs.seeds.fit", stop)
    with pytest.raises(tj.Stopped):
        train_replicas(seed_configs(config, 2), tmp_path / "seeds", modules=path)
    for name in ("together", "seed_0", "seed_1"):
        of_replica = tmp_path / "seeds" / name / "modules.json"
        assert of_replica.read_text() == (workdir / "modules.json").read_text()


def test_a_run_is_loaded_with_its_modules_alone(run):
    workdir, path, config = run
    needs = f"the run in {workdir} needs my_positions.py, whose code is not in it: give "
    asks = needs + "--modules=PATH/TO/my_positions.py, or modules= in a notebook"
    assert message_of(tj.load, workdir) == asks
    assert message_of(tj.train, config, workdir) == asks
    from_it = {"train.init_from": str(workdir), "task.name": "language_modeling"}
    assert message_of(tj.config, "tiny_shakespeare_cpu", from_it) == asks
    assert message_of(open_workdir, workdir, modules=None) == asks  # as of a teacher
    loaded = tj.load(workdir, modules=path)
    assert loaded.step == 1 and len(loaded.predict(["The dog"])) == 1
    assert tj.load(workdir).step == 1  # it is here now


def test_a_resumed_run_still_names_them(run):
    workdir, path, config = run
    tj.train(config, workdir, modules=[path])
    assert "my_positions.py" in (workdir / "modules.json").read_text()
    assert tj.train(config, workdir).step == 1
    assert "my_positions.py" in (workdir / "modules.json").read_text()


def test_a_changed_module_is_warned_of(run, caplog):
    workdir, path, _ = run
    with open(path, "a") as file:
        file.write("\n# a word\n")
    with caplog.at_level(logging.WARNING):
        tj.load(workdir, modules=path)
    assert f"my_positions.py has changed since the run in {workdir} was trained" in caplog.text


def test_nothing_in_a_workdir_is_executed(run, monkeypatch):
    workdir, path, config = run
    inside = workdir / "inside.py"
    inside.write_text("raise SystemError")
    monkeypatch.syspath_prepend(str(workdir))
    for use in (lambda m: tj.load(workdir, modules=m), lambda m: tj.train(config, workdir, m)):
        for given in (inside, str(inside), "inside"):
            assert "is in the workdir, and nothing there is executed" in message_of(use, given)
    monkeypatch.syspath_prepend(str(workdir.parents[1]))
    dotted = f"{workdir.parent.name}.{workdir.name}.inside"
    assert "is in the workdir" in message_of(tj.load, workdir, modules=dotted)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '[{"name": "a"}]', '[{"name": 1, "sha256": "a"}]']
)
def test_a_damaged_record_is_refused(run, text):
    (run[0] / "modules.json").write_text(text)
    assert "modules.json cannot be read: " in message_of(tj.load, run[0])


def test_modules_of_the_configs_components_are_recorded(write, monkeypatch, tiny_config):
    monkeypatch.syspath_prepend(str(write("", "by_hand.py").parent))
    path = write(POSITION.format(name="mine"), "by_hand.py")
    import by_hand

    assert by_hand.VERSION == 1
    workdir = path.parent
    assert recorded_names(workdir, tiny_config({"model.positions": "mine"})) == ["by_hand"]
    user_modules.record_modules(workdir, read_settings(tiny_config()), [])
    assert not (workdir / "modules.json").exists()
