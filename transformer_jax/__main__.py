"""`python -m transformer_jax VERB ...`."""

import sys

try:
    from transformer_jax.cli import interrupts

    interrupts.install()
    from transformer_jax.cli.main import main

    status = main()
    interrupts.end_at_once()
except KeyboardInterrupt:  # while the program is imported
    status = 130
sys.exit(status)
