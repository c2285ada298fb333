# SPDX-License-Identifier: Apache-2.0
"""Inspection of a trained run, and runs with parts of the model switched off."""

import numpy as np
import pytest
import scipy.special

import transformer_jax as tj
from experiments.heads import without
from tests.compiled import run as compiled
from tests.interop.published import FIXTURES
from tests.refusals import assert_refused
from transformer_jax.interop.exporting import export_run
from transformer_jax.interop.importing import import_model
from transformer_jax.models import apply_model

LINE = "The old man sees a dog ."
HEAD = {"decoder.layer_0.cross_attention.heads[1]": 0}


@pytest.fixture(scope="module")
def patched(trained):
    """The run without one head."""
    return trained.patched(HEAD)


def test_attention_is_of_the_runs_own_output(trained):
    found = trained.attention(LINE)
    assert found.texts == {"source": LINE, "target": trained.predict([LINE])[0]}
    tokenizer = trained.tokenizer.text("source")
    tokens = [*tokenizer.encode(LINE), tokenizer.specials.eos]
    assert found.tokens["encoder"] == tokenizer.pieces(tokens)
    assert found.weights("cross").shape[2:] == tuple(
        len(found.tokens[stack]) for stack in ("decoder", "encoder")
    )
    given = trained.attention(LINE, "Ein Hund .")
    assert given.texts["target"] == "Ein Hund ."


def test_the_last_layer_of_the_lens_is_the_prediction(trained):
    found = trained.hidden(LINE, "Ein Hund .")
    reading = trained.model_inputs(LINE, "Ein Hund .")

    def log_probs(run):
        logits = compiled(apply_model, run.model, run.params, *reading.inputs)
        return scipy.special.log_softmax(logits[0, : len(reading.outputs)], axis=-1)

    assert found.lens.shape == (2, *log_probs(trained).shape)
    np.testing.assert_allclose(found.lens[-1], log_probs(trained), atol=1e-4)
    assert found.streams["encoder"].shape[:2] == (2, len(reading.tokens["encoder"]))
    # Without its only layer the decoder predicts from what it was fed.
    without = trained.patched({"decoder.layer_0": 0})
    np.testing.assert_allclose(found.lens[0], log_probs(without), atol=1e-4)


def test_the_lens_of_a_classifier_is_of_its_classes(tmp_path):
    import_model(str(FIXTURES / "bart_classification"), tmp_path / "run")
    run = tj.load(tmp_path / "run")
    found = run.hidden("a good dog")
    stack = found.streams[run.model_inputs("a good dog").last_stack]
    (best,) = run.n_best(["a good dog"])
    assert found.lens.shape == (len(stack), 1, len(run.tokenizer["label"].names))
    probabilities = np.exp(found.lens[-1, 0])
    assert run.tokenizer["label"].names[probabilities.argmax()] == best[0].text
    assert probabilities.max() == pytest.approx(best[0].score, rel=0.01)  # bfloat16


def test_every_use_of_a_patched_run_is_patched(trained, patched):
    """Search (with its cache) and scores equal those of a model with zeroed weights."""
    zeroed = without(trained, [("decoder.layer_0.cross_attention.heads", 1)])
    assert zeroed.params is not trained.params
    ((found,),), ((expected,),) = (run.n_best([LINE], beam_size=1) for run in (patched, zeroed))
    assert found.text == expected.text
    assert found.score == pytest.approx(expected.score, rel=1e-5)
    scores = [run.score([LINE], ["Ein Hund ."])[0] for run in (patched, zeroed, trained)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-5) != pytest.approx(scores[2], rel=1e-4)
    heads = patched.attention(LINE, "Ein Hund .", also=["heads"]).of("cross", "heads")
    assert not heads[0, 1].any() and heads[0, 0].any()
    longer = patched.with_config({"data.max_source_length": 40})
    assert longer.score([LINE], ["Ein Hund ."])[0] == pytest.approx(scores[1], rel=1e-5)


def test_a_patched_run_leaves_the_workdir_as_it_is(trained, patched, tmp_path):
    kept = sorted(trained.workdir.rglob("*"))
    metrics = patched.evaluate(split="valid", beam_size=1)
    assert metrics["num_examples"] == 12 and sorted(trained.workdir.rglob("*")) == kept
    message = "a patched run cannot be exported"
    assert_refused({message: lambda: export_run(patched, tmp_path / "out", "hf")})
