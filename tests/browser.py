# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests, spoken to through its debugging pipe: no driver, no port.

It looks at a page as a user does: sizes of windows, light and dark, clicks and what is then shown.
"""

import base64
import json
import os
import shutil
import subprocess
import time

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--remote-debugging-pipe"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE = 60.0


def find_chromium():
    """The program, or a skip."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"no Chromium on PATH ({', '.join(names)})")
    return program


class Browser:
    """One tab; a context."""

    def __init__(self, profile, *flags):
        # Chromium reads commands from file 3 and answers on file 4, both ended by a zero byte.
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        pass_on = f'exec 3<&{orders} 4>&{answers}; exec "$@"'
        command = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", *flags, "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", pass_on, "browser", *command],
            pass_fds=(orders, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(orders)
        os.close(answers)
        os.set_blocking(self._answers, False)
        self._held, self._count, self._session = b"", 0, None
        (tab, *_) = [
            each for each in self.ask("Target.getTargets")["targetInfos"] if each["type"] == "page"
        ]
        attached = self.ask("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
        self._session = attached["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._orders)
        os.close(self._answers)

    def ask(self, method, **params):
        """The answer to one command of the DevTools protocol."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._orders, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for answer in self._read():
                if answer.get("id") == self._count:
                    assert "error" not in answer, answer
                    return answer["result"]
        raise TimeoutError(f"{method}: no answer from the browser")

    def _read(self):
        try:
            self._held += os.read(self._answers, 1 << 20)
        except BlockingIOError:
            time.sleep(0.01)
        *whole, self._held = self._held.split(b"\0")
        return [json.loads(each) for each in whole]

    def open(self, url, width=1100, height=1400, dark=False):
        """Show a page in a window of that size."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script):
        """The value of an expression in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition):
        """Until an expression holds."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"never true in the page: {condition}"
            time.sleep(0.05)

    def shoot(self):
        """A picture of the window, as PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])
