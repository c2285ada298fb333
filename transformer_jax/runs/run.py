"""A trained run and what can be done with it."""

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from ml_collections import ConfigDict

from transformer_jax.decoding import BeamTree
from transformer_jax.errors import UserError
from transformer_jax.inference.config import SEARCH_FIELDS, SEARCHES, DecodeConfig, SearchKind
from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.inference.pairs import PairScore
from transformer_jax.models.patches import (
    HookPointAxes,
    PatchedModel,
    find_hook_points,
    patched_model,
)
from transformer_jax.nn.int8 import convert_weights
from transformer_jax.runs import build
from transformer_jax.runs.base_run import with_reference
from transformer_jax.runs.config import Settings, override, read_settings
from transformer_jax.runs.evaluate import evaluator_of, keep_outputs
from transformer_jax.runs.settings import parsed
from transformer_jax.tasks.interface import (
    DeclaresDecodeFields,
    Params,
    Prediction,
    SupportsBeamTree,
    SupportsInspection,
    SupportsPrefixes,
    SupportsScoring,
    SupportsStreaming,
    Task,
)
from transformer_jax.tokenization import Tokenizers
from transformer_jax.training.evaluation import add_command_scores

if TYPE_CHECKING:
    from transformer_jax.analysis.inspect import Attention, Hidden, Importance, Walk

# FOLDED runs.decode_options: How one call of a run decodes: the section `decode` with what the
# call gives.


def decode_options(
    section: DecodeConfig, task: Task, use: str, given: Mapping[str, Any]
) -> DecodeConfig:
    """The section `decode` of a run with the values given.

    Args:
      section: of the run.
      task: of the run.
      use: "predict", "evaluate" or "stream".
      given: fields of the section.

    Raises:
      UserError: a value cannot be, or would do nothing.
    """
    typed = parsed({f"decode.{name}": value for name, value in given.items()}, use)
    values = {name: typed[f"decode.{name}"] for name in given}
    try:
        options = dataclasses.replace(section, **_of_other_searches(section, values), **values)
    except ValueError as error:
        raise UserError(f"decode: {error}") from error
    for name in given:
        if name in _unread(use, task):
            raise UserError(f"decode: {name} does nothing in {use} of this task; leave it out")
    if ignored := options.ignored_fields(given):
        raise UserError(
            f"decode: {ignored[0]} does nothing in the search that is chosen; leave it out, or "
            "choose another search"
        )
    return options


