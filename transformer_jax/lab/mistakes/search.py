# SPDX-License-Identifier: Apache-2.0
"""Checks searches: greedy decoding and beam search on small drawn models."""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer_jax.lab.mistakes.answer import Answer, Trial, diagnose
from transformer_jax.lab.mistakes.answer import found as finding
from transformer_jax.lab.mistakes.calls import SECONDS, RejectedError, Subject

VOCABULARY, PAD, BOS, EOS = 7, 0, 1, 2
LENGTH, BEAMS, ALPHA, MODELS = 5, 3, 0.9, 10


def next_log_probs(table: np.ndarray, history: Any) -> np.ndarray:
    """log P of the next token after a history: of its last two tokens."""
    before = int(history[-2]) if len(history) > 1 else 0
    return table[before, int(history[-1])]


def beam_search(
    table: np.ndarray,
    *,
    beams: int = BEAMS,
    alpha: float = 0.0,
    reorder: bool = True,
    accumulate: bool = True,
    stop: str = "aside",
    pick: str = "best",
    norm: str = "gnmt",
    counted: int = 1,
) -> list[int]:
    """Tokens of the best hypothesis after BOS, to EOS.

    `stop` is what happens to finished hypotheses: they leave the beam ("aside", which `wide` looks
    for among twice as many candidates), or stay in it ("stay").
    """
    live = [([BOS], 0.0)]
    done: list[tuple[list[int], float]] = []

    def final(tokens: list[int], score: float) -> float:
        length = len(tokens) - 2 + counted
        divisor = ((5 + length) / 6) if norm == "gnmt" else float(max(length, 1))
        return score / divisor**alpha

    for _ in range(LENGTH):
        candidates = []
        for parent, (tokens, score) in enumerate(live):
            if tokens[-1] == EOS and stop != "never":  # only where they stay
                candidates.append((score, parent, -1))
                continue
            for token, log_prob in enumerate(next_log_probs(table, tokens)):
                total = (score if accumulate else 0.0) + log_prob
                candidates.append((total, parent, token))
        candidates.sort(key=lambda c: c[0], reverse=True)
        chosen = candidates[: 2 * beams if stop == "wide" else beams]
        previous = live
        live = []
        for row, (total, parent, token) in enumerate(chosen):
            history = previous[parent if reorder else min(row, len(previous) - 1)][0]
            hypothesis = (history + [token] * (token >= 0), total)
            if token == EOS and stop in ("aside", "wide", "first"):
                done.append(hypothesis)
            elif len(live) < beams:
                live.append(hypothesis)
        if (stop == "first" and done) or not live:
            break
    done += live
    ranked = sorted(done, key=lambda h: final(*h), reverse=True)
    best = ranked[-1 if pick == "worst" else 0][0][1:]
    return until_end(best)


def until_end(tokens: list[int]) -> list[int]:
    """Tokens before EOS, unless others than EOS and padding follow it."""
    if EOS not in tokens:
        return tokens
    end = tokens.index(EOS)
    return tokens if set(tokens[end:]) - {EOS, PAD} else tokens[:end]


