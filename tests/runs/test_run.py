# SPDX-License-Identifier: Apache-2.0
"""A notebook's own use of a run, and misuse (results: test_train)."""

import dataclasses
import functools
import math
import shutil

import jax
import numpy as np
import optax
import pandas
import pytest
import scipy.special

import transformer_jax as tj
from tests.compiled import run as compiled
from tests.refusals import assert_refused
from transformer_jax.checkpoints.step_folder import fill, named_leaves
from transformer_jax.logs.records import read_lines

SOURCES, TARGETS = ["A dog runs.", "The women sleep."], ["Ein Hund läuft.", "Die Frauen schlafen."]


def logits_of(run, inputs):
    return compiled(run.model.apply, {"params": run.params}, **inputs)


def summed_loss(logits, labels, counted):
    losses = compiled(optax.softmax_cross_entropy_with_integer_labels, logits, labels)
    return float((losses * counted).sum()), float(counted.sum())


def test_a_batch_is_what_the_model_takes(trained):
    batch = trained.batch(SOURCES, TARGETS)
    tokens = [trained.model_inputs(*pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    log_probs = scipy.special.log_softmax(logits_of(trained, batch), axis=-1)
    found = [
        sum(float(log_probs[i, t, token]) for t, token in enumerate(one.outputs))
        for i, one in enumerate(tokens)
    ]
    np.testing.assert_allclose(found, trained.score(SOURCES, TARGETS), rtol=1e-4)


def test_columns_of_a_table_are_texts(trained):
    table = pandas.DataFrame({"source": SOURCES, "target": TARGETS}, index=[7, 3])
    columns = trained.batch(table["source"], table["target"])
    lists = trained.batch(SOURCES, TARGETS)
    assert all((columns[name] == lists[name]).all() for name in lists)
    predictions = trained.predict(table["source"], prefixes=table["target"])
    assert predictions == trained.predict(SOURCES, prefixes=TARGETS)


def test_batches_of_a_split_have_its_loss(trained):
    sums = [
        summed_loss(logits_of(trained, inputs), labels, counted)
        for inputs, labels, counted in trained.batches("valid")
    ]
    loss = sum(total for total, _ in sums) / sum(count for _, count in sums)
    last = trained.records.query("split == 'valid'").iloc[-1]
    assert loss == pytest.approx(np.log(last["perplexity"]), rel=1e-4)


def test_training_batches_are_endless_and_in_the_order_of_training(trained):
    batches = trained.batches()
    first = next(batches)
    assert all(next(batches).labels.shape == first.labels.shape for _ in range(40))
    again = next(trained.batches("train"))
    assert (first.labels == again.labels).all()


def test_misuse_is_refused(trained, monkeypatch):
    patched = trained.patched({"decoder.layer_0": 0})
    of_importance = "transformer_jax.lab.analysis.importance.open_split"
    monkeypatch.setattr(of_importance, lambda data, split: [])
    assert_refused(
        {
            "batch: the model reads pairs; give targets too": lambda: trained.batch(["a"]),
            "batch: sources is one text; give a list of t": lambda: trained.batch("a", "b"),
            "score: targets[0] is nan; it must be a text": lambda: trained.score(["a"], [math.nan]),
            "n_best takes num_outputs": lambda: trained.predict(["a"], num_outputs=2),
            "batch: 1 sources but 2 targets; give pairs": lambda: trained.batch(["a"], ["b", "c"]),
            "batch: 1 sources but 0 targets; give pairs": lambda: trained.batch(["a"], []),
            "with_params: decoder/final_norm/bias is missing": lambda: trained.with_params({}),
            "is not empty": lambda: trained.save(trained.workdir),
            "arrays cannot be stored there": lambda: trained.save("run[0]"),
            "save: the run is patched": lambda: patched.save("x"),
            "predict: lines is one text; give a list": lambda: trained.predict("A dog."),
            "predict: prefixes is one text; g": lambda: trained.predict(["a"], prefixes="b"),
            "1 lines but 2 prefixes; give one": lambda: trained.predict(["a"], prefixes=["b", "c"]),
            "score: sources is one text; give a": lambda: trained.score("A dog.", ["Ein Hund."]),
            "score: 1 sources but 2 targets; give": lambda: trained.score(["a"], ["b", "c"]),
            "evaluate: source and target are files": lambda: trained.evaluate(target="b.txt"),
            "search is 'bem', not one of beam": lambda: trained.predict(["a"], search="bem"),
            "stream: this run's task does not continue text": lambda: trained.stream("a"),
            "model_inputs: source is a list of texts": lambda: trained.attention(["A dog."]),
            "by is 'loss'; choose from gradient": lambda: trained.head_importance(by="loss"),
            "no example of valid fits in a row": trained.head_importance,
        }
    )


def test_other_parameters_are_used_and_saved(language_model, tmp_path):
    trained = language_model
    changed = trained.with_params(jax.tree.map(lambda x: 0.9 * np.asarray(x), trained.params))
    before, score = sorted(trained.workdir.rglob("*")), changed.score(SOURCES, TARGETS)
    assert score != trained.score(SOURCES, TARGETS)
    changed.evaluate("valid")
    assert sorted(trained.workdir.rglob("*")) == before

    saved = changed.save(tmp_path / "saved")
    loaded = tj.load(tmp_path / "saved")
    assert loaded.step == trained.step and loaded.score(SOURCES, TARGETS) == score
    assert saved.workdir == tmp_path / "saved"
    same = jax.tree.map(lambda a, b: bool((a == b).all()), loaded.params, changed.params)
    assert all(jax.tree.leaves(same))
    early = tj.load(trained.workdir, "15").save(tmp_path / "early")
    assert early.records["step"].max() == 15


def test_a_saved_run_trains_on_as_the_run_itself(
    language_model, tiny_config, tiny_language_model, tmp_path
):
    """Also if it was trained on more devices than are here."""
    language_model.with_config({"parallel.fsdp": 2}).save(tmp_path / "saved")
    shutil.copytree(language_model.workdir, tmp_path / "run")
    config = tiny_config(tiny_language_model | {"train.num_steps": 32})
    run, saved = (tj.train(config, tmp_path / name) for name in ("run", "saved"))
    assert run.step == saved.step == 32
    jax.tree.map(np.testing.assert_array_equal, run.params, saved.params)
    jax.tree.map(np.testing.assert_array_equal, tj.load(saved.workdir).params, saved.params)
    assert len(list(read_lines(tmp_path / "saved" / "metrics.jsonl"))) == len(run.records)


def test_records_are_a_table_and_a_picture(trained):
    records = trained.records
    assert not records.duplicated(["step", "split"]).any()
    assert list(records[records["split"] == "valid"]["step"]) == [15, 30]
    lowercase = trained.with_config({"task.metric": "bleu_lowercase"})
    for run, score in ((trained, "BLEU"), (lowercase, "BLEU without case")):
        label = run.plot().axes[1].get_ylabel()
        assert label == f"validation {score} (0 to 100)"


def test_the_examples_of_a_split(trained):
    data = tj.read_data(trained.config, "valid")
    assert len(data) == 12 and set(data[0]) == {"source", "target"}
    assert data[0]["source"] in repr(data) and data[0]["target"] in repr(data)
    assert tj.read_data(trained, "valid")[3:5] == data[3:5]


def test_positions_and_segment_ids_may_be_left_out(trained):
    batch = trained.batch(SOURCES[:1], TARGETS[:1])
    lengths = {side: int(batch[f"{side}_segment_ids"].sum()) for side in ("source", "target")}
    tokens = {side: np.asarray(batch[side])[:, :length] for side, length in lengths.items()}
    np.testing.assert_allclose(
        logits_of(trained, tokens), logits_of(trained, batch)[:, : lengths["target"]], atol=1e-4
    )
    with pytest.raises(TypeError, match="give target="):
        logits_of(trained, {"source": tokens["source"]})


# --- Logits that are not finite ---


QUERY = "decoder/layer_0/self_attention/query/kernel"


def with_value(run, name, value, index=1):
    """The run with an element of a parameter, or several, replaced."""
    leaves = named_leaves(run.params)
    leaves[name] = np.array(leaves[name])
    leaves[name].flat[index] = value
    return dataclasses.replace(run, params=fill(run.params, leaves))


def test_a_damaged_parameter_is_named(trained, language_model):
    message = f"NaN or infinite: so is the parameter {QUERY}; take"
    damaged = with_value(language_model, QUERY, np.nan)
    infinite = with_value(language_model, QUERY, np.inf)
    for use in (
        functools.partial(with_value(trained, QUERY, np.nan).predict, ["the dog"], beam_size=1),
        functools.partial(damaged.predict, ["the dog", "a man"]),
        functools.partial(damaged.evaluate, split="valid"),
        functools.partial(infinite.score, ["the dog"], ["der Hund"]),
    ):
        assert_refused({message: use})


def test_a_layer_that_overflows_is_named(language_model):
    layer = "decoder/layer_0/feed_forward"
    large = with_value(language_model, f"{layer}/inner/bias", 1e30)
    large = with_value(large, f"{layer}/outer/kernel", 1e30, slice(None))
    message = "so is decoder.layer_0.feed_forward, although all"
    assert_refused({message: lambda: large.predict(["the dog", "a man"])})
