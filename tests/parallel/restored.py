"""Restores and uses a run on four forced host devices, divided in several ways; prints what comes.

Not a test: `test_hosts.py` starts it in a process of its own, where XLA_FLAGS may force devices.
"""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

import transformer_jax as tj
from transformer_jax import build
from transformer_jax.configuration import load_json, read_settings
from transformer_jax.parallel.engines import make_engine
from transformer_jax.parallel.mesh import ParallelConfig, make_mesh
from transformer_jax.tokenization import load_tokenizers
from transformer_jax.training.checkpoints import Checkpoints

LAYOUTS = {
    "1 x 1": ({"engine": "jit"}, 1),
    "1 x 4": ({"engine": "jit"}, 4),
    "fsdp 2, tensor 2": ({"fsdp": 2, "tensor": 2}, 4),
    "pmap": ({"engine": "pmap"}, 4),
}


def digest(workdir, options, count):
    """SHA-256 of the whole state, restored, taken up by the engine, and given back by it."""
    settings = read_settings(load_json(workdir / "config.json"))
    tokenizers = load_tokenizers(workdir / "tokenizer")
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    parallel = ParallelConfig(**options)
    engine = make_engine(parallel, make_mesh(parallel, jax.devices()[:count]))
    _, _, init_state = build.build_training(settings, task, engine)
    abstract = build.abstract_state(settings, init_state, engine.mesh)
    checkpoints = Checkpoints(workdir / "checkpoints", settings.checkpoint)
    _, state, _ = checkpoints.restore("latest", abstract)
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(engine.portable(engine.adopt(state))):
        total.update(np.asarray(leaf).tobytes())
    return total.hexdigest()


if __name__ == "__main__":
    workdir = Path(sys.argv[1])
    chosen = {name: layout for name, layout in LAYOUTS.items() if layout[1] <= jax.device_count()}
    digests = {name: digest(workdir, *layout) for name, layout in chosen.items()}
    run = tj.load(workdir)
    predictions = run.n_best(sys.argv[2:], batch_size=6)  # does not divide among four
    scores = run.score(sys.argv[2:], sys.argv[2:])
    figures = run.evaluate(split="test")
    found = {"digests": digests, "predictions": predictions, "scores": scores, "figures": figures}
    json.dump(found, sys.stdout)
