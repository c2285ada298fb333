# SPDX-License-Identifier: Apache-2.0
"""A callback: after each evaluation, the continuation of a prompt and its share of new words.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/samples \\
        --modules=docs/recipes/callback.py --config.train.callbacks=samples
"""

import json

from transformer_jax.training.callbacks import CALLBACKS, Callback

PROMPT = "The"


@CALLBACKS.register("samples")
class Samples(Callback):
    """Writes `samples.jsonl` in the workdir, and records the metric `distinct_words`."""

    def at_evaluation(self, step, metrics, params):
        ((best, *_),) = self.run.task.predict(params, [PROMPT], self.run.settings.decode)
        with open(self.run.workdir / "samples.jsonl", "a", encoding="utf-8") as file:
            print(json.dumps({"step": step, "text": best.text}), file=file)
        words = best.text.split()
        return {"distinct_words": len(set(words)) / max(1, len(words))}
