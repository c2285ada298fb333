# SPDX-License-Identifier: Apache-2.0
"""Preemption notices: a cloud announces, seconds before, that it will take a machine away.

This module turns a notice into a SIGTERM, on which training saves and stops.
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

POLL_SECONDS = 5.0
"""Seconds between polls. After a notice, Google leaves 30 seconds, Amazon 120."""

_ANSWER_SECONDS = 2.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def gce() -> bool:
    """Returns True if the GCE metadata server (Cloud TPU too) announces preemption.

    Raises:
      OSError: the server does not answer.
    """
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance"
    headers = {"Metadata-Flavor": "Google"}
    if _answer(f"{url}/preempted", headers) == "TRUE":
        return True
    return _answer(f"{url}/maintenance-event", headers) == "TERMINATE_ON_HOST_MAINTENANCE"


def aws() -> bool:
    """Returns True if the EC2 metadata service announces the end of a spot instance.

    Raises:
      OSError: the service does not answer.
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
"""Sources of notices by name, for `parallel.preemption_notice`."""


@contextlib.contextmanager
def watch_preemption(notice: str | None) -> Iterator[None]:
    """Polls for a preemption notice during the block; on a notice, sends this process a SIGTERM.

    Args:
      notice: a key of `CLOUDS`, or the path of a file whose existence is the notice; None: no
        polling.
    """
    if notice is None:
        yield
        return
    is_announced = CLOUDS.get(notice) or Path(notice).expanduser().exists
    ended = threading.Event()

    def poll() -> None:
        has_warned = False
        while not ended.wait(POLL_SECONDS):
            try:
                if is_announced():
                    logger.warning("notice by %s: this machine is about to be taken away", notice)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
            except OSError as error:
                if not has_warned:
                    message = "%s does not answer (%s): no notice would reach this run"
                    logger.warning(message, notice, error)
                has_warned = True

    watcher = threading.Thread(target=poll, name="preemption notice", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _answer(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    with _direct.open(request, timeout=_ANSWER_SECONDS) as answer:
        return str(answer.read(1000).decode()).strip()
