# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the fixtures: a config of each family, and weights that all affect the results."""

from dataclasses import dataclass, field

import torch
import transformers

LIMIT = 28  # positions
LABELS = {0: "neutral", 1: "contradiction", 2: "entailment"}
CLASSES = dict(id2label=LABELS, label2id={name: index for index, name in LABELS.items()})
BERT = dict(
    **dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=28),
    max_position_embeddings=LIMIT,
)
ROBERTA = BERT | dict(max_position_embeddings=LIMIT + 2, type_vocab_size=1, layer_norm_eps=1e-5)
DISTILBERT = dict(dim=16, hidden_dim=28, n_layers=2, n_heads=2, max_position_embeddings=LIMIT)
BART = dict(d_model=16, max_position_embeddings=LIMIT)
BART |= {f"{side}_layers": 2 for side in ("encoder", "decoder")}
BART |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
BART |= {f"{side}_ffn_dim": 28 for side in ("encoder", "decoder")}
GELU, SCALED = dict(activation_function="gelu"), dict(scale_embedding=True)
T5 = dict(d_model=20, d_kv=6, d_ff=28, num_layers=2, num_heads=3)
T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=20)
LLAMA = dict(hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4)
LLAMA |= dict(num_key_value_heads=2, max_position_embeddings=LIMIT, rms_norm_eps=1e-5)
LLAMA3_SCALING = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3_SCALING |= dict(original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, mscale=0.5, mscale_all_dim=0.8)
YARN |= dict(original_max_position_embeddings=8)
LATENT = dict(kv_lora_rank=10, q_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=6)
GEMMA = dict(num_hidden_layers=3, head_dim=8, sliding_window=5, query_pre_attn_scalar=10)
T5GEMMA_STACK = LLAMA | GEMMA | dict(hidden_size=20, num_hidden_layers=2)
T5GEMMA_STACK |= dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
T5GEMMA = dict(encoder=T5GEMMA_STACK | dict(num_hidden_layers=3), decoder=T5GEMMA_STACK)
MODERNBERT = dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=20)
MODERNBERT |= dict(max_position_embeddings=LIMIT, local_attention=6)
MODERNBERT |= dict(
    rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 3000.0},
    }
)


@dataclass(frozen=True)
class Family:
    """Recipe of one fixture.

    Attributes:
      model: the class of transformers.
      tokenizer: the function of fixture_tokenizers.
      config: fields of the config, except special ids, which come from the tokenizer.
      kind: encoder_decoder, bare_encoder_decoder, decoder, masked_lm, classifier or tagger.
      extra_ids: rows of the embedding beyond the tokenizer's, as T5 has.
      matrices, tables: standard deviations of matrices and of embedding tables.
      eos: factor of the output row of eos, so that it is sometimes generated.
      spelling: fields of config.json as transformers 4 writes them; ... removes a field.
      max_shard_size: bytes of one file of weights.
    """

    model: str
    tokenizer: str
    kind: str
    config: dict = field(default_factory=dict)
    extra_ids: int = 0
    matrices: float = 0.3
    tables: float = 0.3
    eos: float = 2.0
    spelling: dict = field(default_factory=dict)
    max_shard_size: str = "1GB"


def old_rope(theta, scaling=None):
    """Keys of rotary positions in files older than `rope_parameters`."""
    return {"rope_parameters": ..., "rope_theta": theta, "rope_scaling": scaling}


def encoder_decoder(model, tokenizer, *configs, **more):
    model = f"{model}ForConditionalGeneration" if model != "Marian" else "MarianMTModel"
    config = {key: value for fields in configs for key, value in fields.items()}
    return Family(model, tokenizer, "encoder_decoder", config, **{"matrices": 0.25, **more})


def decoder(name, tokenizer, config=LLAMA, fields=(), **more):
    return Family(f"{name}ForCausalLM", tokenizer, "decoder", config | dict(fields), **more)


