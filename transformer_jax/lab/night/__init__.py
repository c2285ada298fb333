# SPDX-License-Identifier: Apache-2.0
"""Nights: many proposals to change one baseline, each tested, with one error rate for all."""
