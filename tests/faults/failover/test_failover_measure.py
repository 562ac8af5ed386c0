"""The measurement on a cluster that is played, both clients on servers of a few lines. Real ones: tox -e failover."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assay.faults.failover import measure as measuring
from assay.faults.failover import nats
from assay.faults.failover.amqp import AmqpPublisher
from assay.faults.failover.cli import result
from assay.faults.failover.measure import FailoverError, Failovers, LeaderFault, measure
from assay.faults.failover.nats import NatsClient
from assay.faults.failover.processes import NodeProcess
from assay.faults.failover.rabbitmq import NODES, RabbitmqCluster
from assay.reference_broker.trace.results import Verdict


class Clock:
    """Time that only those move who wait."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


class PlayedCluster:
    """Confirms in a millisecond; after a fault of the leader, not for ``outage_s``."""

    nodes = 3

    def __init__(self, clock: Clock, outage_s: float, loses: int = 0) -> None:
        self.clock, self.outage_s, self.loses = clock, outage_s, loses
        self.dark_until_s = 0.0
        self.told: list[str] = []
        self.messages = 7
        self.led = 1

    def leader(self) -> int:
        return self.led

    def connect(self, node: int) -> PlayedCluster:
        assert node != self.led, "a publisher at the leader dies with it"
        self.told.append(f"connect {node}")
        return self

    def publish(self, timeout_s: float) -> bool:
        if self.clock.now_s < self.dark_until_s:
            self.clock.now_s += timeout_s
            return False
        self.clock.now_s += 0.001
        self.messages += 1
        return True

    def close(self) -> None:
        self.told.append("close")

    def hurt(self, node: int, fault: LeaderFault) -> None:
        self.told.append(f"{fault} {node}")
        self.dark_until_s = self.clock.now_s + self.outage_s

    def heal(self, node: int, fault: LeaderFault) -> None:
        self.told.append(f"heal {node}")
        self.messages -= self.loses
        self.led = (node + 1) % 3

    def wait_until_whole(self, timeout_s: float) -> None:
        self.told.append("whole")

    def stored(self) -> int:
        return self.messages


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measuring, "time", made)
    return made


def test_a_gap_reaches_from_the_last_confirm_to_the_next(clock: Clock) -> None:
    cluster = PlayedCluster(clock, outage_s=2.0)
    found = measure(cluster, LeaderFault.PAUSE, 3, random.Random(1))
    assert len(found.gaps_s) == 3
    # A publish that is given up is given up whole: up to a quarter of a second more, and a pace before.
    assert all(2.0 <= gap_s <= 2.0 + measuring.CONFIRM_TIMEOUT_S + 0.01 for gap_s in found.gaps_s)
    assert found.stored == found.confirmed
    assert cluster.told[:5] == ["whole", "connect 2", "pause 1", "close", "heal 1"]


def test_a_cluster_that_does_not_come_back_is_healed_and_reported(clock: Clock) -> None:
    cluster = PlayedCluster(clock, outage_s=1_000.0)
    with pytest.raises(FailoverError, match="nothing was confirmed"):
        measure(cluster, LeaderFault.KILL, 3, random.Random(1))
    assert cluster.told[-2:] == ["close", "heal 1"]


def test_messages_that_are_gone_fail_the_measurement(clock: Clock) -> None:
    cluster = PlayedCluster(clock, outage_s=0.5, loses=2)
    found = measure(cluster, LeaderFault.KILL, 2, random.Random(1))
    assert found.confirmed - found.stored == 4
    told = result("nats", "1", [found], seed=1, duration_s=1.0)
    assert told.verdict is Verdict.FAIL
    assert "4 confirmed are gone" in told.summary
    whole = Failovers(fault=LeaderFault.KILL, gaps_s=[1.0, 3.0], confirmed=5, stored=6)
    kept = result("nats", "1", [whole], seed=1, duration_s=1.0)
    assert (kept.verdict, kept.series[0].y, kept.metrics["kill.median_s"]) == (Verdict.PASS, [1.0, 3.0], 2.0)


