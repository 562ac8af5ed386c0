"""Locust runs our users in a process of its own: headless with counts, and with its web page on loopback."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from assay.conformance.targets import Endpoint, load_target, running
from assay.loadtests.latency_book import read_latencies
from assay.loadtests.locust_command import LocustPlan, endpoint_url, locust_command, locust_result, run_locust
from assay.reference_broker.trace.results import Verdict, read_result

WEB_PAGE_TIMEOUT_S = 60.0
LOCUSTFILE = Path(__file__).resolve().parents[2] / "loadtests" / "locustfile.py"


def _counts(table: list[dict[str, str]]) -> dict[str, tuple[int, int]]:
    """Requests and failures by our name."""
    return {
        f"{row['Type']}: {row['Name']}": (int(row["Request Count"]), int(row["Failure Count"]))
        for row in table
        if row["Name"] != "Aggregated"
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_one_record_whatever_the_number_of_processes(tmp_path: Path, processes: int) -> None:
    """Locust's own tables, our histograms, the raw samples and the result count the very same requests."""
    plan = LocustPlan(users=4, spawn_rate=10, seconds=3, user_classes=("MqttUser", "QueueUser"), processes=processes)
    runs = tmp_path / "runs"
    with running(load_target("reference")) as broker:
        status = run_locust(
            plan, broker.endpoint, folder=runs, console=Console(quiet=True), target="reference", command="again"
        )
    assert status == 0
    with (runs / "locust_stats.csv").open(newline="") as source:
        theirs = _counts(list(csv.DictReader(source)))
    ours = {operation.percentiles.name: operation for operation in read_latencies(runs / "latencies.json")}
    expected = {
        "MQTT: publish qos0 to deliver",
        "MQTT: publish qos1 to ack",
        "MQTT: publish qos2 to deliver",
        "queue: publish to ack",
        "queue: publish to deliver",
        "queue: deliver to settle",
    }
    assert expected <= set(theirs)
    assert {name: (one.percentiles.count, one.failures) for name, one in ours.items()} == theirs
    entries = json.loads((runs / "locust.json").read_text())
    assert {f"{entry['method']}: {entry['name']}": entry["num_requests"] for entry in entries} == {
        name: requests for name, (requests, _) in theirs.items()
    }
    samples = pq.read_table(runs / "samples.parquet").to_pylist()
    assert len(samples) == sum(requests for requests, _ in theirs.values()) > 100
    assert {row["phase"] for row in samples} == {"closed_loop"}, "nothing was due, so nothing may be judged"
    assert {row["queue"] != "" for row in samples if row["workload"] == "MQTT"} == {False}
    assert len({(row["operation"], row["client"], row["seq"]) for row in samples}) == len(samples)
    acked = [row for row in samples if row["workload"] == "MQTT" and row["operation"] == "publish_to_ack"]
    assert len(acked) == sum(theirs[f"MQTT: publish qos{qos} to ack"][0] for qos in (1, 2))
    # Locust knows whole milliseconds only; our histograms must tell microseconds.
    assert any(operation.percentiles.p50_us % 1_000 for operation in ours.values())

    result = read_result(runs / "result.json")
    assert result.verdict is Verdict.PASS
    assert (result.target, result.command, result.metrics["processes"]) == ("reference", "again", processes)
    assert {row.name: row for row in result.percentiles} == {name: one.percentiles for name, one in ours.items()}


def test_a_broker_that_is_gone_counts_as_failures(tmp_path: Path, free_port: Callable[[], int]) -> None:
    plan = LocustPlan(users=1, spawn_rate=1, seconds=1, user_classes=("MqttUser",))
    status = run_locust(plan, Endpoint(port=free_port()), folder=tmp_path, console=Console(quiet=True))
    assert status == 1
    (connect,) = read_latencies(tmp_path / "latencies.json")
    assert connect.percentiles.count == 0
    assert connect.failures > 0
    result = read_result(tmp_path / "result.json")
    assert result.verdict is Verdict.FAIL
    assert result.percentiles == [], "nothing was answered"
    assert result.checks[0].value == connect.failures


def test_a_run_without_requests_is_no_pass(tmp_path: Path) -> None:
    plan = LocustPlan(users=1, spawn_rate=1, seconds=1, user_classes=("MqttUser",))
    result = locust_result(tmp_path, plan, target="t", command="", started_at="", duration_s=1.0, status=0)
    assert result.verdict is Verdict.UNKNOWN
    assert "no request" in result.checks[0].reason
    failed = locust_result(tmp_path, plan, target="t", command="", started_at="", duration_s=1.0, status=2)
    assert failed.verdict is Verdict.ERROR


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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
            assert page.status == 200
            assert "Locust" in page.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats/requests", timeout=60) as page:
            assert json.loads(page.read())["state"] == "ready"
    finally:
        process.terminate()
        process.wait(60)


def test_locust_is_never_imported_by_the_command() -> None:
    """Importing it would patch sockets and threads of the whole process."""
    code = (
        "import sys, assay.loadtests.cli, assay.loadtests.bench.cli; "
        "sys.exit('locust' in sys.modules or 'gevent' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=LOCUSTFILE.parents[1], check=False)
    assert done.returncode == 0


def test_credentials_survive_the_url() -> None:
    endpoint = Endpoint(host="127.0.0.1", port=9, username="us er", password="p@:/")
    assert endpoint_url(endpoint) == "mqtt://us%20er:p%40%3A%2F@127.0.0.1:9"
