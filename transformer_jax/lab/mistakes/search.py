# SPDX-License-Identifier: Apache-2.0
"""Checks searches: greedy decoding and beam search on small drawn models."""

import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy.special import log_softmax

from transformer_jax.lab.mistakes import engine
from transformer_jax.lab.mistakes.engine import SECONDS, Answer, RejectedError, Subject, Trial

VOCABULARY, PAD, BOS, EOS = 7, 0, 1, 2
LENGTH, BEAMS, ALPHA, MODELS = 5, 3, 0.9, 12
SIZE = LENGTH + 3
"""Length of a row of outputs: a search may add tokens at both ends."""


def beam_search(table: np.ndarray, **options: Any) -> np.ndarray:
    """Tokens [SIZE] of the best hypothesis after BOS, to EOS, then -1.

    Options are those of table.toml, `steps`, and `stop`: finished hypotheses leave the beam
    ("aside", which `wide` looks for among twice as many candidates), or stay in it ("stay").
    """
    beams = options.get("beams", BEAMS)
    stop = options.get("stop", "aside")
    live: list[tuple[list[int], float]] = [([BOS], 0.0)]
    done: list[tuple[list[int], float]] = []

    def final(hypothesis: tuple[list[int], float]) -> float:
        tokens, score = hypothesis
        length = len(tokens) - 2 + options.get("counted", 1)
        divisor = max(length, 1) if options.get("norm") == "power" else (5 + length) / 6
        return score / divisor ** options.get("alpha", 0.0)

    for _ in range(options.get("steps", LENGTH)):
        candidates: list[tuple[float, int, list[int]]] = []
        for parent, (tokens, score) in enumerate(live):
            if tokens[-1] == EOS and stop != "never":  # only where they stay
                candidates.append((score, parent, []))
                continue
            log_probs = table[[PAD, *tokens][-2], tokens[-1]]
            candidates += [(score + log_probs[t], parent, [t]) for t in range(VOCABULARY)]
        candidates.sort(key=lambda candidate: candidate[0], reverse=True)
        previous = live
        live = []
        for row, (score, parent, added) in enumerate(candidates[: beams * (1 + (stop == "wide"))]):
            source = min(row, len(previous) - 1) if options.get("not_reordered") else parent
            history = previous[source][0] + added
            if added == [EOS] and stop in ("aside", "wide", "first"):
                done.append((history, score))
            elif len(live) < beams:
                live.append((history, score))
        if (stop == "first" and done) or not live:
            break
    return until_end(max(done + live, key=final)[0])


def until_end(tokens: list[int]) -> np.ndarray:
    """Tokens without BOS before EOS, unless others than EOS and padding follow it."""
    tokens = tokens[tokens[:1] == [BOS] :]
    if EOS in tokens and not set(tokens[tokens.index(EOS) :]) - {EOS, PAD}:
        tokens = tokens[: tokens.index(EOS)]
    return np.array((tokens + [-1] * SIZE)[:SIZE], np.float64)


def searched(tables: np.ndarray, **options: Any) -> np.ndarray:
    """Outputs of searches [model, SIZE]."""
    return np.stack([beam_search(table, **options) for table in tables])


def drawn_models(rng: np.random.Generator) -> np.ndarray:
    """Models as tables of log P after two tokens, the first after PAD, [model, V, V, V]; their
    searches end at different lengths."""
    shape = (MODELS, VOCABULARY, VOCABULARY)
    tables = np.log(rng.dirichlet(np.full(VOCABULARY, 0.6), shape) + 1e-6)
    tables[..., [PAD, BOS]] -= 20
    tables[..., EOS] += 0.5
    return log_softmax(tables, -1)


