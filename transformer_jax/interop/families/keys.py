"""What the keys of a config.json may hold: looked at before any of them is used."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.ranges import Range, shown

_SIZE, _AMOUNT, _RATE = Range(1, 2**31 - 1), Range(0, 1e30, "(]"), Range(0, 1, "[)")

_SIZES = (
    *("d_model", "hidden_size", "dim", "n_embd", "d_kv", "head_dim"),
    *("d_ff", "intermediate_size", "hidden_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
    *("num_attention_heads", "n_heads", "n_head", "num_heads", "num_key_value_heads"),
    *("max_position_embeddings", "n_positions", "original_max_position_embeddings"),
    *("relative_attention_num_buckets", "relative_attention_max_distance", "sliding_window"),
    *("vocab_size", "decoder_vocab_size"),
)
_AMOUNTS = (
    *("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "query_pre_attn_scalar"),
    *("attn_logit_softcapping", "final_logit_softcapping", "rope_theta", "partial_rotary_factor"),
    *("factor", "low_freq_factor", "high_freq_factor"),
)
_RATES = (
    *("dropout", "attention_dropout", "activation_dropout", "dropout_rate", "hidden_dropout_prob"),
    *("attention_probs_dropout_prob", "embd_pdrop", "resid_pdrop", "attn_pdrop"),
)
_OTHERS: Mapping[str, tuple[type, Range | None]] = {
    **dict.fromkeys(("type_vocab_size", "max_window_layers"), (int, Range(0, 2**31 - 1))),
    "pad_token_id": (int, Range(-1, 2**31 - 1)),
    **dict.fromkeys(("tie_word_embeddings", "share_encoder_decoder_embeddings"), (bool, None)),
    **dict.fromkeys(("scale_embedding", "scale_decoder_outputs"), (bool, None)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window"), (bool, None)),
    **dict.fromkeys(("activation_function", "hidden_act", "hidden_activation"), (str, None)),
    **dict.fromkeys(("activation", "feed_forward_proj", "rope_type", "type"), (str, None)),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), (dict, None)),
    "layer_types": (list, None),
}
_KINDS: Mapping[str, tuple[type, Range | None]] = {
    **dict.fromkeys(_SIZES, (int, _SIZE)),
    **dict.fromkeys(_AMOUNTS, (float, _AMOUNT)),
    **dict.fromkeys(_RATES, (float, _RATE)),
    **_OTHERS,
}
_MAY_BE_NULL = (
    *("head_dim", "n_inner", "num_decoder_layers", "num_key_value_heads", "decoder_vocab_size"),
    *("sliding_window", "layer_types", "rope_scaling", "rope_parameters", "pad_token_id"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
)


def check_keys(keys: Mapping[str, Any]) -> None:
    """Raises UserError for a key with a value of another type, or beyond any sense."""
    for key in sorted(keys.keys() & _KINDS):
        value, (type_, limit) = keys[key], _KINDS[key]
        if value is None and key in _MAY_BE_NULL:
            continue
        if limit is not None:
            reason = limit.refusal(value, type_)
        else:
            reason = None if isinstance(value, type_) else f"; it must be of type {type_.__name__}"
        if reason is not None:
            raise UserError(f"config.json: {key} is {shown(value)}{reason}")
        if type_ is dict:
            check_keys(value)
