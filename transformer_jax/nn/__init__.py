"""The paper's parts as Flax modules: they know no mesh, no config file and no I/O."""
