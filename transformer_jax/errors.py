"""Exceptions for user errors, which are one line, and for runs that were asked to stop."""

RESUMABLE = 75
"""Exit status of a run that the same command resumes: EX_TEMPFAIL of sysexits."""


class UserError(Exception):
    """A user's mistake, in one line: what is wrong, where, and what would fix it.

    The shell prints it to stderr and exits with status 2; a notebook gets the exception.
    """


class DivergedError(UserError):
    """The loss of a run is not finite."""


class Stopped(Exception):
    """SIGTERM stopped a run before its last step. Its state is saved; the same call resumes it."""
