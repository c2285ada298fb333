# SPDX-License-Identifier: Apache-2.0
"""Suggestions for names that do not exist: a known name that is near, or this project's name for a
word of other programs.
"""

import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

_NEAR = 0.75
"""Least similarity (difflib's ratio) of a name that is suggested: "trian" and "train" have 0.8."""
_MOST_FILES = 10_000  # of a folder that are looked at

_WORDS = {
    "train.tokens_per_batch train.rows_per_device": "batch_size train_batch_size micro_batch_size "
    "per_device_train_batch_size max_tokens",
    "train.num_steps": "steps max_steps max_iters train_steps total_steps iterations max_update "
    "epochs num_epochs max_epochs num_train_epochs",
    "train.accumulation_steps": "gradient_accumulation_steps grad_accum accum_steps update_freq",
    "train.remat": "gradient_checkpointing activation_checkpointing",
    "train.init_from": "pretrained base_model init_checkpoint load_checkpoint from_pretrained",
    "train.callbacks": "callback hooks",
    "train.loss": "loss_function loss_fn criterion",
    "optimizer.learning_rate": "lr max_lr peak_lr base_lr",
    "optimizer.final_ratio": "min_lr min_learning_rate",
    "optimizer.warmup_steps": "warmup num_warmup_steps warmup_ratio warmup_iters warmup_updates",
    "optimizer.weight_decay": "wd decay l2",
    "optimizer.clip_norm": "clip grad_clip clip_grad_norm max_grad_norm gradient_clip_val",
    "optimizer.epsilon": "eps adam_eps adam_epsilon",
    "optimizer.beta1": "momentum adam_beta1",
    "optimizer.beta2": "adam_beta2",
    "optimizer.name": "optim",
    "optimizer.schedule": "scheduler lr_scheduler lr_schedule lr_scheduler_type",
    "model.d_model": "hidden_size hidden_dim model_dim embed_dim n_embd dim width",
    "model.d_ff": "intermediate_size dim_feedforward ffn_dim mlp_dim n_inner",
    "model.num_heads": "nhead n_head n_heads heads num_attention_heads attention_heads",
    "model.num_key_value_heads": "n_kv_heads num_kv_heads kv_heads",
    "model.key_size": "head_dim d_head d_k",
    "model.num_layers model.num_encoder_layers model.num_decoder_layers": "n_layer n_layers layers "
    "depth num_hidden_layers",
    "model.num_encoder_layers": "encoder_layers",
    "model.num_decoder_layers": "decoder_layers",
    "model.layers": "full_attention_every sliding_window_pattern layer_types",
    "model.dropout_rate": "dropout hidden_dropout dropout_prob hidden_dropout_prob resid_pdrop",
    "model.attention_dropout_rate": "attn_dropout attention_dropout attn_pdrop",
    "model.dtype": "fp16 bf16 float16 bfloat16 half amp mixed_precision precision torch_dtype",
    "model.activation": "hidden_act act activation_function activation_fn",
    "model.positions": "position_encoding positional_encoding position_embedding pos_encoding",
    "model.norm_placement": "norm_first pre_norm prenorm normalize_before",
    "model.tie_embeddings": "tie_word_embeddings tied_embeddings share_embeddings tie_weights",
    "model.rope_theta": "rope_base",
    "model.attention_window": "sliding_window window_size",
    "data.max_length model.max_length": "block_size seq_len seq_length sequence_length max_len "
    "max_seq_len max_seq_length context_length n_ctx max_position_embeddings",
    "tokenizer.vocab_size": "vocab vocabulary_size n_vocab",
    "data.name": "dataset dataset_name",
    "data.dir": "data_dir data_path",
    "data.train_text data.train_source": "train_file train_data train_path",
    "data.num_workers": "workers num_proc dataloader_num_workers",
    "checkpoint.every_steps": "save_every save_steps save_interval",
    "checkpoint.keep": "save_total_limit max_to_keep",
    "eval.every_steps": "eval_every eval_steps eval_interval val_interval",
    "eval.patience": "early_stopping early_stopping_patience",
    "logging.every_steps": "log_every logging_steps log_interval",
    "logging.project": "wandb_project",
    "logging.trackers": "report_to tracker loggers wandb use_wandb",
    "decode.beam_size": "num_beams beam_width",
    "decode.max_extra_length": "max_new_tokens max_output_length",
    "lora.rank": "lora_r lora_rank r",
    "lora.alpha": "lora_alpha",
    "lora.targets": "target_modules",
    "parallel.tensor": "tp tensor_parallel tensor_parallel_size model_parallel",
    "parallel.sequence": "cp sp context_parallel sequence_parallel",
    "parallel.expert": "ep expert_parallel",
    "parallel.data": "dp data_parallel",
    "seed": "seed random_seed rng_seed manual_seed",
}
"""Fields of the config -> words that other programs have for them."""

