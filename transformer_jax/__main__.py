"""`python -m transformer_jax VERB ...`."""

import sys

from transformer_jax.cli.main import main

sys.exit(main())