def telling_models(rng: np.random.Generator) -> np.ndarray:
    """Drawn models [model, V, V, V] whose outputs differ most between right and wrong searches."""
    tables = np.log(rng.dirichlet(np.full(VOCABULARY, 0.6), (120, VOCABULARY, VOCABULARY)) + 1e-6)
    tables[..., [PAD, BOS]] -= 20
    tables[..., EOS] += 0.5  # searches end, at different lengths
    tables -= np.log(np.exp(tables).sum(-1, keepdims=True))
    variants: list[dict[str, Any]] = [{}, {"alpha": ALPHA}, {"beams": 1}, {"reorder": False}]
    variants.append({"alpha": ALPHA, "stop": "first"})
    num_outputs = []
    for table in tables:
        outputs = {tuple(beam_search(table, **variant)) for variant in variants}
        num_outputs.append(len(outputs))
    return tables[np.argsort(num_outputs)[-MODELS:]]


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
    subject = Subject(fn, roles, seconds)
    rng = np.random.default_rng(0)
    tables = telling_models(rng)
    count = BEAMS if subject.has("beams") else beams or 1
    penalty = ALPHA if subject.has("penalty") else alpha or 0.0
    values: dict[str, Any] = {
        "bos": BOS,
        "eos": EOS,
        "length": LENGTH,
        "beams": count,
        "penalty": penalty,
        "vocabulary": VOCABULARY,
    }
    outputs: dict[str, np.ndarray] = {}
    for every in (False, True):
        try:
            output = _run(subject, tables, every, values, LENGTH)
        except RejectedError:
            continue
        outputs["of all positions" if every else "of the next token"] = output
        if subject.has("labels"):
            other = _run(subject, tables, every, values, LENGTH, 1)
            changed = int((other != output).any(-1).sum())
            if changed:
                evidence = f"other targets change {changed} of {MODELS} outputs"
                return Answer(
                    "check_search", False, "a search", [finding("teacher_forcing", evidence)]
                )
    if not outputs:
        raise subject.refusal()
    trials: list[Trial] = []
    for layout, output in outputs.items():
        for stop, norm, counted in itertools.product(
            ("aside", "wide", "stay"), ("gnmt", "power"), (1, 0, 2)
        ):

            def searched(**options: Any) -> np.ndarray:
                return np.stack([_padded(beam_search(table, **options)) for table in tables])

            options = {"beams": count, "stop": stop, "norm": norm, "counted": counted}
            name = f"{count} beams, log-probabilities {layout}, finished {stop}"
            name += f", {norm} penalty {penalty}" if penalty else ""
            trials.append((name, output, searched, options | {"alpha": penalty}))
            if not penalty and (norm, counted) == ("gnmt", 1):
                break
    return diagnose("check_search", "search", trials)


def _run(
    subject: Subject, tables: np.ndarray, every: bool, values: Any, length: int, targets: int = 0
) -> np.ndarray:
    rows = []
    for table in tables:
        reference = np.full(length, 3 + targets)
        result = subject(model=_model(table, every), labels=reference, **values)
        tokens = _tokens(result)
        if tokens is None:
            raise RejectedError(f"it returns {type(result).__name__}, no tokens")
        tokens = tokens[1:] if tokens[:1] == [BOS] else tokens
        rows.append(_padded(until_end(tokens)))
    return np.stack(rows)


def _model(table: np.ndarray, every: bool) -> Callable[..., Any]:
    """A model that answers in the library in which it is asked."""

    def model(tokens: Any, *_: Any) -> Any:
        ids = np.asarray(tokens.detach() if hasattr(tokens, "detach") else tokens)
        histories = ids.reshape(-1, ids.shape[-1])
        ends = range(1, ids.shape[-1] + 1) if every else [ids.shape[-1]]
        rows = np.array([[next_log_probs(table, row[:end]) for end in ends] for row in histories])
        rows = rows if every else rows[:, 0]
        result = rows.reshape(*ids.shape[:-1], *rows.shape[1:])
        if hasattr(tokens, "detach"):
            return sys.modules["torch"].from_numpy(result).float()
        return jax.numpy.asarray(result) if isinstance(tokens, jax.Array) else result

    return model


def _tokens(result: Any) -> list[int] | None:
    """Tokens of the best hypothesis in a result: a row, rows, or rows with scores."""
    while True:
        if isinstance(result, np.ndarray) and result.ndim > 1:
            result = result[0]
        elif isinstance(result, np.ndarray):
            return [int(token) for token in result] if result.ndim else None
        elif isinstance(result, (tuple, list)) and result:
            if all(np.ndim(token) == 0 for token in result):
                if all(float(token).is_integer() for token in result):
                    return [int(token) for token in result]
                return None
            first = next(element for element in result if np.ndim(element) or element is result[0])
            result = max(result[:2], key=np.ndim) if np.ndim(result[0]) == 0 else first
        else:
            return [] if isinstance(result, (tuple, list)) else None


def _padded(tokens: list[int]) -> np.ndarray:
    row = np.full(LENGTH + 3, -1.0)
    row[: min(len(tokens), LENGTH + 3)] = tokens[: LENGTH + 3]
    return row
