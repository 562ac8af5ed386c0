"""Locust runs our users in a process of its own: headless with counts, and with its web page on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from conformance.targets import Endpoint, load_target, running
from loadtests.latency_book import read_latencies
from loadtests.locust_command import LocustPlan, endpoint_url, locust_command, run_locust

WEB_PAGE_TIMEOUT_S = 60.0
LOCUSTFILE = Path(__file__).resolve().parents[2] / "loadtests" / "locustfile.py"


def test_headless_run_counts_every_operation_without_failures(tmp_path: Path) -> None:
    plan = LocustPlan(users=4, spawn_rate=10, seconds=3, user_classes=("MqttUser", "QueueUser"))
    with running(load_target("reference")) as broker:
        status = run_locust(plan, broker.endpoint, folder=tmp_path, console=Console(quiet=True))
    assert status == 0
    entries = {(entry["method"], entry["name"]): entry for entry in json.loads((tmp_path / "locust.json").read_text())}
    ours = {operation.percentiles.name: operation for operation in read_latencies(tmp_path / "latencies.json")}
    expected = {
        ("MQTT", "publish qos0 to deliver"),
        ("MQTT", "publish qos1 to ack"),
        ("MQTT", "publish qos2 to deliver"),
        ("queue", "publish to ack"),
        ("queue", "publish to deliver"),
        ("queue", "deliver to settle"),
    }
    assert expected <= set(entries)
    for (method, name), entry in entries.items():
        operation = ours[f"{method}: {name}"]
        assert entry["num_requests"] == operation.percentiles.count > 0
        assert entry["num_failures"] == operation.failures == 0
    # Locust knows whole milliseconds only; our histograms must tell microseconds.
    assert any(operation.percentiles.p50_us % 1_000 for operation in ours.values())


def test_a_broker_that_is_gone_counts_as_failures(tmp_path: Path, free_port: Callable[[], int]) -> None:
    plan = LocustPlan(users=1, spawn_rate=1, seconds=1, user_classes=("MqttUser",))
    status = run_locust(plan, Endpoint(port=free_port()), folder=tmp_path, console=Console(quiet=True))
    assert status != 0
    (connect,) = read_latencies(tmp_path / "latencies.json")
    assert connect.percentiles.count == 0
    assert connect.failures > 0


def _await_listener(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + WEB_PAGE_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)  # the only way to learn that another process listens
    pytest.fail(f"Locust's web page did not come up:\n{log.read_text()}")


def test_web_page_answers_on_loopback(tmp_path: Path, free_port: Callable[[], int]) -> None:
    port = free_port()
    plan = LocustPlan(users=1, spawn_rate=1, seconds=None, user_classes=("MqttUser",), web_port=port)
    command = locust_command(plan, Endpoint(port=1), locustfile=LOCUSTFILE, folder=tmp_path)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    log = tmp_path / "locust.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stderr=sink, env=environment, cwd=tmp_path)
    try:
        _await_listener(port, process, log)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as page:
            assert page.status == 200
            assert "Locust" in page.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats/requests", timeout=10) as page:
            assert json.loads(page.read())["state"] == "ready"
    finally:
        process.terminate()
        process.wait(15)


def test_locust_is_never_imported_by_the_command() -> None:
    """Importing it would patch sockets and threads of the whole process."""
    code = (
        "import sys, loadtests.cli, loadtests.bench.cli; sys.exit('locust' in sys.modules or 'gevent' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=LOCUSTFILE.parents[1], check=False)
    assert done.returncode == 0


def test_credentials_survive_the_url() -> None:
    endpoint = Endpoint(host="127.0.0.1", port=9, username="us er", password="p@:/")
    assert endpoint_url(endpoint) == "mqtt://us%20er:p%40%3A%2F@127.0.0.1:9"
