# SPDX-License-Identifier: Apache-2.0
"""Exports of runs can be imported again, and CTranslate2 generates the likeliest outputs."""

import dataclasses
import functools
import json
import logging

import jax
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

import transformer_jax as tj
from tests.interop.published import FIXTURES, changed_copy, padded
from tests.refusals import assert_refused
from transformer_jax.conversations import TEMPLATES, chat_template
from transformer_jax.errors import UserError
from transformer_jax.interop import weights
from transformer_jax.interop.config_json import class_names, find_family, read_json, special_ids
from transformer_jax.interop.ctranslate2_spec import build_specification
from transformer_jax.interop.exporting import export_run
from transformer_jax.interop.family_match import default_model
from transformer_jax.interop.importing import import_model
from transformer_jax.runs import build
from transformer_jax.runs.config import override
from transformer_jax.tasks.instruction import Instruction
from transformer_jax.tokenization import Tokenizers

LINES = ["Der Hund", "A woman", "two people", "<s> and 😀"]


@pytest.fixture(scope="module")
def ctranslate2():
    return pytest.importorskip("ctranslate2")


def read_options(folder):
    """What an import reads in a config.json: class, options, labels, and special tokens."""
    keys = read_json(folder / "config.json")
    family, class_name = find_family(keys)
    return (class_name, family.options(keys), class_names(keys)), special_ids(keys)


@pytest.mark.parametrize("name", ["marian_separate", "gpt2", "roberta_classification", "qwen3_moe"])
def test_exporting_an_imported_model_gives_the_original_files(run_of, tmp_path, name):
    run, out = run_of(name), tmp_path / "out"
    export_run(run, out, "hf")
    before, after = (load_file(one / "model.safetensors") for one in (FIXTURES / name, out))
    for tensor in after:
        np.testing.assert_array_equal(after[tensor], before[tensor])
    assert after.keys() <= before.keys()
    left = before.keys() - after.keys()  # copies of tied matrices, and ignored tensors
    assert all("embed_positions" in one or "embed_tokens" in one for one in left)
    for file in out.iterdir():
        original = FIXTURES / name / file.name
        if file.suffix != ".safetensors" and file.name.startswith(("token", "source", "vocab")):
            assert file.read_bytes() == original.read_bytes()
    (options, ids), (original, named_ids) = map(read_options, (out, FIXTURES / name))
    assert options == original and ids.items() >= named_ids.items()


def test_vocabularies_that_the_task_does_not_use_are_not_exported(run_of, tmp_path):
    """A classifier that started from a translator has the sides of both."""
    run = run_of("bart_classification")
    sides = {**run_of("bart").tokenizer.sides, **run.tokenizer.sides}
    both = dataclasses.replace(
        run, task=dataclasses.replace(run.task, tokenizers=Tokenizers(sides))
    )
    for name, one in {"own": run, "both": both}.items():
        export_run(one, tmp_path / name, "hf")
    assert {*both.tokenizer.sides} == {"source", "target", "text", "label"}
    for file in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (tmp_path / "both" / file).read_text() == (tmp_path / "own" / file).read_text()
    keys = json.loads((tmp_path / "own" / "config.json").read_text())
    assert (keys["num_labels"], keys["decoder_start_token_id"]) == (3, 2)
    generation = json.loads((tmp_path / "own" / "generation_config.json").read_text())
    assert all(key.endswith("_token_id") for key in generation)


@pytest.mark.parametrize(("name", "objective"), [("t5", "prefix_lm"), ("bert", "masked")])
def test_denoising_is_exported_as_the_tasks_that_have_its_models(run_of, tmp_path, name, objective):
    run = run_of(name)
    changes = {"task.name": "denoising", "task.objective": objective, "data.max_length": 16}
    settings = override(run.settings, changes)
    tokenizers = Tokenizers({"text": next(iter(run.tokenizer.sides.values()))})
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    for folder, of_run in {
        "own": run,
        "denoising": dataclasses.replace(run, settings=settings, task=task),
    }.items():
        export_run(of_run, tmp_path / folder, "hf")
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        ours, theirs = (tmp_path / folder / file for folder in ("own", "denoising"))
        assert ours.read_bytes() == theirs.read_bytes()


