# SPDX-License-Identifier: Apache-2.0
"""Restores a run in several layouts and uses a translator, on four forced host devices; prints
results as JSON.

    restored.py WORKDIR TRANSLATOR LINES ...

Not a test: `tests/campaigns/test_several_devices.py` starts it, where XLA_FLAGS may force devices.
`pair.py` does some of it in a job.
"""

import hashlib
import json
import sys
from pathlib import Path

import jax

import transformer_jax as tj
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.parallel import hosts
from transformer_jax.parallel.engines import make_engine
from transformer_jax.parallel.sharding import ParallelConfig, make_mesh
from transformer_jax.runs import build
from transformer_jax.runs.config import load_json
from transformer_jax.tokenization import load_tokenizers

LAYOUTS = {
    "1 x 1": ({"engine": "jit"}, 1),
    "1 x 4": ({"engine": "jit"}, 4),
    "fsdp 2, tensor 2": ({"fsdp": 2, "tensor": 2}, 4),
    "fsdp 2, expert 2": ({"fsdp": 2, "expert": 2}, 4),
    "pmap": ({"engine": "pmap"}, 4),
}
PATCHES = {
    "decoder.layer_0.cross_attention.heads[1]": 0,
    "encoder.layer_0.self_attention.weights[:, 1:]": 0.5,
}
"""Patches that switch off parts of the run."""


def restored(workdir, options, count, which="latest"):
    """The engine, and the whole state as it was restored."""
    settings = load_json(workdir / "config.json")
    tokenizers = load_tokenizers(workdir / "tokenizer")
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    parallel = ParallelConfig(**options)
    engine = make_engine(parallel, make_mesh(parallel, jax.devices()[:count]))
    _, _, init_state = build.build_training(settings, task, engine)
    abstract = build.abstract_state(settings, init_state, engine.mesh)
    checkpoints = Checkpoints(workdir / "checkpoints", settings.checkpoint)
    return engine, checkpoints.snapshot(which).state(abstract)


def digest(workdir, options, count):
    """SHA-256 of the restored state, after a round trip through the engine's own form."""
    engine, state = restored(workdir, options, count)
    total = hashlib.sha256()
    for leaf in jax.tree.leaves(hosts.to_host(engine.to_portable(engine.from_portable(state)))):
        total.update(leaf.tobytes())
    return total.hexdigest()


def use_in_job(workdir, damaged):
    """Results of one of two processes with two devices each: files of the run's checkpoint that it
    hashed, and its fallback and error for the damaged run."""
    hashed, entry_of = [], manifest._entry_of

    def noted(path):
        hashed.append(path.relative_to(workdir / "checkpoints").as_posix())
        return entry_of(path)

    manifest._entry_of = noted
    found = {"digests": {"2 x 2": digest(workdir, {"fsdp": 4}, 4)}, "hashed": hashed}
    manifest._entry_of = entry_of
    _, state = restored(damaged, {"fsdp": 4}, 4)
    try:
        restored(damaged, {"fsdp": 4}, 4, "30")
    except tj.UserError as error:
        return found | {"fell back to": int(state.step), "refused": str(error)}


def use(workdir, lines):
    """Scores and metrics of the run on all devices."""
    run = tj.load(workdir)
    return {"scores": run.score(lines, lines), "metrics": run.evaluate(split="test")}


def use_divided(workdir, lines):
    """Predictions, attention and importance of a patched run with parameters sharded in two."""
    config = json.loads((workdir / "config.json").read_text())
    config["parallel"]["fsdp"] = 2
    (workdir / "config.json").write_text(json.dumps(config))
    run = tj.load(workdir).patched(PATCHES)
    importance = run.head_importance("test")
    return {
        "predictions": run.n_best(lines, batch_size=6),  # does not divide among four
        "weights": run.attention(lines[0], lines[0]).weights("cross").tolist(),
        "importance": {place: found.tolist() for place, found in importance.items()},
    }


def main():
    workdir = Path(sys.argv[1])
    translator = Path(sys.argv[2])
    lines = sys.argv[3:]
    digests = {name: digest(workdir, *layout) for name, layout in LAYOUTS.items()}
    results = {"digests": digests} | use(translator, lines)
    results["patched"] = use_divided(translator, lines)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
