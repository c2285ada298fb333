"""Who writes somewhere, for the others who find it taken."""

import datetime
import os
import socket


def described() -> str:
    """This process, its machine and the time now, to the microsecond: no two are alike."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    return f"process {os.getpid()} on {socket.gethostname()}, since {now}"
