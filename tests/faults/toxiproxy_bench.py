"""What tests of toxiproxy's API need: an echo server, bare HTTP, connections."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import socketserver
from typing import Any
from urllib.parse import urlsplit

REAL = bool(os.environ.get("TOXIPROXY_URL") or shutil.which("toxiproxy-server"))


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while data := self.request.recv(65_536):
                self.request.sendall(data)
        except ConnectionError:
            return  # some toxics reset it


class Api:
    """Bare HTTP, so that the bytes of the answers are seen."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = (parts.hostname or "", parts.port or 0)

    def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        try:
            return answer.status, json.loads(text), answer
        except ValueError:
            return answer.status, text, answer

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return self.call(method, path, body)[:2]


def dial(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def ends(connection: socket.socket) -> bool:
    """Whether the peer ended the connection, in whatever way."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
