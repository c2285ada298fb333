# SPDX-License-Identifier: Apache-2.0
"""Refusals as a table."""

from transformer_jax.errors import UserError


def assert_refused(calls):
    """Each of {words of a message: call} raises an error with these words; others are listed."""
    failures = {}
    for words, call in calls.items():
        try:
            call()
            message = "nothing is refused"
        except (UserError, ValueError, TypeError) as error:
            message = str(error)
        if words not in message:
            failures[words] = message
    assert not failures, failures
