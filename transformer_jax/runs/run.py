"""A trained run and what can be done with it."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.data.examples import Corpus
from transformer_jax.data.files.pairs import read_aligned
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.nn.int8 import weights_as
from transformer_jax.parallel import hosts
from transformer_jax.parallel.mesh import mesh_for_use
from transformer_jax.runs import build, provenance
from transformer_jax.runs.config import Settings, override, read_settings
from transformer_jax.runs.settings import parsed
from transformer_jax.tasks.interface import (
    NamesOptions,
    Params,
    Prediction,
    ScoresPairs,
    Streams,
    TakesPrefixes,
    Task,
)
from transformer_jax.tokenization import Tokenizers
from transformer_jax.training.evaluation import write_predictions

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained run and its parts.

    Attributes:
      config: as kept in the workdir.
      workdir: the run's directory.
      task: what its examples mean; holds model and tokenizers.
      params: the parameters, a tree of float32 arrays.
      step: updates that the parameters saw; the last one of an average.
    """

    config: ConfigDict
    workdir: Path
    task: Task
    params: Params
    step: int

    @property
    def model(self) -> Any:
        """The Flax module: `run.model.apply({"params": run.params}, ...)`."""
        return self.task.model

    @functools.cached_property
    def settings(self) -> Settings:
        """The sections of the config as dataclasses."""
        return read_settings(self.config)

    @property
    def tokenizer(self) -> Tokenizers:
        """The tokenizers: `run.tokenizer["source"].encode("...")`."""
        return self.task.tokenizers

    def under(self, changes: Mapping[str, Any]) -> "Run":
        """The same parameters under another config, such as `{"data.max_length": 512}`.

        Raises:
          UserError: the model's positions do not reach so far, a field is unknown, or it belongs to
            the parameters.
        """
        config = override(self.config, changes)
        settings = read_settings(config)
        task = build.build_task(settings, build.vocab_sizes(self.tokenizer), self.tokenizer)
        shapes = [
            jax.tree.map(lambda leaf: leaf.shape, params)
            for params in (self.params, jax.eval_shape(task.init, jax.random.key(0)))
        ]
        if shapes[0] != shapes[1]:
            raise UserError(f"{', '.join(changes)}: the run's parameters are of another model")
        return dataclasses.replace(self, config=config, task=task)

    def predict(
        self, lines: Sequence[str], prefixes: Sequence[str] | None = None, **decode: Any
    ) -> list[str]:
        """The best output of each line; `decode` overrides fields of the section `decode`.

        With `prefixes`, one a line, each output starts with its prefix.
        """
        found = self.n_best(lines, prefixes=prefixes, **decode)
        return [outputs[0].text for outputs in found]

    def n_best(
        self,
        lines: Sequence[str],
        first_line: int = 1,
        prefixes: Sequence[str] | None = None,
        **decode: Any,
    ) -> list[list[Prediction]]:
        """The `num_outputs` best outputs of each line with their scores, best first.

        Warnings name lines by their number, counted from `first_line`; samples depend on it, too.
        """
        _require_texts("predict", lines=lines, prefixes=prefixes or [])
        options = self._decode("predict", decode)
        params = weights_as(options.weights, self.params)
        if prefixes is None:
            return list(self.task.predict(params, lines, options, first_line))
        if not isinstance(self.task, TakesPrefixes):
            raise UserError(
                "prefixes: this run's task cannot start its outputs with given text; leave them out"
            )
        if len(prefixes) != len(lines):
            raise UserError(f"{len(lines)} lines but {len(prefixes)} prefixes; give one a line")
        found = self.task.predict_with_prefixes(params, lines, prefixes, options, first_line)
        return list(found)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log P(target | source) of each pair, in nats; UserError where the task has no pairs."""
        task = self._task_on_pairs("score")
        _require_texts("score", sources=sources, targets=targets)
        if len(sources) != len(targets):
            raise UserError(f"score: {len(sources)} sources but {len(targets)} targets; give pairs")
        return task.score(self.params, sources, targets, self.settings.decode.batch_size)

    def evaluate(
        self,
        split: str = "test",
        source: str | None = None,
        target: str | None = None,
        **decode: Any,
    ) -> dict[str, Any]:
        """Scores a split, or the files `source` and `target`; outputs are kept in `predictions/`.

        Raises:
          UserError: the split or the files cannot be used.
        """
        settings = self.settings
        options = self._decode("evaluate", decode)
        if source is not None and target is not None:
            self._task_on_pairs("evaluate with source and target")
            name = Path(source).name
            open_examples = functools.partial(read_aligned, source, target, once=True)
        elif source is None and target is None:
            name, open_examples = split, functools.partial(open_split, settings.data, split)
        else:
            raise UserError("evaluate: source and target are files that go together; give both")
        examples = provenance.agreed_data(name, open_examples)
        mesh = mesh_for_use(settings.parallel)
        evaluator = build.build_evaluator(settings, self.task, examples, options, mesh)
        metrics, outputs = evaluator(weights_as(options.weights, self.params))
        path = self.workdir / "predictions" / f"{name}-{self.step}.jsonl"
        hosts.from_primary(lambda: _keep(path, evaluator.decoded, outputs))
        return {**metrics, "step": self.step, "split": name}

    def stream(self, line: str, **decode: Any) -> Iterator[str]:
        """What follows a line, piece by piece as it is drawn; of language models.

        Raises:
          UserError: the task does not continue text.
        """
        if not isinstance(self.task, Streams):
            raise UserError("stream: this run's task does not continue text; use predict")
        options = self._decode("stream", decode)
        return self.task.stream(weights_as(options.weights, self.params), line, options)

    def _task_on_pairs(self, use: str) -> ScoresPairs:
        if not isinstance(self.task, ScoresPairs):
            raise UserError(f"{use}: this run's task has no pairs of source and target")
        return self.task

    def _decode(self, use: str, given: dict[str, Any]) -> DecodeConfig:
        """The section `decode` with the values given; UserError for one that would do nothing."""
        typed = parsed({f"decode.{name}": value for name, value in given.items()}, use)
        values = {name: typed[f"decode.{name}"] for name in given}
        try:
            options = dataclasses.replace(self.settings.decode, **values)
        except ValueError as error:
            raise UserError(f"decode: {error}") from error
        for name in given:
            if name in _unread(use, self.task):
                raise UserError(f"decode: {name} does nothing in {use} of this task; leave it out")
        if ignored := options.ignored(given):
            raise UserError(
                f"decode: {ignored[0]} does nothing in the search that is chosen; leave it out, or "
                "choose another search"
            )
        return options


def _unread(use: str, task: Task) -> set[str]:
    """The fields of the section `decode` that a task does not read: in `predict`, `evaluate` or
    `stream`."""
    if not isinstance(task, NamesOptions):
        return set()
    read = {"weights", *(task.evaluates_by if use == "evaluate" else task.predicts_by)}
    if use == "stream":
        read -= {"num_outputs", "batch_size"}
    return {field.name for field in dataclasses.fields(DecodeConfig)} - read


def _keep(path: Path, examples: Corpus, outputs: Sequence[Prediction]) -> None:
    """Writes outputs; where that cannot be done, the metrics are not lost with them."""
    try:
        write_predictions(path, examples, outputs)
    except OSError as error:
        logger.warning("the outputs are not kept: %s", error)


def _require_texts(use: str, **given: Sequence[str]) -> None:
    """Refuses one text in place of a sequence of texts: its characters would be taken for them."""
    for name, texts in given.items():
        if isinstance(texts, str):
            raise UserError(f"{use}: {name} is one text; give a list of texts")
