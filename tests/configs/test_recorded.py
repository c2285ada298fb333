# SPDX-License-Identifier: Apache-2.0
"""The fields of each config are the recorded ones.

To record them again, after a deliberate change of a config or a default:

    python -m pytest tests/configs/test_recorded.py --record
"""

import json
from pathlib import Path

import pytest

import transformer_jax as tj
from tests.conftest import ROOT
from transformer_jax.runs.config import flatten
from transformer_jax.runs.old_configs import upgraded

CONFIGS = sorted((ROOT / "configs").glob("*.py"))
KEPT = Path(__file__).with_name("recorded.json")


def as_text(configs):
    """JSON with one line per section, for readable diffs."""
    parts = []
    for name, config in configs.items():
        sections = [f"  {json.dumps(section)}: {json.dumps(config[section])}" for section in config]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(sections) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


@pytest.fixture(scope="module")
def recorded(request):
    """Recorded fields: {config: {section: fields}}."""
    if request.config.getoption("--record"):
        KEPT.write_text(as_text({path.stem: tj.config(path).to_dict() for path in CONFIGS}))
    return json.loads(KEPT.read_text())


def test_every_config_is_recorded(recorded):
    assert list(recorded) == [path.stem for path in CONFIGS]


def test_configs_have_the_recorded_fields(recorded):
    changed = {}
    for path in CONFIGS:
        fields = upgraded(flatten(recorded[path.stem]), "recorded.json")
        now = flatten(tj.config(path).to_dict())
        if fields["decode.temperature"] is not None:
            del fields["decode.beam_size"]  # not read by sampling
        for name, value in fields.items():
            if now[name] != value:
                changed[f"{path.stem}: {name}"] = (value, now[name])
    assert changed == {}
