# SPDX-License-Identifier: Apache-2.0
"""A very large beam translates better than a beam of 4.

    transformer_jax claim large_beam --workdir=runs/claims

One might expect it, because a larger beam finds more probable outputs. Koehn and Knowles 2017 say
that it does not: beyond narrow beams quality falls. Models, sentences and length penalty are those
of beam_or_greedy.

Tutorials: larger beams lead to better translations
([one](https://university.govur.com/courses/attention-is-all-you-need-a-comprehensive-guide-to-neural-machine-translation/flashcard/qs-0ogKSM2yOa2z)).
Here: A beam of 64 is a little better than one of 4 in these small models; Koehn and Knowles 2017
found it worse. It is no rule.
"""

from functools import partial

from beam_or_greedy import bleu
from beam_or_greedy import get_claim as beam_or_greedy


def get_claim():
    return beam_or_greedy() | dict(
        statement="A beam of 64 has a higher BLEU than a beam of 4.",
        measure={
            "beam of 64": partial(bleu, beam_size=64),
            "beam of 4": partial(bleu, beam_size=4),
        },
        source="Koehn and Knowles 2017, Six Challenges for NMT, 3.6, say that it does not",
    )
