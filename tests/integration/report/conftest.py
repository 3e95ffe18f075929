"""A headless Chromium, driven by its own protocol over two pipes: no library, no port, no network."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_ANSWER_SECONDS = 30.0


def found_browser() -> str | None:
    """The path of a browser; None where there is none."""
    return next((path for path in map(shutil.which, _NAMES) if path), None)


class Browser:
    """One page of it. `requests`: what it asked for, the page itself included; `errors`: complaints of its console."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number, self._text = 0, b""
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method and wait for its answer; events that come first are kept."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + _ANSWER_SECONDS
        while b"\0" not in self._text:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._from, 2**20) if ready else b""
            if not piece:
                raise TimeoutError("the browser does not answer")
            self._text += piece
        first, self._text = self._text.split(b"\0", 1)
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"warning", "error"}:
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"warning", "error"}:
            self.errors.append(json.dumps(params["args"]))

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file at a width, in a colour scheme."""
        mobile = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media="", features=features)
        self.requests.clear()
        self.errors.clear()
        self.send("Page.navigate", url=path.absolute().as_uri())
        for _ in range(300):
            if self.run("document.readyState") == "complete" and self.run("location.href") != "about:blank":
                break
            time.sleep(0.02)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """Evaluate in the page; promises are waited for."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def picture(self, *, whole: bool = False) -> bytes:
        """The page as a PNG."""
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    path = found_browser()
    assert path is not None
    read_end, to_browser = os.pipe()
    from_browser, write_end = os.pipe()
    words = [
        path, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}",
    ]  # fmt: skip
    shell = f'exec "$@" 3<&{read_end} 4>&{write_end}'
    process = subprocess.Popen(
        ["/bin/bash", "-c", shell, "bash", *words],
        pass_fds=(read_end, write_end),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_end)
    os.close(write_end)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        os.close(to_browser)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for the tests of a file; they are skipped where there is none."""
    if found_browser() is None:
        pytest.skip("no Chromium here (apt-get install chromium)")
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found
