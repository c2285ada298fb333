# SPDX-License-Identifier: Apache-2.0
"""Table 2 of "Attention Is All You Need": the cost of training, in FLOPs.

    transformer_jax reproduce vaswani2017/table2

The paper multiplies the time of training, the number of GPUs and the sustained FLOPS of a P100, an
estimate. Beside it are the products that the model itself needs in that many steps, counted from
its config. Nothing is trained.
"""

from transformer_jax.lab.plan.program import abstract_training
from transformer_jax.runs.config import load_config, read_settings

DAY, GPUS, P100 = 86_400, 8, 9.5e12
"""Seconds; devices; FLOPS of one, by section 6.1, footnote 5."""
DAYS = {"base": 0.5, "big": 3.5}
CONFIGS = {"base": "wmt14_en_de_base", "big": "wmt14_en_de_big"}

PAPER = {
    "base": {"en-de": 3.3e18, "en-fr": 3.3e18},
    "big": {"en-de": 2.3e19, "en-fr": 2.3e19},
    "Deep-Att + PosUnk": {"en-fr": 1.0e20},
    "GNMT + RL": {"en-de": 2.3e19, "en-fr": 1.4e20},
    "ConvS2S": {"en-de": 9.6e18, "en-fr": 1.5e20},
    "MoE": {"en-de": 2.0e19, "en-fr": 1.2e20},
    "Deep-Att + PosUnk, ensemble": {"en-fr": 8.0e20},
    "GNMT + RL, ensemble": {"en-de": 1.8e20, "en-fr": 1.1e21},
    "ConvS2S, ensemble": {"en-de": 7.7e19, "en-fr": 1.2e21},
}
"""Row -> direction -> FLOPs. Typed, and compared with three public transcriptions of the paper,
which agree."""
OTHERS = list(PAPER)[2:]
ESTIMATED, COUNTED = "time x GPUs x FLOPS", "counted"


def compute():
    """Both costs of our configs, which train for as many steps as the paper's models."""
    rows = {}
    for name, config in CONFIGS.items():
        settings = read_settings(load_config(config))
        counted = abstract_training(settings).model_flops() * settings.train.num_steps
        estimated = DAYS[name] * DAY * GPUS * P100
        share = counted / estimated
        rows[name] = {ESTIMATED: estimated, COUNTED: counted, "counted / estimated": share}
    return rows


STATEMENTS = {
    "The cost is time x GPUs x sustained FLOPS (section 6.1).": [
        (name, name, ESTIMATED, "equal", "published en-de") for name in CONFIGS
    ],
    "The base model costs less than any competitive model.": [
        ("base", name, ESTIMATED, "lower", f"published {pair}")
        for name in OTHERS
        for pair in PAPER[name]
    ],
    "The big model costs less than any other model for English to French.": [
        ("big", name, ESTIMATED, "lower", "published en-fr") for name in OTHERS
    ],
    "The cost is what the model computes (our question).": [
        (name, name, COUNTED, "equal", ESTIMATED) for name in CONFIGS
    ],
}


def get_reproduction():
    return dict(
        title="Table 2 of Attention Is All You Need (Vaswani et al. 2017): training FLOPs",
        published=PAPER,
        compute=compute,
        statements=STATEMENTS,
        notes=[
            "Counted are multiplications and additions of all products, forward and backward, of "
            "100,000 steps (base) and 300,000 (big) of 24,576 positions a side, padding included. "
            "Their share of the estimate is the utilization that 9.5 TFLOPS and the paper's times "
            "imply.",
            "The other models' costs are the paper's figures; they are not counted.",
        ],
    )
