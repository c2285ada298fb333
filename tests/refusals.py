# SPDX-License-Identifier: Apache-2.0
"""Refusals as a table, or by their message."""

import pytest

from transformer_jax.errors import UserError


def assert_refused(calls):
    """Each of {words of a message: call} raises an error with these words; others are listed.
    Where calls share words, rows are {name: (call, words)}."""
    failures = {}
    for name, call in calls.items():
        words = name
        if isinstance(call, tuple):
            call, words = call
        try:
            call()
            message = "nothing is refused"
        except (UserError, ValueError, TypeError) as error:
            message = str(error)
        if words not in message:
            failures[name] = message
    assert not failures, failures


def message_of(call, *args, **options):
    """The message of the UserError that a call raises, one line."""
    with pytest.raises(UserError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
