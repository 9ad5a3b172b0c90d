"""Chromium, driven over WebDriver: pages load in real time, and what they log is read."""

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
REQUIRED = "ROPE_REQUIRE_BROWSER"
"""Environment variable: set to 1, a missing browser fails its tests instead of leaving them out."""

_ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
_LOOK = "try { return Boolean(eval(arguments[0])); } catch (error) { return false; }"
_DRAWN = "const done = arguments[0]; requestAnimationFrame(() => done(performance.now()));"
_PATIENCE = 60  # seconds


def missing() -> str | None:
    """What must be installed first, None if nothing."""
    if CHROMIUM and DRIVER:
        return None
    return "no chromium and chromedriver on the PATH: apt-get install chromium chromium-driver"


def required() -> bool:
    return os.environ.get(REQUIRED) == "1"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The address at which a directory can be browsed."""
    handler = partial(_Quiet, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Browser:
    """A window of a running browser. Closed with :func:`running`."""

    def __init__(self, driver: str, profile: Path):
        self._driver = driver
        chrome = {"binary": CHROMIUM, "args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
        capabilities = {
            "goog:chromeOptions": chrome,
            "goog:loggingPrefs": {"browser": "ALL"},
            "pageLoadStrategy": "none",
        }
        created = self._post("/session", {"capabilities": {"alwaysMatch": capabilities}})
        self._session = f"/session/{created['sessionId']}"

    def load(self, url: str, ready: str) -> float:
        """Load a page and wait until a JavaScript expression is true; the seconds that took.

        From the start of the navigation to a frame after, so that what is waited for was drawn.
        """
        self.require_silence()
        self._post(f"{self._session}/url", {"url": "about:blank"})  # or a new hash loads nothing
        self._post(f"{self._session}/url", {"url": url})
        return self.wait(f"location.href !== 'about:blank' && ({ready})")

    def wait(self, ready: str) -> float:
        """Wait as :meth:`load` does, after a click for example; the seconds since the page began.

        Raises
        ------
        TimeoutError
            If it does not come true; the message has what was logged.
        """
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            # A navigation ends the script with an error. It goes on with the next page.
            with contextlib.suppress(RuntimeError):
                if self._execute("sync", _LOOK, ready):
                    return self._execute("async", _DRAWN) / 1000
            time.sleep(0.01)
        raise TimeoutError(f"not in {_PATIENCE} s: {ready}; logged: {self.logged()}")

    def run(self, script: str):
        """What a JavaScript function with this body returns."""
        return self._execute("sync", script)

    def logged(self) -> list[str]:
        """What the page and the browser wrote to the console since the last call."""
        entries = self._post(f"{self._session}/se/log", {"type": "browser"})
        return [f"{entry['level']} {entry['message']}" for entry in entries]

    def require_silence(self) -> None:
        """Raise AssertionError if something was logged that :meth:`logged` did not return."""
        said = self.logged()
        assert not said, f"the page wrote to the console: {said}"

    def text(self, selector: str) -> str:
        """What an element shows."""
        return self.run(f"return document.querySelector('{selector}').innerText")

    def choose(self, select: str, start: str) -> None:
        """Choose the option of a select, named by its id, whose text begins so."""
        self.run(
            f"""const select = document.getElementById("{select}");
            select.value = [...select.options].find((o) => o.text.startsWith("{start}")).value;
            select.dispatchEvent(new Event("change"));"""
        )

    def reset(self) -> None:
        """A window 1280 px wide, light, with nothing logged yet."""
        self.resize(1280, 900)
        self.prefer("light")
        self.logged()

    def prefer(self, scheme: str) -> None:
        """Have pages find "light" or "dark" preferred."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """A phone is as wide as the page asks for: 980 px if it does not."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def _devtools(self, command: str, parameters: dict) -> dict:
        body = {"cmd": command, "params": parameters}
        return self._post(f"{self._session}/goog/cdp/execute", body)

    def close(self) -> None:
        request = urllib.request.Request(self._driver + self._session, method="DELETE")
        urllib.request.urlopen(request, timeout=30).close()

    def _execute(self, how: str, script: str, *arguments):
        return self._post(f"{self._session}/execute/{how}", {"script": script, "args": arguments})

    def _post(self, path: str, body: dict):
        request = urllib.request.Request(self._driver + path, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"WebDriver {path}: {error.read().decode()[:500]}") from None


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Browser]:
    """A browser with a profile of its own below a directory.

    Raises
    ------
    RuntimeError
        If it does not start; the message is chromedriver's.
    """
    process = subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if "started successfully on port" in line:
                break
        else:
            raise RuntimeError(f"chromedriver did not start: {''.join(said)}")
        port = said[-1].rstrip(".\n").rpartition(" ")[2]
        browser = Browser(f"http://127.0.0.1:{port}", directory / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        process.terminate()
        process.wait(timeout=30)
        process.stdout.close()
