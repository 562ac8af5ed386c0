"""docs/webhooks.md: its commands are run as they stand there, and an endpoint hears of what they do."""

from __future__ import annotations

import hashlib
import hmac
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest
import yaml

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import EventKind, parse_config

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")


CONFIGURATIONS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@contextmanager
def endpoint() -> Iterator[tuple[int, Queue[tuple[str, bytes]]]]:
    """A listener, its port, and what it got: signatures and bodies."""
    got: Queue[tuple[str, bytes]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            if self.path == "/auth/authenticate":
                asked = msgspec.json.decode(body)
                right = (asked["username"], asked["password"]) == ("ann", "secret")
                rules = [{"topic": "m/%u/#", "access": "readwrite"}]
                self.wfile.write(msgspec.json.encode({"authenticated": right, "rules": rules}))
            if self.path == "/hooks":
                bad = msgspec.json.decode(body)["payload"] == "YmFk"
                self.wfile.write(b'{"result": "deny", "reason": "not today"}' if bad else b'{"result": "ok"}')
            got.put((self.headers["x-assay-signature"], body))

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], got
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def broker_of(configuration: str, port: int) -> Iterator[Broker]:
    """One as the page configures it, whose endpoint is at another port."""
    config = parse_config(yaml.safe_load(configuration.replace(":9000", f":{port}")))
    free = tuple(msgspec.structs.replace(listener, port=0) for listener in config.listeners)
    with Broker(msgspec.structs.replace(config, listeners=free)) as broker:
        yield broker


def run(broker: Broker, commands: str) -> str:
    script = "set -eu\n" + commands.replace("http://127.0.0.1:8080", broker.addresses[1].url)
    finished = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@needs_curl
def test_the_commands_of_the_page_are_told_of() -> None:
    with endpoint() as (port, got), broker_of(CONFIGURATIONS[0], port) as broker:
        run(broker, COMMANDS[0])
        found: list[dict[str, Any]] = []
        for _ in range(3):
            signature, body = got.get(timeout=60)
            assert signature == f"sha256={hmac.new(b'keep-it-secret', body, hashlib.sha256).hexdigest()}"
            found.append(msgspec.json.decode(body))
    by_kind = {each["event_type"]: each["data"] for each in found}
    assert by_kind.keys() == {"queue.created", "message.dead_lettered", "group.empty"}
    (letter,) = re.findall(r"\"data\": (\{[^}]*\"no such customer\"[^}]*\})", PAGE)
    assert by_kind["message.dead_lettered"] == msgspec.json.decode(letter)


def test_the_page_names_every_event() -> None:
    assert all(f"`{kind.value}`" in PAGE for kind in EventKind)


@needs_curl
def test_a_user_whom_somebody_else_knows() -> None:
    with endpoint() as (port, got), broker_of(CONFIGURATIONS[1], port) as broker:
        told = run(broker, COMMANDS[1])
        assert '"username":"ann"' in told
        assert '"status":"ok"' in told
        asked = {"client_id": "", "username": "ann", "password": "secret", "protocol": "api"}
        assert msgspec.json.decode(got.get(timeout=60)[1]) == asked
        assert got.empty(), "who was right is not asked about again"
        for user, path, status in (("ann:wrong", "ann", 401), ("ann:secret", "bob", 403)):
            place = f"http://127.0.0.1:8080/m/{path}/news"
            told = run(broker, f"curl -s -w '%{{http_code}}' -u {user} {place} -d x -H 'content-type: text/plain'")
            assert told.endswith(str(status)), told


@needs_curl
def test_somebody_decides_about_each_publish() -> None:
    with (
        endpoint() as (port, got),
        broker_of(CONFIGURATIONS[2].replace("  fail", "  timeout_s: 30\n  fail"), port) as broker,
    ):
        told = run(broker, COMMANDS[2])
        assert '"status":"ok"' in told
        assert "not today" in told
        assert [msgspec.json.decode(got.get(timeout=60)[1])["topic"] for _ in range(2)] == ["orders/1", "orders/2"]
