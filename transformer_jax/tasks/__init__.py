# SPDX-License-Identifier: Apache-2.0
"""Registry of tasks: each entry of `TASKS` is a value of `task.name`.

An entry names the task's class, the keys of its examples, its default config and metrics, and the
config fields that it reads. To add a task, register a `TaskKind`; `tasks.interface` defines what a
task must do.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from transformer_jax.inference.config import CONTINUATION_FIELDS, TARGET_FIELDS
from transformer_jax.metrics import MEANS
from transformer_jax.registry import Registry, imported
from transformer_jax.scoring import PARSEVAL
from transformer_jax.tasks.corruptions import MASK_FIELDS
from transformer_jax.tasks.interface import TaskKind

# Default configs.

_ADAMW = {"optimizer.name": "adamw", "optimizer.clip_norm": 1.0, "train.label_smoothing": 0.0}

_GPT_DEFAULTS: dict[str, Any] = {
    **_ADAMW,
    "model.architecture": "decoder_only",
    "tokenizer.kind": "byte_bpe",
    "data.name": "text",
    "decode.beam_size": 1,
    "optimizer.schedule": "cosine",
    "optimizer.learning_rate": 6e-4,
    "optimizer.warmup_steps": 2000,
    "optimizer.weight_decay": 0.1,
    "optimizer.beta2": 0.95,
    "optimizer.epsilon": 1e-8,
}
"""Optimizer settings of GPT-3 (Brown et al. 2020, appendix B)."""

_BERT_DEFAULTS: dict[str, Any] = {
    **_ADAMW,
    "model.architecture": "encoder_only",
    "tokenizer.kind": "wordpiece",
    "data.name": "text",
    "optimizer.schedule": "linear",
    "optimizer.learning_rate": 1e-4,
    "optimizer.warmup_steps": 10_000,
    "optimizer.weight_decay": 0.01,
    "optimizer.beta2": 0.999,
    "optimizer.epsilon": 1e-6,
}
"""Optimizer settings of BERT's pre-training (Devlin et al. 2019, appendix A.2)."""

_DENOISING_DEFAULTS: dict[str, Any] = {
    **_ADAMW,
    "task.objective": "spans",
    "tokenizer.joint": True,
    "data.name": "text",
}

_MASK_PREDICT_DEFAULTS: dict[str, Any] = {
    "model.attention_layer": "bidirectional",
    "decode.search": "unmask",
    "decode.beam_size": 5,
    "decode.unmask.steps": 10,
    "decode.unmask.remask": True,
}
"""Search settings of Ghazvininejad et al. 2019, section 5."""

_FINE_TUNING_DEFAULTS: dict[str, Any] = {
    **_BERT_DEFAULTS,
    "optimizer.learning_rate": 5e-5,
    "optimizer.warmup_steps": 500,
    "train.num_steps": 10_000,
}
"""Settings of BERT's fine-tuning (Devlin et al. 2019, appendix A.3)."""

_PARSING_DEFAULTS: dict[str, Any] = {
    "model.tie_embeddings": "target",
    "data.name": "bracketed_trees",
    "decode.alpha": 0.3,
    "decode.max_extra_length": 300,
}
"""Search settings of the paper (section 6.3). The vocabulary of trees is not shared with a
text's."""

# Keys of examples, metrics, and groups of config fields.

_PAIRS = {"source": ("source",), "target": ("target",)}
_TEXT = {"text": ("text",)}

_TOKEN_METRICS = ("loss", "train_loss", "perplexity", "accuracy", "padding", "num_examples")

_SMOOTHING = "train.label_smoothing"
_LOSS = ("train.loss", "train.r_drop", _SMOOTHING)
_Z_LOSS = "train.z_loss"
_LENGTH = "data.max_length"
_SCORED = ("eval.num_examples", "eval.command")  # tasks with metrics of their outputs
_DOCUMENTS = (
    *(_LENGTH, "data.packing", "data.tags", "data.cache_dir", "data.block_megabytes"),
    "data.num_train_tokens",
)
_LOGITS = (  # tasks that predict tokens
    *("model.tie_embeddings", "model.logits_bias", "model.scale_logits", "model.final_logit_cap"),
    "train.loss_tiles",
)
_TEMPLATE = tuple(
    f"task.{name}" for name in ("template", "system_turn", "user_turn", "assistant_turn")
)


def _decode(names: Sequence[str]) -> list[str]:
    return [f"decode.{name}" for name in names]


_LABELS = _decode(("num_outputs", "batch_size"))
_TARGET = _decode(TARGET_FIELDS)
_CONTINUATION = _decode(CONTINUATION_FIELDS)


def _imported(path: str) -> Callable[..., Any]:
    return imported(f"{__name__}.{path}")


_TEXT_PAIR_FIELDS = (
    *("tokenizer.joint", "task.metric", "data.tags", "data.cache_dir", "train.scale_to_data"),
)
"""Fields that a task on pairs reads only if both sides are text."""

_PAIR_FIELDS = (
    *("data.max_source_length", "data.max_target_length"),
    *_TEXT_PAIR_FIELDS,
    *(*_LOGITS, *_LOSS, _Z_LOSS, *_SCORED, *_TARGET),
)

