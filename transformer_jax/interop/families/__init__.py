# SPDX-License-Identifier: Apache-2.0
"""Published families of models, by the `model_type` of their config.json."""

from transformer_jax.interop.families import bert, decoders, deepseek, encoder_decoders
from transformer_jax.interop.families.base import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(encoder_decoders.MARIAN, encoder_decoders.PEGASUS, encoder_decoders.BART),
        *(encoder_decoders.MBART, encoder_decoders.T5, encoder_decoders.T5GEMMA),
        *(decoders.GPT2, decoders.LLAMA, decoders.MISTRAL, decoders.QWEN2, decoders.QWEN3),
        *(decoders.GEMMA2, decoders.GEMMA3, decoders.PHI3, decoders.MIXTRAL, decoders.QWEN3_MOE),
        *(deepseek.DEEPSEEK_V2, bert.BERT, bert.ROBERTA, bert.ROBERTA_PRELAYERNORM),
        *(bert.DISTILBERT, bert.XLM_ROBERTA, bert.CAMEMBERT, bert.MODERNBERT),
    )
}
