# SPDX-License-Identifier: Apache-2.0
"""Every field of a config has an effect, or is refused by its name.

For a base config of each task, each field takes another valid value. The effects of a config are
compared without training: shapes, traced programs, initial values, first batches.
"""

import functools
import hashlib
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.nn.transformer import rematerialized_layers
from transformer_jax.runs import build
from transformer_jax.runs.build import batches_of
from transformer_jax.runs.config import flatten, load_config, read_settings
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runs.settings import FIELDS
from transformer_jax.tasks.losses import batch_shapes

LAYERS = {"model.d_ff": 8, "model.num_heads": 2}
SMALL = {"model.d_model": 8, "model.dtype": "float32", "optimizer.name": "adamw"}
SMALL |= {"optimizer.schedule": "cosine", "optimizer.warmup_steps": 5, "train.num_steps": 50}
SMALL |= {"train.tokens_per_batch": 128}
PAIRS = {"tokenizer.kind": "unigram", "tokenizer.vocab_size": 30, "data.name": "parallel_text"}
PAIRS |= {"data.max_source_length": 48, "data.max_target_length": 48}
STACK = {**LAYERS, "model.num_layers": 1, "model.max_length": 20, "data.max_length": 16}
BASES = {
    "translation": {
        **LAYERS,
        **PAIRS,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.positions": "relative",
        "model.tie_embeddings": "target",
        "model.initialization": "bert",
    },
    "recurrent translation": {
        **PAIRS,
        "model.architecture": "recurrent",
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.attention_score": "general",
        "model.initialization": "bert",
        "model.tie_embeddings": "target",
    },
    "parsing": {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "task.tree_words": 5,
        "tokenizer.kind": "unigram",
        "tokenizer.vocab_size": 30,
        "data.name": "bracketed_trees",
        "data.max_source_length": 48,
        "data.max_target_length": 64,
    },
    "language_modeling": {**STACK, "tokenizer.kind": "char", "tokenizer.vocab_size": 20},
    "instruction": {
        **STACK,
        "task.template": None,
        "task.system_turn": "{content}\n",
        "task.user_turn": "women {content}\n",
        "task.assistant_turn": "man {content}{eos}\n",
        "tokenizer.kind": "char",
        "tokenizer.vocab_size": 30,
        "model.max_length": 100,
        "data.max_length": 90,
    },
    "masked_lm": {
        **STACK,
        "tokenizer.vocab_size": 45,
        "optimizer.name": "rmsprop",
        "optimizer.schedule": "wsd",
    },
    "classification": {
        **STACK,
        "tokenizer.vocab_size": 45,
        "optimizer.name": "sgd",
        "optimizer.schedule": "constant",
    },
    "tagging": {
        **LAYERS,
        "model.architecture": "decoder_only",
        "model.num_layers": 2,
        "model.attention_window": 5,
        "model.positions": "rotary",
        "model.rope_scaling": "llama3",
        "model.rope_original_length": 1024,
        "tokenizer.vocab_size": 45,
        "data.max_length": 16,
    },
}
OTHERS = {"model.d_model": 16, "model.num_heads": 4, "model.num_key_value_heads": 1}
OTHERS |= {"model.positions": "alibi", "model.rope_layout": "halves"}
OTHERS |= {"model.rope_scaling": "linear", "model.attention_bias": "output", "model.norm": "rms"}
OTHERS |= {"model.norm_epsilon": 1e-5, "model.norm_placement": "sandwich"}
OTHERS |= {"model.activation": "silu", "model.tie_embeddings": "none"}
OTHERS |= {"model.initialization": "xavier", "model.dtype": "bfloat16"}
OTHERS |= {"model.activation_dtype": "bfloat16", "model.dropout_bits": "hardware"}
OTHERS |= {"model.logit_cap": 5.0, "model.vocab_multiple": 7, "model.cell": "gru"}
OTHERS |= {"model.encoder_direction": "forward", "model.attention_score": "dot"}
OTHERS |= {"model.attention_span": "local_p", "task.metric": "chrf", "task.template": "chatml"}
OTHERS |= {"task.system_turn": "S: {content}\n", "task.user_turn": "old {content}\n"}
OTHERS |= {"task.assistant_turn": "dogs {content}{eos}\n", "tokenizer.kind": "word"}
OTHERS |= {"tokenizer.character_coverage": 0.98, "tokenizer.normalization": "identity"}
OTHERS |= {"data.packing": "apart", "data.documents": "line", "data.weights": "2,1"}
OTHERS |= {"data.num_train_examples": 7, "data.num_train_tokens": 90, "data.order_seed": 5}
OTHERS |= {"optimizer.name": "lamb", "optimizer.schedule": "linear"}
OTHERS |= {"optimizer.decay_steps": 70, "optimizer.clip_norm": 0.5, "optimizer.frozen": "kernel"}
OTHERS |= {"train.tokens_per_batch": 256, "train.accumulation_steps": 2, "train.rows_per_device": 4}
OTHERS |= {"train.remat": "full", "decode.search": "sample", "parallel.engine": "pmap"}
"""Values for fields of which the next number, the other boolean or another file is invalid."""
TESTED_ELSEWHERE = {
    "task.name": "the bases differ in it",
    "model.architecture": "a task goes with few",
    "model.attention_layer": "one entry: tests/nn/test_layers.py",
    "model.feed_forward": "one entry: tests/nn/test_layers.py",
    "model.layers": "fields of its own: tests/nn/test_layer_pattern.py",
    "model.attention": "same results, another way: tests/nn/test_fused_attention.py",
    "data.name": "the bases differ in it",
    "data.num_workers": "same results, another way: tests/data/batches",
    "data.cache_dir": "same results, another way: tests/data/batches/test_token_cache.py",
    "model.scan_layers": "same results, another way: tests/runs/test_scan_layers.py",
    "train.loss": "one built-in entry: tests/test_losses.py, tests/docs/test_recipes.py",
    "task.final_mask_rate": "later batches: tests/tasks/test_masked_lm.py",
    "optimizer.plateau_factor": "lowers the rate later: tests/training/test_loop.py",
    "train.callbacks": "no built-in entry: tests/training/test_loop.py",
    "train.on_spike": "tests/runs/test_train_loop.py",
    "train.spike_factor": "tests/runs/test_train_loop.py",
    "train.reproducible": "options of the compiler: tests/runs/test_train.py",
    "train.scale_to_data": "when a run starts: tests/runs/test_prepare.py",
    "train.init_from": "a run: tests/runs/test_train.py",
    "parallel.preemption_notice": "when a run stops: tests/runtime/test_preemption.py",
    "parallel.heartbeat_seconds": "jobs of several processes: tests/parallel/test_hosts.py",
    "seed": "the first state and the order: tests/runs/test_build.py",
}
ELSEWHERE = {
    "checkpoint": "when and what is saved: tests/checkpoints",
    "eval": "when and what is evaluated: tests/runs/test_train.py, tests/training",
    "decode": "tests/tasks/test_options.py",
    "logging": "what is written of a run: tests/logs",
    "lora": "tests/runs/test_frozen.py, tests/nn/test_lora.py",
    "parallel": "same results, another way: tests/parallel",
}
"""Sections whose fields have no effect that is compared here, and where they are tested."""
SIZES = dict.fromkeys(("source", "target", "text", "label", "tags"), 30)
ALONE = {
    # Layers, optimizers and steps are those of language_modeling.
    "translation": (
        *("task.", "data.", "tokenizer."),
        *("model.num_", "model.positions", "model.max_", "model.tie", "model.vocab"),
        *("model.norm", "model.embedding", "model.initialization"),
        *("model.final", "model.logits", "model.scale_"),
    ),
    "recurrent translation": ("model.", "train.remat"),
    "parsing": ("task.", "data."),  # the rest is translation's
    "instruction": ("task.", "data."),  # the rest is language_modeling's
    "masked_lm": (
        *("task.", "data.", "tokenizer.", "optimizer.", "train."),
        # Layers are those of language_modeling.
        *("model.num_", "model.norm", "model.embedding", "model.tie", "model.vocab"),
        *("model.positions", "model.max_length", "model.initialization"),
    ),
    "classification": ("task.", "data.", "optimizer."),  # the rest is masked_lm's
    "tagging": ("task.", "data.", "model.rope", "model.attention_window"),
}
"""Prefixes of the fields tested with this base; another base covers the others."""
WALKED = [
    name
    for name in FIELDS
    if name.partition(".")[0] not in ELSEWHERE and name not in TESTED_ELSEWHERE
]