T5_SIZES = dict(extra_ids=4, tables=1.0)
FAMILIES = {
    "marian": encoder_decoder("Marian", "marian", BART, dict(activation_function="swish"), SCALED),
    "marian_separate": encoder_decoder(
        "Marian",
        "marian_separate",
        BART,
        GELU,
        SCALED,
        dict(share_encoder_decoder_embeddings=False),
    ),
    "bart": encoder_decoder("Bart", "roberta", BART, GELU),
    "mbart": encoder_decoder("MBart", "mbart", BART, GELU, SCALED),
    "pegasus": encoder_decoder("Pegasus", "t5", BART, dict(activation_function="relu"), SCALED),
    "bart_bare": Family("BartModel", "roberta", "bare_encoder_decoder", BART | GELU),
    "t5": encoder_decoder("T5", "t5", T5, matrices=0.35, **T5_SIZES),
    "t5_v1_1": encoder_decoder(
        "T5", "t5", T5, dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False), **T5_SIZES
    ),
    "t5gemma": encoder_decoder("T5Gemma", "gemma2", T5GEMMA, tables=0.1, eos=3.0),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "gpt2",
        "decoder",
        dict(n_embd=20, n_layer=2, n_head=2, n_positions=LIMIT, n_inner=36),
    ),
    "llama": decoder(
        "Llama",
        "llama",
        fields=dict(rope_parameters=dict(rope_type="default", rope_theta=5000.0)),
        spelling=old_rope(5000.0),
    ),
    "llama3": decoder(
        "Llama",
        "llama3",
        LLAMA | dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=1),
        dict(tie_word_embeddings=True, rope_parameters=LLAMA3_SCALING | dict(rope_theta=500.0)),
        spelling=old_rope(500.0, LLAMA3_SCALING),
    ),
    "llama_linear": decoder(
        "Llama",
        "llama",
        LLAMA | dict(hidden_size=16, head_dim=6, num_attention_heads=2),
        dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0)),
    ),
    "mistral": decoder("Mistral", "llama", LLAMA, dict(head_dim=8, sliding_window=5)),
    "qwen2": decoder("Qwen2", "qwen2", max_shard_size="60KB"),
    "qwen3": decoder("Qwen3", "qwen2", LLAMA, dict(hidden_size=20, head_dim=8)),
    "deepseek_v2": decoder(
        "DeepseekV2",
        "llama",
        BERT | LATENT | dict(moe_intermediate_size=12, first_k_dense_replace=1),
        dict(n_routed_experts=4, n_shared_experts=2, num_experts_per_tok=2)
        | dict(routed_scaling_factor=1.5, rope_parameters=YARN),
    ),
    "mixtral": decoder(
        "Mixtral", "llama", LLAMA, dict(hidden_size=16, intermediate_size=20, num_local_experts=3)
    ),
    "qwen3_moe": decoder(
        "Qwen3Moe",
        "qwen2",
        LLAMA | dict(hidden_size=16, head_dim=8, moe_intermediate_size=12),
        dict(num_experts=4, num_experts_per_tok=3),
    ),
    "gemma2": decoder(
        "Gemma2",
        "gemma2",
        LLAMA | GEMMA,
        dict(hidden_size=20, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    ),
    "gemma3": decoder(
        "Gemma3",
        "gemma2",
        LLAMA | GEMMA | dict(hidden_size=16, intermediate_size=20, num_attention_heads=2),
        dict(
            num_key_value_heads=1,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 3000.0},
            },
        ),
    ),
    "phi3": decoder("Phi3", "llama", LLAMA, dict(hidden_size=16, intermediate_size=20)),
    "bert_bare": Family("BertModel", "bert", "bare", BERT),  # of make_fixtures.make_sentences
    "bert_pretraining": Family("BertForPreTraining", "bert", "masked_lm", BERT),
    "xlm_roberta": Family("XLMRobertaForMaskedLM", "xlm_roberta", "masked_lm", ROBERTA),
    "camembert": Family("CamembertForMaskedLM", "camembert", "masked_lm", ROBERTA),
    "roberta_prelayernorm": Family(
        "RobertaPreLayerNormForMaskedLM", "roberta", "masked_lm", ROBERTA
    ),
    "modernbert": Family("ModernBertForMaskedLM", "roberta", "masked_lm", MODERNBERT),
    "bart_classification": Family(
        "BartForSequenceClassification",
        "roberta",
        "classifier",
        BART
        | CLASSES
        | GELU
        | dict(encoder_layers=1, d_model=8)
        | dict(encoder_ffn_dim=12, decoder_ffn_dim=12),
    ),
}
for _class, _tokenizer, _config in (
    ("Bert", "bert", BERT),
    ("Roberta", "roberta", ROBERTA),
    ("DistilBert", "bert", DISTILBERT),
):
    for _head, _suffix, _kind, _labels in (
        ("MaskedLM", "", "masked_lm", {}),
        ("SequenceClassification", "_classification", "classifier", CLASSES),
        ("TokenClassification", "_tagging", "tagger", CLASSES),
    ):
        FAMILIES[_class.lower() + _suffix] = Family(
            f"{_class}For{_head}", _tokenizer, _kind, _config | _labels
        )


