# SPDX-License-Identifier: Apache-2.0
"""Options of components: config fields that exist while their component is chosen."""

import json

import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import forgetting_modules
from tests.refusals import assert_refused, message_of
from transformer_jax.cli.parser import parse
from transformer_jax.cli.verbs import load_run
from transformer_jax.runs.build import build_untokenized_task
from transformer_jax.runs.config import (
    defaults_for,
    load_config,
    load_json,
    override,
    read_settings,
    resolve,
    save_json,
)
from transformer_jax.runs.prepare import check_same_run
from transformer_jax.runs.settings import COMMAND
from transformer_jax.tasks.interface import Prediction
from transformer_jax.tokenization import DEFAULT_SPECIALS

MODULE = '''
import dataclasses
from typing import Annotated

from transformer_jax.decoding import BeamSearch
from transformer_jax.inference.config import SEARCHES
from transformer_jax.losses import TOKEN_LOSSES, TokenLoss
from transformer_jax.nn.positions import POSITIONS, PositionEncoding
from transformer_jax.ranges import OneOf, Range
from transformer_jax.scoring import METRICS
from transformer_jax.tasks.interface import Prediction
from transformer_jax.tokenization import DEFAULT_SPECIALS


@dataclasses.dataclass(frozen=True)
class WaveOptions:
    """Options of waves.

    Attributes:
      length: of a wave, in tokens.
      shape: of a wave.
      height: of a wave; None: 1.
      is_damped: whether waves end.
    """

    length: Annotated[int, Range(1, 64)] = 8
    shape: Annotated[str, OneOf("sine", "saw")] = "sine"
    height: float | None = None
    is_damped: bool = False


@POSITIONS.register("waves")
class Waves(PositionEncoding):
    options = WaveOptions

    def embed(self, x, positions):
        own = self.config.options_of(WaveOptions)
        return x + (positions % own.length)[..., None] * (own.height or 1.0)


@dataclasses.dataclass(frozen=True)
class CountOptions:
    """Options of counts.

    Attributes:
      weight: of a text.
    """

    weight: float = 1.0


@METRICS.register("counts", options=CountOptions)
def counts(outputs, references, options):
    return {"counts": options.weight * len(outputs)}


@SEARCHES.register("counted", options=CountOptions)
def counted(decode, ids):
    return BeamSearch(2, alpha=decode.options_of(CountOptions).weight, **ids)


@TOKEN_LOSSES.register("weighted", options=CountOptions)
class Weighted(TokenLoss):
    def losses(self, logits, labels):
        return self.config.options_of(CountOptions).weight + 0.0 * labels
'''
WAVES = {"model.positions": "waves"}


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The path of a user's module that registers positions and a metric with options."""
    path = tmp_path_factory.mktemp("own") / "waves.py"
    path.write_text(MODULE)
    with forgetting_modules():
        yield path


@pytest.fixture
def config(path, module):
    """`config(overrides)`: a config with the module's components."""
    return lambda overrides: load_config(path, overrides, modules=module)


def test_options_exist_while_their_component_is_chosen(config):
    assert "waves" not in config({}).model
    chosen = config({**WAVES, "model.waves.length": "5", "model.waves.height": "2"})
    values = {"length": 5, "shape": "sine", "height": 2.0, "is_damped": False}
    assert chosen.model.waves.to_dict() == values
    (options,) = read_settings(chosen).model.options
    assert (type(options).__name__, options.length, options.height) == ("WaveOptions", 5, 2.0)
    assert read_settings(config({})).model.options == ()
    assert "waves" in repr(chosen) and hash(read_settings(chosen).model)


def test_a_wrong_option_is_refused(config, path, write_config):
    def choose(name, value):
        return lambda: config({**WAVES, name: value})

    waves = "config.model.waves"
    other = f"{waves}.length while config.model.positions is 'sinusoidal'; leave it out, or set mod"
    settings = read_settings(config({}))
    in_file = "config.model = dict(waves=dict(length=5))"
    length = {"model.waves.length": 5}
    metric = "no config.task.counts.weight while config.task.metric is none; leave it out, or set"
    assert_refused(
        {
            f"no {waves}.lenght; did you mean {waves}.length?": choose("model.waves.lenght", "3"),
            f"fields of {waves} are length, shape, height, is_d": choose("model.waves.qqq", "3"),
            f"{waves} has fields; set them, as {waves}.length": choose("model.waves", "3"),
            metric: choose("task.counts.weight", "3"),
            "length is 'long'; it must be of type int": choose("model.waves.length", "long"),
            f"{waves}: length is 65; it must lie in [1, 64]": choose("model.waves.length", 65),
            f"{waves}: shape is 'square', not one of sin": choose("model.waves.shape", "square"),
            "is_damped is 1; it must be of type bool": choose("model.waves.is_damped", "1"),
            f"override: there is no {other}": lambda: config(length),
            f"there is no {other}": lambda: override(settings, length),
            f"{path}: there is no {other}": lambda: load_config(write_config(in_file)),
        }
    )


