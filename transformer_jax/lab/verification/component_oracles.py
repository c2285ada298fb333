# SPDX-License-Identifier: Apache-2.0
"""Oracles of components that are no part of a model's step: tokenizers, searches, metrics,
schedules, optimizers on stacked layers, attention kernels, callbacks and trackers."""

import contextlib
import dataclasses
import itertools
import logging
import logging.handlers
import queue
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.decoding.constraints import constrained, start_under
from transformer_jax.decoding.interface import DecodeStep, Hypotheses, Start
from transformer_jax.inference.config import make_constraint
from transformer_jax.lab.verification.forward_oracles import BFLOAT16, Decoding
from transformer_jax.lab.verification.outcomes import BITS, Comparison, DoesNotApplyError
from transformer_jax.lab.verification.subject import VOCAB, Subject
from transformer_jax.logs import trackers
from transformer_jax.logs.records import OF_ONE_TRAINING
from transformer_jax.losses import TokenLoss, TokenLosses
from transformer_jax.models import apply_method
from transformer_jax.nn.embeddings import Unprojected
from transformer_jax.nn.fused_attention import record_kernel_choices
from transformer_jax.nn.layer_scan import has_stacks, stack_layers, unstack_layers
from transformer_jax.runs import build
from transformer_jax.runs.config import override
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.train import train
from transformer_jax.runs.workdir import TOKENIZER, read_metrics
from transformer_jax.scoring import METRICS
from transformer_jax.tokenization import (
    DEFAULT_SPECIALS,
    TOKENIZERS,
    Tokenizer,
    TokenizerConfig,
    load_tokenizers,
    train_tokenizers,
)
from transformer_jax.training.optimizer import make_optimizer, make_schedule

_TEXTS = 200  # that a tokenizer reads and a metric scores
_STEPS = 4  # of an optimizer, or of a training with callbacks
_STEPS_APART = 64  # whose learning rates are computed one by one
_DRAWS = 4  # of a search
_LINES = 5  # that a task predicts
_OUTPUT_LENGTHS = (16, 6, 11)  # limits of a search


def tokenized(subject: Subject) -> Comparison:
    """A tokenizer reads a text the same way after it was stored; ids are in its vocabulary and have
    pieces; where none is unknown they give the text back, but for case and whitespace."""
    config = subject.settings.tokenizer
    kind = TOKENIZERS[config.kind]
    if kind.train is not None:
        config = dataclasses.replace(config, vocab_size=_vocab_size(config.kind))
    texts = _texts()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = train_tokenizers(config, {"text": texts}, Path(folder) / "new").text("text")
        again = load_tokenizers(Path(folder) / "new").text("text")
    for text in texts:
        fault = _fault_of(tokenizer, again, text, kind.is_lossless)
        if fault:
            return Comparison(np.inf, np.inf, f"{text!r} {fault}", BITS)
    return Comparison(0.0, 0.0, "", BITS)


def _fault_of(tokenizer: Tokenizer, again: Tokenizer, text: str, is_lossless: bool) -> str:
    """Fault in how a text is read; empty if there is none."""
    ids = tokenizer.encode(text)
    if ids != again.encode(text):
        return "is read otherwise after loading"
    if not all(0 <= i < tokenizer.vocab_size for i in ids):
        return "has an id that is not in the vocabulary"
    if not len(ids) == len(tokenizer.pieces(ids)) == len(tokenizer.starts_word(ids)):
        return "has ids without a piece, or without a mark of words"
    if not _marks_words(tokenizer, text.split()):
        return "has a word without ids, or with a mark of words in it"
    is_known = is_lossless and not tokenizer.count_unknown(ids)
    if is_known and _plain(tokenizer.decode(ids)) != _plain(text):
        return "is decoded to another text"
    return ""


def _vocab_size(kind: str) -> int:
    return max(TOKENIZERS[kind].least_vocab_size, 400)


def _marks_words(tokenizer: Tokenizer, words: Sequence[str]) -> bool:
    """Returns True if the ids of each word begin with the mark of a word and, unless the word has
    punctuation, have no other."""
    ids_of_words = tokenizer.encode_words(words)
    marks = iter(tokenizer.starts_word(itertools.chain(*ids_of_words)))
    for word, ids in zip(words, ids_of_words, strict=True):
        first, *others = [next(marks) for _ in ids] or [False]
        if not first or (word.isalnum() and any(others)):
            return False
    return True


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _texts() -> list[str]:
    pairs = open_split(DataConfig(synthetic_size=_TEXTS), "train")
    return [side for pair in pairs for side in pair.values()]


