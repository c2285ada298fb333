# SPDX-License-Identifier: Apache-2.0
"""Finds the directory of a published model: here, in a bucket, or on the Hugging Face hub.

From the hub only the files that an import reads are downloaded, into the hub's own cache: a
download that was stopped continues from there.
"""

import contextlib
import glob
import re
from collections.abc import Collection
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import Any

from transformer_jax.buckets import copies
from transformer_jax.buckets.bucket import is_address
from transformer_jax.errors import UserError, reason_of
from transformer_jax.interop.weights import PICKLES, WEIGHTS
from transformer_jax.ranges import short_repr

HUB = "hf:"
SECONDS = 30.0
"""Time limit of each answer of the hub. The library has none for most requests."""

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_TEXTS = ("*.json", "*.model", "*.spm", "*.txt", "*.jinja", "README.md")
_SHARDS = "model*.safetensors"
_POOLING = "*_Pooling/config.json"  # of sentence-transformers
_CONVERSION = "safetensors"  # in the title of the pull requests of the hub's converter


def fetch_model(source: str) -> Path:
    """Directory with a model. Downloads it first if it is in a bucket or on the Hugging Face hub.

    Args:
      source: a directory or its address, or hf:OWNER/NAME or hf:OWNER/NAME@REVISION.

    Raises:
      UserError: there is no such directory or repository, it has no safetensors, or the download
        fails.
    """
    if is_address(source):
        return copies.fetch_folder(source)
    if not source.startswith(HUB):
        if not Path(source).is_dir():
            raise UserError(f"{source} is no directory (of the hub: hf:OWNER/NAME)")
        return Path(source)
    match = _REPOSITORY.fullmatch(source.removeprefix(HUB))
    if match is None:
        raise UserError(f"{source} is not of the form hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    return _download(source, match[1], match[2])


def _download(source: str, repository: str, revision: str | None) -> Path:
    from huggingface_hub import HfApi, snapshot_download  # takes a second
    from huggingface_hub.errors import (
        GatedRepoError,
        HTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    _limit_time()
    api = HfApi()
    try:
        patterns = [*_TEXTS, _SHARDS]
        with contextlib.suppress(OfflineModeIsEnabled):  # the cache may have the model
            siblings = api.model_info(repository, revision=revision).siblings or ()
            files = [sibling.rfilename for sibling in siblings]
            patterns = [glob.escape(name) for name in _read_by_import(files)]
            if not any(name.endswith(".safetensors") for name in files if "/" not in name):
                raise UserError(_no_weights(api, source, repository, files))
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=patterns, etag_timeout=SECONDS
        )
        return Path(folder)
    except GatedRepoError as error:
        raise UserError(
            f"{source} is gated: accept its terms at {api.endpoint}/{repository}, and set "
            "HF_TOKEN to an access token of yours"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{source} is not on the hub, or is private: check the name, or set HF_TOKEN "
            "to an access token of yours"
        ) from error
    except (OSError, ValueError, HTTPError) as error:
        raise UserError(
            f"{source} cannot be fetched ({reason_of(error)}); is there a network, and is "
            "the name right? A directory that was downloaded elsewhere will do"
        ) from error


def _read_by_import(files: Collection[str]) -> list[str]:
    """Files that an import reads; not copies of the model in other formats or in subfolders."""
    patterns = (*_TEXTS, WEIGHTS if WEIGHTS in files else _SHARDS)
    at_top = [name for name in files if "/" not in name]
    read = [name for name in at_top if any(fnmatch(name, pattern) for pattern in patterns)]
    return read + [name for name in files if fnmatch(name, _POOLING) and name.count("/") == 1]


def _limit_time() -> None:
    """Gives all requests of the hub's library a time limit. It sends them with none."""
    from huggingface_hub.utils import get_session

    def limit(request: Any) -> None:
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {name: limits[name] or SECONDS for name in limits}

    session = get_session()
    hooks = session.event_hooks
    session.event_hooks = {**hooks, "request": [*hooks["request"], limit]}


def _no_weights(api: Any, source: str, repository: str, files: Collection[str]) -> str:
    """Message about a repository without safetensors."""
    pickles = [name for name in files if any(Path(name).match(pattern) for pattern in PICKLES)]
    if not pickles:
        return f"{source} has no weights: {WEIGHTS} is missing"
    reason = (
        f"{source} has {short_repr(pickles[0])} but no {WEIGHTS}: pickles are not read, "
        "because loading one can execute anything"
    )
    number = _conversion(api, repository)
    if number is not None:
        return f"{reason}; a pull request converts it: --from={HUB}{repository}@refs/pr/{number}"
    return (
        f"{reason}; look for a pull request that converts it at {api.endpoint}/{repository}"
        f"/discussions (then --from={HUB}{repository}@refs/pr/NUMBER), or convert it with "
        "transformers (save_pretrained)"
    )


def _conversion(api: Any, repository: str) -> int | None:
    """Number of the first pull request that adds safetensors; None if none is found."""
    with contextlib.suppress(Exception):  # the message does without it
        for request in api.get_repo_discussions(repository, discussion_type="pull_request"):
            if _CONVERSION in request.title.lower() and type(request.num) is int:
                return request.num
    return None
