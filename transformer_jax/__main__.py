# SPDX-License-Identifier: Apache-2.0
"""`transformer_jax VERB ...`, and `python -m transformer_jax VERB ...`."""

import sys


def run() -> int:
    """Runs the command line of this process and returns its exit status."""
    try:
        from transformer_jax.cli import terminal

        terminal.handle_interrupts()
        terminal.report_uncaught_errors()
        from transformer_jax.cli.main import main

        status = main()
        terminal.exit_silently_if_interrupted()
    except KeyboardInterrupt:  # during the imports
        status = 130
    return status


if __name__ == "__main__":
    sys.exit(run())
