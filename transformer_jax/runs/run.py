# SPDX-License-Identifier: Apache-2.0
"""A trained run: predictions, scores, evaluation and inspection; a conversation with it."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.checkpoints.manifest import item_id
from transformer_jax.checkpoints.step_folder import PARAMS, PROVENANCE, TRAINING, named_leaves
from transformer_jax.checkpoints.store import Checkpoints, open_snapshot
from transformer_jax.conversations import ASSISTANT, MODEL, SYSTEM, USER, Turn
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.errors import NonFiniteError, UserError, user_errors
from transformer_jax.inference.batches import PairScore
from transformer_jax.inference.config import DecodeConfig, unread_fields
from transformer_jax.inference.draft import DraftedModel
from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.logs.records import OF_AUDIT, RecordFile, to_python
from transformer_jax.models import apply_model, input_names
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.nn.hooks import HookPoint, intercept_activations
from transformer_jax.nn.int8 import convert_weights
from transformer_jax.nn.layers import count_parameters
from transformer_jax.parallel import hosts
from transformer_jax.parallel.sharding import ParallelConfig
from transformer_jax.runs import build
from transformer_jax.runs.config import load_json, override, parsed, save_json, to_config
from transformer_jax.runs.frozen import add_draft, load_frozen, with_stored_scores
from transformer_jax.runs.outside import open_data, refuse_loaded
from transformer_jax.runs.settings import DEFAULTS, SECTION_FIELDS, Settings
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    MODULES,
    PREDICTIONS,
    REFERENCE,
    TOKENIZER,
    lock_workdir,
    read_metrics,
    require_storable,
)
from transformer_jax.runtime.files import atomic_folder
from transformer_jax.runtime.progress import shown
from transformer_jax.summary import Summarized
from transformer_jax.tasks.interface import (
    Frozen,
    Params,
    Prediction,
    Supervised,
    Task,
    ability,
    with_model,
)
from transformer_jax.tokenization import Tokenizers
from transformer_jax.training.evaluation import add_command_scores
from transformer_jax.training.state import OPTIONAL_FIELDS, TrainState

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pandas import DataFrame

    from transformer_jax.decoding.beam_tree import BeamTree
    from transformer_jax.models.patches import HookPointAxes


@dataclasses.dataclass(frozen=True, repr=False)
class Run(Summarized):
    """A trained run and its parts.

    Attributes:
      settings: the sections of its config as dataclasses, with the origin of each value.
      workdir: the workdir of the run.
      task: the task, with its model and tokenizers.
      params: the parameters, a tree of float32 arrays.
      step: the step of the parameters; for an average, the last one.
      stored: False if the parameters or the model are not those of the workdir; `evaluate` then
        writes no outputs to it.
      average: number of snapshots whose mean the parameters are; None: they are those of the step.
    """

    settings: Settings
    workdir: Path
    task: Task
    params: Params
    step: int
    stored: bool = True
    average: int | None = None
    _weights: dict[str, Params] = dataclasses.field(default_factory=dict, init=False, compare=False)
    _drafts: dict[tuple[str, int, str], tuple[Task, Params]] = dataclasses.field(
        default_factory=dict, init=False, compare=False
    )

    # Methods that look inside the model; `analysis`, which is above this package, sets them.
    attention: ClassVar[Callable[..., Any]]
    hidden: ClassVar[Callable[..., Any]]
    patch_grid: ClassVar[Callable[..., Any]]
    walk: ClassVar[Callable[..., Any]]
    head_importance: ClassVar[Callable[..., Any]]

    def summary(self) -> Mapping[str, Any]:
        """The workdir, the kind of model, its data, and how far it was trained."""
        settings = self.settings
        lines = {
            "workdir": self.workdir,
            "task": settings.task.name,
            "model": f"{settings.model.architecture}, {count_parameters(self.params):,} parameters",
            **self.tokenizer.summary(),
            "data": settings.data.name,
            "step": f"{self.step} of {settings.train.num_steps}",
        }
        patches = getattr(self.model, "patches", ())
        return lines | ({"patches": patches} if patches else {})

    @property
    def identity(self) -> dict[str, Any]:
        """Fields that say in a record of scores what was scored: the step, and that it is an
        average."""
        return {"step": self.step} | ({"average": self.average} if self.average else {})

    @property
    def model(self) -> Any:
        """The Flax module: `run.model.apply({"params": run.params}, ...)`."""
        return self.task.model

    @functools.cached_property
    def config(self) -> ConfigDict:
        """The config: `tj.train(run.config, ...)` trains it again."""
        return to_config(self.settings)

    @functools.cached_property
    def frozen(self) -> Frozen:
        """Parameters of other runs that the task's loss reads, by name.

        Raises:
          UserError: such a run is missing, or may only be read if the user names it.
        """
        return load_frozen(self.settings, self.task)

    @property
    def tokenizer(self) -> Tokenizers:
        """The tokenizers: `run.tokenizer["source"].encode("...")`."""
        return self.task.tokenizers

    def with_config(self, changes: Mapping[str, Any]) -> "Run":
        """The run with other config fields, such as `{"data.max_length": 512}`.

        Raises:
          UserError: the model has too few positions, a field is unknown, or a field changes the
            shapes of parameters.
        """
        settings = override(self.settings, changes)
        task = build.build_task(settings, build.vocab_sizes(self.tokenizer), self.tokenizer)
        task = with_stored_scores(task, settings, self.workdir)
        if _shapes(self.params) != _shapes(jax.eval_shape(task.init, jax.random.key(0))):
            raise UserError(f"{', '.join(changes)}: the run's parameters are of another model")
        if hasattr(self.model, "patches"):
            task = with_model(task, type(self.model)(task.model, self.model.patches))
        return dataclasses.replace(self, settings=settings, task=task)

    def patched(self, changes: Mapping[str, Any]) -> "Run":
        """The run with parts of its model switched off, scaled or replaced, in all its uses.

        An example is `{"decoder.layer_1.cross_attention.heads[2]": 0}`; `models.patches` defines
        the notation. It writes no outputs to its workdir.

        Raises:
          UserError: an unknown hook point, or a change that does not fit it.
        """
        from transformer_jax.models.patches import patched_model

        model = patched_model(self.model, changes, self.hook_points)
        return dataclasses.replace(self, task=with_model(self.task, model), stored=False)

    def with_params(self, params: Params) -> "Run":
        """The run with other parameters of the same shapes; it writes no outputs to the workdir.

        Raises:
          UserError: they have other names or shapes; the first difference is named.
        """
        shapes = _shapes(params)
        expected = _shapes(self.params)
        for name in sorted({*shapes, *expected}):
            if shapes.get(name) != expected.get(name):
                raise UserError(
                    f"with_params: {name} is {shapes.get(name, 'missing')}, and in the model "
                    f"{expected.get(name, 'missing')}"
                )
        return dataclasses.replace(self, params=params, stored=False)

    def save(self, workdir: str | Path) -> "Run":
        """Saves the run to a new workdir, which predicts and trains on; returns the saved run.

        The optimizer's state, the position in the data and the records are those of the run's own
        checkpoint. What was imported, and what adapters (`lora`) were merged into, is saved without
        these: train from it with `train.init_from`.

        Raises:
          UserError: the folder is not empty or cannot hold arrays, the run is patched, or its
            checkpoint is gone.
        """
        if hasattr(self.model, "patches"):
            raise UserError("save: the run is patched, and patches are not parameters")
        settings = self.settings
        source = self.workdir / CHECKPOINTS
        is_merged = settings.lora.rank is not None
        if is_merged:
            # All fields of the section: without a rank, no other one may be set.
            no_adapters = {name: DEFAULTS[name] for name in SECTION_FIELDS["lora"]}
            settings = override(settings, no_adapters | {"train.init_from": None})
        require_storable(Path(workdir))
        with atomic_folder(Path(workdir), "workdir") as folder, lock_workdir(folder):
            for name in (TOKENIZER, REFERENCE):
                if (self.workdir / name).is_dir():
                    shutil.copytree(self.workdir / name, folder / name)
            for name in (MODULES, METRICS):
                if (self.workdir / name).exists():
                    shutil.copyfile(self.workdir / name, folder / name)
            if (folder / METRICS).exists():
                RecordFile(folder / METRICS, last_step=self.step).close()
            with Checkpoints(folder / CHECKPOINTS, self.settings.checkpoint) as checkpoints:
                snapshot = open_snapshot(source, self.step, (PARAMS, PROVENANCE))
                checkpoints.provenance |= snapshot.provenance
                if is_merged or not (snapshot.folder / TRAINING).exists():
                    checkpoints.save_params(self.step, self.params)
                else:
                    data_state = open_snapshot(source, self.step).data_state
                    checkpoints.save(self.step, self._training_state(), data_state)
            save_json(settings, folder / CONFIG)
        return dataclasses.replace(
            self, settings=settings, workdir=Path(workdir), stored=True, average=None
        )

    def _training_state(self) -> TrainState:
        """The state of the run's checkpoint, with the parameters of the run."""
        # On one device, also if the run was trained on more than are here.
        settings = dataclasses.replace(self.settings, parallel=ParallelConfig())
        engine = build.build_engine(settings, jax.local_devices()[:1])
        _, _, init_state = build.build_training(settings, self.task, engine)
        abstract = jax.eval_shape(init_state, settings.seed).saved
        snapshot = open_snapshot(self.workdir / CHECKPOINTS, self.step)
        state: TrainState = snapshot.state(abstract, OPTIONAL_FIELDS)
        # An average of snapshots, say, is of the workdir but not what its checkpoint holds.
        equal = jax.tree.all(jax.tree.map(np.array_equal, state.params, self.params))
        return state if equal else state.with_params(self.params)

    @property
    def records(self) -> "DataFrame":
        """The records of metrics.jsonl: a row for each step and split, a column for each metric."""
        from pandas import DataFrame

        records = DataFrame(read_metrics(self.workdir)).drop(columns=OF_AUDIT, errors="ignore")
        return records.drop_duplicates(["step", "split"], keep="last", ignore_index=True)

    def batch(
        self, sources: Sequence[str], targets: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """The model's arguments for texts: `run.model.apply({"params": run.params}, **batch)`.

        Arrays [B, T], padded, by the names of the model's arguments. `targets` are those of a task
        on pairs; of a language model, texts that follow.
        """
        sources = _text_list("batch: sources", sources)
        if isinstance(self.model, Seq2Seq) and targets is None:
            raise UserError("batch: the model reads pairs; give targets too")
        if not sources:
            raise UserError("batch: there is no text")
        seconds: Sequence[Any] = [None] * len(sources)
        if targets is not None:
            seconds = _text_list("batch: targets", targets)
        _require_pairs("batch", sources, seconds)
        pairs = zip(sources, seconds, strict=True)
        rows = [self.model_inputs(source, target).inputs for source, target in pairs]
        arguments = zip(*rows, strict=True)  # one array [1, T] a row for each argument
        names = input_names(self.model)
        return {name: _stack(arrays) for name, arrays in zip(names, arguments, strict=False)}

    def batches(self, split: str = "train") -> Iterator[Supervised]:
        """Packed batches of a split; those of "train" are endless, in the order of training.

        Each has `inputs` for `run.model.apply({"params": run.params}, **inputs)`, the `labels` of
        the logits, and `counted`, False where there is no label.

        Raises:
          UserError: the split cannot be read, or the task has no labels.
        """
        supervised = ability(self.task, "supervised")
        task = self.task
        examples = open_data(self.settings, split)
        rows = build.batch_rows(self.settings, task)
        if split == "train":
            packed: Any = build.batches_of(self.settings, task, examples, rows)
        else:
            prepared = task.prepare(examples, training=False)
            packed = eval_batches(prepared, task.preprocess, lengths=task.lengths, rows=rows)
        names = input_names(self.model)
        for batch in packed:
            inputs, labels, counted = supervised(batch)
            yield Supervised(dict(zip(names, inputs, strict=False)), labels, counted)

    @functools.cached_property
    def hook_points(self) -> "HookPointAxes":
        """Hook points of the model that can be patched, with their axes (`nn.hooks`)."""
        from transformer_jax.models.patches import find_hook_points

        return find_hook_points(self.task.init)

    def model_inputs(self, source: str, target: str | None = None) -> ModelInputs:
        """The tokens of an example, as the model reads them; arguments as of `attention`."""
        read = ability(self.task, "model_inputs")
        if not isinstance(source, str):
            raise UserError("model_inputs: source is a list of texts; give one text")
        return read(self.params, source, target, self.settings.decode)

    def beam_tree(self, line: str, **decode: Any) -> "BeamTree":
        """The hypotheses that beam search considered for a line: which it kept and why."""
        search = ability(self.task, "beam_tree")
        return search(self.params, line, self._decode("predict", decode))

    def predict(
        self, lines: Sequence[str], prefixes: Sequence[str] | None = None, **decode: Any
    ) -> list[str]:
        """The best output of each line; `decode` overrides fields of the section `decode`.

        With `prefixes`, one a line, each output starts with its prefix.
        """
        if "num_outputs" in decode:
            raise UserError("predict: it returns one output a line; n_best takes num_outputs")
        return [outputs[0].text for outputs in self.n_best(lines, prefixes=prefixes, **decode)]

    def n_best(
        self,
        lines: Sequence[str],
        first_line: int = 1,
        prefixes: Sequence[str] | None = None,
        **decode: Any,
    ) -> list[list[Prediction]]:
        """The `num_outputs` best outputs of each line with their scores, best first.

        Lines are numbered from `first_line`, in warnings and in the seeds of samples.
        """
        lines = _text_list("predict: lines", lines)
        options = self._decode("predict", decode)
        task, params = self.with_decoding(options)
        if prefixes is None:
            predict = functools.partial(task.predict, params, lines)
        else:
            with_prefixes = ability(task, "predict_with_prefixes")
            prefixes = _text_list("predict: prefixes", prefixes)
            if len(prefixes) != len(lines):
                raise UserError(f"{len(lines)} lines but {len(prefixes)} prefixes; give one a line")
            predict = functools.partial(with_prefixes, params, lines, prefixes)
        with self.naming_layer(lines):
            predictions = list(predict(options, first_line))
            if any(math.isnan(output.score) for outputs in predictions for output in outputs):
                raise NonFiniteError
        if isinstance(task.model, DraftedModel):
            message = "draft %s: %.2f tokens a step, %.0f%% of its proposals accepted"
            accepted = 100 * task.model.acceptance
            logger.info(message, options.draft, task.model.tokens_per_step, accepted)
        return predictions

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """log P(target | source) of each pair, in nats."""
        return [pair.log_prob for pair in self.pair_scores(sources, targets)]

    def pair_scores(
        self, sources: Sequence[str], targets: Sequence[str], first_line: int = 1
    ) -> list[PairScore]:
        """Scores pairs like `score`, and whether greedy search generates each target.

        Lines are numbered from `first_line` in messages.
        """
        score_pairs = ability(self.task, "score")
        sources = _text_list("score: sources", sources)
        targets = _text_list("score: targets", targets)
        _require_pairs("score", sources, targets)
        batch_size = self.settings.decode.batch_size
        with self.naming_layer(sources):
            scores = score_pairs(self.params, sources, targets, batch_size, first_line)
            if any(math.isnan(pair.log_prob) for pair in scores):
                raise NonFiniteError
        return scores

    def embed(self, lines: Sequence[str], first_line: int = 1) -> np.ndarray:
        """The vector of each line, float32 [N, D], as `task.pooling` and `task.normalize` say.

        Lines are numbered from `first_line` in warnings.
        """
        embed = ability(self.task, "embed")
        texts = _text_list("embed: lines", lines)
        return embed(self.params, texts, self.settings.decode.batch_size, first_line)

    def evaluate(
        self,
        split: str | None = None,
        source: str | None = None,
        target: str | None = None,
        command: str | None = None,
        *,
        progress: bool = True,
        **decode: Any,
    ) -> dict[str, Any]:
        """Evaluates a split, or the files `source` and `target`; writes outputs to `predictions/`.

        The files count as a split that is named after `source` and the digest of their content.

        Args:
          split: None: "test", or "valid" if the data has no test split.
          command: a command that scores the outputs too (`scoring.command`).
          progress: show the progress on stderr or, in a notebook, in one line.
          **decode: fields of the section `decode`.

        Raises:
          UserError: the split, the files or the command cannot be used.
        """
        from transformer_jax.runs.evaluate import evaluator_of, keep_outputs, outputs_made_by

        options = self._decode("evaluate", decode)
        task, params = self.with_decoding(options)
        name, evaluator, data = evaluator_of(self.settings, task, options, split, source, target)
        with shown(progress and hosts.is_primary()), self.naming_layer([]):
            metrics, outputs = evaluator(params, self.frozen)
            if math.isnan(metrics["loss"]) and nonfinite_parameters(self.params):
                raise NonFiniteError
        metrics = add_command_scores(command, metrics, evaluator.decoded_examples, outputs)
        if self.stored:
            path = self.workdir / PREDICTIONS / f"{name}-{self.step}.jsonl"
            made_by = outputs_made_by(self.step, options, task, data) | {
                "checkpoint": item_id(self.workdir / CHECKPOINTS / str(self.step), PARAMS),
                "average": self.average,
                "changed": self._changed_fields(),
            }
            keep_outputs(path, evaluator, outputs, made_by)
        plain = {key: to_python(value) for key, value in metrics.items()}
        return {**plain, **self.identity, "split": name}

    def _changed_fields(self) -> dict[str, Any]:
        """Fields that outputs depend on, and of which the workdir has other values."""
        saved = load_json(self.workdir / CONFIG).values
        return {
            name: value
            for name, value in self.settings.values.items()
            if name.startswith(("task.", "model.", "data.max_")) and value != saved.get(name)
        }

    def stream(self, line: str, **decode: Any) -> Iterator[str]:
        """Yields the continuation of a line while it is sampled; UserError if the task has none."""
        ability(self.task, "stream")
        options = self._decode("stream", decode)
        task, params = self.with_decoding(options)
        return self._stream(ability(task, "stream")(params, line, options), line)

    def _stream(self, pieces: Iterator[str], line: str) -> Iterator[str]:
        with self.naming_layer([line]):
            yield from pieces

    @contextlib.contextmanager
    def naming_layer(self, lines: Sequence[str]) -> Iterator[None]:
        """Names the layer in an error that logits are not finite; the lines are read again."""
        try:
            yield
        except NonFiniteError as error:
            raise NonFiniteError(nonfinite_cause(self, lines)) from error

    def with_decoding(self, decode: DecodeConfig) -> tuple[Task, Params]:
        """The task and the parameters with the weights and the draft that these settings choose,
        kept for later calls; UserError if the draft cannot be used."""
        if decode.weights not in self._weights:
            self._weights[decode.weights] = convert_weights(decode.weights, self.params)
        params = self._weights[decode.weights]
        if decode.draft is None:
            return self.task, params
        key = decode.draft, decode.draft_length, decode.weights
        if key not in self._drafts:
            self._drafts[key] = add_draft(self, params, decode)
        return self._drafts[key]

    def _decode(self, use: str, overrides: Mapping[str, Any]) -> DecodeConfig:
        if "draft" not in overrides:
            refuse_loaded(self.settings, ("decode.draft",), "--draft")
        return decode_options(self.settings.decode, self.task, use, overrides)


class Chat(Summarized):
    """A conversation: each question is answered given all turns before it.

    Attributes:
      turns: the turns so far.

    Args:
      run: a run whose task supports conversations, or a language model, such as an imported one.
      template: a value of `task.template`; None: that of the run, or of the tokenizer.
      **decode: fields of the section `decode`, as for `Run.predict`.
    """

    def __init__(self, run: Run, template: str | None = None, **decode: Any) -> None:
        if run.settings.task.name == "language_modeling":
            run = run.with_config({"task.name": "instruction", "task.template": template or MODEL})
        elif template is not None:
            run = run.with_config({"task.template": template})
        ability(run.task, "reply")
        self._decode = run._decode("stream", decode)
        task, self._params = run.with_decoding(self._decode)
        self._run = run
        self._reply = ability(task, "reply")
        self.turns: tuple[Turn, ...] = ()

    def summary(self) -> Mapping[str, Any]:
        return {f"{number} {turn.role}": turn.content for number, turn in enumerate(self.turns, 1)}

    def ask(self, question: str) -> Iterator[str]:
        """Yields the answer piece by piece while it is sampled.

        If the conversation is longer than the context, its oldest turns are dropped.

        Raises:
          UserError: the question alone is longer than the context, or contains text that looks like
            the template's markup; the conversation stays as it was.
        """
        turns = (*self.turns, Turn(USER, question))
        pieces = []
        with self._run.naming_layer([]):
            for piece in self._reply(self._params, turns, self._decode):
                pieces.append(piece)
                yield piece
        # Only now: after an error, or if the caller stops early, the conversation is as before.
        self.turns = (*turns, Turn(ASSISTANT, "".join(pieces)))

    def reset(self, system: str | None = None) -> None:
        """Starts a new conversation, with a system prompt if given."""
        self.turns = () if system is None else (Turn(SYSTEM, system),)


def _shapes(params: Params) -> dict[str, str]:
    """The shapes of parameters, as texts, by their paths."""
    return {name: str(np.shape(leaf)) for name, leaf in named_leaves(params).items()}


def decode_options(
    section: DecodeConfig, task: Task, use: str, overrides: Mapping[str, Any]
) -> DecodeConfig:
    """The section `decode` of a run with the values of one call.

    Args:
      use: "predict", "evaluate" or "stream".
      overrides: {field of the section: value}.

    Raises:
      UserError: a value is invalid or has no effect.
    """
    typed = parsed({f"decode.{name}": value for name, value in overrides.items()}, use)
    values = {name: typed[f"decode.{name}"] for name in overrides}
    with user_errors("decode"):
        options = section.with_values(values)
    unread = unread_fields(use, task)
    for name in overrides:
        if name in unread:
            raise UserError(f"decode: {name} does nothing in {use} of this task; leave it out")
    ignored = options.ignored_fields(overrides)
    if ignored:
        raise UserError(
            f"decode: {ignored[0]} does nothing in the search that is chosen; leave it out, or "
            "choose another search"
        )
    return options


def _text_list(name: str, texts: Iterable[str]) -> list[str]:
    """Returns the texts of a caller, who may have a column of a DataFrame or an array, as a list.

    Raises:
      UserError: it is one text, whose characters would become the texts, or an element is no text,
        as the NaN of an empty cell.
    """
    if isinstance(texts, str):
        raise UserError(f"{name} is one text; give a list of texts")
    text_list = list(texts)
    for i, text in enumerate(text_list):
        if not isinstance(text, str):
            raise UserError(f"{name}[{i}] is {text!r}; it must be a text")
    return text_list


def _require_pairs(use: str, sources: Sequence[str], targets: Sequence[Any]) -> None:
    if len(sources) != len(targets):
        raise UserError(f"{use}: {len(sources)} sources but {len(targets)} targets; give pairs")


def _stack(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Rows [1, T] of unequal lengths as one array; zeros, which are padding, fill it."""
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows])


_NO_LAYERS = (".weights", ".logit_bias")
"""Ends of hook points that are no layer's values; masks may be infinite there."""


def nonfinite_parameters(params: Params) -> list[str]:
    """Names of the parameters that hold NaN or infinity."""
    flags = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.isfinite(x).all(), tree))(params)
    return [name for name, is_finite in named_leaves(flags).items() if not is_finite]


