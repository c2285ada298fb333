# SPDX-License-Identifier: Apache-2.0
"""`transformer_jax VERB ...`, and `python -m transformer_jax VERB ...`."""

import sys


def run() -> int:
    """Runs the command line of this process and returns its exit status."""
    try:
        from transformer_jax.cli import terminal

        terminal.handle_interrupts()
        from transformer_jax.cli.main import main

        return main()
    except KeyboardInterrupt:  # during the imports
        return 130


if __name__ == "__main__":
    sys.exit(run())
