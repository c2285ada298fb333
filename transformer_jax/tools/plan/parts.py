"""Which part of the paper a kernel belongs to, by the names of the modules that asked for it."""

import re

PARTS = [
    (r"dropout", "dropout", "5.4 Residual dropout"),
    (r"logits|prediction_head|classifier", "loss", "3.4 Pre-softmax linear layer"),
    (r"embed\b|embedding|positions|token_types", "embedding", "3.4, 3.5 Embeddings and positions"),
    (r"_residual\b|norm", "norm", "3.1 Residual connections and normalization"),
    (r"feed_forward", "feed-forward", "3.3 Position-wise feed-forward networks"),
    (
        r"attention.*/(query|key|value|output)\b",
        "attention",
        "3.2.2 Multi-head attention: projections",
    ),
    (r"attention|attend|remember|mask", "attention", "3.2.1 Scaled dot-product attention"),
    (r"coder/while/body/(jit\(dynamic_\w+\)/)?dynamic_", "other", "kept by scanned layers"),
    (r"decode_step|prefill", "search", "6.1 Search"),
    (r"jvp\(", "loss", "5.4 Label smoothing: the loss"),
]
"""(regular expression found in the names, group, part of the paper); the first match decides."""

DROPOUT = ("dropout", "5.4 Residual dropout")
_OUTSIDE = {"train": ("optimizer", "5.3 Optimizer"), "decode": ("search", "6.1 Search")}
GROUPS = (
    *("attention", "feed-forward", "norm", "dropout", "embedding", "loss", "optimizer"),
    *("search", "other"),
)


def part_of(op_name: str, what: str) -> tuple[str, str]:
    """The group and the part of a kernel.

    Args:
      op_name: JAX's and Flax's names, as "jit(train_step)/jvp(Model)/decoder/layer_0/...".
      what: "train" or "decode"; what is outside of the model belongs to the optimizer or search.
    """
    if not op_name:
        return "other", "made by the compiler"
    for pattern, group, part in PARTS:
        if re.search(pattern, op_name):
            return group, part
    return _OUTSIDE[what]
