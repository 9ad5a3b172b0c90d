"""Chromium, driven by Selenium: pages load in real time, and what they log is read."""

import contextlib
import http.server
import importlib.util
import os
import shutil
import threading
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
_IS_TRUE = "try { return Boolean(eval(arguments[0])); } catch (error) { return false; }"
_DRAWN = "const done = arguments[0]; requestAnimationFrame(() => done(performance.now()));"
_PATIENCE = 60  # seconds


def missing() -> str | None:
    """What must be installed first, None if nothing."""
    if not (CHROMIUM and DRIVER):
        return "no chromium and chromedriver on the PATH: apt-get install chromium chromium-driver"
    return None if importlib.util.find_spec("selenium") else "no Selenium: pip install selenium"


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

    def __init__(self, profile: Path):
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        options.binary_location, options.page_load_strategy = CHROMIUM, "none"
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        self._driver = Chrome(options, Service(DRIVER))
        self._driver.set_script_timeout(_PATIENCE)

    def load(self, url: str, ready: str) -> float:
        """Load a page and wait until a JavaScript expression is true; the seconds that took.

        From the start of the navigation to a frame after, so that what is waited for was drawn.
        """
        self.require_silence()
        self._driver.get("about:blank")  # or a new hash loads nothing
        self._driver.get(url)
        return self.wait(f"location.href !== 'about:blank' && ({ready})")

    def wait(self, ready: str) -> float:
        """Wait as :meth:`load` does, after a click for example; the seconds since the page began.

        Raises
        ------
        TimeoutError
            If it does not come true; the message has what was logged.
        """
        from selenium.common.exceptions import TimeoutException, WebDriverException
        from selenium.webdriver.support.wait import WebDriverWait

        # A navigation ends the script with an error. It goes on with the next page.
        waiting = WebDriverWait(self._driver, _PATIENCE, 0.01, [WebDriverException])
        try:
            return waiting.until(
                lambda driver: (
                    driver.execute_script(_IS_TRUE, ready)
                    and driver.execute_async_script(_DRAWN) / 1000
                )
            )
        except TimeoutException:
            message = f"not in {_PATIENCE} s: {ready}; logged: {self.logged()}"
            raise TimeoutError(message) from None

    def run(self, script: str):
        """What a JavaScript function with this body returns."""
        return self._driver.execute_script(script)

    def logged(self) -> list[str]:
        """What the page and the browser wrote to the console since the last call."""
        entries = self._driver.get_log("browser")
        return [f"{entry['level']} {entry['message']}" for entry in entries]

    def require_silence(self) -> None:
        """Raise AssertionError if something was logged that :meth:`logged` did not return."""
        logged = self.logged()
        assert not logged, f"the page wrote to the console: {logged}"

    def text(self, selector: str) -> str:
        """What an element shows."""
        return self.run(f"return document.querySelector('{selector}').innerText")

    def choose(self, select: str, start: str) -> None:
        """Choose the option of a select, named by its id, whose text begins so."""
        self.run(
            f"""const select = document.getElementById("{select}");
            select.value = [...select.options].find((o) => o.text.startsWith("{start}")).value;
            select.dispatchEvent(new Event("change", {{ bubbles: true }}));"""
        )

    def reset(self) -> None:
        """A window 1280 px wide, light, with nothing logged yet."""
        self.resize(1280, 900)
        self.prefer("light")
        self.logged()

    def prefer(self, scheme: str) -> None:
        """Have pages find "light" or "dark" preferred."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """A phone is as wide as the page asks for: 980 px if it does not."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def close(self) -> None:
        self._driver.quit()


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Browser]:
    """A browser with a profile of its own below a directory.

    Raises
    ------
    selenium.common.exceptions.WebDriverException
        If it does not start.
    """
    browser = Browser(directory / "profile")
    try:
        yield browser
    finally:
        browser.close()