def check_search(
    fn: Callable[..., Any],
    *,
    beams: int | None = None,
    alpha: float | None = None,
    seconds: float = SECONDS,
) -> Answer:
    """Finds the mistake in a search `fn(model, bos, eos, max_length, beams)`.

    `model(tokens)` is given: log-probabilities of the next token for tokens [T] or [N, T], or those
    of all positions if the search reads `[..., -1, :]`. Also known are the exponent of a length
    penalty (alpha) and targets, which a search must not read.

    Args:
      beams: number of beams of a function that has it inside; without any it is greedy.
      alpha: exponent of the length penalty inside.
    """
    roles = ["model", "bos", "eos", "length", "beams", "penalty", "labels", "vocabulary"]
    subject = Subject("check_search", fn, roles, seconds)
    tables = drawn_models(np.random.default_rng(0))
    count = BEAMS if subject.has("beams") else beams or 1
    penalty = ALPHA if subject.has("penalty") else alpha or 0.0
    values: dict[str, Any] = {"bos": BOS, "eos": EOS, "length": LENGTH, "beams": count}
    values |= {"penalty": penalty, "vocabulary": VOCABULARY}
    trials = []
    for reads, every in {"the next token": False, "all positions": True}.items():
        try:
            output = _outputs(subject, tables, every, values, 3)
            other = _outputs(subject, tables, every, values, 4) if subject.has("labels") else output
        except RejectedError:
            continue
        changed = int((other != output).any(-1).sum())
        if changed:
            evidence = f"other targets change {changed} of {MODELS} outputs"
            return engine.judged("check_search", "a search", "teacher_forcing", evidence)
        norms = ("gnmt", "power") if penalty else ("gnmt",)
        limits = {"": LENGTH, ", the start token counts in max_length": LENGTH - 1}
        forms = itertools.product(limits, ("aside", "wide", "stay"), norms, (1, 0, 2))
        for limit, stop, norm, counted in forms:
            name = f"{count} beams, log-probabilities of {reads}, finished {stop}"
            name += f", {norm} penalty {penalty}" * bool(penalty) + limit
            options: dict[str, Any] = {"beams": count, "alpha": penalty, "norm": norm}
            options |= {"stop": stop, "counted": counted, "steps": limits[limit]}
            trials.append(Trial(name, values, partial(searched, tables, **options), output))
    return engine.diagnose(subject, "search", trials)


def _outputs(
    subject: Subject, tables: np.ndarray, every: bool, values: dict[str, Any], target: int
) -> np.ndarray:
    """Outputs [model, SIZE] of the function, where all targets are one token."""
    rows = []
    labels = np.full(LENGTH, target)
    for table in tables:
        result = subject(model=partial(_model, table, every), labels=labels, **values)
        tokens = _best_tokens(jax.tree.map(lambda a: getattr(a, "tolist", lambda: a)(), result))
        if tokens is None:
            raise subject.rejected(f"it returns {type(result).__name__}, no tokens")
        rows.append(until_end(tokens))
    return np.stack(rows)


def _model(table: np.ndarray, every: bool, tokens: Any, *_: Any) -> Any:
    """Log-probabilities [..., V] or [..., T, V] in the library of the tokens [..., T]."""
    ids = np.asarray(engine.to_numpy(tokens), int)
    previous = np.insert(ids, 0, PAD, -1)[..., :-1]
    log_probs = table[previous, ids]
    log_probs = log_probs if every else log_probs[..., -1, :]
    if hasattr(tokens, "detach"):
        return sys.modules["torch"].from_numpy(log_probs).float()
    return jax.numpy.asarray(log_probs) if isinstance(tokens, jax.Array) else log_probs


def _best_tokens(result: Any) -> list[int] | None:
    """Tokens of the first hypothesis in a result: a row, rows, or rows with scores."""
    if not isinstance(result, (tuple, list)):
        return None
    if all(isinstance(token, (int, float)) for token in result):
        is_tokens = all(float(token).is_integer() for token in result)
        return [int(token) for token in result] if is_tokens else None
    return next((tokens for tokens in map(_best_tokens, result) if tokens is not None), None)
