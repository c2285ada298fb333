# SPDX-License-Identifier: Apache-2.0
"""A metric of texts: character accuracy by edit distance (Levenshtein 1966).

    transformer_jax train --config=quickstart --workdir=runs/edits \\
        --modules=docs/recipes/metric.py --config.task.metric=character_accuracy
"""

from transformer_jax.scoring import METRICS


@METRICS.register("character_accuracy")
def character_accuracy(outputs, references):
    """1 - edits / characters of the references; below 0 if outputs are much too long."""
    edits = sum(edit_distance(*pair) for pair in zip(outputs, references, strict=True))
    return {"character_accuracy": 1 - edits / max(1, sum(map(len, references)))}


def edit_distance(a, b):
    """Minimal number of insertions, deletions and replacements that turn a into b."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b):
            row.append(min(above[j] + (x != y), above[j + 1] + 1, row[j] + 1))
    return row[-1]
