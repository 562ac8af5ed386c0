"""What ``assay serve`` says on standard error: whose packet broke which rule, who was refused, who comes and goes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

WAIT_S = 20.0
CONNECT_5 = bytes.fromhex("101000044d51545405020000000003626164")
PUBLISH_TO_A_FILTER = bytes.fromhex("30050002742300")
"""PUBLISH to ``t#``: 3.3.2-2 forbids it."""


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "assay.cli", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline().rsplit(":", 1)[1])
        finally:
            process.terminate()
            process.wait(WAIT_S)


def exchange(port: int, data: bytes) -> bytes:
    """What a client is answered until the broker closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(data)
        answer = b""
        while chunk := client.recv(4_096):
            answer += chunk
        return answer


def line_with(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    return next((line.rstrip() for line in process.stderr if text in line), "no such line")


def test_the_log_names_the_client_and_the_statement_by_default() -> None:
    with serving() as (process, port):
        answer = exchange(port, CONNECT_5 + PUBLISH_TO_A_FILTER)
        assert line_with(process, "(bad): ").endswith("[MQTT-3.3.2-2]")
    assert b"[MQTT-3.3.2-2]" in answer, "the reason string of DISCONNECT says so as well"


def test_verbose_tells_who_comes_and_goes() -> None:
    with serving("--verbose") as (process, port):
        exchange(port, CONNECT_5 + PUBLISH_TO_A_FILTER)
        assert line_with(process, "is client bad") != "no such line"
        assert "(bad) has gone" in line_with(process, "has gone")


def test_an_address_of_the_network_without_users_is_warned_of_and_each_refusal_is_told(tmp_path: Path) -> None:
    with serving("--host", "0.0.0.0") as (process, port):
        answer = exchange(port, CONNECT_5)
        assert "0.0.0.0" in (warning := line_with(process, "refuses every client"))
        assert "auth.anonymous" in warning
        assert "anonymous clients are not allowed here" in line_with(process, "anonymous clients are not")
    assert answer[:2] != b"\x20\x00"
    config = tmp_path / "open.yaml"
    config.write_text("auth: {anonymous: true}\n", encoding="utf-8")
    with serving("--host", "0.0.0.0", "--verbose", "--config", str(config)) as (process, port):
        exchange(port, CONNECT_5 + PUBLISH_TO_A_FILTER)
        assert process.stderr is not None
        log = ""
        for line in process.stderr:
            log += line
            if "(bad) has gone" in line:
                break
    assert "refuses every client" not in log


def test_the_log_is_json_and_tells_more_once_it_is_asked_to(tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text("listeners: [{port: 0}, {port: 0, protocols: [http]}]\nlog: {format: json, level: warning}\n")
    command = [sys.executable, "-m", "assay.cli", "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ports = [int(process.stdout.readline().rsplit(":", 1)[1]) for _ in range(2)]
            with httpx.Client(base_url=f"http://127.0.0.1:{ports[1]}", timeout=WAIT_S) as client:
                assert client.get("/api/v1/log").json() == {"level": "warning"}
                assert client.put("/api/v1/log", json={"level": "loud"}).json()["code"] == "bad_request"
                exchange(ports[0], CONNECT_5 + PUBLISH_TO_A_FILTER)  # nobody is told of it
                assert client.put("/api/v1/log", json={"level": "info"}).json() == {"level": "info"}
            exchange(ports[0], CONNECT_5 + PUBLISH_TO_A_FILTER)
            told = json.loads(line_with(process, "{"))
        finally:
            process.terminate()
            process.wait(WAIT_S)
    assert (told["level"], "[MQTT-3.3.2-2]" in told["message"]) == ("info", True)
