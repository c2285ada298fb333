"""Which processes Orbax writes and reads with."""

import jax
import orbax.checkpoint as ocp

from transformer_jax.parallel import hosts


def taking_part(name: str | None = None) -> ocp.options.MultiprocessingOptions:
    """All processes of the job, which wait for each other; or this one, where it acts `alone`.

    Args:
      name: of what they do, if they do something else at once.
    """
    only = {jax.process_index()} if hosts.count() == 1 else None
    return ocp.options.MultiprocessingOptions(active_processes=only, barrier_sync_key_prefix=name)
