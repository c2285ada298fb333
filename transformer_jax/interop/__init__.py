# SPDX-License-Identifier: Apache-2.0
"""Imports published models as runs, and exports runs for `transformers` and CTranslate2.

`families` describes each published architecture: its config keys, and the names of its tensors. The
same description serves both directions.
"""
