"""Chromium, driven over its DevTools protocol: what a page is, does and looks like. Waits are for what it shows."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request, TextMessage

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_S = 60.0
_KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, "Home": 36, "End": 35}
_UNTIL = """new Promise((done, fail) => {
  let problem = "";
  const look = () => {
    try {
      const found = (() => (%s))();
      if (found) { stop(); done(found); }
    } catch (error) { problem = error; } // what it looks at is not there yet
  };
  const watch = new MutationObserver(look);
  const late = setTimeout(() => {
    stop();
    fail(new Error(`in vain: ${problem} ${document.body.innerText.slice(0, 2000)}`));
  }, %d);
  const stop = () => { watch.disconnect(); clearTimeout(late); };
  watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  look();
})"""


class PageError(AssertionError):
    """What the page, or the browser, says is wrong."""


class Page:
    """A tab of its own, with nothing of any other's."""

    def __init__(self, browser: Browser, url: str, *, width: int, height: int, scheme: str) -> None:
        self._browser = browser
        self.problems: list[str] = []
        """Errors of its scripts and what its policy refused."""
        self._context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self._session] = self
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded or self.run("location.href") == "about:blank":
            browser.read()

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)

    def note(self, method: str, parameters: Any) -> None:
        """An event of the browser."""
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:2_000])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.problems.append(json.dumps(parameters["args"])[:2_000])
        elif method == "Log.entryAdded" and parameters["entry"]["source"] != "network":
            self.problems.append(parameters["entry"]["text"])

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, expression: str) -> Any:
        """What an expression, or its promise, comes to. Raises :class:`PageError`."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise PageError(f"{expression[:500]}: {json.dumps(result['exceptionDetails'])[:3_000]}")
        return result["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true of the page, which is looked at whenever it changes."""
        return self.run(_UNTIL % (expression, int(WAIT_S * 800)))

    def has(self, text: str, where: str = "body") -> None:
        """Wait for a text."""
        self.until(f"document.querySelector({json.dumps(where)})?.innerText.includes({json.dumps(text)})")

    def click(self, text: str, where: str = "button, a, summary") -> None:
        """Wait for a control that is seen and says so, and click it; in a dialog if there is one."""
        self.until(
            f"""(() => {{
              const place = [...document.querySelectorAll('dialog')].at(-1) ?? document;
              const seen = [...place.querySelectorAll({json.dumps(where)})].filter((each) => each.checkVisibility());
              const found = seen.find((each) => each.textContent.trim() === {json.dumps(text)});
              found?.click();
              return Boolean(found);
            }})()"""
        )

    def fill(self, label: str, text: str) -> None:
        """Wait for the control of a label, and have it hold a text as if it were typed."""
        self.until(
            f"""(() => {{
              const place = [...document.querySelectorAll('dialog')].at(-1) ?? document;
              const labels = [...place.querySelectorAll('label')].filter((each) => each.checkVisibility());
              const found = labels.find((each) => each.textContent.trim().startsWith({json.dumps(label)}));
              const control = found && document.getElementById(found.htmlFor);
              control?.focus();
              control?.select?.();
              return Boolean(control);
            }})()"""
        )
        self.type(text)

    def choose(self, label: str, value: str) -> None:
        """Likewise, of a list."""
        self.run(
            f"""(() => {{
              const found = [...document.querySelectorAll('label')].find((each) => each.textContent.trim() === {json.dumps(label)});
              const control = document.getElementById(found.htmlFor);
              control.value = {json.dumps(value)};
              control.dispatchEvent(new Event('change', {{ bubbles: true }}));
            }})()"""  # noqa: E501
        )

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """A key, as one types it."""
        code = _KEYS.get(key, ord(key[0].upper()))
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, kind: str = "png", **more: Any) -> bytes:
        return base64.b64decode(self.call("Page.captureScreenshot", format=kind, **more)["data"])

    def close(self) -> None:
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)
        self._browser.pages.pop(self._session, None)


class Browser:
    """One of them, without a window."""

    def __init__(self, connection: socket.socket, url: str) -> None:
        self._socket = connection
        self._websocket = WSConnection(ConnectionType.CLIENT)
        self._count = 0
        self._text = ""
        self._answers: dict[int, Any] = {}
        self.pages: dict[str, Page] = {}
        parts = urlsplit(url)
        connection.sendall(self._websocket.send(Request(host=parts.netloc, target=parts.path)))
        self._opened = False
        while not self._opened:
            self.read()

    def page(self, url: str, *, width: int = 1280, height: int = 860, scheme: str = "light") -> Page:
        return Page(self, url, width=width, height=height, scheme=scheme)

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Raises :class:`PageError`."""
        self._count += 1
        asked = {"id": self._count, "method": method, "params": parameters}
        if session:
            asked["sessionId"] = session
        self._socket.sendall(self._websocket.send(TextMessage(data=json.dumps(asked))))
        while self._count not in self._answers:
            self.read()
        answer = self._answers.pop(self._count)
        if "error" in answer:
            raise PageError(f"{method}: {answer['error']}")
        return answer["result"]

    def read(self) -> None:
        """Take what the browser says next."""
        data = self._socket.recv(65_536)
        if not data:
            raise PageError("the browser has gone")
        self._websocket.receive_data(data)
        for event in self._websocket.events():
            if isinstance(event, AcceptConnection):
                self._opened = True
            elif isinstance(event, TextMessage):
                self._text += event.data
                if event.message_finished:
                    whole, self._text = json.loads(self._text), ""
                    if "id" in whole:
                        self._answers[whole["id"]] = whole
                    elif (page := self.pages.get(whole.get("sessionId", ""))) is not None:
                        page.note(whole["method"], whole["params"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Chromium with a profile of its own, until the end of the block."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            told = next(line for line in process.stderr if line.startswith("DevTools listening on "))
            threading.Thread(target=process.stderr.read, daemon=True).start()  # so that it can go on telling
            url = told.rpartition(" ")[2].strip()
            parts = urlsplit(url)
            with socket.create_connection((parts.hostname or "", parts.port or 0), WAIT_S) as connection:
                yield Browser(connection, url)
        finally:
            process.terminate()