WORDS = "the old man sees a dog and women walk their dogs Ünd so weiter".split()  # noqa: SIM905
LINES = {
    "pair": lambda words: " ".join(words) + "\n",
    "text": lambda words: " ".join(words) + "\n\n",
    "label": lambda words: f"{' '.join(words)}\t{'AB'[len(words[0]) % 2]}\n",
    "turns": lambda words: (
        '{"messages": [{"role": "system", "content": "now"}, '
        f'{{"role": "user", "content": "{words[0]}"}}, '
        f'{{"role": "assistant", "content": "{" ".join(words)}"}}]}}\n'
    ),
    "tree": lambda words: (
        f"(TOP (NP-SBJ (-NONE- *) {''.join(f'({len(w)} {w})' for w in words)}))\n"
    ),
    "tags": lambda words: "".join(f"{word}\t{'AB'[len(word) % 2]}\n" for word in words) + "\n",
}
KINDS = {
    "translation": "pair",
    "instruction": "turns",
    "parsing": "tree",
    "classification": "label",
    "tagging": "tags",
}


@pytest.fixture(scope="module")
def files_of(tmp_path_factory):
    """`files_of(task, part)`: the fields that name files, with the "first" or "second" text."""
    folder, rng = tmp_path_factory.mktemp("text"), np.random.default_rng(0)

    def path(kind, split, part):
        found = folder / f"{kind}.{split}.{part}"
        if not found.exists():
            head = "text\tlabel\n" if kind == "label" else ""
            lines = [LINES[kind](list(rng.choice(WORDS, 6))) for _ in range(40)]
            found.write_text(head + "".join(lines), encoding="utf-8")
        return str(found)

    def fields(task, part):
        kind = KINDS.get(task, "text")
        sides = ("source", "target") if kind == "pair" else ("text",)
        return {
            f"data.{split}_{side}": path(f"{kind}", f"{split}.{side}", part)
            for split in ("train", "valid", "test")
            for side in sides
        }

    return fields


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """`outcome(section)`: functions from settings to results that the section's fields may change.

    The cheap ones come first. The program of the initial values has the forward pass too, so few
    fields need the loss traced.
    """
    tokenizers_of = {}

    def texts(settings):
        """Examples, their tokenizers, and the digests of the tokenizers' files."""
        examples = open_split(settings.data, "train")
        key = (settings.tokenizer, settings.task, str(list(examples)))
        if key not in tokenizers_of:
            folder = tmp_path_factory.mktemp("tokenizers") / "tokenizer"
            tokenizers = build_tokenizers(settings, folder, examples)
            stored = {path.name: digest(path.read_bytes()) for path in folder.iterdir()}
            tokenizers_of[key] = tokenizers, stored
        return examples, *tokenizers_of[key]

    def of_data(settings):
        examples, tokenizers, stored = texts(settings)
        task, _ = built(settings, build.vocab_sizes(tokenizers), tokenizers, trace=lambda *_: ())
        held_out = [list(open_split(settings.data, split)) for split in ("valid", "test")]
        batch = next(batches_of(settings, task, examples, 8))
        first = {name: array.tolist() for name, array in batch.items()}
        return len(examples), held_out, first, task.lengths, stored, task.best_by

    def built(settings, sizes, tokenizers, trace):
        """The task, and what `trace` makes of its `init`, which `build_task` would trace."""
        traced = []
        stand_in = SimpleNamespace(
            eval_shape=lambda init, key: traced.extend(trace(init, key)), random=jax.random
        )
        with mock.patch.object(build, "jax", stand_in):
            return build.build_task(settings, sizes, tokenizers), traced

    @functools.lru_cache(2)
    def task_of(settings):
        trace = functools.partial(jax.make_jaxpr, return_shape=True)
        task, traced = built(settings, SIZES, None, lambda init, key: trace(init)(key))
        return task, *traced

    def of_shapes(settings):
        return str(task_of(settings)[2])

    def of_loss(settings):
        task, _, params = task_of(settings)
        rows = batch_shapes(task.lengths, 2)
        with rematerialized_layers(settings.train.remat):
            program = jax.make_jaxpr(task.loss)(params, rows, jax.random.key(0), {})
        return str(program), [np.asarray(const).tolist() for const in program.consts]

    def of_start(settings):
        return str(task_of(settings)[1])

    trainings = {}

    def of_training(settings):
        """The step of `traced_training`, for which nothing else of the base matters."""
        key = (settings.optimizer, settings.train, settings.model.d_model)
        if key not in trainings:
            trainings[key] = traced_training(settings)
        return trainings[key]

    def traced_training(settings):
        """The task with a loss of its own; its model does not matter."""
        leaves = {"kernel": jnp.ones((4, 4)), "bias": jnp.ones(4)}
        task = SimpleNamespace(
            lengths={"text": 16},
            init=lambda key: {"encoder": {"layer_0": {"feed_forward": {"inner": leaves}}}},
            loss=lambda params, batch, rng, frozen: (
                sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params)) + batch.sum(),
                jnp.float32(1),
                {"filled": jnp.float32(1)},
            ),
        )
        engine = build.build_engine(settings)
        schedule, step, init_state = build.build_training(settings, task, engine)
        state = jax.eval_shape(init_state, 0)
        program = jax.make_jaxpr(step)(state, jax.ShapeDtypeStruct((4, 2), jnp.float32))
        rates = [float(schedule(count)) for count in (0, 7, 30)]
        return str(state), rates, str(program), settings.train.rows(16)

    sections = {
        "model": [of_shapes, of_start, of_loss],
        "task": [of_data],
        "tokenizer": [of_data],
        "data": [of_data],
        "optimizer": [of_training],
        "train": [of_training, of_loss],
    }
    return lambda section: sections[section]


