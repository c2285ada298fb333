# SPDX-License-Identifier: Apache-2.0
"""The record of a beam search: outputs, log-probabilities, states and reasons are correct."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.toy_models import BANNED, EOS, PAD, Historian, MarkovChain, log_softmax, score
from transformer_jax.decoding import BeamSearch, Start
from transformer_jax.decoding.beam_tree import beam_tree

CASES = {
    "all": (Historian(4, 1, 17, eos_bonus=3.0), 4, 4, 12, "gnmt"),
    "one of four": (Historian(8, 1, 17, eos_bonus=4.0), 4, 1, 12, "gnmt"),
    "cut": (MarkovChain(0, 1, num_words=3, vocab_size=8), 3, 3, 4, "power"),
    "few words": (MarkovChain(0, 1, num_words=1, vocab_size=8), 4, 4, 2, "gnmt"),
    "greedy": (Historian(3, 1, 17, eos_bonus=3.0), 1, 1, 9, "gnmt"),
}
"""Model, beam size, outputs, longest output, length penalty."""
ALPHA = 0.6


@functools.cache
def recorded(case):
    """Tree of a case, and the tokens of each of its nodes."""
    *_, num_outputs, limit, _ = CASES[case]
    tree = beam_tree(*search_of(case), num_outputs=num_outputs, max_length=limit, to_pieces=texts)
    paths = {0: ()}
    for node in tree.nodes[1:]:
        paths[node.id] = (*paths[node.parent], int(node.token))
    return tree, paths


@functools.cache
def search_of(case):
    model, beam_size, _, limit, penalty = CASES[case]
    search = BeamSearch(beam_size, ALPHA, EOS, PAD, BANNED, penalty)
    start = Start(*model.prefill(), jnp.array([limit]), keys=None)
    return search, jax.jit(model.decode_step), start


def texts(ids):
    return [str(token) for token in ids]


def is_kept(node):
    return node.token != str(EOS) and not node.why.startswith("not ")


@pytest.fixture(scope="module", params=CASES)  # so that one worker records a case
def case(request):
    return request.param


def test_its_outputs_are_those_of_the_search(case):
    tree, paths = recorded(case)
    search, decode_step, start = search_of(case)
    *_, num_outputs, limit, _ = CASES[case]
    sizes = {"num_outputs": num_outputs, "max_length": limit}
    found = jax.jit(lambda start: search.find(decode_step, start, **sizes))(start)
    count = int((found.scores > -jnp.inf).sum())
    assert len(tree.outputs) == count >= 1
    expected = [tuple(row[row != PAD].tolist()) for row in np.asarray(found.tokens[0, :count])]
    assert [paths[output] for output in tree.outputs] == expected
    scores = [tree.nodes[output].score for output in tree.outputs]
    np.testing.assert_allclose(scores, found.scores[0, :count], rtol=1e-6)


def test_log_p_is_the_sum_along_the_path(case):
    tree, paths = recorded(case)
    model, *_, limit, penalty = CASES[case]
    for node in tree.nodes:
        path = paths[node.id]
        steps = [log_softmax(model.logits_after(0, path[:i]))[path[i]] for i in range(len(path))]
        assert node.log_prob == pytest.approx(sum(steps), rel=1e-5, abs=1e-5)
        assert node.step == len(path)
        if node.score is not None:
            expected = score(sum(steps), node.step, ALPHA, penalty)
            assert node.score == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_each_step_compares_the_best_extensions_and_keeps_the_best_of_all(case):
    tree, paths = recorded(case)
    model, beam_size, *_ = CASES[case]
    alive = [tree.nodes[0]]
    while alive:
        compared, candidates = {}, {}
        for parent in alive:
            log_probs = parent.log_prob + log_softmax(model.logits_after(0, paths[parent.id]))
            log_probs[list(BANNED)] = -np.inf
            words = [t for t in np.argsort(-log_probs, kind="stable") if t != EOS]
            extended = {(*paths[parent.id], int(t)): log_probs[t] for t in (*words, EOS)}
            extended = {path: value for path, value in extended.items() if value > -np.inf}
            candidates |= {path: value for path, value in extended.items() if path[-1] != EOS}
            best = [path for path in extended if path[-1] != EOS][:beam_size]
            compared |= dict.fromkeys([*best, *(path for path in extended if path[-1] == EOS)])
        parents = {parent.id for parent in alive}
        children = [node for node in tree.nodes if node.parent in parents]
        if not children:
            break
        assert {paths[node.id] for node in children} == set(compared)
        alive = [node for node in children if is_kept(node)]
        best = sorted(candidates, key=candidates.get, reverse=True)[:beam_size]
        assert {paths[node.id] for node in alive} == set(best)
    assert max(node.step for node in tree.nodes) == alive[0].step


def test_the_reason_of_each_hypothesis_is_true(case):
    tree, _ = recorded(case)
    _, beam_size, num_outputs, limit, penalty = CASES[case]
    outputs = [tree.nodes[output] for output in tree.outputs]
    worst = outputs[-1].score
    ends = [node for node in tree.nodes if node.token == str(EOS) and "its end" not in node.why]
    for node in tree.nodes[1:]:
        step = [other for other in tree.nodes if other.step == node.step and other is not node]
        better = [other for other in step if other.log_prob >= node.log_prob]
        longest = [other for other in ends if other.score >= node.score] if node.score else []
        if node in ends:
            assert len([other for other in better if is_kept(other) or other in ends]) < beam_size
        reason = re.sub(r"-?\d+(\.\d+)?", "#", node.why)
        if reason.endswith("of its step"):
            assert node.state == "dropped" and len(better) >= beam_size
        elif "that continue" in reason:
            assert node.state == "kept" and node.token != str(EOS)
            assert sum(other.token != str(EOS) for other in better) < beam_size
        elif reason == "ended, but # better ones had":
            assert node.state == "dropped" and len(longest) > beam_size  # itself among them
        elif reason.startswith("ended, but not"):
            assert node.state == "ended" and worst >= node.score and len(outputs) == num_outputs
        elif "could reach" in reason:
            reach = score(node.log_prob, limit, ALPHA, penalty)
            assert float(node.why.split()[-3]) == pytest.approx(reach, abs=1e-3)
            assert node.state == "dropped" and reach <= worst and len(outputs) == num_outputs
        elif "first end" in reason:
            assert node.state == "dropped" and outputs[0].step == node.step
        elif reason.startswith("cut by"):
            assert node.state == "dropped" and node.step == limit and len(outputs) == num_outputs
            rivals = outputs if penalty == "power" else [one for one in outputs if is_kept(one)]
            assert all(rival.score >= node.score for rival in rivals)
        else:
            pattern = r"output (\d): (ended|cut by the limit of \d+ tokens)"
            rank, how = re.fullmatch(pattern, node.why).groups()
            assert node.state == "ended" and outputs[int(rank) - 1] is node
            assert (how == "ended") == (node.token == str(EOS))
            assert how == "ended" or node.step == limit


def test_it_is_written_as_json():
    tree, _ = recorded("all")
    read = json.loads(json.dumps(tree.as_json(), allow_nan=False))
    assert list(read) == ["beam_size", "alpha", "nodes", "outputs"]
    fields = ["id", "parent", "step", "token", "log_prob", "state", "score", "why"]
    assert all(list(node) == fields for node in read["nodes"])
    assert [node["id"] for node in read["nodes"]] == list(range(len(read["nodes"])))
    assert read["nodes"][0]["parent"] is None and read["nodes"][0]["state"] == "start"
