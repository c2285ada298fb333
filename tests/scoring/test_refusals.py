# SPDX-License-Identifier: Apache-2.0
"""What metrics and tests refuse, each in one line."""

import shlex
import sys
from functools import partial

from tests.refusals import assert_refused
from transformer_jax.scoring import METRICS
from transformer_jax.scoring.command import scores_by_command
from transformer_jax.scoring.errors import Decision, calibration, decisions
from transformer_jax.scoring.labels import classification_scores, multiple_choice_accuracy
from transformer_jax.scoring.parseval import parseval
from transformer_jax.scoring.sequential import Plan
from transformer_jax.scoring.significance import translation_significance
from transformer_jax.scoring.statistics import over_examples, over_seeds

FAILING = shlex.join([sys.executable, "-c", "import sys; sys.exit('it broke')"])
NO_NUMBERS = "must print one JSON object of numbers"
PRINTED = ("0.5", "hello", "{}", '{"a": "b"}', '{"a": 1' + 400 * "0" + "}", '{"a": NaN}')
OTHER_TASK = {"source": "a", "target": "b", "output": "c", "score": 0.0}

REFUSED = [
    *((METRICS[name], ([], []), "0 outputs cannot be scored") for name in METRICS),
    *((METRICS[name], (["a"], ["a", "b"]), "against 2 references") for name in METRICS),
    (METRICS["wer"], (["a"], [" "]), "the references have no words"),
    (METRICS["ter"], (["a"], [" "]), "the references have no words"),
    (classification_scores, (["a", "b"], ["a"], "ab"), "2 outputs cannot be scored against 1"),
    (multiple_choice_accuracy, ([], [], []), "0 outputs"),
    (parseval, (["(TOP (NN a))"], ["(TOP (NN b))"]), "tree 1 is over other words"),
    (parseval, ([], []), "0 outputs"),
    (translation_significance, (["a", "b"], ["a"], ["a", "b"]), "1 outputs cannot be scored"),
    (over_seeds, ([1.0], [1.0, 2.0]), "at least two seeds"),
    (over_examples, ([1.0], [1.0, 2.0]), "no pairs"),
    (Plan, ((1, 2),), "looks is (1, 2)"),
    (Plan, ((5, 3),), "looks is (5, 3)"),
    (Plan, ((3,), -1.0), "smallest is -1.0"),
    (Plan, ((3,), 0.0, 0.6), "error_rate is 0.6"),
    (calibration, ([Decision("", "a", "a", None, 0)],), "no probabilities"),
    (decisions, ([OTHER_TASK],), "without labels or tags"),
    (scores_by_command, ("no-such-program", []), "cannot be run"),
    (scores_by_command, ("", []), "cannot be run"),
    (scores_by_command, ("'unclosed", []), "cannot be run: No closing quotation"),
    (scores_by_command, (FAILING, []), "ended with status 1: it broke"),
    *((scores_by_command, (shlex.join(["printf", "%s", t]), []), NO_NUMBERS) for t in PRINTED),
]


def test_refusals():
    for call, arguments, words in REFUSED:
        assert_refused({words: partial(call, *arguments)})
