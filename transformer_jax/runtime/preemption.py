"""Notices that a machine is about to be taken away: clouds give them some seconds before they end a
machine that is lent cheaply, or that they must repair.

A notice is passed on to this process as a SIGTERM, on which training saves and stops.
"""

import contextlib
import logging
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

SECONDS = 5.0
"""Between two looks: Google's clouds leave 30 seconds behind a notice, Amazon's 120."""

_ANSWER_SECONDS = 2.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def gce() -> bool:
    """Whether Google's Compute Engine, of which Cloud TPUs are a part, has given notice.

    Raises:
      OSError: its metadata server does not answer.
    """
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance"
    headers = {"Metadata-Flavor": "Google"}
    taken = _answer(f"{url}/preempted", headers) == "TRUE"
    return taken or _answer(f"{url}/maintenance-event", headers) == "TERMINATE_ON_HOST_MAINTENANCE"


def aws() -> bool:
    """Whether Amazon's EC2 has given notice to a spot instance.

    Raises:
      OSError: its metadata service does not answer.
    """
    url = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _answer(f"{url}/latest/api/token", lifetime, method="PUT")
    try:
        _answer(f"{url}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except urllib.error.HTTPError as error:
        if error.code == 404:  # nothing is planned
            return False
        raise
    return True


CLOUDS: Mapping[str, Callable[[], bool]] = {"gce": gce, "aws": aws}
"""Those that are asked by name; any other name is that of a file, which is a notice once it is
there."""


@contextlib.contextmanager
def watch_preemption(notice: str | None, seconds: float | None = None) -> Iterator[None]:
    """Sends this process a SIGTERM once there is a notice, while the block runs.

    Args:
      notice: a name of `CLOUDS`, or the path of a file; None: none is looked for.
      seconds: between two looks; None: `SECONDS`.
    """
    if notice is None:
        yield
        return
    given = CLOUDS.get(notice) or Path(notice).expanduser().exists
    ended = threading.Event()

    def look() -> None:
        silent = False
        while not ended.wait(SECONDS if seconds is None else seconds):
            try:
                if given():
                    logger.warning("notice by %s: this machine is about to be taken away", notice)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
            except OSError as error:
                if not silent:
                    told = "%s does not answer (%s): no notice would reach this run"
                    logger.warning(told, notice, error)
                silent = True

    watcher = threading.Thread(target=look, name="preemption notice", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _answer(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    asked = urllib.request.Request(url, headers=dict(headers), method=method)
    with _direct.open(asked, timeout=_ANSWER_SECONDS) as found:
        return str(found.read(1000).decode()).strip()
