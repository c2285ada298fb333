"""Workdirs of an earlier version are loaded, used and continued with the same results.

`old_workdirs/make.py` trained them and recorded the results.
"""

import contextlib
import json
import math
from pathlib import Path

import pytest

from tests.conftest import forgetting_modules
from tests.runs.old_workdirs.use import CONTINUED, use_all
from transformer_jax.runs.config import flatten
from transformer_jax.runs.old_configs import upgraded

HERE = Path(__file__).parent / "old_workdirs"
RUNS = ("translation", "language_model", "adapters", "classification")
TOLERANCE = 1e-5
"""Relative, on another processor or with other versions of the libraries."""
TIMES = ("time", "tokens_per_s", "step_ms", "mfu", "xla_flops_per_s", "goodput")


@pytest.fixture(scope="module")
def recorded():
    return json.loads((HERE / "recorded.json").read_text())


@pytest.fixture(scope="module")
def found(made_once, tmp_path_factory):
    """The present version's results."""

    def use():
        folder = tmp_path_factory.mktemp("old")
        with contextlib.chdir(folder), forgetting_modules():
            return json.dumps(use_all(folder))

    return json.loads(made_once("old_workdirs.json", use))


@pytest.fixture(params=RUNS)
def pair(request, found, recorded):
    """(results, recorded results) of a run."""
    return found["runs"][request.param], recorded["runs"][request.param]


@pytest.fixture
def same(found, recorded):
    """`same(results, recorded results)` asserts equality, to the bit on the same machine."""
    is_exact = found["machine"] == recorded["machine"]

    def is_same(name, now, before):
        if name.endswith("/sha256") and not is_exact:
            return True
        if isinstance(before, float) and not is_exact:
            return math.isclose(now, before, rel_tol=TOLERANCE, abs_tol=TOLERANCE / 10)
        return now == before

    def compare(now, before):
        now, before = without_times(as_before(now)), without_times(before)
        assert now.keys() == before.keys()
        changed = {name for name in before if not is_same(name, now[name], before[name])}
        assert {name: (now[name], before[name]) for name in sorted(changed)} == {}

    return compare


def as_before(tree):
    """Results with the earlier names: "loss" was what training minimizes."""
    if isinstance(tree, list):
        return [as_before(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    new = ("train_loss", "num_all_examples", "num_loss_examples", "digest")
    before = {name: as_before(part) for name, part in tree.items() if name not in new}
    return before | ({"loss": tree["train_loss"]} if "train_loss" in tree else {})


def without_times(tree):
    """Leaves other than those that depend on the clock, some of which accelerators alone have."""
    leaves = ((name, name.rpartition("/")[2], leaf) for name, leaf in flattened(tree).items())
    return {
        name: leaf
        for name, key, leaf in leaves
        if key not in TIMES and not key.startswith("share_")
    }


def flattened(tree, path=""):
    """{"key/place/key": leaf} of nested dicts and lists."""
    if not isinstance(tree, dict | list):
        return {path: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    parts = (flattened(part, f"{path}/{key}") for key, part in items)
    return {name: leaf for part in parts for name, leaf in part.items()}


def test_the_config_has_the_same_values(pair):
    now, before = (flatten(results["config"]) for results in pair)
    before = upgraded(before, "the recorded config")
    assert {name: now[name] for name in before} == before  # a later version may have more fields


@pytest.mark.parametrize("part", ["params", "predictions", "evaluation"])
def test_parameters_predictions_and_scores_are_the_same(pair, same, part):
    now, before = pair
    assert now["step"] == before["step"]
    same(now[part], before[part])


@pytest.mark.parametrize("pair", CONTINUED, indirect=True)
def test_the_continued_run_has_the_same_data_records_and_parameters(pair, same):
    now, before = pair
    same(now["continued"], before["continued"])
