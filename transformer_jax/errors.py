"""What a user got wrong, told in one line; and a run that was told to stop."""

RESUMABLE = 75
"""Exit status of what the same command continues with: sysexits' EX_TEMPFAIL."""


class UserError(Exception):
    """A mistake of the user's: one line that says what is wrong, where, and what would do.

    The shell prints it on stderr and exits with status 2; a notebook sees the exception.
    """


class DivergedError(UserError):
    """The loss of a run is no longer finite."""


class Stopped(Exception):
    """A SIGTERM ended a run before its last step: its state is saved, and the same call goes on."""