def _of_other_searches(section: DecodeConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Where a search is given: the fields that the section sets for another one, as they are by
    default."""
    if given.get("search") is None:
        return {}
    search = SEARCHES.find(given["search"])
    if not isinstance(search, SearchKind):
        return {}
    names = {name for name in SEARCH_FIELDS if f"decode.{name}" not in search.reads}
    return {name: getattr(DecodeConfig, name) for name in names - set(given)}


def _unread(use: str, task: Task) -> set[str]:
    """The fields of the section `decode` that a task does not read: in `predict`, `evaluate` or
    `stream`."""
    if not isinstance(task, DeclaresDecodeFields):
        return set()
    read = {"weights", *(task.evaluates_by if use == "evaluate" else task.predicts_by)}
    if use == "stream":
        read -= {"num_outputs", "batch_size"}
    return {field.name for field in dataclasses.fields(DecodeConfig)} - read


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
        reference = getattr(self.task, "reference", None)
        loaded_from = getattr(reference, "loaded_from", self.workdir)
        task = with_reference(task, settings, self.workdir, loaded_from)
        shapes = [
            jax.tree.map(lambda leaf: leaf.shape, params)
            for params in (self.params, jax.eval_shape(task.init, jax.random.key(0)))
        ]
        if shapes[0] != shapes[1]:
            raise UserError(f"{', '.join(changes)}: the run's parameters are of another model")
        if isinstance(self.model, PatchedModel):
            task = _with_model(task, PatchedModel(task.model, self.model.patches))
        return dataclasses.replace(self, config=config, task=task)

    def patched(self, changes: Mapping[str, Any]) -> "Run":
        """The same run with parts of its model switched off, scaled or replaced, such as
        `{"decoder.layer_1.cross_attention.heads[2]": 0}` (`models.patches` says how these are
        written); whatever is done with it is done with these. A patched run keeps no outputs in
        its workdir.

        Raises:
          UserError: an unknown hook point, or a change that does not fit it.
        """
        model = patched_model(self.model, changes, self.hook_points)
        return dataclasses.replace(self, task=_with_model(self.task, model))

    @functools.cached_property
    def hook_points(self) -> HookPointAxes:
        """Hook points of the model that can be patched, with their axes (`nn.hooks`)."""
        return find_hook_points(self.task.init)

    def attention(
        self, source: str, target: str | None = None, also: Collection[str] = ()
    ) -> "Attention":
        """What every layer and head attends to, in an example as `predict` takes it.

        Args:
          source: the example.
          target: of a task on pairs, the target that is read with it; None: the run's own output.
          also: what is collected besides: "queries", "keys", "values", "heads", "stream".
        """
        from transformer_jax.analysis import inspect

        return inspect.attention(self, source, target, also)

    def hidden(self, source: str, target: str | None = None) -> "Hidden":
        """The residual stream after each layer, and what the output matrix would make of it (the
        logit lens); arguments as of `attention`."""
        from transformer_jax.analysis import inspect

        return inspect.hidden(self, source, target)

    def walk(self, source: str, target: str | None = None) -> "Walk":
        """An example through the model, step by step (`analysis.walk`); as `attention`."""
        from transformer_jax.analysis import inspect

        return inspect.walk(self, source, target)

    def reading(self, source: str, target: str | None = None) -> ModelInputs:
        """An example as the model reads it; arguments as of `attention`.

        Raises:
          UserError: the task cannot tell, or has no targets.
        """
        if not isinstance(self.task, SupportsInspection):
            raise UserError("this run's task does not tell what its model reads (`model_inputs`)")
        if not isinstance(source, str):
            raise UserError("reading: source is a list of texts; give one text")
        return self.task.model_inputs(self.params, source, target, self.settings.decode)

    def beam_tree(self, line: str, **decode: Any) -> BeamTree:
        """What the beam search for a line's outputs looked at, kept and dropped, and why.

        Raises:
          UserError: the task, or the search that is chosen, has no beams.
        """
        if not isinstance(self.task, SupportsBeamTree):
            raise UserError("beam_tree: this run's task does not search with beams")
        return self.task.beam_tree(self.params, line, self._decode("predict", decode))

    def head_importance(self, split: str = "valid", by: str = "gradient") -> "Importance":
        """How much each head matters for the loss of a split (`analysis.importance`)."""
        from transformer_jax.analysis import inspect

        return inspect.head_importance(self, split, by)

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
        params = convert_weights(options.weights, self.params)
        if prefixes is None:
            return list(self.task.predict(params, lines, options, first_line))
        if not isinstance(self.task, SupportsPrefixes):
            raise UserError(
                "prefixes: this run's task cannot start its outputs with given text; leave them out"
            )
        if len(prefixes) != len(lines):
            raise UserError(f"{len(lines)} lines but {len(prefixes)} prefixes; give one a line")
        found = self.task.predict_with_prefixes(params, lines, prefixes, options, first_line)
        return list(found)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log P(target | source) of each pair, in nats; UserError where the task cannot tell."""
        return [pair.log_prob for pair in self.pair_scores(sources, targets)]

    def pair_scores(self, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
        """As `score`, with whether greedy search writes the target."""
        if not isinstance(self.task, SupportsScoring):
            raise UserError("score: this run's task does not tell how likely a target is")
        _require_texts("score", sources=sources, targets=targets)
        if len(sources) != len(targets):
            raise UserError(f"score: {len(sources)} sources but {len(targets)} targets; give pairs")
        return self.task.score(self.params, sources, targets, self.settings.decode.batch_size)

    def evaluate(
        self,
        split: str = "test",
        source: str | None = None,
        target: str | None = None,
        command: str | None = None,
        **decode: Any,
    ) -> dict[str, Any]:
        """Scores a split, or the files `source` and `target`, by a command too (`scoring.command`);
        keeps outputs in `predictions/`. UserError: split, files or command cannot be used."""
        name, evaluator = evaluator_of(
            self.settings, self.task, self._decode("evaluate", decode), split, source, target
        )
        metrics, outputs = evaluator(convert_weights(evaluator.decode.weights, self.params))
        metrics = add_command_scores(command, metrics, evaluator.decoded_examples, outputs)
        if not isinstance(self.model, PatchedModel):
            path = self.workdir / "predictions" / f"{name}-{self.step}.jsonl"
            keep_outputs(path, evaluator, outputs)
        return {**metrics, "step": self.step, "split": name}

    def stream(self, line: str, **decode: Any) -> Iterator[str]:
        """What follows a line, piece by piece as it is drawn; UserError where a task has none."""
        if not isinstance(self.task, SupportsStreaming):
            raise UserError("stream: this run's task does not continue text; use predict")
        options = self._decode("stream", decode)
        return self.task.stream(convert_weights(options.weights, self.params), line, options)

    def _decode(self, use: str, given: Mapping[str, Any]) -> DecodeConfig:
        return decode_options(self.settings.decode, self.task, use, given)


def _with_model(task: Task, model: Any) -> Task:
    of_task: Any = task  # a dataclass, which the protocol cannot say
    return dataclasses.replace(of_task, model=model)


def _require_texts(use: str, **given: Sequence[str]) -> None:
    """Refuses one text in place of a sequence of texts: its characters would be taken for them."""
    for name, texts in given.items():
        if isinstance(texts, str):
            raise UserError(f"{use}: {name} is one text; give a list of texts")
