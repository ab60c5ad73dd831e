"""Headless Chromium over chromedriver: the few WebDriver commands that these tests need (https://www.w3.org/TR/webdriver2)."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
KEYS = {"escape": "\ue00c", "enter": "\ue007", "down": "\ue015", "up": "\ue013", "right": "\ue014", "left": "\ue012"}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # this machine only, whatever proxy is set
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One browser with a new empty profile; closes it, and chromedriver, at the end."""

    def __init__(self, width: int = 1360, height: int = 900, *, dark: bool = False) -> None:
        self.size, self.dark = (width, height), dark

    def __enter__(self) -> Browser:
        assert DRIVER is not None
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        self.driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            self.base = f"http://127.0.0.1:{self._port()}/session"
            self.base += "/" + self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _port(self) -> int:
        assert self.driver.stdout is not None
        for line in self.driver.stdout:
            if "started successfully on port " in line:
                return int(line.rsplit("on port ", 1)[1].strip(" .\n"))
        raise RuntimeError("chromedriver did not start")

    def _start(self) -> str:
        width, height = self.size
        flags = [*FLAGS, f"--user-data-dir={self.profile}", f"--window-size={width},{height}"]
        options: dict[str, Any] = {"binary": CHROMIUM, "args": [*flags, *(["--force-dark-mode"] if self.dark else [])]}
        if width < 500:  # a window can't be made this narrow
            metrics = {"width": width, "height": height, "pixelRatio": 2.0, "touch": True}
            options["mobileEmulation"] = {"deviceMetrics": metrics}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        return self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self, "base"):
            with contextlib.suppress(OSError):
                self._call("DELETE", "")
        self.driver.terminate()
        self.driver.wait(timeout=20)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with _OPENER.open(request, timeout=120) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.loads(error.read())["value"]["message"]) from None

    def open(self, page: Path, view: str = "") -> None:
        """Open a file and wait until the page says that it is ready."""
        self._call("POST", "/url", {"url": "about:blank"})
        self._call("POST", "/url", {"url": page.resolve().as_uri() + (f"#{view}" if view else "")})
        self.wait("return document.body.dataset.ready !== undefined")

    def js(self, script: str, *values: Any) -> Any:
        """Run JavaScript; its `return` value."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(values)})

    def wait(self, condition: str, seconds: float = 60) -> Any:
        """Until the JavaScript condition gives something true; returns that."""
        end = time.monotonic() + seconds
        while not (value := self.js(condition)):
            if time.monotonic() > end:
                raise AssertionError(f"never true: {condition}")
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[_ELEMENT]}/click")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        presses = [{"type": kind, "value": KEYS.get(k, k)} for k in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": presses}]})

    def cdp(self, command: str, **params: Any) -> Any:
        """A command of the DevTools protocol; its result."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def screenshot(self, path: Path) -> bytes:
        """PNG of what is in view; also written to `path`."""
        png = base64.b64decode(self._call("GET", "/screenshot"))
        path.write_bytes(png)
        return png

    def errors(self) -> list[str]:
        """Console messages of level warning and above since the last call."""
        log = self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] in ("SEVERE", "WARNING")]