@contextmanager
def serving(play: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of one connection in a thread."""
    failures: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            try:
                connection, _ = listener.accept()
                connection.settimeout(10)
                with connection:
                    play(connection)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join(10)
    assert not failures, failures


def test_the_nats_client_takes_its_own_answer_only() -> None:
    def play(connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        assert lines.readline().startswith(b"CONNECT {")
        assert lines.readline().startswith(b"SUB _INBOX.")
        assert lines.readline() == b"PING\r\n"
        connection.sendall(b'INFO {"server_id":"x"}\r\nPONG\r\n')
        answers = (b'{"stream":"failover","seq":4}', b'{"error":{"code":503}}')
        for body in answers:
            verb, _, reply, size = lines.readline().split()
            assert verb == b"PUB"
            lines.read(int(size) + 2)
            connection.sendall(b"MSG _INBOX.late 1 5\r\nstale\r\nPING\r\n")
            whole = b"MSG %s 1 %d\r\n%s\r\n" % (reply, len(body), body)
            connection.sendall(whole[:9])
            connection.sendall(whole[9:])
            assert lines.readline() == b"PONG\r\n"

    with serving(play) as port:
        client = NatsClient(port)
        assert client.publish(10.0)
        assert not client.publish(10.0), "an error is no confirm"
        client.close()


def test_a_message_without_an_end_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats, "_MAX_BUFFER_BYTES", 1_000)

    def play(connection: socket.socket) -> None:
        connection.recv(1_000)
        connection.sendall(b"MSG _INBOX.x 1 100000\r\n" + bytes(2_000))
        while connection.recv(1_000):
            pass

    with serving(play) as port:
        client = NatsClient(port)
        with pytest.raises(ConnectionAbortedError):
            client.publish(10.0)
        client.close()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def test_the_amqp_publisher_knows_its_confirms() -> None:
    def play(connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        assert stream.read(8) == b"AMQP\x00\x00\x09\x01"

        def told() -> tuple[int, bytes]:
            kind, _, size = struct.unpack(">BHI", stream.read(7))
            payload = stream.read(size)
            assert stream.read(1) == b"\xce"
            return kind, payload

        def answer(class_id: int, method_id: int, arguments: bytes = b"", channel: int = 1) -> None:
            connection.sendall(frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments))

        answer(10, 10, b"\0\x09" + bytes(4) + struct.pack(">I", 5) + b"PLAIN" + struct.pack(">I", 5) + b"en_US", 0)
        assert b"guest" in told()[1]
        answer(10, 30, struct.pack(">HIH", 100, 131_072, 60), 0)
        assert told()[1][-2:] == b"\0\0", "no heartbeats"
        told()
        answer(10, 41, b"\0", 0)
        for reply in ((20, 11, bytes(4)), (50, 11, b"\x08failover" + struct.pack(">II", 12, 0)), (85, 11, b"")):
            told()
            answer(*reply)
        for confirm in (((60, 80), 1, 0), ((60, 80), 3, 1), ((60, 120), 4, 0)):
            count = 2 if confirm[1] == 3 else 1
            for _ in range(count):
                assert [told()[0] for _ in range(3)] == [1, 2, 3]
            (class_id, method_id), tag, many = confirm
            answer(class_id, method_id, struct.pack(">QB", tag, many))
        assert stream.read(1) == b"", "until the client closes"

    with serving(play) as port:
        publisher = AmqpPublisher(port, "failover")
        assert publisher.messages == 12
        assert publisher.publish(10.0)
        assert not publisher.publish(0.05), "not confirmed in time"
        assert publisher.publish(10.0), "by a confirm of several"
        assert not publisher.publish(0.2), "refused"
        publisher.close()


def test_a_node_is_paused_goes_on_is_killed_and_started_again(tmp_path: Path) -> None:
    script = "import sys\nprint('up', flush=True)\nfor line in sys.stdin: pass\nimport time\ntime.sleep(600)"
    process = NodeProcess([sys.executable, "-c", script], tmp_path)

    def state() -> str:
        assert process._process is not None
        done = subprocess.run(["ps", "-o", "stat=", "-p", str(process._process.pid)], capture_output=True, check=False)
        return done.stdout.decode().strip()[:1]

    process.start()
    assert process._process is not None
    try:
        process.hurt(LeaderFault.PAUSE)
        os.waitid(os.P_PID, process._process.pid, os.WSTOPPED | os.WNOWAIT)
        assert state() == "T"
        process.heal(LeaderFault.PAUSE)
        assert state() not in ("T", "")
        process.hurt(LeaderFault.KILL)
        assert state() == ""
        process.heal(LeaderFault.KILL)
        assert state() not in ("T", "")
    finally:
        process.stop()
    assert state() == ""


def test_nodes_have_the_names_by_which_they_look_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapper = tmp_path / "bin" / "epmd"
    mapper.parent.mkdir()
    mapper.touch(0o700)
    monkeypatch.setenv("PATH", str(mapper.parent), prepend=os.pathsep)
    cluster = RabbitmqCluster(tmp_path / "home", tmp_path)
    names = [environment["RABBITMQ_NODENAME"] for environment in cluster._environments]
    assert len(set(names)) == NODES
    for index in range(NODES):
        config = (tmp_path / f"n{index}" / "rabbitmq.conf").read_text("utf-8")
        assert all(f"nodes.{number} = {name}\n" in config for number, name in enumerate(names, 1))
