"""``assay serve --verbose`` says whose packet broke which rule."""

from __future__ import annotations

import socket
import subprocess
import sys

WAIT_S = 20.0
CONNECT_5 = bytes.fromhex("101000044d51545405020000000003626164")
PUBLISH_TO_A_FILTER = bytes.fromhex("30050002742300")
"""PUBLISH to ``t#``: 3.3.2-2 forbids it."""


def test_the_log_names_the_client_and_the_statement() -> None:
    command = [sys.executable, "-m", "assay.cli", "serve", "--port", "0", "--verbose"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            port = int(process.stdout.readline().rsplit(":", 1)[1])
            with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
                client.sendall(CONNECT_5 + PUBLISH_TO_A_FILTER)
                answer = b""
                while chunk := client.recv(4_096):
                    answer += chunk
            # Before it there may be a note about the limit on open files.
            line = next((line for line in process.stderr if "(bad): " in line), "no such line")
        finally:
            process.terminate()
            process.wait(WAIT_S)
    assert line.rstrip().endswith("[MQTT-3.3.2-2]")
    assert b"[MQTT-3.3.2-2]" in answer, "the reason string of DISCONNECT says so as well"
