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

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")


@contextmanager
def endpoint() -> Iterator[tuple[int, Queue[tuple[str, bytes]]]]:
    """A listener, its port, and what it got: signatures and bodies."""
    got: Queue[tuple[str, bytes]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()
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


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_commands_of_the_page_are_told_of() -> None:
    (configuration,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    with endpoint() as (port, got):
        config = parse_config(yaml.safe_load(configuration.replace(":9000", f":{port}")))
        free = tuple(msgspec.structs.replace(listener, port=0) for listener in config.listeners)
        with Broker(msgspec.structs.replace(config, listeners=free)) as broker:
            commands = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
            script = "set -eu\n" + commands.replace("http://127.0.0.1:8080", broker.addresses[1].url)
            finished = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)
            assert finished.returncode == 0, finished.stdout + finished.stderr
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