def test_options_in_a_config_file(write_config, module):
    file = write_config("config.model = dict(positions='waves', waves=dict(length=5))")
    found = load_config(file, {"model.waves.shape": "saw"}, modules=module)
    assert (found.model.waves.length, found.model.waves.shape) == (5, "saw")
    # Options of the file's component go with it.
    assert "waves" not in load_config(file, {"model.positions": "learned"}).model
    found.model.waves.length = 6
    assert resolve(found, {}, (), COMMAND).model.options[0].length == 6


def test_an_override_changes_the_component_with_its_options(config):
    chosen = override(read_settings(config({})), {**WAVES, "model.waves.length": 5})
    expected = read_settings(config(WAVES)).values | {"model.waves.length": 5}
    assert chosen.values == expected
    assert override(chosen, {"seed": 3}).model.options[0].length == 5
    assert override(chosen, {"model.positions": "alibi"}).model.options == ()


def test_options_are_saved_and_read_back(config, tmp_path):
    file = tmp_path / "config.json"
    chosen = read_settings(config({**WAVES, "model.waves.length": 5}))
    save_json(chosen, file)
    assert json.loads(file.read_text())["model"]["waves"]["length"] == 5
    assert load_json(file) == chosen
    in_place = config({})
    in_place.model.positions = "waves"  # its options have defaults
    in_place = resolve(in_place, {}, (), COMMAND)
    save_json(in_place, file)
    assert json.loads(file.read_text())["model"]["waves"]["length"] == 8
    check_same_run(in_place, load_json(file), tmp_path)
    message = message_of(check_same_run, chosen, load_json(file), tmp_path)
    assert "its model.waves.length is 8, the config's is 5" in message
    same = read_settings(config({"task.name": "seq2seq"}))
    check_same_run(same, same, tmp_path)


def test_a_run_starts_with_the_options_of_its_origin(config, tmp_path):
    origin = {"train.init_from": str(tmp_path)}
    save_json(read_settings(config({**WAVES, "model.waves.length": 5})), tmp_path / "config.json")
    assert defaults_for(origin)["model.waves.length"] == 5
    assert config(origin).model.waves.length == 5
    assert "waves" not in config({**origin, "model.positions": "learned"}).model


def test_a_run_uses_its_options(config, workdir, monkeypatch):
    changes = {"task.metric": "counts", "task.counts.weight": 0.5}
    changed = read_settings(config({**WAVES, **changes, "model.waves.length": 5}))
    task = build_untokenized_task(changed)
    assert task.model.config.options[0].length == 5
    changed = override(changed, {"train.loss": "weighted", "train.weighted.weight": 0.25})
    losses = build_untokenized_task(changed).loss_options.token_loss.losses
    assert losses(None, np.arange(3)).tolist() == [0.25] * 3
    run = tj.load(workdir).with_config(changes)
    texts = [Prediction("a text", score=0.0)]
    monkeypatch.setattr(
        type(run.task), "predict", lambda self, _, lines, decode: [texts] * len(lines)
    )
    found = run.evaluate(split="valid")
    assert found["counts"] == 0.5 * found["num_examples"] > 0


def test_the_shell_sets_options_of_a_search_for_a_trained_run(module, trained_workdir):
    flags = ["predict", f"--workdir={trained_workdir}", f"--modules={module}"]
    option = "--config.decode.counted.weight=0.25"
    run = load_run(parse([*flags, "--search=counted", option]))
    assert run.settings.decode.make_search(DEFAULT_SPECIALS).alpha == 0.25
    message = message_of(lambda: load_run(parse([*flags, option])))
    assert "while config.decode.search is 'beam'" in message
    assert "takes no --config.seed" in message_of(parse, [*flags, option, "--config.seed=3"])
