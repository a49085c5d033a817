"""A real browser without a window, driven over the pipe of its DevTools protocol; by the standard library alone."""

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

from tests.conftest import PATIENCE_S

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# As root, where CI runs, it starts without its own sandbox alone.
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def found():
    for command in filter(None, map(shutil.which, COMMANDS)):
        tried = subprocess.run([command, "--version"], capture_output=True, timeout=PATIENCE_S, check=False)
        if tried.returncode == 0:
            return command
    return None


@contextmanager
def browser(command, profile):
    to_browser, requests = os.pipe()
    answers, from_browser = os.pipe()
    script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
    argv = ["bash", "-c", script, "bash", command, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(argv, pass_fds=(to_browser, from_browser), start_new_session=True, **quiet)
    os.close(to_browser)
    os.close(from_browser)
    with os.fdopen(requests, "wb", buffering=0) as sent, os.fdopen(answers, "rb") as received:
        try:
            made = Browser(sent, received)
            yield made
            made.call("Browser.close")
            process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()


class Browser:
    def __init__(self, sent, received):
        self._sent, self._received = sent, received
        self._calls = 0
        self.events = []  # (session, method, params) that have come so far

    def call(self, method, session=None, **params):
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params, **({"sessionId": session} if session else {})}
        self._sent.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._calls:
                assert "error" not in answer, answer
                return answer["result"]
            if "method" in answer:
                self.events.append((answer.get("sessionId"), answer["method"], answer["params"]))

    def _message(self):
        pieces = []
        while (byte := self._received.read(1)) != b"\0":
            assert byte, "the browser has gone"
            pieces.append(byte)
        return b"".join(pieces)

    def page(self, address, *, width=1000, height=900, dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable", session)
        page = Page(self, session)
        page.resize(width, height)
        page.emulate(dark=dark)
        self.call("Page.navigate", session, url=address)
        return page


class Page:
    def __init__(self, made, session):
        self._browser, self._session = made, session

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def emulate(self, *, dark):
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def value(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")

    def texts(self, selector):
        return self.value(f"[...document.querySelectorAll({json.dumps(selector)})].map((node) => node.textContent)")

    def click(self, selector):
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key):
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "char" else {}
            if kind != "char" or text:
                codes = {"Tab": 9, "Enter": 13, " ": 32}
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **text)

    def wait(self, script):
        """Wait until an expression is true, and return its value."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (value := self.value(script)):
            assert time.monotonic() < deadline_s, f"{script}\n{self.text('body')}"
            time.sleep(0.05)
        return value

    def wait_for(self, selector, part):
        self.wait(f"(document.querySelector({json.dumps(selector)})?.textContent ?? '').includes({json.dumps(part)})")

    def picture(self):
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _events(self, *methods):
        events = self._browser.events
        return [params for session, method, params in events if session == self._session and method in methods]

    @property
    def loaded(self):
        return [params["request"]["url"] for params in self._events("Network.requestWillBeSent")]

    @property
    def complaints(self):
        return self._events("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