def special_ids(family, tokenizer):
    """Special ids of the config: those of the tokenizer, and the start token of decoding."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    ids = {name: getattr(tokenizer, name) for name in names}
    if family.tokenizer == "bert":
        return {"pad_token_id": ids["pad_token_id"]}
    if family.tokenizer == "mbart":
        ids["decoder_start_token_id"] = tokenizer.convert_tokens_to_ids(tokenizer.tgt_lang)
    elif family.kind.endswith("encoder_decoder") or family.model.startswith("Bart"):
        start = "eos_token_id" if family.model.startswith("Bart") else "pad_token_id"
        ids["decoder_start_token_id"] = ids[start]
    return ids


def build(family, tokenizer, seed):
    """Builds a model of `family` with random weights."""
    kind = getattr(transformers, family.model)
    ids = special_ids(family, tokenizer)
    sizes = {"vocab_size": len(tokenizer) + family.extra_ids}
    if getattr(tokenizer, "separate_vocabs", False):
        sizes["decoder_vocab_size"] = len(tokenizer.target_encoder)
    stacks = ("encoder", "decoder")  # T5Gemma's have configs of their own
    nested = {side: family.config[side] | sizes for side in stacks if side in family.config}
    torch.manual_seed(seed)
    model = kind(kind.config_class(**(family.config | nested), **sizes, **ids)).eval()
    if family.config.get("tie_word_embeddings") is False:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    draw_weights(model, family, seed)
    if family.kind in ("encoder_decoder", "decoder"):
        known = {name: value for name, value in ids.items() if value is not None}
        model.generation_config = transformers.GenerationConfig(**known)  # nothing is forced
    return model


@torch.no_grad()
def draw_weights(model, family, seed):
    """Redraws all tensors except sinusoids; scales of norms are near 1 or -1, Gemma's near 0."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = [table for table in model.modules() if isinstance(table, torch.nn.Embedding)]
    tables = {id(table.weight): table for table in embeddings}
    tensors = dict(model.named_parameters())
    if hasattr(model, "final_logits_bias"):
        tensors["final_logits_bias"] = model.final_logits_bias
    for name, tensor in tensors.items():
        if "Sinusoidal" in type(tables.get(id(tensor))).__name__:
            continue
        scale = family.tables if id(tensor) in tables else family.matrices
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
        tensor.mul_(0.2 if name.endswith("bias") or tensor.ndim == 1 else scale)
        if tensor.ndim == 1 and name.endswith("weight") and "Gemma" not in family.model:
            # Signs keep tied logits from favouring the token that came in.
            tensor.add_(1.0).mul_(torch.randint(2, tensor.shape, generator=generator) * 2 - 1)
    if family.kind in ("encoder_decoder", "decoder"):
        model.get_output_embeddings().weight[model.config.eos_token_id] *= family.eos
