# SPDX-License-Identifier: Apache-2.0
"""Reads and writes generation_config.json: how transformers generates with a model.

Fields that the file does not set have the defaults of `generate` in transformers, never ours. What
a search here cannot do is warned about by name: it changes the outputs, not the model.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax import ranges
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.interop.config_json import CONFIG, read_json
from transformer_jax.interop.families.base import Keys, ReadKeys

GENERATION = "generation_config.json"

_SAMPLING: Mapping[str, tuple[str, Any]] = {
    "temperature": ("temperature", 1.0),
    "top_k": ("top_k", 50),
    "top_p": ("top_p", 1.0),
}
"""Key of sampling -> field of the section `decode`, and the default of `generate`."""

_NO_LIMIT = {"top_k": 0, "top_p": 1.0}
"""Values that switch a truncation off."""

_NEUTRAL: Keys = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "length_penalty"), 1.0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0.0),
    **dict.fromkeys(("typical_p", "top_h", "guidance_scale"), 1.0),
    **dict.fromkeys(("renormalize_logits", "token_healing", "early_stopping"), False),
    **dict.fromkeys(("remove_invalid_values", "do_sample", "use_mtp"), False),
    "min_p": 0.0,
    "penalty_alpha": 0.0,
    **dict.fromkeys(
        (
            *("stop_strings", "max_time", "bad_words_ids", "force_words_ids", "constraints"),
            *("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "sequence_bias"),
            *("exponential_decay_length_penalty", "dola_layers", "watermarking_config"),
            *("forced_bos_token_id", "forced_eos_token_id", "max_new_tokens"),
        )
    ),
}
"""Key that changes outputs -> the value with which it does not."""

NO_EFFECT = (
    *("max_length", "use_cache", "cache_implementation", "cache_config", "max_cache_len"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("return_dict_in_generate", "transformers_version", "_from_model_config", "trust_remote_code"),
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "low_memory"),
    *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
    *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "speculation_type"),
    *("assistant_ensemble_weight", "compile_config", "disable_compile", "prefill_chunk_size"),
    *("continuous_batching_config", "_commit_hash", "_original_object_hash"),
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
)
"""Keys without an effect on outputs here: metadata, speed, what `generate` returns; special tokens,
which are read by themselves; `max_length`, as `decode.max_extra_length` limits outputs here."""

KEYS = frozenset((*_NEUTRAL, *_SAMPLING, *NO_EFFECT))
"""Keys of generation, which older models have in config.json."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """Settings of a published model's `generate`, as fields of our search.

    Attributes:
      fields: "decode.field" -> value.
      start: first input of a decoder with an encoder; None if only config.json names it.
      head: forced first tokens of a target; None: as the tokenizer says.
      ends: all tokens that end an output; none if only config.json names them.
      warnings: what a search here does not do, one line each.
    """

    fields: Mapping[str, Any]
    start: int | None
    head: tuple[int, ...] | None
    ends: tuple[int, ...]
    warnings: tuple[str, ...]


def read_generation(directory: Path, config: ReadKeys, architecture: str | None) -> Generation:
    """Reads the settings of generation of the model in a directory.

    Args:
      config: its config.json. Without a generation_config.json, its keys of generation hold, as in
        transformers; with one they have no effect. Both are noted as read.
      architecture: of the model, an entry of `models.MODELS`; None: its class has no `generate`.
    """
    path = directory / GENERATION
    in_config = {key: config[key] for key in KEYS if key in config.data}
    if path.exists():
        return _Reader(GENERATION, read_json(path)).read(architecture)
    return _Reader(CONFIG, in_config).read(architecture)


def end_tokens(keys: Keys) -> tuple[int, ...]:
    """Tokens of `eos_token_id`, which is one or a list."""
    eos = keys.get("eos_token_id")
    tokens = eos if isinstance(eos, list) else [eos]
    return tuple(dict.fromkeys(i for i in tokens if type(i) is int and i >= 0))


class _Reader:
    """Translates the keys of a file; collects warnings about those that a search cannot follow."""

    def __init__(self, file: str, keys: Keys):
        self._file = file
        self._keys = ReadKeys({key: value for key, value in keys.items() if value is not None})
        self._warnings: list[str] = []

    def read(self, architecture: str | None) -> Generation:
        """All settings of a model of this architecture."""
        if architecture in (None, "encoder_only"):
            return Generation({}, None, None, (), ())
        has_encoder = architecture == "encoder_decoder"
        fields = self._sampled() if self._keys.get("do_sample") else {}
        if has_encoder and not fields:
            beam = {"num_beams": ("beam_size", 1), "length_penalty": ("alpha", 1.0)}
            fields = {**self._fields(beam), "length_penalty": "power"}
        if not has_encoder:
            fields |= self._fields({"repetition_penalty": ("repetition_penalty", 1.0)})
            fields |= self._fields({"max_new_tokens": ("max_extra_length", None)})
        head = self._head() if has_encoder else None
        start = self._keys.get("decoder_start_token_id") if has_encoder else None
        ends = end_tokens(self._keys.data)
        if has_encoder and len(ends) > 1:
            self._warn("eos_token_id", f"outputs of an encoder-decoder end with {ends[0]} alone")
        self._warn_unread()
        return Generation(
            {f"decode.{field}": value for field, value in fields.items()},
            start if type(start) is int else None,
            head,
            ends if self._file == GENERATION else (),
            tuple(self._warnings),
        )

    def _sampled(self) -> dict[str, Any]:
        values = {key: self._keys.get(key, default) for key, (_, default) in _SAMPLING.items()}
        unlimited = {key for key, value in _NO_LIMIT.items() if values[key] == value}
        names = {key: field for key, field in _SAMPLING.items() if key not in unlimited}
        return self._fields(names)

    def _fields(self, names: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
        """Fields of `decode` for keys: the default where a value is missing or not possible."""
        fields = {}
        for key, (field, default) in names.items():
            value = self._keys.get(key, default)
            reason = None if value is None else ranges.violation(DecodeConfig, field, value)
            if reason:
                used = "" if default is None else f"; {default} is used"
                self._warn(key, f"{reason.lstrip(';, ')} here (decode.{field}){used}")
                value = default
            if value is not None:
                fields[field] = value
        return fields

    def _head(self) -> tuple[int, ...] | None:
        forced = self._keys.get("forced_bos_token_id")
        if forced is None:
            return None
        if type(forced) is int and forced >= 0:
            return (forced,)
        self._warn("forced_bos_token_id", "it must be a token's id")
        return None

    def _warn_unread(self) -> None:
        """Warns about keys that change outputs and have no equivalent, and about unknown ones."""
        end = self._keys.data.get("eos_token_id", self._keys.data.get("forced_eos_token_id"))
        pad = self._keys.data.get("pad_token_id")
        for key, value in self._keys.unread().items():
            if key in NO_EFFECT or (key in _NEUTRAL and value == _NEUTRAL[key]):
                continue
            if key in _SAMPLING or value in ([], {}, ""):
                continue  # without do_sample they have no effect
            exact = (("forced_eos_token_id", end), ("bad_words_ids", [[pad]]))
            if (key, value) in (*exact, ("early_stopping", "never")):
                continue  # a search bans padding, and ends when no better output is possible
            self._warn(key, "a search here does not follow it; outputs may differ")

    def _warn(self, key: str, reason: str) -> None:
        value = ranges.short_repr(self._keys.data[key])
        self._warnings.append(f"{self._file}: {key} is {value}; {reason}")


def generation_keys(decode: DecodeConfig, has_encoder: bool, longest: int) -> dict[str, Any]:
    """Keys of generation_config.json for a search, as far as `generate` can do it.

    Args:
      has_encoder: True if the model has an encoder and a decoder.
      longest: tokens of the longest target, for a model with an encoder.
    """
    keys: dict[str, Any] = {"max_length": longest}
    if not has_encoder:
        keys = {"max_new_tokens": decode.max_extra_length}
        if decode.repetition_penalty != 1:
            keys["repetition_penalty"] = decode.repetition_penalty
    if decode.temperature is not None:
        values = {key: getattr(decode, field) for key, (field, _) in _SAMPLING.items()}
        limits = {key: value for key, value in values.items() if value is not None}
        # `generate` limits to the 50 likeliest tokens where a file says nothing.
        return {**keys, "do_sample": True, **_NO_LIMIT, **limits}
    if not has_encoder:
        return keys
    if not _has_beams(decode):
        return {**keys, "num_beams": 1}
    keys |= {"num_beams": decode.beam_size, "early_stopping": "never"}
    if decode.length_penalty == "power" or not decode.alpha:
        keys["length_penalty"] = decode.alpha
    return keys


def search_warnings(decode: DecodeConfig, has_encoder: bool) -> list[str]:
    """Describes how `generate` of transformers searches in another way than a run."""
    warnings = []
    if has_encoder and _has_beams(decode) and decode.length_penalty != "power" and decode.alpha:
        warnings.append(
            f"decode.length_penalty is {decode.length_penalty!r}, which generate of transformers "
            "does not have; it compares mean log-probabilities (length_penalty 1)"
        )
    without = {"stop": decode.stop, "constraint": decode.constraint}
    if decode.search not in ("beam", "greedy", "sample"):
        without["search"] = decode.search
    for name, value in without.items():
        if value is not None:
            warnings.append(f"decode.{name} is {value!r}; generate does without it")
    return warnings


def _has_beams(decode: DecodeConfig) -> bool:
    return decode.searches[0] == "beam" and decode.beam_size > 1
