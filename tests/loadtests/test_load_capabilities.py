"""What a broker lacks is named and left out; a refused connection and a refused CONNECT are told apart from it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.cli import build_app
from assay.conformance.wire import Suback
from assay.loadtests.capabilities import UnsupportedError, publish_size
from assay.loadtests.client import LoadClient, LoadClientError
from assay.loadtests.ledger import Ledger
from assay.loadtests.packets import publish_frame, split_frames
from assay.loadtests.profile import parse_profile
from assay.loadtests.roles import ConsumerClient
from assay.reference_broker.trace.results import RunResult, Verdict, read_result

PROFILE = """
name: everything
phases: {warmup_s: 0.1, steady_s: 5.2, cooldown_s: 0.0}
baseline: {steady_s: 0}
workloads:
  - {kind: pubsub, name: zero, qos: 0, arrivals: {rate_per_s: 50}}
  - {kind: pubsub, name: old, qos: 0, version: 4, arrivals: {rate_per_s: 50}}
  - {kind: pubsub, name: one, qos: 1, arrivals: {rate_per_s: 50}}
  - {kind: pubsub, name: two, qos: 2, arrivals: {rate_per_s: 50}}
  - {kind: pubsub, name: large, qos: 0, payload_bytes: 2000, arrivals: {rate_per_s: 50}}
  - {kind: queue, name: tasks, arrivals: {rate_per_s: 50}}
"""


def _run(folder: Path, target: str, profile: str = PROFILE) -> tuple[int, str]:
    path = folder / "profile.yaml"
    path.write_text(profile)
    arguments = ["load", "run", str(path), "--target", target, "--out", str(folder / "out")]
    done = CliRunner().invoke(build_app("load"), arguments)
    return done.exit_code, done.output


def _left_out(result: RunResult) -> dict[str, str]:
    return {
        check.name.partition(":")[0]: check.reason for check in result.checks if check.reason.startswith("unsupported")
    }


@pytest.mark.parametrize(
    ("target", "lacking"),
    [
        ("reference-lesser", {"two": "qos2", "large": "maximum_packet_size"}),
        ("reference-qos-0", {"one": "qos1", "two": "qos1", "large": "maximum_packet_size", "tasks": "qos1"}),
    ],
)
def test_a_lesser_broker_runs_what_it_can(tmp_path: Path, target: str, lacking: dict[str, str]) -> None:
    """It imposes a keep alive of 3 s, too: a subscriber that only listens must not be lost by our own silence."""
    status, output = _run(tmp_path, target)
    result = read_result(tmp_path / "out" / "result.json")
    told = _left_out(result)
    assert {name: reason.split(" ")[1].rstrip(":") for name, reason in told.items()} == lacking
    for name, capability in lacking.items():
        assert f"workload {name} is left out, {target} lacks {capability}" in output
    assert result.verdict in (Verdict.PASS, Verdict.UNKNOWN), result.summary  # unknown: this machine was too busy
    assert status == (0 if result.verdict is Verdict.PASS else 5)
    assert result.metrics["zero.lost"] == 0
    assert int(result.metrics["zero.sent"]) > 200
    assert "a connection was lost" not in result.summary


@contextmanager
def _answering(answer: Callable[[int], bytes]) -> Iterator[str]:
    """A server that answers CONNECT by its protocol level, and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                level = connection.recv(1_024)[8]
                connection.sendall(answer(level))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


ACCEPTED = {4: b"\x20\x02\x00\x00", 5: b"\x20\x03\x00\x00\x00"}
REFUSED = {4: b"\x20\x02\x00\x05", 5: b"\x20\x03\x00\x87\x00"}
WRONG_VERSION = {4: b"\x20\x02\x00\x01", 5: b"\x20\x03\x00\x84\x00"}


def _only(name: str) -> str:
    head, _, rest = PROFILE.partition("workloads:\n")
    return head + "workloads:\n" + "\n".join(line for line in rest.splitlines() if f"name: {name}," in line)


def test_a_version_that_is_not_spoken_is_a_missing_capability(tmp_path: Path) -> None:
    with _answering(lambda level: ACCEPTED[4] if level == 4 else WRONG_VERSION[5]) as url:
        status, output = _run(tmp_path, url, _only("zero"))
    assert status == 5
    assert "lacks mqtt5 (speaks MQTT 5.0)" in output
    assert "answered CONNECT (MQTT version 5) with CONNACK" in output
    assert "cannot be reached" not in output
    result = read_result(tmp_path / "out" / "result.json")
    assert result.verdict is Verdict.UNKNOWN
    assert list(_left_out(result)) == ["zero"]