def searched(subject: Subject) -> Comparison:
    """A search finds the same outputs for a sentence by itself and in a batch, under its
    constraint, within their limits, of known tokens, the best first."""
    decode = subject.settings.decode
    decoding = Decoding(subject)
    search: Any = decode.make_search(DEFAULT_SPECIALS)
    with_hidden = "_hidden" if getattr(search, "needs_hidden", False) else ""
    logits, memory, state, *hidden = decoding.prefill(f"prefill{with_hidden}")
    constraint = make_constraint(decode, _letters() if decode.constraint else None)
    banned = DEFAULT_SPECIALS.banned[0]
    limits = np.array(_OUTPUT_LENGTHS, np.int32)

    def step(params: Any, tokens: Any, memory: Any, state: Any) -> Any:
        method = f"decode_step{with_hidden}"
        logits, *others = apply_method(decoding.model, params, method, tokens, memory, state)
        # Sentences are more and less certain of their next token, and outputs end after some tokens
        # more often than after others: that tells them apart.
        logits = (logits * (1 + tokens % 4)[:, None]).at[:, DEFAULT_SPECIALS.eos].add(tokens % 5)
        return logits, *others

    @jax.jit
    def find(params: Any, start: Start, tokens: Any, counts: Any) -> Hypotheses:
        decode_step: DecodeStep = partial(step, params)
        if constraint is not None:
            start = start_under(constraint, start, tokens, counts, banned)
            decode_step = constrained(decode_step, constraint, banned)
        options = {"num_outputs": decode.num_outputs, "max_length": int(limits.max())}
        return search.find(decode_step, start, **options)

    together = []
    apart = []
    for number in range(_DRAWS):
        keys = jax.random.split(jax.random.key(number), len(limits))
        start = Start(logits, memory, state, jnp.asarray(limits), keys, *hidden)
        inputs = (start, decoding.prompts, decoding.lengths)
        together.append(jax.device_get(find(subject.params, *inputs)))
        for i, length in enumerate(decoding.lengths):
            alone, tokens, counts = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], inputs)
            if constraint is not None:
                tokens = tokens[:, :length]
            apart.append(jax.device_get(find(subject.params, alone, tokens, counts).tokens))
    tokens = np.concatenate([hypotheses.tokens for hypotheses in together])
    scores = np.concatenate([hypotheses.scores for hypotheses in together])
    lengths = (tokens != DEFAULT_SPECIALS.pad).sum(axis=2)
    faults = {
        "longer than its limit": lengths > np.tile(limits, _DRAWS)[:, None],
        "of unknown tokens": ((tokens < 0) | (tokens >= VOCAB)).any(axis=2),
        "before a better one": np.diff(scores, axis=1, append=-np.inf) > 0,
        "with a score that is no number": np.isnan(scores),
    }
    for fault, places in faults.items():
        if places.any():
            sentence, output = np.argwhere(places)[0]
            place = f"output {output} of sentence {sentence % len(limits)} is {fault}"
            return Comparison(np.inf, np.inf, place, BITS)
    expected = np.concatenate(apart)
    return Comparison.of_places(
        tokens, expected, lambda i: f"sentence {i % len(limits)} by itself", BITS
    )


def _letters() -> Tokenizer:
    """A tokenizer with as many ids as drawn tokens: of letters."""
    letters = "".join(map(chr, range(65, 65 + VOCAB - 5)))  # four special ids, and whitespace
    with tempfile.TemporaryDirectory() as folder:
        config = TokenizerConfig(kind="char")
        return train_tokenizers(config, {"text": [letters]}, Path(folder) / "new").text("text")


