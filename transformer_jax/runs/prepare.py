"""What is put into a workdir before its run trains, or goes on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.errors import UserError
from transformer_jax.logs.records import newest_step
from transformer_jax.runs import provenance
from transformer_jax.runs.config import (
    Settings,
    check_same_run,
    load_json,
    read_settings,
    save_json,
)
from transformer_jax.runs.modules import UserModule, record_modules
from transformer_jax.runs.vocabularies import build_tokenizers
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    REFERENCE,
    TOKENIZER,
    workdir_path,
)
from transformer_jax.runtime.files import remove
from transformer_jax.tokenization import load_tokenizers


def prepare(
    config: ConfigDict,
    workdir: Path,
    checkpoints: Checkpoints,
    examples: Sequence[Any],
    modules: Sequence[UserModule],
) -> None:
    """Puts config, tokenizers and the names of the user's modules into the workdir.

    Args:
      config: of the run.
      workdir: which may hold an earlier start of it.
      checkpoints: of the workdir.
      examples: of the training split, from which tokenizers learn.
      modules: that were given for the run.

    Raises:
      UserError: the workdir holds another run, or one whose checkpoints or tokenizers are gone or
        that was trained on other data, or the tokenizers cannot be made.
    """
    kept, tokenizer = workdir / CONFIG, workdir / TOKENIZER
    settings = read_settings(config)
    if checkpoints.holds_params_alone():
        raise UserError(
            f"{workdir} holds a published model, without the state of a training; choose another "
            f"--workdir and start from it: --config.train.init_from={workdir}"
        )
    if checkpoints.latest_step() is not None:
        check_same_run(config, load_json(kept), workdir)
        now = checkpoints.provenance | provenance.of_tokenizers(load_tokenizers(tokenizer))
        provenance.check(now, checkpoints.kept_provenance("latest"), workdir)
    else:
        _require_nothing_lost(workdir, checkpoints.directory)
        # Nothing to go on from: what is there is of a start that failed, with any config.
        remove(tokenizer)
        remove(workdir / REFERENCE)
        checkpoints.directory.mkdir(exist_ok=True)
        if settings.train.init_from:
            _check_tokenizers_of_origin(workdir_path(settings.train.init_from), settings)
    build_tokenizers(settings, tokenizer, examples)
    save_json(config, kept)
    record_modules(workdir, config, modules)


def _check_tokenizers_of_origin(origin: Path, settings: Settings) -> None:
    """Raises UserError where the run to start from has not the tokenizers it was trained with."""
    tokenizers = load_tokenizers(origin / TOKENIZER)
    checkpoints = Checkpoints(origin / CHECKPOINTS, settings.checkpoint)
    provenance.check_tokenizers(tokenizers, checkpoints, "latest", origin)


def _require_nothing_lost(workdir: Path, checkpoints: Path) -> None:
    """Raises UserError where a run without any checkpoint must have had some.

    A start makes their folder before it writes the config; the second save waits for the first.
    """
    kept = workdir / CONFIG
    gone = not checkpoints.is_dir() and kept.exists()
    if not gone and kept.exists():
        twice = 2 * load_json(kept).checkpoint.every_steps
        gone = newest_step(workdir / METRICS) > twice
    if gone:
        raise UserError(
            f"{workdir} holds a run whose {checkpoints.name}/ is gone (a disk that is not "
            "mounted?); bring it back, or start anew in another --workdir"
        )
