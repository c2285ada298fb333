# SPDX-License-Identifier: Apache-2.0
"""The paper's parts as Flax modules: they know no mesh, no config file and no I/O."""
