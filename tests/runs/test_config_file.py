"""Config files: how one is run, and what one that fails is answered with."""

import sys

import pytest

from transformer_jax.nn.norms import NORMS
from transformer_jax.runs.config import load_config


def test_a_config_imports_its_sibling_from_any_directory(write_config, tmp_path, monkeypatch):
    sibling = write_config("config.seed = 5")
    variant = sibling.with_name("variant.py")
    variant.write_text(
        "from experiment import get_config as base\n\n\n"
        "def get_config():\n    config = base()\n    config.seed += 1\n    return config\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_config("../variant.py").seed == 6
    search_path = list(sys.path)
    write_config("config.seed = 10 ** 3")  # edited meanwhile
    assert load_config("../variant.py").seed == 1001
    assert sys.path == search_path and "experiment" not in sys.modules


def test_a_missing_file(message_of, tmp_path):
    message = message_of(load_config, tmp_path / "absent.py")
    assert (
        message == f"there is no config file {tmp_path}/absent.py; see configs/ for what there is"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("config = {}\n", "defines no get_config()"),
        ("def get_config(:\n", "fails: SyntaxError"),
        (
            "import nonsense_module\n",
            "fails: ModuleNotFoundError: No module named 'nonsense_module'",
        ),
        ("def get_config():\n    return {}['size']\n", "fails: KeyError: 'size'"),
        ("def get_config():\n    return None\n", "fails: get_config() returns NoneType"),
        ("exit()\n", "fails: it calls exit()"),
        ("def get_config():\n    raise SystemExit(0)\n", "fails: it calls exit()"),
        ("raise ValueError('a\\nb')\n", "fails: ValueError: a b"),
        ("\x00", "fails: "),
    ],
)
def test_a_file_that_fails(message_of, tmp_path, text, reason):
    path = tmp_path / "broken.py"
    path.write_text(text)
    message = message_of(load_config, path)
    assert message.startswith(f"config file {path} ")
    assert reason in message


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("config.model = dict(d_modle=64)", "there is no config.model.d_modle; did you mean "
         "config.model.d_model?"),
        ("config.modle = dict()", "there is no config.modle; did you mean config.model?"),
        ("config.sed = 3", "did you mean config.seed?"),
        ("config.model = 3", "config.model is a section; set one of its fields"),
        ("config.model = dict(source_vocab_size=9)", "there is no config.model.source_vocab_size"),
        ("config.seed = dict(x=1)", "config.seed is {'x': 1}; it must be of type int"),
        ("config.model = {3: 64}", "there is no config.model.3; did you mean config.model"),
        ("config = ConfigDict({3: 64})", "there is no config.3; did you mean config."),
    ],
)  # fmt: skip
def test_an_unknown_field_of_a_file(message_of, write_config, line, nearest):
    path = write_config(line)
    message = message_of(load_config, path)
    assert message.startswith(f"{path}: ")
    assert nearest in message


@pytest.mark.parametrize("beside", [True, False])
def test_a_component_that_only_a_config_file_registers_is_refused(write_config, message_of, beside):
    """The run would name no module that has it."""
    entries = dict(NORMS)
    path = write_config("config.model = dict(norm='mine')")
    registers = """
from transformer_jax.nn.norms import NORMS
NORMS.register("mine", NORMS["layer"])
"""
    path.with_name("parts_beside.py").write_text(registers)
    first = "import parts_beside\n" if beside else registers
    path.write_text(first + path.read_text())
    try:
        assert message_of(load_config, path).startswith(
            "config.model.norm is 'mine', which a config file registers or imports from beside it"
        )
    finally:
        NORMS.restore(entries)
