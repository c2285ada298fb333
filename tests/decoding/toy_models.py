# SPDX-License-Identifier: Apache-2.0
"""Toy models of a few tokens: `logits_after(sentence, prefix)` is the slow reference, `prefill` and
`decode_step` are the same model for searches."""

import jax.numpy as jnp
import numpy as np

PAD, UNK, BOS, EOS = range(4)
BANNED = (PAD, UNK, BOS)


class MarkovChain:
    """Markov chain: the next token depends on the last. Memory holds a chain for every sentence.

    Only tokens 3 (EOS) to 3 + `num_words` have any probability.
    """

    def __init__(self, seed, batch_size, num_words, vocab_size):
        rng = np.random.default_rng(seed)
        self.num_words = num_words
        self.chains = np.full((batch_size, vocab_size, vocab_size), -np.inf, np.float32)
        reachable = (batch_size, vocab_size, num_words + 1)
        self.chains[:, :, EOS : EOS + num_words + 1] = 1.5 * rng.normal(size=reachable)

    def logits_after(self, sentence, prefix):
        return self.chains[sentence, prefix[-1] if prefix else BOS]

    def prefill(self):
        return self.chains[:, BOS], self.chains, ()

    @staticmethod
    def decode_step(tokens, memory, state):
        beam_size = tokens.shape[0] // memory.shape[0]
        return jnp.repeat(memory, beam_size, axis=0)[jnp.arange(tokens.shape[0]), tokens], state


class Historian:
    """Model whose next token depends on the whole prefix, which only the state holds.

    The state is a running hash [N] and a decaying sum of token vectors [N, 2, D]: a state that is
    not reordered with its hypothesis gives other logits. The memory is a table for every sentence.
    `eos_bonus`, a number or one for each sentence, makes outputs short.
    """

    num_hashes, width = 97, 3

    def __init__(self, seed, batch_size, vocab_size, eos_bonus=0.0):
        rng = np.random.default_rng(seed)
        self.vectors = rng.normal(size=(vocab_size, 2, self.width)).astype(np.float32)
        self.tables = rng.normal(size=(batch_size, self.num_hashes, vocab_size))
        self.tables = (2 * self.tables).astype(np.float32)
        self.tables[:, :, EOS] += np.reshape(eos_bonus, (-1, 1))
        self.readout = rng.normal(size=(2 * self.width, vocab_size)).astype(np.float32)

    def logits_after(self, sentence, prefix):
        hashed, sums = 1, np.zeros((2, self.width), np.float32)
        for token in prefix:
            hashed = (hashed * 31 + int(token)) % self.num_hashes
            sums = 0.5 * sums + self.vectors[token]
        return self.tables[sentence, hashed] + sums.reshape(-1) @ self.readout

    def prefill(self, sentences=slice(None)):
        tables = self.tables[sentences]
        state = {
            "hash": np.ones(len(tables), np.int32),
            "sums": np.zeros((len(tables), 2, self.width), np.float32),
        }
        return tables[:, 1], {"tables": tables}, state

    def decode_step(self, tokens, memory, state):
        tables = memory["tables"]
        sentences = jnp.repeat(jnp.arange(len(tables)), len(tokens) // len(tables))
        hashed = (state["hash"] * 31 + tokens) % self.num_hashes
        sums = 0.5 * state["sums"] + jnp.array(self.vectors)[tokens]
        logits = tables[sentences, hashed] + sums.reshape(len(tokens), -1) @ self.readout
        return logits, {"hash": hashed, "sums": sums}


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def score(log_prob, length, alpha, length_penalty="gnmt"):
    base = {"gnmt": (5 + length) / 6, "power": length}[length_penalty]
    return log_prob / base**alpha
