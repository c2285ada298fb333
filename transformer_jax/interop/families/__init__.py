# SPDX-License-Identifier: Apache-2.0
"""Published families of models, by the `model_type` of their config.json."""

from transformer_jax.interop.families.base import Family
from transformer_jax.interop.families.bert import (
    BERT,
    CAMEMBERT,
    DISTILBERT,
    MODERNBERT,
    ROBERTA,
    ROBERTA_PRELAYERNORM,
    XLM_ROBERTA,
)
from transformer_jax.interop.families.decoders import (
    GEMMA2,
    GEMMA3,
    GPT2,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    PHI3,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
)
from transformer_jax.interop.families.deepseek import DEEPSEEK_V2
from transformer_jax.interop.families.encoder_decoders import (
    BART,
    MARIAN,
    MBART,
    PEGASUS,
    T5,
    T5GEMMA,
)

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(MARIAN, PEGASUS, BART, MBART, T5, T5GEMMA),
        *(GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, PHI3),
        *(MIXTRAL, QWEN3_MOE, DEEPSEEK_V2),
        *(BERT, ROBERTA, ROBERTA_PRELAYERNORM, DISTILBERT, XLM_ROBERTA, CAMEMBERT, MODERNBERT),
    )
}
