# SPDX-License-Identifier: Apache-2.0
"""Fields of the section `decode`: a task reads those that it declares, and others are refused."""

import dataclasses

import pytest

import transformer_jax as tj
from tests.tasks.conftest import SMALL_TASKS
from transformer_jax import tasks
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.runs.run import Run, decode_options
from transformer_jax.tasks.classification import Classification
from transformer_jax.tasks.denoising import DenoisingPairs, DenoisingSequences
from transformer_jax.tasks.diffusion import MaskedDiffusion
from transformer_jax.tasks.instruction import Instruction
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.mask_predict import MaskPredict
from transformer_jax.tasks.masked_lm import MaskedLanguageModeling
from transformer_jax.tasks.multiple_choice import MultipleChoice
from transformer_jax.tasks.parsing import Parsing
from transformer_jax.tasks.preference import Preference
from transformer_jax.tasks.tagging import Tagging
from transformer_jax.tasks.translation import Translation

TASKS = ["translation", *SMALL_TASKS]
VALUES = {
    **{"search": "greedy", "beam_size": 2, "alpha": 0.1, "length_penalty": "power", "stop": "a"},
    **{"temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 3, "repetition_penalty": 1.5},
    **{"max_extra_length": 3, "batch_size": 2, "num_outputs": 2},
}


@dataclasses.dataclass(frozen=True, eq=False)  # equality would read all fields
class Recording(DecodeConfig):
    """Records the fields that are read after it is made."""

    def __getattribute__(self, name):
        vars(DecodeConfig).get("read", set()).add(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_reads_the_fields_that_it_declares(run_of, monkeypatch, name):
    run, read = run_of(name), set()
    generates = name in ("translation", "language_modeling", "instruction")
    searches = [{"beam_size": 1}, {"temperature": 1.0}] if generates else [{}]
    options = [Recording(**each, max_extra_length=8, batch_size=8) for each in searches]
    monkeypatch.setattr(DecodeConfig, "read", read, raising=False)
    for each in options:
        list(run.task.predict(run.params, ["the [MASK]"], each))
    assert set(run.task.predicts_by) <= read
    assert set(run.task.evaluates_by) <= set(run.task.predicts_by)


@pytest.mark.parametrize("name", TASKS)
def test_a_field_that_a_task_does_not_read_is_refused(run_of, name):
    run = run_of(name)
    for use, read in (("predict", run.task.predicts_by), ("evaluate", run.task.evaluates_by)):
        for field in VALUES.keys() - set(read):
            with pytest.raises(tj.UserError, match=f"decode: {field} (does nothing|is for)"):
                decode_options(run.settings.decode, run.task, use, {field: VALUES[field]})


@pytest.mark.parametrize(
    ("given", "ignored"),
    [
        ({"seed": 3}, "seed"),
        ({"search": "greedy", "beam_size": 2}, "beam_size"),
        ({"temperature": 1.0, "alpha": 0.5}, "alpha"),
    ],
)
def test_a_field_of_another_search_is_refused(trained, given, ignored):
    with pytest.raises(tj.UserError, match=f"decode: {ignored} does nothing in the search"):
        trained.predict(["The dog."], **given)


def test_a_given_search_ignores_the_config_of_another(trained):
    """Greedy outputs of a run whose config samples."""
    section = DecodeConfig(temperature=0.7, top_k=5, repetition_penalty=1.2)
    found = decode_options(section, trained.task, "predict", {"search": "greedy"})
    assert found == DecodeConfig(search="greedy", repetition_penalty=1.2)
    assert decode_options(section, trained.task, "predict", {"seed": 3}).top_k == 5


def test_fields_and_their_values_are_checked_as_in_a_config(trained: Run):
    for given, told in (
        ({"beam": 3}, "there is no config.decode.beam; did you mean config.decode.beam_size?"),
        ({"beam_size": "four"}, "must be of type int"),
        ({"seed": 2**31}, "seed is 2147483648"),
    ):
        with pytest.raises(tj.UserError, match=told):
            trained.predict(["The dog."], **given)


CLASSES = {
    "translation": Translation,
    "seq2seq": Translation,
    "parsing": Parsing,
    "language_modeling": LanguageModeling,
    "instruction": Instruction,
    "preference": Preference,
    "choices": MultipleChoice,
    "mask_predict": MaskPredict,
    "masked_lm": MaskedLanguageModeling,
    "classification": Classification,
    "tagging": Tagging,
}


def test_the_registry_lists_the_search_fields_that_the_classes_read():
    listed = {
        name: sorted(field for field in kind.reads if field.startswith("decode."))
        for name, kind in tasks.TASKS.items()
    }
    read = {name: {*cls.predicts_by} for name, cls in CLASSES.items()}
    by_objective = (DenoisingPairs, DenoisingSequences, MaskedDiffusion)
    read["denoising"] = {field for cls in by_objective for field in cls.predicts_by}
    assert listed == {
        name: sorted(f"decode.{field}" for field in fields) for name, fields in read.items()
    }
