"""The reference broker as a process: it says where it listens, and ends with its parent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conformance.adapter import broker_config, main, reference_broker_endpoint
from conformance.targets import handshake

COMMAND = [sys.executable, "-m", "conformance.adapter"]


def test_it_says_where_it_listens_and_ends_with_its_input() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        ready = json.loads(process.stdout.readline())
        assert ready["ready"] is True
        assert ready["host"] == "127.0.0.1"
        assert ready["pid"] == process.pid
        process.stdin.close()
        assert process.wait(20) == 0


def test_it_ends_on_sigterm() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(20) == 0


def test_an_unknown_mutant_is_a_usage_error() -> None:
    assert main(["--mutant", "v3-no-such-mutant"]) == 2


def test_a_wrong_configuration_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("mqtt: {maximum_qos: 7}\n", encoding="utf-8")
    assert main(["--config", str(path)]) == 2


def test_listeners_of_a_configuration_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("node: x\nlisteners: [{port: 1883}, {port: 1884}]\n", encoding="utf-8")
    config = broker_config(path, 0)
    assert config.node == "x"
    assert [(listener.host, listener.port) for listener in config.listeners] == [("127.0.0.1", 0)]


def test_it_runs_in_this_process_too() -> None:
    with reference_broker_endpoint() as endpoint:
        assert handshake(endpoint, 4).reason_code == 0
        assert handshake(endpoint, 5).reason_code == 0
