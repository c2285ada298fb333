# SPDX-License-Identifier: Apache-2.0
"""Oracles of components that are no part of a model's step: tokenizers, searches, metrics,
schedules, optimizers on stacked layers, attention kernels, callbacks and trackers."""

import contextlib
import dataclasses
import logging
import re
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
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
from transformer_jax.lab.verification.outcomes import (
    BITS,
    Comparison,
    DoesNotApplyError,
    compare_places,
    compare_trees,
)
from transformer_jax.lab.verification.subject import (
    FIRST_TOKEN,
    VOCAB,
    Subject,
    first_gradients,
)
from transformer_jax.logs import trackers
from transformer_jax.nn.fused_attention import record_kernel_choices
from transformer_jax.nn.layer_scan import has_stacks, stack_layers, unstack_layers
from transformer_jax.runs import build
from transformer_jax.runs.config import override
from transformer_jax.runs.train import train
from transformer_jax.runs.workdir import read_metrics
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
_STEPS = 4  # of a training with callbacks
_OUTPUT_LENGTHS = (8, 3, 5)  # limits of a search
_TIMES = re.compile("share_|seconds|step_ms|per_s$|goodput|time")  # in names of metrics


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
    checks: dict[str, Callable[[str], bool]] = {
        "is read otherwise after loading": lambda text: (
            tokenizer.encode(text) == again.encode(text)
        ),
        "has an id that is not in the vocabulary": lambda text: all(
            0 <= i < tokenizer.vocab_size for i in tokenizer.encode(text)
        ),
        "has ids without a piece, or without a mark of words": lambda text: (
            len(tokenizer.encode(text))
            == len(tokenizer.pieces(tokenizer.encode(text)))
            == len(tokenizer.starts_word(tokenizer.encode(text)))
        ),
        "has a word without ids": lambda text: (
            list(map(bool, tokenizer.encode_words(text.split()))) == [True] * len(text.split())
        ),
    }
    if kind.is_lossless:
        checks["is decoded to another text"] = lambda text: _gives_back(tokenizer, text)
    for fault, check in checks.items():
        for text in texts:
            if not check(text):
                return Comparison(np.inf, np.inf, f"{text!r} {fault}", BITS)
    return Comparison(0.0, 0.0, "", BITS)


def _vocab_size(kind: str) -> int:
    return max(TOKENIZERS[kind].least_vocab_size, 400)


def _gives_back(tokenizer: Tokenizer, text: str) -> bool:
    ids = tokenizer.encode(text)
    return bool(tokenizer.count_unknown(ids)) or _plain(tokenizer.decode(ids)) == _plain(text)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _texts() -> list[str]:
    pairs = open_split(DataConfig(synthetic_size=_TEXTS), "train")
    return [side for pair in pairs for side in pair.values()]


def searched(subject: Subject) -> Comparison:
    """A search finds the same outputs for a sentence by itself and in a batch, within their limits,
    of known tokens, the best first; under the constraint, if there is one."""
    decode = subject.settings.decode
    search = decode.make_search(DEFAULT_SPECIALS)
    hidden = "_hidden" if getattr(search, "needs_hidden", False) else ""
    decoding = Decoding(subject)
    state = decoding.prefill(f"prefill{hidden}")
    constraint = make_constraint(decode, _tokenizer_of_characters())
    banned_id = DEFAULT_SPECIALS.banned[0]
    limits = np.array(_OUTPUT_LENGTHS, np.int32)
    count = decode.num_outputs

    @jax.jit
    def find(params: Any, start: Start) -> Hypotheses:
        def model_step(tokens: Any, memory: Any, state: Any) -> Any:
            inputs = (tokens, memory, state)
            return decoding.model.apply({"params": params}, *inputs, method=f"decode_step{hidden}")

        step: DecodeStep = model_step
        if constraint:
            step = constrained(step, constraint, banned_id)
        options = {"num_outputs": count, "max_length": int(limits.max())}
        return search.find(step, start, **options)

    keys = jax.random.split(jax.random.key(0), len(limits))
    model_state = decoding.memory, state
    start = Start(
        decoding.first_logits, *model_state, jnp.asarray(limits), keys, *decoding.first_hidden
    )
    if constraint:
        prompts = jnp.asarray(decoding.prompts), jnp.asarray(decoding.lengths)
        start = start_under(constraint, start, *prompts, banned_id)
    together = jax.device_get(find(subject.params, start))
    parts = []
    for i in range(len(limits)):
        alone = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], start)
        parts.append(jax.device_get(find(subject.params, alone)))
    apart = [np.concatenate(leaves) for leaves in zip(*(part[:2] for part in parts), strict=True)]
    tokens = together.tokens
    lengths = (tokens != DEFAULT_SPECIALS.pad).sum(axis=2)
    faults = {
        "longer than its limit": lengths > limits[:, None],
        "of unknown tokens": ((tokens < 0) | (tokens >= VOCAB)).any(axis=2),
        "before a better one": np.diff(together.scores, axis=1, append=-np.inf) > 0,
        "with a score that is no number": np.isnan(together.scores),
    }
    for fault, places in faults.items():
        if places.any():
            sentence, output = np.argwhere(places)[0]
            where = f"output {output} of sentence {sentence} is {fault}"
            return Comparison(np.inf, np.inf, where, BITS)
    return compare_places(tokens, apart[0], lambda i: f"sentence {i} by itself", BITS)


