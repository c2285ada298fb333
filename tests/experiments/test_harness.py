# SPDX-License-Identifier: Apache-2.0
"""A run as the lm-evaluation-harness asks for it; the library itself is stood in for."""

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

import transformer_jax as tj
from tests.interop.published import FIXTURES
from tests.refusals import assert_refused
from transformer_jax.interop.importing import import_model

TEXTS = ["The old dog", "men walk", "a"]


class Manager:
    def __init__(self, include_path):
        self.path = include_path

    def match_tasks(self, tasks):
        return [task for task in tasks if task == "known"]


@pytest.fixture(scope="module")
def harness():
    """The module, with what it imports of the library."""

    def windows(token_list, prefix_token, max_seq_len, context_len):
        yield [prefix_token], token_list[:2]
        yield [prefix_token, *token_list[:2]], token_list[2:]

    parts = {"lm_eval": {}, "lm_eval.api": {}, "lm_eval.api.model": {"LM": object}}
    parts["lm_eval.tasks"] = {"TaskManager": Manager}
    parts["lm_eval.utils"] = {"get_rolling_token_windows": windows}
    parts["lm_eval.utils"]["make_disjoint_window"] = lambda window: window
    with pytest.MonkeyPatch.context() as patch:
        for name, has in parts.items():
            module = ModuleType(name)
            vars(module).update(has)
            patch.setitem(sys.modules, name, module)
        yield importlib.import_module("experiments.harness")
    del sys.modules["experiments.harness"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("gpt2") / "run"
    import_model(str(FIXTURES / "gpt2"), workdir)
    return tj.load(workdir).with_config({"model.dtype": "float32", "decode.batch_size": 2})


def asked(*args):
    return SimpleNamespace(args=args)


def test_scores_are_the_runs_own(harness, run):
    model = harness.RunInHarness(run)
    found = model.loglikelihood([asked(text, " and more") for text in TEXTS])
    expected = run.pair_scores(TEXTS, [" and more"] * len(TEXTS))
    assert [score for score, _ in found] == pytest.approx([one.log_prob for one in expected])
    assert [greedy for _, greedy in found] == [one.is_greedy for one in expected]


def test_windows_of_a_text_add_up(harness, run):
    found = harness.RunInHarness(run).loglikelihood_rolling([asked(text) for text in TEXTS[:2]])
    assert found == pytest.approx(run.score(["", ""], TEXTS[:2]), rel=1e-5)


def test_without_a_first_token_nothing_stands_before_the_context(harness, run):
    with_first, without = (
        harness.RunInHarness(run, begins=begins).loglikelihood([asked("The old", " dog")])
        for begins in (True, False)
    )
    assert with_first[0][0] != pytest.approx(without[0][0])


def test_answers_end_before_what_stops_them(harness, run):
    """Whatever the run itself says of sampling."""
    drawing = run.with_config({"decode.temperature": 1.0, "decode.top_k": 3})
    longer, shorter = {"max_gen_toks": 6}, {"max_gen_toks": 2, "until": "\n"}
    model = harness.RunInHarness(drawing)
    requests = [asked(text, options) for text in TEXTS for options in (longer, shorter)]
    found = model.generate_until(requests)
    assert found[::2] == run.predict(TEXTS, search="greedy", max_extra_length=6)
    text = found[0]
    stopped, *_ = model.generate_until(
        [asked(text, longer | {"until": [found[0][2]]}) for text in TEXTS]
    )
    assert stopped == text[: text.index(text[2])]
    sampled = {"do_sample": True, "temperature": 0.5, "top_k": 5, "max_gen_toks": 6}
    assert model.generate_until([asked(json.dumps(sampled), sampled)])[0]


def test_other_models_and_unknown_tasks_are_refused(harness, trained, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["harness", "--workdir=none", "--tasks=known,knwon"])
    other = lambda: harness.RunInHarness(trained)  # noqa: E731
    assert_refused({"the harness has no knwon": harness.main, "decoder-only": other})
