# SPDX-License-Identifier: Apache-2.0
"""Table 2 of "Attention Is All You Need": the cost of training, in FLOPs.

The paper multiplies the time of training, the number of GPUs and the sustained FLOPS of a P100, an
estimate. Beside it are the products that the model needs in as many steps
(experiments/results/vaswani2017_table2.md).
"""

import pytest

from transformer_jax.lab.plan.program import AbstractTraining
from transformer_jax.runs.config import resolve_file

SECONDS, GPUS, P100 = 86_400, 8, 9.5e12
"""Of a day; devices; FLOPS of one, by section 6.1, footnote 5."""


@pytest.mark.parametrize(
    "name, days, published, counted",
    [("base", 0.5, 3.3e18, 9.98e17), ("big", 3.5, 2.3e19, 9.89e18)],
)
def test_the_cost_of_training(name, days, published, counted):
    settings = resolve_file(f"wmt14_en_de_{name}", {})
    assert days * SECONDS * GPUS * P100 == pytest.approx(published, rel=0.01)
    flops = AbstractTraining(settings).model_flops() * settings.train.num_steps
    assert flops == pytest.approx(counted, rel=0.001)