_VALUES: dict[str, dict[str, str]] = {
    "task.name": {
        "language_modeling": "lm clm causal_lm gpt",
        "masked_lm": "mlm bert",
        "translation": "mt nmt",
        "instruction": "sft chat",
        "preference": "dpo",
        "tagging": "ner pos token_classification",
    },
    "model.architecture": {
        "encoder_decoder": "transformer seq2seq t5 bart marian",
        "decoder_only": "gpt gpt2 llama causal causal_lm",
        "encoder_only": "bert",
        "recurrent": "rnn lstm gru elman",
    },
    "model.activation": {
        "silu with model.gated_feed_forward=true": "swiglu",
        "gelu with model.gated_feed_forward=true": "geglu",
        "relu with model.gated_feed_forward=true": "reglu",
        "gelu": "gelu_new gelu_tanh gelu_fast gelu_pytorch_tanh",
        "squared_relu": "relu2",
    },
    "model.norm": {"layer": "layernorm ln", "rms": "rmsnorm", "batch": "batchnorm bn"},
    "model.positions": {"rotary": "rope", "sinusoidal": "sine fixed", "learned": "absolute"},
    "tokenizer.kind": {
        "bpe or unigram": "sentencepiece spm",
        "byte_bpe": "bbpe gpt2 tiktoken byte_level",
        "char": "characters",
        "file": "pretrained auto",
    },
    "optimizer.name": {"sgd": "momentum"},
    "optimizer.schedule": {"transformer": "noam vaswani", "constant": "none fixed"},
    "decode.search": {"sample": "nucleus top_k top_p multinomial"},
}
"""Field -> value -> words that other programs have for it."""

_FLAGS = {
    "--to": "output output_dir out_dir save_dir out_path output_file outfile",
    "--workdir": "output_dir out_dir save_dir model_dir checkpoint_dir run_dir model run out_path",
    "--beam_size": "num_beams beam_width beam",
    "--modules": "plugin plugins user_dir include",
    "a shell's redirection, < FILE": "input input_file infile file stdin",
    "a shell's redirection, > FILE": "output output_file outfile stdout",
    "the same command again, which resumes": "resume continue restart resume_from_checkpoint",
}
"""Flag or way -> words that other programs have for it; of a word's flags, a verb's first is
meant."""

_VERBS = {
    "train": "fit finetune fine_tune pretrain",
    "evaluate": "test validate",
    "predict": "translate generate decode infer inference sample complete interactive",
    "chat": "talk",
    "export": "convert save",
    "import": "load download",
    "benchmark": "time profile",
}
"""Verb -> words that other programs have for it."""


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    return {_plain(word): name for name, words in table.items() for word in words.split()}


FIELD_SYNONYMS = {word: tuple(names.split()) for word, names in _by_word(_WORDS).items()}
"""Word of other programs, without punctuation -> fields of the config."""
VALUE_SYNONYMS = {field: _by_word(table) for field, table in _VALUES.items()}
"""Field -> word of other programs, without punctuation -> value."""
VERB_SYNONYMS = _by_word(_VERBS)
"""Word of other programs, without punctuation -> verb of this one."""


def flag_synonyms(known: Collection[str]) -> dict[str, str]:
    """Word of other programs, without punctuation -> a flag of a verb, or a way without one."""
    ways = {k: words for k, words in _FLAGS.items() if k in known or not k.startswith("--")}
    return _by_word(dict(reversed(ways.items())))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that differs only in punctuation, begins with the word, or is spelled nearly
    like it; None if there is none."""
    names: dict[str, str] = {}
    for name in known:
        names.setdefault(_plain(name), name)
    sought = _plain(word)
    if sought in names:
        return names[sought]
    if len(sought) > 1:
        for plain, name in names.items():
            if plain.startswith(sought):
                return name
    near = difflib.get_close_matches(sought, names, n=1, cutoff=_NEAR)
    return names[near[0]] if near else None


def suggest(word: str, known: Collection[str], synonyms: Mapping[str, str] | None = None) -> str:
    """End of a message about an unknown name: "; did you mean ...?", or nothing.

    Args:
      synonyms: name without punctuation -> the suggestion for it.
    """
    suggestion = (synonyms or {}).get(_plain(word)) or nearest(word, known)
    return f"; did you mean {suggestion}?" if suggestion else ""


def fields_named(word: str, known: Iterable[str]) -> list[str]:
    """Fields of the config for which other programs have this word, or else the first three that
    have it as their name in any section."""
    same = (field for field in known if _plain(field.rpartition(".")[2]) == _plain(word))
    return [*FIELD_SYNONYMS.get(_plain(word), ())] or [*itertools.islice(same, 3)]


def suggest_fields(name: str, known: Collection[str]) -> list[str]:
    """Fields of the config that an unknown "section.field" may mean, the most likely first.

    They are fields for which other programs have its name, fields of that name in other sections,
    or the one with a similar name; empty if there is none.
    """
    section, _, last = name.rpartition(".")
    named = fields_named(last, known)
    if named:
        return named
    start = f"{section}."
    siblings = {field.removeprefix(start): field for field in known if field.startswith(start)}
    near = nearest(last, siblings)
    if near:
        return [siblings[near]]
    near = None if siblings else nearest(name, known)  # the section may be mistyped too
    return [near] if near else []


def suggest_file(path: Path, *folders: Path) -> str:
    """`suggest` for a missing file: names of its folder, or of other `folders`."""
    for folder in (path.parent, *folders):
        try:
            names = [file.name for file in itertools.islice(folder.iterdir(), _MOST_FILES)]
        except OSError:
            continue
        near = nearest(path.name, sorted(names))
        if near:
            return f"; did you mean {folder / near}?"
    return ""
