# SPDX-License-Identifier: Apache-2.0
"""Continuations, answers and chats through the command line."""

import json

import pytest

from transformer_jax.runs import load

pytestmark = pytest.mark.usefixtures("shared_runs")


def test_each_line_has_one_line_of_continuation(shell, language_model_workdir, language_model):
    words = ["predict", f"--workdir={language_model_workdir}"]
    lines = b"The old\nThe man\\nof\n\nThe dog sees a cat. The dog sees a cat.\n\xff"
    answer = shell(*words, stdin=lines)
    assert answer.status == 0 and answer.out.count("\n") == 5
    streamed = shell(*words, "--stream", stdin=b"The old\n")
    assert streamed.out == answer.out.split("\n")[0] + "\n"
    sampling = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "num_outputs": 3, "seed": 1}
    samples = [f"--{name}={value}" for name, value in (sampling | {"stop": "x|e"}).items()]
    found = json.loads(shell(*words, "--format=jsonl", *samples, stdin=b"The").out)["outputs"]
    assert len(found) == 3 and not any("e" in output["text"] for output in found)
    (expected,) = language_model.n_best(["The"], **sampling, stop="x|e")
    assert [output["text"] for output in found] == [output.text for output in expected]


@pytest.fixture
def assistant(monkeypatch, language_model, random_params):
    """Loads a language model with random parameters that answers questions, in place of any run."""
    turns = {"user": "Q: {content}\n", "system": "{content}\n", "assistant": "A: {content}{eos}\n"}
    changes = {f"task.{role}_turn": text for role, text in turns.items()} | {"task.template": None}
    run = language_model.with_params(random_params(language_model.task))
    run = run.with_config({"task.name": "instruction"} | changes)
    monkeypatch.setattr(load, "load", lambda *_, **__: run)


def test_instructions_and_conversations_are_answered(shell, assistant):
    asked = {"messages": [{"role": "user", "content": 'Say "good".'}]}
    lines = f"Say film.\n{json.dumps(asked)}\n".encode()
    answer = shell("predict", "--workdir=w", "--format=jsonl", stdin=lines)
    found = [json.loads(line)["outputs"][0]["text"] for line in answer.out.splitlines()]
    assert answer.status == 0 and len(found) == 2
    assert found == shell("predict", "--workdir=w", stdin=lines).out.split("\n")[:-1]
    asked["messages"].append({"role": "assistant", "content": "good"})
    refused = shell("predict", "--workdir=w", stdin=json.dumps(asked).encode())
    assert refused.status == 2 and "line 1: the last turn is not the user's" in refused.err


def test_a_chat_reads_commands_and_continues_after_mistakes(shell, assistant):
    said = "Say film.\n/strange\n\n/system Be brief.\nSay a\\n.\n/reset\n" + "Say " * 400
    said += "\nSay film.\n/quit\nSay the.\n"
    answer = shell("chat", "--workdir=w", stdin=said.encode())
    assert answer.status == 0
    replies = answer.out.split("\n")[:-1]
    assert replies[0] == replies[-1]  # nothing is left of what was said before /reset
    assert "no command: /strange; /reset starts over" in answer.err
    assert "error: the conversation: the question has" in answer.err
