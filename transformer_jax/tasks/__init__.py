"""Tasks by the name that `task.name` gives."""

from typing import Any

from transformer_jax.metrics import MEANS
from transformer_jax.registry import Registry
from transformer_jax.scoring.parseval import METRICS as PARSEVAL
from transformer_jax.tasks.classification import Classification
from transformer_jax.tasks.instruction import Instruction
from transformer_jax.tasks.interface import TaskKind
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.masked_lm import MaskedLanguageModeling
from transformer_jax.tasks.multiple_choice import MultipleChoice
from transformer_jax.tasks.parsing import Parsing, tree_symbols
from transformer_jax.tasks.preference import Preference
from transformer_jax.tasks.tagging import Tagging
from transformer_jax.tasks.translation import Translation

_PAIRS = {"source": ("source",), "target": ("target",)}
_TEXT = {"text": ("text",)}

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
"""The optimizer's are GPT-3's (Brown et al. 2020, appendix B)."""

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
"""The optimizer's are BERT's (Devlin et al. 2019, appendix A.2)."""

_FINE_TUNING_DEFAULTS: dict[str, Any] = {
    **_BERT_DEFAULTS,
    "optimizer.learning_rate": 5e-5,
    "optimizer.warmup_steps": 500,
    "train.num_steps": 10_000,
}
"""Likewise (appendix A.3)."""

_PARSING_DEFAULTS: dict[str, Any] = {
    "model.tie_embeddings": "target",
    "data.name": "bracketed_trees",
    "decode.alpha": 0.3,
    "decode.max_extra_length": 300,
}
"""The search's are the paper's (section 6.3); the vocabulary of trees is no text's."""

_TOKEN_METRICS = ("loss", "perplexity", "accuracy", "padding", "num_examples")

_SMOOTHING, _Z_LOSS = "train.label_smoothing", "train.z_loss"
_LENGTH = "data.max_length"
_SCORED = ("eval.num_examples", "eval.command")
"""What is read where outputs are scored."""
_RUNNING_TEXT = (_LENGTH, "data.packing", "data.cache_dir", "data.block_megabytes")
_LOGITS = (
    *("model.tie_embeddings", "model.logits_bias", "model.scale_logits", "model.final_logit_cap"),
    "train.loss_tiles",
)
"""What is read where tokens are predicted."""
_TEMPLATE = tuple(
    f"task.{name}" for name in ("template", "system_turn", "user_turn", "assistant_turn")
)


def _decode(task: type[Any]) -> list[str]:
    return [f"decode.{name}" for name in task.predicts_by]


_OF_PAIRS = (
    *("data.max_source_length", "data.max_target_length", "data.cache_dir"),
    *("tokenizer.joint", "task.metric"),
    *(*_LOGITS, _SMOOTHING, _Z_LOSS, "train.r_drop", *_SCORED, *_decode(Translation)),
)

_OF_TEXTS = ("tokenizer.joint", "task.metric", "data.cache_dir")
"""Of these, what is read where both sides are text."""

TASKS: Registry[TaskKind] = Registry(
    "task.name",
    {
        "translation": TaskKind(
            Translation.build, _PAIRS, metric="bleu", metrics=_TOKEN_METRICS, reads=_OF_PAIRS
        ),
        "seq2seq": TaskKind(
            Translation.build, _PAIRS, metric="exact_match", metrics=_TOKEN_METRICS, reads=_OF_PAIRS
        ),
        "parsing": TaskKind(
            Parsing.build,
            {"source": ("source",)},
            symbols={"target": tree_symbols},
            defaults=_PARSING_DEFAULTS,
            metrics=(*_TOKEN_METRICS, *PARSEVAL),
            reads=("task.tree_words", *(name for name in _OF_PAIRS if name not in _OF_TEXTS)),
        ),
        "language_modeling": TaskKind(
            LanguageModeling.build,
            _TEXT,
            defaults=_GPT_DEFAULTS,
            metrics=(*_TOKEN_METRICS, "bits_per_byte", "word_perplexity"),
            reads=(*_RUNNING_TEXT, *_LOGITS, _SMOOTHING, _Z_LOSS, *_decode(LanguageModeling)),
        ),
        "instruction": TaskKind(
            Instruction.build,
            _TEXT,
            defaults=_GPT_DEFAULTS | {"data.name": "conversations"},
            metrics=_TOKEN_METRICS,
            reads=(_LENGTH, *_LOGITS, _SMOOTHING, _Z_LOSS, *_TEMPLATE, *_decode(Instruction)),
        ),
        "preference": TaskKind(
            Preference.build,
            _TEXT,
            defaults=_GPT_DEFAULTS | {"data.name": "preferences"},
            metrics=("loss", "accuracy", *MEANS, "padding", "num_examples"),
            reads=(_LENGTH, *_LOGITS, _SMOOTHING, *_TEMPLATE, "task.beta", *_decode(Preference)),
        ),
        "choices": TaskKind(
            MultipleChoice.build,
            _TEXT,
            defaults=_GPT_DEFAULTS | {"data.name": "choices"},
            metrics=("loss", "perplexity", "accuracy", "accuracy_by_length", *_TOKEN_METRICS[3:]),
            reads=(_LENGTH, *_LOGITS, _SMOOTHING, _Z_LOSS, *_SCORED, *_decode(MultipleChoice)),
        ),
        "masked_lm": TaskKind(
            MaskedLanguageModeling.build,
            _TEXT,
            defaults=_BERT_DEFAULTS,
            metrics=_TOKEN_METRICS,
            reads=(
                *_RUNNING_TEXT,
                *_LOGITS,
                _Z_LOSS,
                "task.mask_rate",
                "task.whole_words",
                *_decode(MaskedLanguageModeling),
            ),
        ),
        "classification": TaskKind(
            Classification.build,
            {"text": ("text", "pair")},
            {"label": lambda label: [label]},
            _FINE_TUNING_DEFAULTS | {"data.name": "labeled_tsv"},
            metrics=("loss", "accuracy", "f1", "matthews", "num_examples"),
            reads=(_LENGTH, _SMOOTHING, *_SCORED, *_decode(Classification)),
        ),
        "tagging": TaskKind(
            Tagging.build,
            _TEXT,
            {"tags": str.split},
            _FINE_TUNING_DEFAULTS | {"data.name": "tagged_words"},
            metrics=("loss", "accuracy", "words", "num_examples"),
            reads=(_LENGTH, _SMOOTHING, *_SCORED, *_decode(Tagging)),
        ),
    },
)
"""A task of yours is a `TaskKind` registered here; `tasks.interface` says what a task can do."""
