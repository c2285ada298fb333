# SPDX-License-Identifier: Apache-2.0
"""Configs: defaults, overrides, config files, and the config stored with a run."""

import contextlib
import dataclasses
import functools
import shutil
import sys

import pytest

import transformer_jax as tj
from tests.conftest import dotted
from tests.refusals import assert_refused, message_of
from transformer_jax.models import MODELS
from transformer_jax.models.config import ModelConfig
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.runs.config import (
    load_config,
    load_json,
    override,
    read_settings,
    resolve_file,
    save_json,
    to_config,
)
from transformer_jax.runs.prepare import check_same_run
from transformer_jax.runs.settings import Origin
from transformer_jax.tasks import TASKS

# --- Reading ---


def test_a_file_sets_fields_and_the_others_have_defaults(path):
    config = load_config(path)
    settings = read_settings(config)
    assert settings.model == ModelConfig(d_model=64, num_heads=4)
    assert (settings.seed, settings.optimizer.learning_rate) == (3, 1.0)
    assert config.model.d_ff == 2048
    assert "source_vocab_size" not in config.model


# --- Defaults of tasks and architectures ---


def settings_of(path, **overrides):
    return read_settings(load_config(path, dotted(overrides)))


def test_a_file_precedes_its_task_and_an_override_precedes_the_file(write_config):
    path = write_config(
        "config.task = dict(name='language_modeling')",
        "config.model = dict(positions='rotary', activation='relu')",
        "config.train = dict(label_smoothing=0.2)",
    )
    settings = settings_of(path, model__activation="silu", optimizer__schedule="constant")
    assert (settings.model.positions, settings.model.activation) == ("rotary", "silu")
    assert (settings.model.norm_placement, settings.train.label_smoothing) == ("pre", 0.2)
    assert settings.optimizer.schedule == "constant"


def test_an_override_of_the_task_or_the_architecture_changes_the_defaults(path):
    masked = settings_of(path, task__name="masked_lm")
    assert (masked.model.architecture, masked.model.num_token_types) == ("encoder_only", 2)
    assert (masked.model.norm_placement, masked.optimizer.schedule) == ("post", "linear")
    decoder = settings_of(path, task__name="tagging", model__architecture="decoder_only")
    assert (decoder.model.norm_placement, decoder.model.num_token_types) == ("pre", 0)
    assert (decoder.tokenizer.kind, decoder.data.name) == ("wordpiece", "tagged_words")
    assert decoder.model.d_model == 64, "the file's"


@pytest.mark.parametrize("task", TASKS)
def test_the_defaults_of_a_task_fit_together(task, write_config):
    settings = settings_of(write_config(f"config.task = dict(name={task!r})"))
    assert settings.model.architecture in MODELS
    check_num_positions(settings.model, settings.data.max_length)
    if settings.optimizer.decay_steps:
        assert settings.train.num_steps <= settings.optimizer.decay_steps


def test_a_wrong_default_names_its_task(path, monkeypatch):
    kind = dataclasses.replace(TASKS["seq2seq"], defaults={"train.label_smooting": 0.0})
    monkeypatch.setattr("transformer_jax.runs.config.TASKS", {"seq2seq": kind})
    message = message_of(load_config, path, {"task.name": "seq2seq"})
    assert message.startswith("defaults of task seq2seq: there is no config.train.label_smooting;")


def test_a_complete_config_keeps_its_values(path):
    changed = override(resolve_file(path, {}), {"task.name": "language_modeling"})
    assert (changed.model.architecture, changed.decode.beam_size) == ("encoder_decoder", 4)
    stored = {"task": {"name": "language_modeling"}}
    old = read_settings(stored, {}, Origin("loaded run", "config.json"))
    assert (old.model.architecture, old.train.label_smoothing) == ("encoder_decoder", 0.1)


# --- A run's own config ---


def test_a_saved_config_is_loaded_unchanged(path, tmp_path):
    changes = {"model.key_size": 24, "train.remat": "full", "train.init_from": "/ä"}
    settings = resolve_file(path, changes)
    kept = tmp_path / "config.json"
    save_json(settings, kept)
    assert load_json(kept) == settings
    assert load_json(kept).values == settings.values
    assert to_config(load_json(kept)) == load_config(path, changes)
    assert [entry.name for entry in tmp_path.glob("config*")] == ["config.json"]
    check_same_run(settings, load_json(kept), tmp_path)


def test_each_value_has_an_origin(path, tmp_path):
    settings = resolve_file(path, {"model.key_size": 24})
    kinds = {name: settings.origin(name).kind for name in settings.values}
    assert kinds["model.key_size"] == "command"
    assert kinds["model.d_model"] == "config file"
    assert kinds["model.d_ff"] == "default"
    assert override(settings, {"seed": 9}).origin("seed").kind == "command"
    config = to_config(settings)
    config.model.d_ff = 32
    again = read_settings(config)
    changed = {name for name in kinds if again.origin(name) != settings.origin(name)}
    assert changed == {"model.d_ff"} and again.origin("model.d_ff").kind == "config"
    save_json(settings, tmp_path / "config.json")
    loaded = load_json(tmp_path / "config.json", {"train.init_from": "mine"})
    assert loaded.origin("model.d_ff").is_loaded
    assert not loaded.origin("train.init_from").is_loaded


