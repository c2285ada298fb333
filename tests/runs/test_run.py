# SPDX-License-Identifier: Apache-2.0
"""Misuse of a run is refused before anything is computed (results: test_train)."""

import pytest

import transformer_jax as tj


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda run: run.predict("A dog."), "predict: lines is one text; give a list of texts"),
        (lambda run: run.predict(["a"], prefixes="b"), "predict: prefixes is one text; give a li"),
        (lambda run: run.score("A dog.", ["Ein Hund."]), "score: sources is one text; give a lis"),
        (lambda run: run.predict(["a"], prefixes=["b", "c"]), "1 lines but 2 prefixes; give one"),
        (lambda run: run.evaluate(target="b.txt"), "evaluate: source and target are files that go"),
        (lambda run: run.predict(["a"], search="bem"), "decode: search is 'bem', not one of beam"),
        (lambda run: run.stream("a"), "stream: this run's task does not continue text"),
    ],
)
def test_misuse_is_refused_in_one_line(trained, use, message):
    with pytest.raises(tj.UserError) as caught:
        use(trained)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_sections_are_parsed_once(trained):
    assert trained.settings is trained.settings
    assert trained.with_config({"decode.beam_size": 2}).settings.decode.beam_size == 2