def _tokenizer_of_characters() -> Tokenizer:
    """A tokenizer with as many tokens as the drawn ones."""
    characters = "".join(chr(ord("0") + i) for i in range(VOCAB - FIRST_TOKEN))
    with tempfile.TemporaryDirectory() as folder:
        config = TokenizerConfig(kind="char", normalization="identity")
        return train_tokenizers(config, {"text": [characters]}, Path(folder) / "new").text("text")


def scored(subject: Subject) -> Comparison:
    """A metric does not depend on the order of the pairs, and returns a value of its own name."""
    name = subject.settings.task.metric
    if name is None:
        raise DoesNotApplyError("the task has no metric")
    texts = _texts()
    outputs = [text if i % 3 else texts[i - 1] for i, text in enumerate(texts)]
    order = np.random.default_rng(0).permutation(len(texts))
    score = METRICS[name]
    values = score(outputs, texts)
    if name not in values:
        found = ", ".join(values) or "nothing"
        return Comparison(np.inf, np.inf, f"in the names: it returns {found}, no {name}", BITS)
    shuffled = score([outputs[i] for i in order], [texts[i] for i in order])
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
    return compare_trees({key: shuffled[key] for key in numbers}, numbers, 1e-9)


def scheduled(subject: Subject) -> Comparison:
    """A schedule gives finite rates that are not negative, the same in a compiled step."""
    settings = subject.settings
    num_steps = settings.train.num_steps
    rate_at = make_schedule(settings.optimizer, settings.model.d_model, num_steps)
    steps = range(num_steps + 1)
    rates = np.array([np.asarray(rate_at(step), np.float32) for step in steps])
    if rates.ndim > 1 or not np.isfinite(rates).all() or (rates < 0).any():
        return Comparison(np.inf, np.inf, f"in the rates: {rates.tolist()}", BITS)
    compiled = np.asarray(jax.jit(jax.vmap(rate_at))(jnp.asarray(steps)))
    return compare_places(compiled, rates, lambda i: f"step {i}", 1e-6)


def updated(subject: Subject) -> Comparison:
    """An optimizer updates stacked layers as it updates them one by one."""
    settings = subject.settings
    schedule = make_schedule(settings.optimizer, settings.model.d_model, settings.train.num_steps)
    optimizer = make_optimizer(settings.optimizer, schedule)
    params = subject.state.params
    stacked = stack_layers(params)
    if not has_stacks(stacked):
        raise DoesNotApplyError("the model has no layers that can be stacked")
    updates = []
    for tree in (params, stacked):
        state = optimizer.init(tree)
        rng = np.random.default_rng(0)
        for _ in range(2):
            drawn = jax.tree.map(
                lambda x, rng=rng: rng.normal(size=x.shape).astype(np.float32), params
            )
            gradients = stack_layers(drawn) if tree is stacked else drawn
            update, state = jax.jit(optimizer.update)(gradients, state, tree)
        updates.append(update)
    return compare_trees(unstack_layers(updates[1]), updates[0])


