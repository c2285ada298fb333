"""Each config describes the run that it described when it was recorded, field by field.

To record anew, which only a change that means to change a run may do:

    python -m pytest tests/configs/test_recorded.py --record
"""

import json
from pathlib import Path

import pytest

import transformer_jax as tj

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.py"))
KEPT = Path(__file__).with_name("recorded.json")


def fields_of(config):
    """{"section.field": value} of a whole config, {section: {field: value}}."""
    return {
        f"{section}.{field}": value
        for section, fields in config.items()
        for field, value in (fields.items() if isinstance(fields, dict) else [("", fields)])
    }


def write_recording():
    """One line a section, so that a diff shows which one has changed."""
    configs = {path.stem: tj.config(path).to_dict() for path in CONFIGS}
    text = json.dumps(
        {
            name: {section: json.dumps(fields) for section, fields in config.items()}
            for name, config in configs.items()
        },
        indent=1,
    )
    KEPT.write_text(text + "\n")


@pytest.fixture(scope="module")
def recorded(request):
    """{config: {section: fields}}."""
    if request.config.getoption("--record"):
        write_recording()
    kept = json.loads(KEPT.read_text())
    return {
        name: {section: json.loads(fields) for section, fields in config.items()}
        for name, config in kept.items()
    }


def test_every_config_is_recorded(recorded):
    assert list(recorded) == [path.stem for path in CONFIGS]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_describes_the_recorded_run(path, recorded):
    fields, now = fields_of(recorded[path.stem]), fields_of(tj.config(path).to_dict())
    changed = {name: (value, now[name]) for name, value in fields.items() if now[name] != value}
    assert changed == {}
