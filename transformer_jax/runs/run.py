"""A trained run and what can be done with it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.data.files.pairs import read_aligned
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.nn.int8 import weights_as
from transformer_jax.parallel import hosts
from transformer_jax.runs import build
from transformer_jax.runs.config import override, read_settings
from transformer_jax.tasks.interface import Prediction, Task
from transformer_jax.tokenization import Tokenizers
from transformer_jax.training.evaluation import write_predictions


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
    params: Any
    step: int

    @property
    def model(self) -> Any:
        """The Flax module: `run.model.apply({"params": run.params}, ...)`."""
        return self.task.model

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

        Warnings name lines by their number, counted from `first_line`; samples hang on it, too.
        """
        if prefixes is not None and len(prefixes) != len(lines):
            raise UserError(f"{len(lines)} lines but {len(prefixes)} prefixes; give one a line")
        decode = self._decode(decode)
        params = weights_as(decode.weights, self.params)
        return list(self.task.predict(params, lines, decode, first_line, prefixes))

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log P(target | source) of each pair, in nats; UserError where the task has no pairs."""
        self._require_pairs("score")
        if len(sources) != len(targets):
            raise UserError(f"score: {len(sources)} sources but {len(targets)} targets; give pairs")
        return self.task.score(self.params, sources, targets, self._decode({}).batch_size)

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
        settings = read_settings(self.config)
        if source is not None:
            self._require_pairs("evaluate with source and target")
        if source is None:
            examples, name = open_split(settings.data, split), split
        else:
            examples, name = read_aligned(source, target), Path(source).name
        options, mesh = self._decode(decode), build.mesh_for_use(settings)
        evaluator = build.build_evaluator(settings, self.task, examples, options, mesh)
        metrics, outputs = evaluator(weights_as(options.weights, self.params))
        path = self.workdir / "predictions" / f"{name}-{self.step}.jsonl"
        hosts.from_primary(lambda: write_predictions(path, evaluator.decoded, outputs))
        return {**metrics, "step": self.step, "split": name}

    def stream(self, line: str, **decode: Any) -> Iterator[str]:
        """What follows a line, piece by piece as it is drawn; of language models.

        Raises:
          UserError: the task does not continue text.
        """
        if not hasattr(self.task, "stream"):
            raise UserError("stream: this run's task does not continue text; use predict")
        decode = self._decode(decode)
        return self.task.stream(weights_as(decode.weights, self.params), line, decode)

    def _require_pairs(self, what: str) -> None:
        if "source" not in self.task.lengths:
            raise UserError(f"{what}: this run's task has no pairs of source and target")

    def _decode(self, overrides: dict[str, Any]) -> Any:
        try:
            return dataclasses.replace(read_settings(self.config).decode, **overrides)
        except ValueError as error:
            raise UserError(f"decode: {error}") from error