def scored(subject: Subject) -> Comparison:
    """A metric does not depend on the order of the pairs, and returns a value of its own name."""
    name = subject.settings.task.metric
    if name is None:
        raise DoesNotApplyError("the task has no metric")
    outputs = _texts()
    texts = [outputs[i // 3 * 3] for i in range(len(outputs))]  # each that of three outputs
    order = np.random.default_rng(0).permutation(len(texts))
    score = METRICS.configured(name, subject.settings.task)
    values = score(outputs, texts)
    if name not in values:
        names = ", ".join(values) or "nothing"
        return Comparison(np.inf, np.inf, f"in the names: it returns {names}, no {name}", BITS)
    shuffled = score([outputs[i] for i in order], [texts[i] for i in order])
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
    return Comparison.of_trees({key: shuffled[key] for key in numbers}, numbers, 1e-9)


def scheduled(subject: Subject) -> Comparison:
    """A schedule gives finite rates that are not negative, the same in a compiled step."""
    settings = subject.settings
    num_steps = settings.train.num_steps
    rate_at = make_schedule(settings.optimizer, settings.model.d_model, num_steps)
    rates = np.asarray(jax.jit(jax.vmap(rate_at))(jnp.arange(num_steps + 1)))
    wrong = ~np.isfinite(rates) | (rates < 0)
    if rates.ndim > 1 or wrong.any():
        step = int(np.argmax(wrong))
        return Comparison(np.inf, np.inf, f"in the rates: {rates[step]} at step {step}", BITS)
    steps = np.unique(np.geomspace(1, num_steps + 1, _STEPS_APART).astype(int)) - 1
    apart = np.array([np.asarray(rate_at(int(step)), np.float32) for step in steps])
    return Comparison.of_places(rates[steps], apart, lambda i: f"step {steps[i]}", 1e-6)


def updated(subject: Subject) -> Comparison:
    """An optimizer that is made again, and is compiled anew for each step on stacked layers, has
    the updates of one that is compiled once."""
    settings = subject.settings
    schedule = make_schedule(settings.optimizer, settings.model.d_model, settings.train.num_steps)
    params = subject.state.params
    stacked = stack_layers(params)
    if not has_stacks(stacked):
        raise DoesNotApplyError("the model has no layers that can be stacked")
    updates = []
    for tree in (params, stacked):
        optimizer = make_optimizer(settings.optimizer, schedule)
        update_of = jax.jit(optimizer.update)
        state = jax.jit(optimizer.init)(tree)
        rng = np.random.default_rng(0)
        for _ in range(_STEPS):
            drawn = jax.tree.map(lambda x, rng=rng: np.float32(rng.normal(size=x.shape)), params)
            gradients = stack_layers(drawn) if tree is stacked else drawn
            if tree is stacked:  # traced again, as a new function
                update_of = jax.jit(partial(optimizer.update))
            update, state = update_of(gradients, state, tree)
        updates.append(update)
    return Comparison.of_trees(unstack_layers(updates[1]), updates[0])


def lost(subject: Subject) -> Comparison:
    """A loss of hidden states, tile by tile say, has the values and gradients of the same loss of
    all logits."""
    task: Any = subject.task
    loss = task.loss_options.token_loss
    if type(loss).of_hidden is TokenLoss.of_hidden:
        raise DoesNotApplyError("it has no `of_hidden` of its own")
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 5, 8), "table": (VOCAB, 8), "bias": (VOCAB,)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    vocab_size = VOCAB - 3  # the last rows are padding, and tiles do not divide it
    labels = rng.integers(0, vocab_size, (2, 5))

    def losses(of: Callable[..., TokenLosses], arrays: Any) -> Any:
        predicted = Unprojected(**arrays, dtype=jnp.dtype("float32"), vocab_size=vocab_size)
        return of(predicted, labels).losses

    results = []
    for of in (loss.of_hidden, lambda x, labels: loss.of_logits(x.logits(), labels)):
        values, backward = jax.vjp(partial(losses, of), arrays)
        results.append({"losses": values, "gradients": backward(jnp.ones_like(values))[0]})
    of_states, of_logits = results
    return Comparison.of_trees(of_states, of_logits)


def fused(subject: Subject) -> Comparison:
    """An attention kernel gives the gradients of plain attention, in bfloat16."""
    low = subject.but(model__dtype="bfloat16", model__activation_dtype="bfloat16")
    name = low.settings.model.attention
    if name == "plain":
        raise DoesNotApplyError("model.attention is plain")
    plain = low.but(model__attention="plain")
    with record_kernel_choices() as choices:
        gradients = low.gradients
    if not any(choice.name == name for choice in choices):
        reasons = ", ".join({choice.reason for choice in choices}) or "there is no attention"
        raise RuntimeError(f"the kernel was not called: {reasons}")
    return Comparison.of_trees(gradients, plain.gradients, BFLOAT16)


def continued(subject: Subject) -> Comparison:
    """A training with callbacks and trackers that stops and continues has the parameters and
    records of one that does not."""
    with tempfile.TemporaryDirectory() as folder, _failing_trackers():
        whole, parts = (Path(folder) / name for name in ("whole", "parts"))
        config = _with_data(subject, Path(folder))
        uninterrupted = train(config, whole, progress=False)
        train(config, parts, until=_STEPS // 2, progress=False)
        resumed = train(config, parts, progress=False)
        differ = differing_records(parts, whole)
    comparison = Comparison.of_trees(resumed.params, uninterrupted.params, BITS)
    if comparison.is_equal and differ:
        step, split, name = min(differ)
        return Comparison(np.inf, np.inf, f"in the records: {split}/{name} at step {step}", BITS)
    return comparison


def predicted(subject: Subject) -> Comparison:
    """The outputs of several lines are those of each line by itself, in the order of the lines."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _with_data(subject, Path(folder))
        examples = open_split(settings.data, "train")
        tokenizers = build_tokenizers(settings, Path(folder) / TOKENIZER, examples)
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    rng = np.random.default_rng(0)  # initial parameters may predict the same for all lines
    params = jax.device_get(jax.jit(task.init)(jax.random.key(0)))
    params = jax.tree.map(lambda x: x + (0.1 * rng.normal(size=x.shape)).astype(x.dtype), params)
    read = "source" if "source" in examples[0] else "text"
    lines = [example[read] for example in examples[:_LINES]]
    together = task.predict(params, lines, settings.decode)
    for number, (line, (output, *_)) in enumerate(zip(lines, together, strict=True), 1):
        ((alone, *_),) = task.predict(params, [line], settings.decode, number)
        if output.text != alone.text or not np.isclose(output.score, alone.score, 1e-4, 1e-5):
            texts = [f"{x.text!r} ({x.score:.3g})" for x in (output, alone)]
            place = f"first at line {number}: {texts[0]}, by itself {texts[1]}"
            return Comparison(np.inf, np.inf, place, BITS)
    return Comparison(0.0, 0.0, "", BITS)


def _with_data(subject: Subject, folder: Path) -> Settings:
    """A short training on small data for the task, whose files are written to a folder."""
    texts = _texts()
    path = folder / "data.txt"
    files: dict[str, Any] = {f"data.{split}_text": str(path) for split in ("train", "valid")}
    match sorted(build.task_kind(subject.settings).keys):
        case ["source", "target"]:
            files = {"data.name": "synthetic_en_de", "data.synthetic_size": _TEXTS}
        case ["text"]:
            files |= {"data.name": "text", "data.documents": "line"}
            path.write_text("\n".join(texts), encoding="utf-8")
        case ["label", "text"]:
            files |= {"data.name": "table"}
            rows = (f"{text}\t{'ab'[i % 2]}" for i, text in enumerate(texts))
            path.write_text("\n".join(["text\tlabel", *rows]), encoding="utf-8")
        case _:
            name = subject.settings.task.name
            raise DoesNotApplyError(f"no data for task {name} is at hand")
    small = {
        "model.vocab_multiple": 1,
        "tokenizer.vocab_size": _vocab_size(subject.settings.tokenizer.kind),
        "data.cache_dir": None,
        "train.num_steps": _STEPS,
        "train.tokens_per_batch": 512,
        "logging.every_steps": 1,
        "eval.every_steps": 1,
        "eval.num_examples": 2,
        "checkpoint.every_steps": 2,
        "optimizer.learning_rate": 0.3,  # losses rise and fall
        "decode.batch_size": _LINES - 2,
        "decode.max_extra_length": 4,
    }
    return override(subject.settings, small | files)


def differing_records(workdir: Path, other: Path) -> list[tuple[int, str, str]]:
    """(step, split, name) of each value that the records of two runs do not share."""
    of_run = _recorded(workdir)
    of_other = _recorded(other)
    keys = of_run.keys() | of_other.keys()
    return [key for key in keys if of_run.get(key) != of_other.get(key)]


def _recorded(workdir: Path) -> dict[tuple[Any, ...], Any]:
    """Each recorded value, without those of time: (step, split, name) -> value."""
    return {
        (record["step"], record["split"], name): value
        for record in read_metrics(workdir)
        for name, value in record.items()
        if not OF_ONE_TRAINING.search(name)
    }


@contextlib.contextmanager
def _failing_trackers() -> Iterator[None]:
    """Raises RuntimeError if a tracker fails in the block, which training only logs."""
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    handler.setLevel(logging.WARNING)
    trackers.logger.addHandler(handler)
    try:
        yield
    finally:
        trackers.logger.removeHandler(handler)
    if not records.empty():
        raise RuntimeError(records.get().getMessage())
