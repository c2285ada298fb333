"""Addresses of files elsewhere, and what goes wrong with them in one line."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from transformer_jax.errors import UserError

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://")
_FOLDED = re.compile(r"(s3|gs|gcs):/[^/]")  # what `Path` makes of an address


class BucketError(UserError):
    """What lies at an address cannot be read or written now."""


class Missing(BucketError):
    """There is no such file, or no such bucket."""


def is_address(path: str | Path) -> bool:
    """Whether a path names something elsewhere, "s3://..." for one.

    Raises:
      UserError: it was one, before it was made a `Path`.
    """
    if isinstance(path, Path) and _FOLDED.match(str(path)):
        raise UserError(f"{path} was an address: give it as text, since Path drops one of its //")
    return isinstance(path, str) and bool(_ADDRESS.match(path))


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
