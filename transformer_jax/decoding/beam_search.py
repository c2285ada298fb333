"""Beam search with a length penalty, as in section 6.1 of the paper.

Each step extends the alive hypotheses of a sentence by one token. The K best extensions by tokens
other than EOS are the next alive ones. An extension by EOS that is among the K best of all ends a
hypothesis, and the K best ended ones by score are kept. With K = 1 this is greedy search.
`beam_steps` is what happens in a step, `beam_tree` a record of all of them.

Axes: B batch, J beams before a step (1 at the first, then K), K beams after it, N = B * K,
V vocabulary, L output length.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from transformer_jax.decoding.beam_steps import Carry, Rules, advance, last_tokens, n_best
from transformer_jax.decoding.beams import Beams, no_beams
from transformer_jax.decoding.interface import DecodeStep, Hypotheses, Memory, Start
from transformer_jax.decoding.state import of_rows, of_sentences

SMALLEST_BATCH = 64
"""Smallest batch to shrink to. Each size compiles again; going from 64 to 32 saved only 10%."""


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """The beam search of section 6.1, a `Search`.

    Attributes:
      beam_size: hypotheses K kept of a sentence, at most V; 1 is greedy search.
      alpha: exponent of the length penalty, at least 0.
      eos_id: the token that ends an output.
      pad_id: the token that fills an output after its end.
      banned_ids: tokens never chosen. Scores stay the model's: no probability is redistributed.
      length_penalty: an entry of `LENGTH_PENALTIES`.
    """

    beam_size: int
    alpha: float
    eos_id: int
    pad_id: int
    banned_ids: tuple[int, ...] = ()
    length_penalty: str = "gnmt"

    def find(
        self, decode_step: DecodeStep, start: Start, *, num_outputs: int, max_length: int
    ) -> Hypotheses:
        """Finds the `num_outputs` best outputs of every sentence; meant to be called under
        `jax.jit`.

        A score is log P(output) / penalty(length), where the length counts EOS. Hypotheses that
        ended come first, unless the penalty says otherwise; where fewer than `num_outputs` did, the
        best of those that the limit cut follow. A sentence is done as soon as no alive hypothesis
        can enter its result any more; with one beam, at its first EOS.

        Args:
          decode_step: the model's step, closed over its parameters; called at most L - 1 times, for
            ever fewer sentences.
          start: what `prefill` returned, and the limits; its keys are not used.
          num_outputs: how many of the K to return; the fewer, the sooner they are certain.
          max_length: L, the length of the arrays returned.

        Raises:
          ValueError: `beam_size`, `num_outputs` or `alpha` is out of its range.
        """
        rules, search = self.begin(start, num_outputs, max_length)
        first = advance(rules, search, start.logits).after
        return n_best(rules, _to_the_end(decode_step, rules, start.memory, first))

    def begin(self, start: Start, num_outputs: int, max_length: int) -> tuple[Rules, Carry]:
        """What `beam_steps` goes by and from: for each sentence one empty hypothesis. Arguments and
        errors as of `find`."""
        batch_size, vocab_size = start.logits.shape
        self._check(num_outputs, vocab_size)
        rules = Rules(
            beam_size=self.beam_size,
            num_outputs=num_outputs,
            alpha=self.alpha,
            length_penalty=self.length_penalty,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
            forbidden_ids=tuple(dict.fromkeys((self.eos_id, *self.banned_ids))),
            limits=jnp.clip(start.max_lengths, 1, max_length),
        )
        beams = no_beams(batch_size, self.beam_size, max_length, self.pad_id)
        return rules, Carry(jnp.int32(0), beams, start.state)

    def _check(self, num_outputs: int, vocab_size: int) -> None:
        size = self.beam_size
        if not 1 <= size <= vocab_size:
            raise ValueError(f"beam_size is {size}; it must be in 1..{vocab_size} (vocabulary)")
        if not 1 <= num_outputs <= size:
            raise ValueError(f"num_outputs is {num_outputs}; it must be in 1..{size} (beam_size)")
        if not self.alpha >= 0:
            raise ValueError(f"alpha is {self.alpha}; it must be at least 0")


def _to_the_end(decode_step: DecodeStep, rules: Rules, memory: Memory, search: Carry) -> Beams:
    """Extends hypotheses until all are done; once half of a large batch is, with the rest alone."""
    half = len(rules.limits) // 2
    kept = half if half >= SMALLEST_BATCH else 0

    def step(search: Carry) -> Carry:
        logits, state = decode_step(last_tokens(search), memory, search.state)
        return advance(rules, dataclasses.replace(search, state=state), logits).after

    search = lax.while_loop(lambda search: (~search.beams.done).sum() > kept, step, search)
    if not kept:
        return search.beams
    chosen = jnp.argsort(search.beams.done)[:kept]  # all that are not done, and some that are
    rules = dataclasses.replace(rules, limits=rules.limits[chosen])
    rest = Carry(
        search.length,
        of_rows(search.beams, chosen),
        of_sentences(search.state, chosen, rules.beam_size),
    )
    beams = _to_the_end(decode_step, rules, of_rows(memory, chosen), rest)
    return jax.tree.map(lambda x, y: x.at[chosen].set(y), search.beams, beams)
