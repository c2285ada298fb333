# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over pipes by the DevTools protocol, to look at pages with."""

import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
FLAGS += ("--hide-scrollbars", "--no-first-run", "--disable-extensions", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--mute-audio")
SECONDS = 30


def find_browser():
    """The path of a Chromium of this machine, or None."""
    named = os.environ.get("TRANSFORMER_JAX_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A running browser: `open` gives pages."""

    def __init__(self, program, profile):
        # The browser reads commands from descriptor 3 and writes to 4.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (*os.pipe(), *os.pipe())]
        reads, commands, self._reads, writes = ends
        self._commands = os.fdopen(commands, "wb")
        actions = [(os.POSIX_SPAWN_DUP2, reads, 3), (os.POSIX_SPAWN_DUP2, writes, 4)]
        log = str(Path(profile) / "log")
        actions.append((os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT, 0o600))
        flags = ("--remote-debugging-pipe", f"--user-data-dir={profile}", *FLAGS)
        command = [program, *flags, "about:blank"]
        self._process = os.posix_spawn(
            program, command, os.environ, file_actions=actions, setpgroup=0
        )
        os.close(reads)
        os.close(writes)
        self._read = b""
        self._numbers = itertools.count(1)
        self.events = []

    def call(self, method, session=None, **params):
        """The result of a command of the protocol; events that come before it are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self):
        while b"\0" not in self._read:
            if not select.select([self._reads], [], [], SECONDS)[0]:
                raise TimeoutError("the browser does not answer")
            if not (block := os.read(self._reads, 1 << 20)):
                raise RuntimeError("the browser ended")
            self._read += block
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def open(self, path, *, width=1280, height=900):
        """A page of a file, once it is drawn."""
        tab = Tab(self, width, height)
        tab.go(path)
        return tab

    def close(self):
        self._commands.close()
        os.close(self._reads)
        os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)


class Tab:
    """A page in a browser, and all that it asked for or complained of."""

    def __init__(self, browser, width, height):
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def go(self, path):
        """Opens a file and waits for its first drawing."""
        self.url = Path(path).as_uri()
        self.call("Page.navigate", url=self.url)
        self.wait_for("performance.getEntriesByName('drawn').length > 0")

    def wait_for(self, condition):
        until = time.monotonic() + SECONDS
        while not self.evaluate(condition):
            assert time.monotonic() < until, (condition, self.complaints())
            time.sleep(0.01)

    def evaluate(self, expression):
        """The value of JavaScript, of a promise what it is kept with; where a link leads to another
        page just then, the value there."""
        options = {"returnByValue": True, "awaitPromise": True}
        try:
            answer = self.call("Runtime.evaluate", expression=expression, **options)
        except RuntimeError as error:
            if "navigated" not in str(error):
                raise
            return self.evaluate(expression)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def texts(self, selector):
        """The text of each element."""
        find = f"document.querySelectorAll({json.dumps(selector)})"
        return self.evaluate(f"Array.from({find}, (one) => one.textContent)")

    def _events(self, *methods):
        events = [e for e in self._browser.events if e.get("sessionId") == self._session]
        return [event["params"] for event in events if event["method"] in methods]

    def complaints(self):
        """Console output, exceptions and blocked requests of the page."""
        methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return self._events(*methods, "Page.javascriptDialogOpening")

    def requests(self):
        """Requested addresses, except the page's own."""
        sent = self._events("Network.requestWillBeSent")
        return [event["request"]["url"] for event in sent if event["request"]["url"] != self.url]

    def press(self, *keys):
        """Presses keys, such as "ArrowDown", "k" or "Shift+l"."""
        for key in keys:
            name = key.removeprefix("Shift+")
            text = "\r" if name == "Enter" else name * (len(name) == 1)
            event = {"key": name, "text": text, "modifiers": 8 * (name != key)}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=name)
        self.settle()

    def point(self, selector, x=0.5, y=0.5, *, click=False):
        """Moves the mouse to a place in an element, as a share of its width and height."""
        find = f"JSON.stringify(document.querySelector({json.dumps(selector)})"
        box = json.loads(self.evaluate(f"{find}.getBoundingClientRect())"))
        at = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        if click:
            button = {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type="mousePressed", **at, **button)
            self.call("Input.dispatchMouseEvent", type="mouseReleased", **at, **button)
        self.settle()

    def settle(self):
        """Waits until pending drawing is done."""
        self.wait_for("document.querySelector('[aria-busy=true]') === null")
        self.evaluate("new Promise((go) => requestAnimationFrame(() => setTimeout(go, 0)))")

    def picture(self, selector):
        """Content of a canvas as a data URL."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).toDataURL()")

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)
