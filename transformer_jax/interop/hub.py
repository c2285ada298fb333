"""Where a model is taken from: a directory, or a repository of the Hugging Face hub."""

import re
from pathlib import Path

from transformer_jax.buckets import copies
from transformer_jax.buckets.addresses import is_address
from transformer_jax.errors import UserError

HUB = "hf:"
_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_WANTED = ["*.json", "*.safetensors", "*.model", "*.spm", "*.txt"]


def fetched(source: str) -> Path:
    """The directory that holds a model; what the hub, or a bucket, has of it is brought here.

    Args:
      source: a directory or its address, or hf:OWNER/NAME or hf:OWNER/NAME@REVISION.

    Raises:
      UserError: there is no such directory, or the hub does not give it.
    """
    if is_address(source):
        return copies.fetched(source)
    if not source.startswith(HUB):
        if not Path(source).is_dir():
            raise UserError(f"--from: {source} is no directory (of the hub: hf:OWNER/NAME)")
        return Path(source)
    found = _REPOSITORY.fullmatch(source.removeprefix(HUB))
    if found is None:
        raise UserError(
            f"--from: {source} is not of the form hf:OWNER/NAME or hf:OWNER/NAME@REVISION"
        )
    from huggingface_hub import snapshot_download  # takes a second
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(found[1], revision=found[2], allow_patterns=_WANTED))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--from: {source} cannot be fetched ({reason}); is there a network, and is the name "
            "right? A directory that was downloaded elsewhere will do"
        ) from error
