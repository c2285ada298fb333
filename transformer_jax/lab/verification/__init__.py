# SPDX-License-Identifier: Apache-2.0
"""Oracles for a user's component: equalities that must hold whatever the component computes."""
