"""Configs: what they may say, what a wrong one is answered with, and how a run keeps its own."""

import random

import pytest

from transformer_jax.errors import UserError
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.runs.config import (
    check_same_run,
    complete_config,
    load_config,
    load_json,
    read_settings,
    save_json,
)

HEADER = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    config = ConfigDict()\n"


@pytest.fixture
def write_config(tmp_path):
    def write(*lines):
        path = tmp_path / "experiment.py"
        path.write_text(HEADER + "".join(f"    {line}\n" for line in (*lines, "return config")))
        return path

    return write


@pytest.fixture
def path(write_config):
    return write_config("config.model = dict(d_model=64, num_heads=4)", "config.seed = 3")


def message_of(function, *args):
    with pytest.raises(UserError) as caught:
        function(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Reading ---


def test_a_file_says_what_it_changes_and_the_rest_has_its_default(path):
    config = load_config(path)
    settings = read_settings(config)
    assert settings.model == TransformerConfig(d_model=64, num_heads=4)
    assert (settings.seed, settings.optimizer.learning_rate) == (3, 1.0)
    assert config.model.d_ff == 2048
    assert "source_vocab_size" not in config.model


def test_overrides_are_values_or_texts(path):
    overrides = {
        "model.d_model": "32",
        "model.num_heads": 2,
        "train.num_steps": "10_000",
        "optimizer.learning_rate": "2",
        "optimizer.epsilon": "1e-8",
        "tokenizer.joint": "false",
        "data.name": "parallel_text",
        "model.attention_bias": "none",
        "seed": "7",
    }
    settings = read_settings(load_config(path, overrides))
    assert (settings.model.d_model, settings.model.num_heads) == (32, 2)
    assert settings.train.num_steps == 10_000
    assert (settings.optimizer.learning_rate, settings.optimizer.epsilon) == (2.0, 1e-8)
    assert type(settings.optimizer.learning_rate) is float
    assert settings.tokenizer.joint is False
    assert (settings.data.name, settings.model.attention_bias) == ("parallel_text", "none")
    assert settings.seed == 7


def test_optional_fields_take_a_value_or_none(write_config):
    path = write_config("config.model = dict(key_size=24)", "config.data = dict(dir='/data')")
    config = load_config(path)
    assert (config.model.key_size, config.model.value_size) == (24, None)
    assert (config.data.dir, config.optimizer.clip_norm) == ("/data", None)
    overrides = {
        "model.key_size": "none",
        "model.value_size": "16",
        "data.dir": "None",
        "optimizer.clip_norm": "1",
    }
    config = load_config(path, overrides)
    assert (config.model.key_size, config.model.value_size) == (None, 16)
    assert (config.data.dir, config.optimizer.clip_norm) == (None, 1.0)


def test_a_loaded_config_can_be_changed_and_read_again(path):
    config = load_config(path)
    config.model.key_size = 8
    config.optimizer.clip_norm = 0.5
    assert read_settings(config).model.key_size == 8


# --- Mistakes ---


def test_a_missing_file(tmp_path):
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
        ("def get_config():\n    return None\n", "fails: AttributeError"),
        ("\x00", "fails: "),
    ],
)
def test_a_file_that_fails(tmp_path, text, reason):
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
    ],
)  # fmt: skip
def test_an_unknown_field_of_a_file(write_config, line, nearest):
    path = write_config(line)
    message = message_of(load_config, path)
    assert message.startswith(f"{path}: ")
    assert nearest in message


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("train.num_step", "config.train.num_steps"),
        ("num_steps", "config.train.num_steps"),
        ("model", "set one of its fields"),
        ("seed.x", "config.seed"),
        ("optimizer.lr.peak", "config.optimizer."),
    ],
)
def test_an_unknown_field_of_an_override(path, name, nearest):
    message = message_of(load_config, path, {name: "1"})
    assert message.startswith("override: ")
    assert nearest in message