def fused(subject: Subject) -> Comparison:
    """An attention kernel gives the gradients of plain attention, in bfloat16."""
    low = subject.but(model__dtype="bfloat16", model__activation_dtype="bfloat16")
    name = low.settings.model.attention
    if name == "plain":
        raise DoesNotApplyError("model.attention is plain")
    plain = low.but(model__attention="plain")
    with record_kernel_choices() as choices:
        gradients = first_gradients(low, low.engine)
    if not any(choice.name == name for choice in choices):
        reasons = ", ".join({choice.reason for choice in choices}) or "there is no attention"
        raise RuntimeError(f"the kernel was not called: {reasons}")
    return compare_trees(gradients, first_gradients(plain, plain.engine), BFLOAT16)


def continued(subject: Subject) -> Comparison:
    """A training with callbacks and trackers that stops and goes on has the parameters and records
    of one that does not."""
    small = {
        # A loaded config may not name them; `verify` has refused that.
        "train.callbacks": subject.settings.values["train.callbacks"],
        "logging.trackers": subject.settings.values["logging.trackers"],
        "model.vocab_multiple": 1,
        "tokenizer.vocab_size": _vocab_size(subject.settings.tokenizer.kind),
        "data.cache_dir": None,
        "train.num_steps": _STEPS,
        "train.tokens_per_batch": 512,
        "logging.every_steps": 1,
        "eval.every_steps": 2,
        "eval.num_examples": 2,
        "checkpoint.every_steps": 2,
    }
    with tempfile.TemporaryDirectory() as folder, _failing_trackers():
        whole, parts = (Path(folder) / name for name in ("whole", "parts"))
        config = override(subject.settings, small | _data_for(subject, Path(folder)))
        uninterrupted = train(config, whole, progress=False)
        train(config, parts, until=_STEPS // 2, progress=False)
        resumed = train(config, parts, progress=False)
        records = [_recorded(path) for path in (parts, whole)]
    found = compare_trees(resumed.params, uninterrupted.params, BITS)
    differ = [
        key
        for key in records[0].keys() | records[1].keys()
        if records[0].get(key) != records[1].get(key)
    ]
    if found.is_equal and differ:
        step, split, name = min(differ)
        return Comparison(np.inf, np.inf, f"in the records: {split}/{name} at step {step}", BITS)
    return found


def _data_for(subject: Subject, folder: Path) -> dict[str, Any]:
    """The fields of small data for the task, whose files are written to a folder."""
    keys = build.task_kind(subject.settings).keys
    if keys == {"source", "target"}:
        return {"data.name": "synthetic_en_de", "data.synthetic_size": _TEXTS}
    texts = _texts()
    if keys == {"text"}:
        files = {"data.name": "text", "data.documents": "line"}
        content = "\n".join(texts)
    elif keys == {"text", "label"}:
        files = {"data.name": "table"}
        rows = (f"{text}\t{'ab'[i % 2]}" for i, text in enumerate(texts))
        content = "\n".join(["text\tlabel", *rows])
    else:
        raise DoesNotApplyError(f"no data for task {subject.settings.task.name} is at hand")
    path = folder / "data.tsv"
    path.write_text(content, encoding="utf-8")
    return files | {f"data.{split}_text": str(path) for split in ("train", "valid")}


def _recorded(workdir: Path) -> dict[tuple[Any, ...], Any]:
    """Each recorded value, without those of time: (step, split, name) -> value."""
    return {
        (record["step"], record["split"], name): value
        for record in read_metrics(workdir)
        for name, value in record.items()
        if not _TIMES.search(name)
    }


@contextlib.contextmanager
def _failing_trackers() -> Iterator[None]:
    """Raises RuntimeError if a tracker fails in the block, which training only logs."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    trackers.logger.addHandler(handler)
    try:
        yield
    finally:
        trackers.logger.removeHandler(handler)
    if messages:
        raise RuntimeError(messages[0])
