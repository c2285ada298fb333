"""Addresses of files elsewhere, and what goes wrong with them in one line."""

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from transformer_jax.errors import UserError

ALLOW = "TRANSFORMER_JAX_ALLOW_ADDRESSES"
"""Environment variable: more protocols that addresses may have, such as "file,http"."""
PROTOCOLS = ("s3", "gs", "gcs")
"""Protocols that an address may have. A config may come from strangers: an address in it must not
reach any server, or any file of this machine."""
_ADDRESS = re.compile(r"([A-Za-z][\w+.-]*)://")
_FOLDED = re.compile(r"(s3|gs|gcs):/[^/]")  # what `Path` makes of an address


class BucketError(UserError):
    """What lies at an address cannot be read or written now."""


class Missing(BucketError):
    """There is no such file, or no such bucket."""


def is_address(path: str | Path) -> bool:
    """Returns True if a path names something elsewhere, such as "s3://...".

    Raises:
      UserError: it was one, before it was made a `Path`; or an address that is not allowed
        (`require_allowed`).
    """
    if isinstance(path, Path) and _FOLDED.match(str(path)):
        raise UserError(f"{path} was an address: give it as text, since Path drops one of its //")
    if not isinstance(path, str) or not ("://" in path and (_ADDRESS.match(path) or "::" in path)):
        return False
    require_allowed(path)
    return True


def require_allowed(address: str, also: Collection[str] = ()) -> None:
    """Raises UserError unless an address may be used.

    Its protocol must be one of `PROTOCOLS`, of `also`, or of the environment variable
    TRANSFORMER_JAX_ALLOW_ADDRESSES. Chains ("zip://x::http://...") are always refused: a protocol
    that is allowed could reach through them to any other.
    """
    if "::" in address:
        raise UserError(f"{address!r} has '::', which chains addresses; give a plain one")
    found = _ADDRESS.match(address)
    allowed = {*PROTOCOLS, *also, *os.environ.get(ALLOW, "").replace(" ", "").split(",")}
    if not found or found[1] not in allowed:
        known = ", ".join(f"{one}://" for one in (*PROTOCOLS, *also))
        more = f"; to allow it, set {ALLOW}={found[1]} in the environment" if found else ""
        raise UserError(f"{address!r} is no address that may be used ({known} are){more}")


@contextlib.contextmanager
def telling(what: str, address: str) -> Iterator[None]:
    """Makes one line of whatever goes wrong: the errors of fsspec are of many libraries.

    Args:
      what: "cannot read", say.
      address: what the block reads or writes.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise Missing(f"{what} {address}: there is no such file or bucket") from error
    except ImportError as error:
        protocol = address.partition("://")[0]
        told = f"{what} {address}: {protocol}:// needs a package of its own ({error})"
        raise BucketError(f"{told}; pip install it") from error
    except Exception as error:
        raise BucketError(f"{what} {address}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The first line of an error, in a moderate length."""
    return (str(error).strip() or repr(error)).splitlines()[0][:300]
