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


def as_text(configs):
    """JSON with one line a section, so that a diff shows which one has changed."""
    parts = []
    for name, config in configs.items():
        sections = [f"  {json.dumps(section)}: {json.dumps(config[section])}" for section in config]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(sections) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


@pytest.fixture(scope="module")
def recorded(request):
    """{config: {section: fields}}."""
    if request.config.getoption("--record"):
        KEPT.write_text(as_text({path.stem: tj.config(path).to_dict() for path in CONFIGS}))
    return json.loads(KEPT.read_text())


def test_every_config_is_recorded(recorded):
    assert list(recorded) == [path.stem for path in CONFIGS]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_describes_the_recorded_run(path, recorded):
    fields, now = fields_of(recorded[path.stem]), fields_of(tj.config(path).to_dict())
    if fields["decode.temperature"] is not None:
        del fields["decode.beam_size"]  # samples are not searched for
    changed = {name: (value, now[name]) for name, value in fields.items() if now[name] != value}
    assert changed == {}