def digest(content):
    return hashlib.sha256(content).hexdigest()


def other(name, value, second):
    """Another valid value of a field."""
    if name in second:
        return second[name]
    if name in OTHERS:
        return OTHERS[name]
    field = FIELDS[name]
    if field.type is bool:
        return not value
    if field.type is str:
        return "x"
    if field.type is float:
        return 0.3 if value is None or value < 0.2 else value / 2
    if name == "tokenizer.vocab_size":
        return value - 1
    return 3 if value is None else value + 1


@pytest.mark.parametrize("base", BASES)
def test_every_field_has_an_effect_or_is_refused(base, path, files_of, outcome):
    task, walked = base.split()[-1], ALONE.get(base, "")
    first, second = (files_of(task, part) for part in ("first", "second"))
    base = {"task.name": task, **SMALL, **BASES[base], **first}
    config = load_config(path, base)
    values, settings = flatten(config.to_dict()), read_settings(config)
    before, idle = functools.cache(lambda make: make(settings)), []
    for name in [name for name in WALKED if name.startswith(walked)]:
        changes = {name: other(name, values[name], second)}
        if name == "tokenizer.byte_fallback":  # 256 tokens of their own
            changes |= {"tokenizer.vocab_size": 290}
        if name == "data.weights":  # of two corpora
            both = {files: f"{first[files]},{second[files]}" for files in first}
            changes |= {files: both[files] for files in first if "train" in files}
        try:
            after = read_settings(load_config(path, base | changes))
            makers = outcome(name.partition(".")[0])
            changed = any(make(after) != before(make) for make in makers)
        except UserError as error:
            assert name.partition(".")[2] in str(error), name
            continue
        if not changed:
            idle.append(name)
    assert idle == []


def test_a_field_without_an_effect_has_none(path, files_of, outcome):
    """No program's text names a place in memory, by which every other one would differ."""
    base = {"task.name": "translation", **SMALL, **BASES["translation"]}
    base |= files_of("translation", "first")
    settings, other_seed = (read_settings(load_config(path, base | {"seed": n})) for n in (0, 1))
    for section in ("model", "train"):
        for make in outcome(section):
            assert make(settings) == make(other_seed), (section, make)


def test_few_fields_are_not_covered():
    assert FIELDS.keys() >= TESTED_ELSEWHERE.keys()
    assert len(WALKED) > 75