def test_exports_keep_context_search_and_licence(tmp_path):
    sampling = {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "repetition_penalty": 1.2}
    context = {"max_position_embeddings": 8192}
    directory = changed_copy(tmp_path, "llama", context, generation=sampling)
    (directory / "README.md").write_text("---\ntags:\n- x\nlicense: apache-2.0\n---\n# It\n")
    import_model(str(directory), tmp_path / "run")
    out = tmp_path / "out"
    export_run(tj.load(tmp_path / "run"), out, "hf")
    assert json.loads((out / "config.json").read_text()).items() >= context.items()
    generation = json.loads((out / "generation_config.json").read_text())
    assert (sampling | {"top_k": 50}).items() <= generation.items()
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\nlicense: apache-2.0\n---\n")
    assert 'LlamaForCausalLM.from_pretrained("DIR")' in card and str(tmp_path) not in card


def test_an_exported_run_can_be_imported_again(trained, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        export_run(trained, tmp_path / "out", "hf")
    assert "norms add 1e-05 to the variance, and 1e-06 in the run" in caplog.text
    keys = json.loads((tmp_path / "out" / "config.json").read_text())
    assert keys["architectures"] == ["PegasusForConditionalGeneration"]
    assert keys["decoder_start_token_id"] == 2
    assert "decode.length_penalty is 'gnmt', which generate" in caplog.text
    assert "Its licence is not known" in (tmp_path / "out" / "README.md").read_text()
    import_model(str(tmp_path / "out"), tmp_path / "again")
    again = tj.load(tmp_path / "again")
    text = trained.tokenizer.text("source")
    for line in LINES:
        assert again.tokenizer.text("source").encode(line) == text.encode(line)
        assert again.tokenizer.text("target").decode(text.encode(line)) == text.decode(
            text.encode(line)
        )
    scores = (run.score(LINES[:3], LINES[:3]) for run in (trained, again))
    np.testing.assert_allclose(*scores, rtol=1e-3)


def test_a_chat_model_is_exported_with_its_template(run_of, tmp_path):
    """It has the class of its model, and the token that ends an answer also ends a generation."""
    run = run_of("gemma2")
    task = run.task
    template = dataclasses.replace(TEMPLATES["alpaca"], assistant="A: {content}<mask>")
    answers = Instruction(task.model, task.tokenizers, task.max_length, task.loss_options, template)
    export_run(dataclasses.replace(run, task=answers), tmp_path / "out", "hf")
    assert read_options(tmp_path / "out")[0] == read_options(FIXTURES / "gemma2")[0]
    assert (tmp_path / "out/chat_template.jinja").read_text() == chat_template(template, True)
    ends = json.loads((tmp_path / "out/generation_config.json").read_text())["eos_token_id"]
    assert set(ends) == {answers.chat_tokenizer.answer_end, task.tokenizers.specials("text").eos}


def assert_likeliest(run, side, prompts, outputs, limits, sources=()):
    """Asserts that the run finds each token of the outputs likeliest after those before it, and
    then the end token or the limit."""
    specials = run.tokenizer.specials(side)
    rows = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
    inputs = padded(sources, specials.pad) if sources else ()
    inputs += padded(rows, specials.pad)
    logits = np.array(jax.jit(run.model.apply)({"params": run.params}, *inputs))
    logits[:, :, list(specials.banned)] = -np.inf
    for i, (prompt, output, limit) in enumerate(zip(prompts, outputs, limits, strict=True)):
        likeliest = logits[i, len(prompt) - 1 :].argmax(-1).tolist()
        ended = [*output, specials.eos][:limit]
        assert likeliest[: len(ended)] == ended


@pytest.mark.parametrize("name", ["trained", "marian", "bart", "t5"])
def test_ctranslate2_finds_the_likeliest_translations(ctranslate2, trained, run_of, tmp_path, name):
    run = trained if name == "trained" else run_of(name)
    export_run(run, tmp_path / "out", "ctranslate2")
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")
    source, target = run.tokenizer.text("source"), run.tokenizer.text("target")
    specials = target.specials
    head = list(specials.translation.head)
    names = {piece: i for i, piece in enumerate(target.pieces(range(target.vocab_size)))}
    frame = source.specials.translation
    sources = [frame.around(source.encode(line)) for line in LINES[:3]]
    limits = [len(row) + 6 for row in sources]
    outputs = []
    for row, limit in zip(sources, limits, strict=True):
        # CTranslate2 adds eos itself.
        tail = len(frame.tail) if frame.tail == (source.specials.eos,) else 0
        (found,) = translator.translate_batch(
            [source.pieces(row[: len(row) - tail])],
            target_prefix=[target.pieces(head)] if head else None,
            beam_size=1,
            max_decoding_length=limit + len(head),
            suppress_sequences=[[piece] for piece in target.pieces(specials.banned)],
        )
        tokens = [names[piece] for piece in found.hypotheses[0]]
        assert tokens[: len(head)] == head
        outputs.append(tokens[len(head) :])
    prompts = [[specials.start, *head]] * len(sources)
    assert_likeliest(run, "target", prompts, outputs, limits, sources)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_ctranslate2_finds_the_likeliest_continuations(ctranslate2, run_of, tmp_path, name):
    run = run_of(name)
    export_run(run, tmp_path / "out", "ctranslate2", "float32")
    generator = ctranslate2.Generator(str(tmp_path / "out"), compute_type="float32")
    text = run.tokenizer.text("text")
    names = {piece: i for i, piece in enumerate(text.pieces(range(text.vocab_size)))}
    prompts = [[text.specials.first, *text.encode(line)] for line in ("der Hund", "A")]
    outputs = []
    for prompt in prompts:
        (found,) = generator.generate_batch(
            [text.pieces(prompt)],
            max_length=6,
            include_prompt_in_result=False,
            suppress_sequences=[[piece] for piece in text.pieces(text.specials.banned)],
        )
        outputs.append([names[piece] for piece in found.sequences[0]])
    assert_likeliest(run, "text", prompts, outputs, [6, 6])


def test_int8_is_smaller(ctranslate2, trained, tmp_path):
    for quantization in ("float32", "int8"):
        export_run(trained, tmp_path / quantization, "ctranslate2", quantization)
    sizes = [(tmp_path / one / "model.bin").stat().st_size for one in ("float32", "int8")]
    assert sizes[1] < 0.7 * sizes[0]  # the model is tiny
    translator = ctranslate2.Translator(str(tmp_path / "int8"))
    assert translator.translate_batch([["▁a"]], max_decoding_length=3)


def test_what_ctranslate2_cannot_run_is_named_and_nothing_is_written(run_of, tmp_path):
    names = {
        "config.model.layers is 'default": "gemma2",
        "config.model.architecture is 'encoder_only'": "bert",
        "config.model.rope_scaling is 'llama3'": "llama3",
        "the task classification writes no text": "bart_classification",
    }
    out = tmp_path / "out"
    calls = {
        words: functools.partial(export_run, run_of(name), out, "ctranslate2")
        for words, name in names.items()
    }
    for field, value in {
        "qk_norm": True,
        "first_norm": False,
        "block": "merged",
        "residual": "mine",
    }.items():
        options = {"architecture": "encoder_decoder", "norm_placement": "pre", field: value}
        calls[f"config.model.{field} is {value!r}"] = functools.partial(
            build_specification, default_model(options), {}, 9
        )
    assert_refused(calls)
    assert not out.exists()


def test_nothing_is_overwritten(trained, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for directory in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(UserError, match="--to: .*(not empty|cannot be used)"):
            export_run(trained, directory, "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(UserError, match="--quantization goes with"):
        export_run(trained, tmp_path / "out", "hf", "int8")


def test_a_full_disk_is_one_line_and_leaves_nothing(trained, tmp_path, monkeypatch):
    def save(tensors, path, metadata):
        path.write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weights, "save_file", save)
    with pytest.raises(UserError, match="--to: .*/out cannot be written: .*No space left"):
        export_run(trained, tmp_path / "out", "hf")
    assert list(tmp_path.iterdir()) == []
