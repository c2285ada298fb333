# SPDX-License-Identifier: Apache-2.0
"""The Transformer of "Attention Is All You Need" in JAX: to run, to change, to trust.

    import transformer_jax as tj
    config = tj.config("configs/quickstart.py", {"train.num_steps": 500})
    run = tj.train(config, workdir)                  # or tj.load(workdir)
    tj.load_ensemble(workdir, another)               # runs that predict together
    rows = tj.sweep(tj.Sweep(...), workdir)          # variants, each with several seeds
    tj.merge_tables(workdir, another)                # rows of several sweeps in one table
    tj.compare(workdir, another)                     # is one better? tests over seeds and examples
    tj.night(folder)                                 # proposals, tested with one error rate for all
    tj.plan(config, "h100:8")                        # cost of a training step there
    tj.verify(config, modules="mine.py")             # oracles on a component of yours
    tj.check_attention(my_attention)                 # finds the mistake in a function of yours
    "".join(tj.Chat(run).ask("..."))                 # chat with an instruction-tuned run

Imports are lazy, so that the command line answers at once.
"""

from importlib import import_module
from typing import Any

from transformer_jax.errors import Stopped, UserError

_LAZY = {
    "Chat": ("transformer_jax.runs.run", "Chat"),
    "Claim": ("transformer_jax.lab.evidence.claims", "Claim"),
    "Sweep": ("transformer_jax.lab.sweeps.definition", "Sweep"),
    "check_attention": ("transformer_jax.lab.mistakes.attention", "check_attention"),
    "check_loss": ("transformer_jax.lab.mistakes.training", "check_loss"),
    "check_mask": ("transformer_jax.lab.mistakes.layers", "check_mask"),
    "check_model": ("transformer_jax.lab.mistakes.layers", "check_model"),
    "check_positions": ("transformer_jax.lab.mistakes.layers", "check_positions"),
    "check_schedule": ("transformer_jax.lab.mistakes.training", "check_schedule"),
    "check_search": ("transformer_jax.lab.mistakes.search", "check_search"),
    "check_training": ("transformer_jax.lab.mistakes.training", "check_training"),
    "compare": ("transformer_jax.lab.evidence.comparison", "compare"),
    "config": ("transformer_jax.runs.config", "load_config"),
    "decide": ("transformer_jax.lab.evidence.claims", "decide_claim"),
    "load": ("transformer_jax.runs.load", "load"),
    "load_ensemble": ("transformer_jax.runs.load", "load_ensemble"),
    "merge_tables": ("transformer_jax.lab.sweeps.results", "merge_tables"),
    "night": ("transformer_jax.lab.night.report", "night"),
    "plan": ("transformer_jax.lab.plan.plan", "plan"),
    "read_data": ("transformer_jax.runs.prepare", "read_data"),
    "sweep": ("transformer_jax.lab.sweeps.sweep", "run_sweep"),
    "train": ("transformer_jax.runs.train", "train"),
    "verify": ("transformer_jax.lab.verification.verify", "verify"),
}

__all__ = ["Stopped", "UserError", *_LAZY]

_GIVES_RUNS = ("Chat", "load", "load_ensemble", "sweep", "train")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = getattr(import_module(module), attribute)
    if name in _GIVES_RUNS:
        import_module("transformer_jax.lab.analysis")  # gives `Run` methods that look inside it
    return value


def __dir__() -> list[str]:
    return __all__
