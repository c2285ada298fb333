# SPDX-License-Identifier: Apache-2.0
"""The section `decode` of a config."""

from functools import partial

from tests.refusals import assert_refused
from transformer_jax.inference.config import DecodeConfig


def test_defaults_are_those_of_the_paper():
    config = DecodeConfig()
    assert (config.beam_size, config.alpha, config.max_extra_length) == (4, 0.6, 50)
    DecodeConfig(temperature=1.0, num_outputs=10)  # may exceed the beam size


def test_settings_that_a_search_would_ignore_are_refused():
    settings = {
        "search is 'bem', not one of beam, greedy, sample, unmask; did you mean beam?": {
            "search": "bem"
        },
        "search 'sample' asks for a temperature": {"search": "sample"},
        "temperature is for sampling, and search is 'beam'": {"search": "beam", "temperature": 1.0},
        "top_k is for sampling; set temperature": {"top_k": 5},
        "top_p is for sampling; set temperature": {"search": "greedy", "top_p": 0.5},
        "temperature is nan": {"temperature": float("nan")},
        "top_p is 1.1; it must lie in": {"temperature": 1.0, "top_p": 1.1},
    }
    assert_refused({words: partial(DecodeConfig, **fields) for words, fields in settings.items()})
