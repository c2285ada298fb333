"""The tokenizers of a run: trained once, kept in its workdir, loaded from there ever after.

A folder holds `sides.json`, which names for each side its model file and that file's SHA-256, and
the models: `joint.model`, or one for each side. The folder appears whole or not at all.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.tokenizer import Tokenizer
from transformer_jax.tokenization.training import train_model

logger = logging.getLogger(__name__)

_MANIFEST = "sides.json"


@dataclass(frozen=True)
class Tokenizers:
    """One tokenizer for each side of the data: "source" and "target" for pairs.

    Sides with a joint vocabulary hold the same object.
    """

    sides: Mapping[str, Tokenizer]

    def __getitem__(self, side: str) -> Tokenizer:
        return self.sides[side]

    @property
    def joint(self) -> bool:
        """Whether all sides share one vocabulary, as tied embeddings ask (section 3.4)."""
        return len({id(tokenizer) for tokenizer in self.sides.values()}) == 1


def train_tokenizers(
    config: TokenizerConfig, texts: Mapping[str, Iterable[str]], directory: str | Path
) -> Tokenizers:
    """Trains on each side's texts (read once) and stores the result as `directory`.

    Raises UserError when the texts do not fit the config, OSError when `directory` holds something.
    """
    one_for_all = config.joint and len(texts) > 1
    corpora = {"joint": chain.from_iterable(texts.values())} if one_for_all else texts
    models = {name: train_model(config, corpus, name) for name, corpus in corpora.items()}
    model_of = {side: side if side in models else "joint" for side in texts}
    _store(models, model_of, Path(directory))
    return load_tokenizers(directory)


def load_tokenizers(directory: str | Path) -> Tokenizers:
    """What `train_tokenizers` stored; UserError naming the file that is missing or damaged."""
    directory = Path(directory)
    sides = _read_manifest(directory / _MANIFEST)
    loaded = {model: _load_model(directory / model[0], model[1]) for model in set(sides.values())}
    return Tokenizers({side: loaded[model] for side, model in sides.items()})


def copy_tokenizers(source: str | Path, directory: str | Path) -> Tokenizers:
    """Stores those of another folder as `directory`, whole; UserError as from `load_tokenizers`."""
    load_tokenizers(source)
    partial = _fresh_partial(Path(directory))
    shutil.copytree(source, partial, dirs_exist_ok=True)
    os.replace(partial, directory)
    logger.info("took over the tokenizers of %s", source)
    return load_tokenizers(directory)


def _store(models: Mapping[str, bytes], model_of: Mapping[str, str], directory: Path) -> None:
    partial = _fresh_partial(directory)
    for name, model in models.items():
        (partial / f"{name}.model").write_bytes(model)
    manifest = {
        side: {"file": f"{name}.model", "sha256": hashlib.sha256(models[name]).hexdigest()}
        for side, name in model_of.items()
    }
    (partial / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    os.replace(partial, directory)


def _fresh_partial(directory: Path) -> Path:
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed here
    partial.mkdir(parents=True)
    return partial


def _read_manifest(path: Path) -> dict[str, tuple[str, str]]:
    """Side -> (file name, SHA-256)."""
    try:
        sides = json.loads(_read(path))
        return {side: (entry["file"], entry["sha256"]) for side, entry in sides.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(_damaged(path)) from error


def _load_model(path: Path, sha256: str) -> Tokenizer:
    model = _read(path)
    if hashlib.sha256(model).hexdigest() != sha256:
        raise UserError(_damaged(path))
    try:
        return Tokenizer(model)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: the tokenizer cannot be read ({error.strerror}); "
            "restore the file or train in a new workdir"
        ) from error


def _damaged(path: Path) -> str:
    return f"{path}: the tokenizer is damaged; restore the file or train in a new workdir"