def first_nonfinite_layer(model: Any, params: Params, reading: ModelInputs) -> str | None:
    """The first hook point (`nn.hooks`) whose value is not finite; None if all are."""
    names: list[str] = []

    def run(params: Params, inputs: tuple[jax.Array, ...]) -> list[jax.Array]:
        flags: list[jax.Array] = []

        def keep(point: HookPoint, x: jax.Array) -> jax.Array:
            names.append(point.path)
            flags.append(jnp.isfinite(x).all())
            return x

        with intercept_activations(keep, lambda path: not path.endswith(_NO_LAYERS)):
            apply_model(model, params, *inputs)
        return flags

    flags = jax.jit(run)(params, reading.inputs)  # traced once, so `names` are in their order
    for name, is_finite in zip(names, flags, strict=True):
        if not is_finite:
            return name
    return None


def nonfinite_cause(run: Any, lines: Sequence[str]) -> str:
    """The parameter of a run, or the layer for one of the lines, as the end of a message; or ""."""
    if hasattr(run, "members"):  # an ensemble
        causes = {member.workdir: nonfinite_cause(member, lines) for member in run.members}
        return next((f" in {workdir}{cause}" for workdir, cause in causes.items() if cause), "")
    params = run.params
    names = nonfinite_parameters(params)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f": so is the parameter {names[0]}{more}; take another checkpoint"
    model_inputs = getattr(run.task, "model_inputs", None)
    if model_inputs is None:
        return ""
    for line, target in itertools.product(lines, (None, "")):
        # Without a target, tasks on pairs search for one, which fails again.
        with contextlib.suppress(UserError):
            reading = model_inputs(params, line, target, run.settings.decode)
            layer = first_nonfinite_layer(run.task.model, params, reading)
            if layer:
                return f": so is {layer}, although all parameters are finite"
    return ""