def test_what_connack_states_is_believed(tmp_path: Path) -> None:
    at_most_1 = b"\x20\x05\x00\x00\x02\x24\x01"
    with _answering(lambda level: ACCEPTED[4] if level == 4 else at_most_1) as url:
        status, output = _run(tmp_path, url, _only("two"))
    assert status == 5
    assert "lacks qos2 (takes and delivers QoS 2): its CONNACK states a lower Maximum QoS" in output


def test_a_declared_lack_is_told_as_declared(tmp_path: Path) -> None:
    with _answering(lambda level: ACCEPTED[level]) as url:
        target = tmp_path / "declares.toml"
        port = url.rpartition(":")[2]
        text = f'name = "declares"\n[endpoint]\nport = {port}\n[capabilities]\nqos2 = false\nmqtt5 = false\n'
        target.write_text(text)
        status, output = _run(tmp_path, str(target), _only("two"))
    assert status == 5
    assert "mqtt5 (speaks MQTT 5.0): its target file declares that it does not" in output
    assert "qos2 (takes and delivers QoS 2): its target file declares that it does not" in output


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda level: REFUSED[level], "answered CONNECT (MQTT version 4) with CONNACK"),
        (lambda level: b"", "closed the connection in place of a CONNACK"),
        (lambda level: b"\xf0\xff\xff\xff\xff\xff", "malformed packet"),
    ],
)
def test_a_refusal_is_no_missing_capability_and_no_dead_port(
    tmp_path: Path, answer: Callable[[int], bytes], said: str
) -> None:
    with _answering(answer) as url:
        status, output = _run(tmp_path, url, _only("zero"))
    assert status == 3
    assert said.replace("version 4", "version") in output.replace("version 4", "version").replace(
        "version 5", "version"
    )
    assert "cannot be reached" not in output
    assert "lacks" not in output


def test_a_dead_port_says_that_nobody_listens(tmp_path: Path, free_port: Callable[[], int]) -> None:
    status, output = _run(tmp_path, f"mqtt://127.0.0.1:{free_port()}", _only("zero"))
    assert status == 3
    assert "cannot be reached: Connection refused" in output


@pytest.mark.parametrize(
    ("topic", "granted", "error", "said"),
    [
        ("a", 1, UnsupportedError, "qos2 (takes and delivers QoS 2)"),
        ("a", 0x87, LoadClientError, "was answered with SUBACK"),
        ("$queue/a", 0x8F, UnsupportedError, "queues (durable queues"),
    ],
)
def test_what_a_subscription_shows(topic: str, granted: int, error: type[Exception], said: str) -> None:
    client = LoadClient("c", 5, lambda: 0)

    async def answer(*_: object) -> Suback:
        return Suback(packet_id=1, reason_codes=(granted,))

    client._ask = answer  # type: ignore[method-assign,assignment]
    with pytest.raises(error) as caught:
        asyncio.run(client.subscribe(topic, 2))
    assert said in str(caught.value)


def test_deliveries_without_their_id_are_no_queue() -> None:
    """An ordinary broker forwards what is published to ``$queue/x`` like any topic: nothing could be settled."""

    async def deliver() -> str:
        ledger = Ledger(b"12345678", [])
        consumer = ConsumerClient("c", lambda: 1, ledger=ledger, copy=0, queue_topic="$queue/x")
        frame = publish_frame(1, b"$queue/x", 1, b"\x00", b"text")
        frames, _ = split_frames(frame)
        consumer.on_publish(frame, frames[0], 1)
        assert ledger.done.is_set()
        return ledger.unsupported

    assert asyncio.run(deliver()).startswith("queues (durable queues addressed as $queue/<name>): deliveries carry no")


def test_the_size_of_a_packet_is_that_on_the_wire() -> None:
    load = {"name": "w", "qos": 1, "payload_bytes": 100, "arrivals": {"shape": "constant", "rate_per_s": 1}}
    profile = parse_profile({"name": "p", "workloads": [{"kind": "pubsub", **load}]})
    topic = len("load/0123456789abcdef/w-p0")
    assert publish_size(profile.workloads[0]) == 1 + 2 + 2 + topic + 2 + 1 + 100