@pytest.mark.parametrize(
    ("name", "value", "shown", "type_"),
    [
        ("model.d_model", "wide", "'wide'", "int"),
        ("model.d_model", "64.5", "64.5", "int"),
        ("model.d_model", "true", "True", "int"),
        ("model.d_model", None, "None", "int"),
        ("model.d_model", "none", "None", "int"),
        ("model.d_model", {"size": 3}, "{'size': 3}", "int"),
        ("model.key_size", "1.5", "1.5", "int"),
        ("tokenizer.joint", "1", "1", "bool"),
        ("tokenizer.joint", "yes", "'yes'", "bool"),
        ("optimizer.learning_rate", "fast", "'fast'", "float"),
        ("optimizer.learning_rate", "", "''", "float"),
        ("optimizer.learning_rate", "nan", "'nan'", "float"),
        ("data.name", 3, "3", "str"),
        ("data.dir", 3, "3", "str"),
        ("seed", "1.5", "1.5", "int"),
    ],
)
def test_a_value_of_the_wrong_type(path, name, value, shown, type_):
    message = message_of(load_config, path, {name: value})
    assert message == f"override: config.{name} is {shown}; it must be of type {type_}"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("model.d_model", 0, "config.model: d_model is 0; it must be at least 1"),
        ("model.num_heads", 7, "config.model: num_heads 7 does not divide d_model 64"),
        ("model.dropout_rate", 1.0, "config.model: dropout_rate is 1.0"),
        (
            "model.norm_placement",
            "pro",
            "config.model: norm_placement is 'pro', not one of post, pre",
        ),
        ("model.dtype", "float16", "config.model: dtype is 'float16'"),
        ("tokenizer.kind", "bytes", "config.tokenizer: kind is 'bytes', not one of bpe"),
        ("tokenizer.vocab_size", 4, "config.tokenizer: vocab_size 4 is too small"),
        ("data.max_source_length", 1, "config.data: max_source_length must be at least 2"),
        ("optimizer.name", "sdg", "config.optimizer: name is 'sdg', not one of adam, adamw"),
        ("train.num_steps", 0, "config.train: num_steps is 0"),
        ("eval.every_steps", 0, "config.eval: every_steps"),
        ("decode.beam_size", 0, "config.decode: beam_size is 0"),
        ("parallel.engine", "warp", "config.parallel: engine is 'warp'"),
        ("checkpoint.keep", 0, "config.checkpoint: every_steps and keep must be at least 1"),
        ("logging.every_steps", 0, "config.logging: every_steps must be at least 1"),
        ("seed", -1, "config.seed is -1"),
        ("seed", 2**31, "config.seed is 2147483648"),
    ],
)
def test_an_impossible_value_names_its_section(path, name, value, reason):
    assert message_of(load_config, path, {name: value}).startswith(reason)


# --- A run's own config ---


def test_a_kept_config_is_the_same_again(path, tmp_path):
    config = load_config(path, {"model.key_size": 24, "tokenizer.joint": False, "data.dir": "/ä"})
    kept = tmp_path / "config.json"
    save_json(config, kept)
    assert load_json(kept).to_dict() == config.to_dict()
    assert read_settings(load_json(kept)) == read_settings(config)
    assert [entry.name for entry in tmp_path.glob("config*")] == ["config.json"]
    check_same_run(config, load_json(kept), tmp_path)


def test_a_kept_config_of_fewer_fields_has_their_defaults():
    assert complete_config({"seed": 4}, "config.json").model.d_model == 512


def test_no_run(tmp_path):
    message = message_of(load_json, tmp_path / "config.json")
    assert message == f"{tmp_path} holds no run: config.json is missing"


def test_a_damaged_config_is_one_line(path, tmp_path):
    kept = tmp_path / "config.json"
    save_json(load_config(path), kept)
    whole = kept.read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        kept.write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        try:
            read_settings(load_json(kept))
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 40


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", '{"model": []}', '{"model": {"x": 1}}', "[" * 9999]
)
def test_a_config_that_is_no_object_of_sections(tmp_path, text):
    kept = tmp_path / "config.json"
    kept.write_text(text)
    assert str(kept) in message_of(load_json, kept)


@pytest.mark.parametrize(
    "changes",
    [
        {"data.dir": "/elsewhere"},
        {"train.num_steps": 200_000},
        {"eval.every_steps": 7, "decode.beam_size": 1, "parallel.engine": "jit"},
        {"checkpoint.keep": 9, "logging.every_steps": 3},
    ],
)
def test_a_run_may_move_grow_and_be_watched_otherwise(path, tmp_path, changes):
    check_same_run(load_config(path, changes), load_config(path), tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task.name", "other"),
        ("model.d_ff", 100),
        ("model.key_size", 16),
        ("tokenizer.vocab_size", 100),
        ("data.name", "multi30k_en_de"),
        ("data.train_source", "a.txt"),
        ("optimizer.learning_rate", 0.5),
        ("train.num_steps", 10),
        ("train.label_smoothing", 0.0),
        ("seed", 4),
    ],
)
def test_a_run_is_not_gone_on_with_as_another(path, name, value):
    kept, config = load_config(path), load_config(path, {name: value})
    section, _, field = name.partition(".")
    old = kept[section][field] if field else kept[section]
    assert message_of(check_same_run, config, kept, "runs/a") == (
        f"runs/a holds another run: its {name} is {old!r}, the config's is {value!r}; "
        "choose another --workdir or the same value"
    )
