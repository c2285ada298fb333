"""`python -m transformer_jax VERB ...`."""

import sys

try:
    from transformer_jax.cli import terminal

    terminal.handle_interrupts()
    from transformer_jax.cli.main import main

    status = main()
    terminal.exit_silently_if_interrupted()
except KeyboardInterrupt:  # during the imports
    status = 130
sys.exit(status)
