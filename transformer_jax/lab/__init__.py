# SPDX-License-Identifier: Apache-2.0
"""Analysis, pictures, sweeps, evidence, verification and plans of runs.

Nothing below imports this package, so that a training or a prediction does not depend on it.
"""
