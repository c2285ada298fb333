# SPDX-License-Identifier: Apache-2.0
"""PyTorch's training step beside ours: GPT-2 and Marian at base's sizes, full rows, no packing.

Compiled, bfloat16 autocast, fused Adam, attention by `scaled_dot_product_attention`.
"""

import importlib.util
import time
from typing import Any

from experiments.devices.check import Check
from transformer_jax.tools.benchmark import median_seconds

FORMS = {"use_cache": False, "attn_implementation": "sdpa"}
GPT2 = FORMS | {"vocab_size": 50_304, "n_positions": 1024, "attn_pdrop": 0.0}
TINY_GPT2 = {"vocab_size": 512, "n_embd": 32, "n_layer": 1, "n_head": 2}
MARIAN = FORMS | {
    "vocab_size": 37_000,
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "max_position_embeddings": 512,
    "dropout": 0.1,
    "activation_function": "relu",
    "scale_embedding": True,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
TINY_MARIAN = {"vocab_size": 512, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}


def run(check: Check) -> None:
    missing = [name for name in ("torch", "transformers") if not importlib.util.find_spec(name)]
    if missing:
        check.record("left out", reason=f"{' and '.join(missing)} not installed")
        return
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel

    if not (check.dry or torch.cuda.is_available()):
        check.record("left out", reason="PyTorch sees no GPU")
        return
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with check.attempt("PyTorch, GPT-2"):
        config = GPT2Config(**GPT2 | (TINY_GPT2 if check.dry else {}))
        time_peer(check, "GPT-2", GPT2LMHeadModel(config), (2, 32) if check.dry else (16, 1024))
    with check.attempt("PyTorch, Marian"):
        config = MarianConfig(**MARIAN | (TINY_MARIAN if check.dry else {}))
        time_peer(check, "Marian", MarianMTModel(config), (2, 32) if check.dry else (96, 256))


def time_peer(check: Check, name: str, model: Any, shape: tuple[int, int]) -> None:
    """Records the median time of a step on rows of random tokens, and the memory that it takes."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).train()
    compiled = model if check.dry else torch.compile(model)
    is_pair = model.config.is_encoder_decoder
    vocab_size = model.config.vocab_size
    source = torch.randint(4, vocab_size, shape, device=device)
    target = torch.randint(4, vocab_size, shape, device=device)
    inputs = {"input_ids": source}
    if is_pair:
        inputs["decoder_input_ids"] = target
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1 if is_pair else 0.0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            logits = compiled(**inputs).logits
            loss = criterion(logits.reshape(-1, vocab_size), target.reshape(-1))
        loss.backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step()
    compile_s = time.perf_counter() - start
    seconds = median_seconds(step, 2 if check.dry else 20)
    tokens = shape[0] * shape[1] * (2 if is_pair else 1)
    peak_gib = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
    speed = {"step_ms": 1e3 * seconds, "tokens_per_s": round(tokens / seconds)}
    check.record(f"PyTorch, {name}", **speed, compile_s=compile_s, peak_gib=peak_gib)
