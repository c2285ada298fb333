# SPDX-License-Identifier: Apache-2.0
"""The table of parameters tells what it does not describe."""

import numpy as np

from transformer_jax.nn.parameters import describe_unlisted


def test_parameters_without_a_row_are_named():
    listed = {"inner": {"kernel": np.zeros((2, 3)), "bias": np.zeros(3)}}
    assert describe_unlisted(listed) is None
    assert describe_unlisted(listed | {"taps": np.zeros((4, 2))}) == (
        "taps [4, 2] has no row in the table of parameters: each device holds a copy, and without "
        "a row there is no weight decay; add it to `parameters` of its class"
    )
    deeper = {"inner": {"kernel": np.zeros((2, 3, 4)), "bias": np.zeros(())}}
    message = "inner/bias [] has a row with 1 axes in the table of parameters (and 1 more)"
    assert (describe_unlisted(deeper) or "").startswith(message)
