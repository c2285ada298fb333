"""From the words of the command line to an exit status."""

import os
import sys
from collections.abc import Sequence

from transformer_jax.cli import verbs
from transformer_jax.cli.messages import log_to_stderr
from transformer_jax.cli.parser import parse
from transformer_jax.errors import UserError

USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb: 0, or 2 and one line on stderr where the user got something wrong.

    An interrupt (130) and a reader that went away (141), such as `head`, are quiet.
    """
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        log_to_stderr()
        getattr(verbs, args.verb)(args)
        sys.stdout.flush()
    except UserError as error:
        return _fail(str(error))
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # The interpreter flushes stdout once more on its way out, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _fail(message: str) -> int:
    print("error:", " ".join(message.splitlines()), file=sys.stderr)
    return USER_ERROR