def test_settings_with_another_section_have_its_values(path):
    settings = resolve_file(path, {"task.name": "language_modeling"})
    changed = dataclasses.replace(settings, model=dataclasses.replace(settings.model, d_ff=7))
    assert changed.values == {**settings.values, "model.d_ff": 7}


def test_a_config_that_is_not_there_or_no_object_of_sections_is_refused(tmp_path):
    kept = tmp_path / "config.json"
    assert message_of(load_json, kept) == f"{tmp_path} holds no run: config.json is missing"
    for text in ("", "[]", "3", "null", '{"model": []}', '{"model": {"x": 1}}', "[" * 9999):
        kept.write_text(text)
        assert str(kept) in message_of(load_json, kept), text


def test_a_run_may_move_grow_and_be_logged_differently(path, tmp_path):
    base = {"data.name": "scan_simple"}
    changes = {"data.dir": "/elsewhere", "train.num_steps": 200_000, "eval.every_steps": 7}
    changes |= {"decode.beam_size": 1, "parallel.engine": "jit", "checkpoint.keep": 9}
    changes |= {"logging.every_steps": 3}
    check_same_run(resolve_file(path, base | changes), resolve_file(path, base), tmp_path)


def test_the_end_of_a_decay_grows_with_the_steps(path):
    def config(**changes):
        short = {"optimizer.schedule": "cosine", "train.num_steps": 5000}
        return resolve_file(path, short | dotted(changes))

    kept = config(optimizer__decay_steps=6000)
    longer = dict(train__num_steps=9000, optimizer__decay_steps=9000)
    check_same_run(config(**longer), kept, "runs/a")
    check_same_run(config(train__num_steps=9000), kept, "runs/a")  # none: as many as the steps
    check_same_run(config(train__num_steps=9000), config(), "runs/a")
    shorter = config(optimizer__decay_steps=5500)
    assert "its optimizer.decay_steps is 6000" in message_of(check_same_run, shorter, kept, "a")


def test_fields_without_an_effect_are_not_compared(path, tmp_path):
    """Earlier versions allowed them to be set."""
    kept = override(resolve_file(path, {}), {"model.num_token_types": 2})
    check_same_run(resolve_file(path, {}), kept, tmp_path)


OTHER_RUNS = {
    "task.name": "seq2seq",
    "model.d_ff": 100,
    "model.key_size": 16,
    "tokenizer.vocab_size": 100,
    "data.name": "multi30k_en_de",
    "optimizer.learning_rate": 0.5,
    "train.num_steps": 10,
    "train.label_smoothing": 0.0,
    "eval.best_corpus": "a",
    "seed": 4,
}


def test_a_run_is_not_resumed_with_another_config(path):
    kept = resolve_file(path, {})
    calls = {}
    for name, value in OTHER_RUNS.items():
        words = (
            f"runs/a holds another run: its {name} is {kept.values[name]!r}, the config's is "
            f"{value!r}; choose another --workdir or the same value"
        )
        changed = resolve_file(path, {name: value, "eval.each_corpus": True})
        calls[words] = functools.partial(check_same_run, changed, kept, "runs/a")
    assert_refused(calls)


def test_an_override_drops_options_that_only_the_files_component_reads(write_config):
    path = write_config("config.model = dict(positions='learned', max_length=128)")
    rotary = {"model.positions": "rotary"}
    config = tj.config(path, rotary)
    assert (config.model.positions, config.model.max_length) == ("rotary", 512)
    message = message_of(tj.config, path, rotary | {"model.max_length": 128})
    assert "config.model.max_length is 128, but model.positions" in message


# --- Config files ---


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


def test_a_missing_file_is_refused(tmp_path):
    message = message_of(load_config, tmp_path / "absent.py")
    assert message.startswith(f"there is no config file {tmp_path}/absent.py; shipped are alpaca, ")


BROKEN = [
    ("config = {}\n", "defines no get_config()"),
    ("def get_config(:\n", "fails: SyntaxError"),
    ("import nonsense_module\n", "fails: ModuleNotFoundError: No module named 'nonsense_module'"),
    ("def get_config():\n    return {}['size']\n", "fails: KeyError: 'size'"),
    ("def get_config():\n    return None\n", "fails: get_config() returns NoneType"),
    ("exit()\n", "fails: it calls exit()"),
    ("def get_config():\n    raise SystemExit(0)\n", "fails: it calls exit()"),
    ("raise ValueError('a\\nb')\n", "fails: ValueError: a b"),
    ("\x00", "fails: "),
]
UNKNOWN = [
    (
        "config.model = dict(d_modle=64)",
        "there is no config.model.d_modle; did you mean config.model.d_model?",
    ),
    ("config.modle = dict()", "there is no config.modle; did you mean config.model?"),
    ("config.model = 3", "config.model has fields; set them, as config.model."),
    ("config.seed = dict(x=1)", "config.seed is {'x': 1}; it must be of type int"),
    (
        "config.model = {3: 64}",
        "there is no config.model.3; the fields of config.model are architecture, d_model",
    ),
    ("config = ConfigDict({3: 64})", "there is no config.3; the sections are task, model"),
]


