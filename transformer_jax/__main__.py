"""`python -m transformer_jax VERB ...`."""

import sys

try:
    from transformer_jax.cli import terminal

    terminal.install()
    from transformer_jax.cli.main import main

    status = main()
    terminal.end_at_once()
except KeyboardInterrupt:  # while the program is imported
    status = 130
sys.exit(status)
