# SPDX-License-Identifier: Apache-2.0
"""What is done with runs: a look inside, pictures, sweeps, evidence, verification and plans.

Nothing below imports this package, so that a training or a prediction does not depend on it.
"""
