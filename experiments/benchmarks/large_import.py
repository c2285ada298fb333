# SPDX-License-Identifier: Apache-2.0
"""Measures time and memory of importing a Llama of 1.1 billion parameters.

    python experiments/benchmarks/large_import.py --tokenizer=DIR

Writes random weights of TinyLlama's sizes, in bfloat16 like published models, to a temporary
folder. DIR contains tokenizer.json and tokenizer_config.json of a Llama. Prints one JSON object:
bytes of the parameters in float32, peak memory of the importing process, memory of such a process
before it reads them, and seconds.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
}
CONFIG = {
    **SIZES,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--tokenizer", required=True, metavar="DIR")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, workdir = Path(folder, "model"), Path(folder, "run")
        model.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(args.tokenizer, name), model)
        idle = most_memory([sys.executable, "-c", "import transformer_jax.interop.importing"])[0]
        count = write_model(model)
        command = [sys.executable, "-m", "transformer_jax", "import"]
        most, seconds = most_memory([*command, f"--from={model}", f"--workdir={workdir}"])
    found = {"parameters": count, "bytes": 4 * count, "most_bytes": most, "idle_bytes": idle}
    print(json.dumps(found | {"seconds": round(seconds, 1)}))
    return 0


def write_model(directory: Path) -> int:
    """Writes config.json and one safetensors file; returns the number of parameters."""
    (directory / "config.json").write_text(json.dumps(CONFIG))
    draw = np.random.default_rng(0)
    tensors = {
        name: (0.02 * draw.standard_normal(shape, np.float32)).astype(ml_dtypes.bfloat16)
        for name, shape in shapes().items()
    }
    save_file(tensors, directory / "model.safetensors")
    return sum(tensor.size for tensor in tensors.values())


def shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors."""
    width, inner, rows = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    shared = width // SIZES["num_attention_heads"] * SIZES["num_key_value_heads"]
    of_layer = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (shared, width),
        "self_attn.v_proj": (shared, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    named = {"model.embed_tokens.weight": (rows, width), "lm_head.weight": (rows, width)}
    named |= {"model.norm.weight": (width,)}
    for i in range(SIZES["num_hidden_layers"]):
        named |= {f"model.layers.{i}.{name}.weight": shape for name, shape in of_layer.items()}
    return named


def most_memory(command: list[str]) -> tuple[int, float]:
    """Peak memory of a command in bytes, and its seconds. The system reports the largest child so
    far, so run small commands first."""
    start = time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - start
    return 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, seconds


if __name__ == "__main__":
    sys.exit(main())