def test_files_that_are_refused(write_config):
    for text, reason in BROKEN:
        path = write_config()
        path.write_text(text)
        message = message_of(load_config, path)
        assert message.startswith(f"config file {path} ") and reason in message
    for line, nearest in UNKNOWN:
        message = message_of(load_config, write_config(line))
        assert message.startswith(f"{path}: ") and nearest in message


def test_layers_are_given_as_dicts_or_text_and_kept_as_text(write_config, tmp_path):
    base = 'config.model = dict(positions="rotary", layers=%s)'
    path = write_config(base % '({"attention_window": 8}, {"positions": "none"})')
    config = load_config(path)
    assert config.model.layers == "attention_window=8 | positions=none"
    save_json(read_settings(config), tmp_path / "config.json")
    assert load_json(tmp_path / "config.json").model.layers == config.model.layers
    assert read_settings(config).model.of_layer(3).positions == "none"
    assert load_config(path, {"model.layers": "none"}).model.layers is None


LAYERS = {
    "foo=3": "override: config.model.layers sets foo; a layer may have its own",
    "positions=none rope_theta=5": "config.model.layers: config.model.rope_theta is 5.0, but",
    "attention_window=0": "config.model: layers: attention_window is 0; it must lie in [1",
}


def test_layers_that_no_component_can_have_are_refused(write_config):
    path = write_config('config.model = dict(positions="rotary")')
    assert_refused(
        {
            reason: functools.partial(load_config, path, {"model.layers": layers})
            for layers, reason in LAYERS.items()
        }
    )


@pytest.mark.parametrize("beside", [True, False])
def test_a_component_that_only_a_config_file_registers_is_refused(
    write_config, with_entries, beside
):
    """The run could not name the module that has it."""
    with_entries(NORMS, {})
    path = write_config("config.model = dict(norm='mine')")
    registers = """
from transformer_jax.nn.norms import NORMS
NORMS.register("mine", NORMS["layer"])
"""
    path.with_name("parts_beside.py").write_text(registers)
    first = "import parts_beside\n" if beside else registers
    path.write_text(first + path.read_text())
    assert message_of(load_config, path).startswith(
        "config.model.norm is 'mine', which a config file registers or imports from beside it"
    )


def test_the_config_of_a_run_is_a_config_file(write_config, tmp_path):
    config = load_config(write_config("config.model = dict(d_model=64)"), {"seed": 3})
    (tmp_path / "run").mkdir()
    save_json(read_settings(config), tmp_path / "run" / "config.json")
    again = load_config(tmp_path / "run" / "config.json", {"model.num_heads": 4})
    model = {**config.model.to_dict(), "num_heads": 4}
    assert again.to_dict() == {**config.to_dict(), "model": model}
    folder = f"run is a folder; did you mean {tmp_path}/run/config.json?"
    assert_refused({folder: lambda: load_config(tmp_path / "run")})
    (tmp_path / "run" / "config.json").write_text("[1]")
    assert "it holds no object" in message_of(load_config, tmp_path / "run" / "config.json")


def test_a_config_file_may_ask_for_the_run_to_start_from(tmp_path, trained_workdir):
    file = tmp_path / "mine.py"
    file.write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config(init_from=None):\n"
        "    return ConfigDict({'model': {} if init_from else {'d_model': 24}})\n"
    )
    assert tj.config(file).model.d_model == 24
    assert tj.config(file, {"train.init_from": str(trained_workdir)}).model.d_model == 16


def test_a_published_model_to_start_from_is_imported_once(tmp_path, monkeypatch, trained_workdir):
    imported = []

    def import_model(source, workdir):
        imported.append(source)
        shutil.copytree(trained_workdir, workdir)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("transformer_jax.interop.importing.import_model", import_model)
    for _ in range(2):
        config = tj.config("quickstart", {"train.init_from": "hf:owner/name@v1"})
        assert config.train.init_from == f"{tmp_path}/transformer_jax/imported/owner--name@v1"
    assert imported == ["hf:owner/name@v1"]
    # What a loaded config names is not fetched.
    path = shutil.copytree(trained_workdir, tmp_path / "run") / "config.json"
    save_json(load_json(path, {"train.init_from": "hf:owner/other"}), path)
    with contextlib.suppress(tj.UserError):
        tj.load(path.parent)
    assert imported == ["hf:owner/name@v1"]