_TEXT_TO_TEXT = TaskKind(
    _imported("translation:Translation.build"),
    _PAIRS,
    metric="bleu",
    metrics=_TOKEN_METRICS,
    reads=_PAIR_FIELDS,
)

TASKS: Registry[TaskKind] = Registry(
    "task.name",
    {
        "translation": _TEXT_TO_TEXT,
        "seq2seq": dataclasses.replace(_TEXT_TO_TEXT, metric="exact_match"),
        "parsing": TaskKind(
            _imported("parsing:Parsing.build"),
            {"source": ("source",)},
            symbols={"target": _imported("parsing:tree_symbols")},
            defaults=_PARSING_DEFAULTS,
            metrics=(*_TOKEN_METRICS, *PARSEVAL),
            reads=(
                "task.tree_words",
                *(name for name in _PAIR_FIELDS if name not in _TEXT_PAIR_FIELDS),
            ),
        ),
        "language_modeling": TaskKind(
            _imported("language_modeling:LanguageModeling.build"),
            _TEXT,
            defaults=_GPT_DEFAULTS,
            metrics=(*_TOKEN_METRICS, "bits_per_byte", "word_perplexity"),
            reads=(*_DOCUMENTS, *_LOGITS, *_LOSS, _Z_LOSS, *_CONTINUATION),
        ),
        "instruction": TaskKind(
            _imported("instruction:Instruction.build"),
            _TEXT,
            defaults=_GPT_DEFAULTS | {"data.name": "conversations"},
            more_keys=("turns",),
            metrics=_TOKEN_METRICS,
            reads=(_LENGTH, *_LOGITS, *_LOSS, _Z_LOSS, *_TEMPLATE, *_CONTINUATION),
        ),
        "preference": TaskKind(
            _imported("preference:Preference.build"),
            _TEXT,
            defaults=_GPT_DEFAULTS | {"data.name": "preferences"},
            more_keys=("turns", "chosen", "rejected"),
            metrics=("loss", "train_loss", "accuracy", *MEANS, "padding", "num_examples"),
            frozen=("reference",),
            stored="reference",
            reads=(_LENGTH, *_LOGITS, _SMOOTHING, *_TEMPLATE, "task.beta", *_CONTINUATION),
        ),
        "choices": TaskKind(
            _imported("multiple_choice:MultipleChoice.build"),
            _TEXT,
            defaults=_GPT_DEFAULTS | {"data.name": "choices"},
            more_keys=("context", "choices", "answer"),
            metrics=(*_TOKEN_METRICS, "accuracy_by_length"),
            reads=(_LENGTH, *_LOGITS, *_LOSS, _Z_LOSS, *_SCORED, *_LABELS),
        ),
        "masked_lm": TaskKind(
            _imported("masked_lm:MaskedLanguageModeling.build"),
            _TEXT,
            defaults=_BERT_DEFAULTS,
            metrics=_TOKEN_METRICS,
            needs_mask=True,
            reads=(
                *(*_DOCUMENTS, *_LOGITS, *_LOSS[:-1], _Z_LOSS),  # its labels are not smoothed
                *(*MASK_FIELDS, *_LABELS),
            ),
        ),
        "denoising": TaskKind(
            _imported("denoising:build"),
            _TEXT,
            defaults=_DENOISING_DEFAULTS,
            metrics=_TOKEN_METRICS,
            needs_mask=True,
            reads=(
                *(*_DOCUMENTS, *_LOGITS, *_LOSS, _Z_LOSS, "task.objective", *MASK_FIELDS),
                *dict.fromkeys((*_TARGET, *_CONTINUATION)),
            ),
        ),
        "mask_predict": TaskKind(
            _imported("mask_predict:MaskPredict.build"),
            _PAIRS,
            defaults=_MASK_PREDICT_DEFAULTS,
            metric="bleu",
            metrics=_TOKEN_METRICS,
            needs_mask=True,
            reads=(
                *(name for name in _PAIR_FIELDS if name not in _TARGET),
                *(*_decode(("search", "beam_size", "temperature", "seed")), *_LABELS),
            ),
        ),
        "classification": TaskKind(
            _imported("classification:Classification.build"),
            {"text": ("text", "pair")},
            {"label": lambda label: [label]},
            _FINE_TUNING_DEFAULTS | {"data.name": "table"},
            metrics=("loss", "train_loss", "accuracy", "f1", "matthews", "num_examples"),
            reads=(_LENGTH, "model.pooler_activation", *_LOSS, *_SCORED, *_LABELS),
        ),
        "tagging": TaskKind(
            _imported("tagging:Tagging.build"),
            _TEXT,
            {"tags": str.split},
            _FINE_TUNING_DEFAULTS | {"data.name": "tagged_words"},
            metrics=("loss", "train_loss", "accuracy", "words", "num_examples"),
            reads=(_LENGTH, *_LOSS, *_SCORED, "decode.batch_size"),
        ),
    },
)
"""Built-in tasks by name."""
