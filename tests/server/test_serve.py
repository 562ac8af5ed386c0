"""``assay serve`` as a process: clients of others, bad input, signals."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.reference_broker.cli import _override
from assay.reference_broker.config import BrokerConfig, ListenerConfig, ListenerProtocol, TlsConfig
from assay.reference_broker.trace.files import read_trace
from assay.reference_broker.trace.schema import TraceKind

WAIT_S = 20.0
CONNECT_311 = bytes.fromhex("100d00044d5154540402003c000174")
PEER = pytest.mark.peer
needs_mosquitto_clients = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None, reason="mosquitto_pub is not installed (Debian: mosquitto-clients)"
)


def test_a_port_for_http_is_a_listener_beside_those_of_the_file() -> None:
    tls = TlsConfig(certificate="c.pem", key="k.pem")
    settings = BrokerConfig(listeners=(ListenerConfig(host="::1", port=1, tls=tls), ListenerConfig(port=2)))
    changed = _override(settings, None, None, 8080, None, [])
    assert changed.listeners[:2] == settings.listeners
    added = changed.listeners[2]
    assert (added.host, added.port, added.tls, added.protocols) == ("::1", 8080, tls, (ListenerProtocol.HTTP,))


class Served:
    """A running ``assay serve``."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "assay.cli", "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready mqtt://127.0.0.1:"):
            self.process.kill()
            raise AssertionError(line + self.process.communicate()[1])
        self.port = int(line.rsplit(":", 1)[1])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


@pytest.fixture
def served() -> Iterator[Served]:
    broker = Served()
    yield broker
    assert broker.stop() == 0, "a clean stop exits 0"


def alive(served: Served) -> bool:
    with served.connect() as client:
        client.sendall(CONNECT_311)
        return client.recv(4) == b"\x20\x02\x00\x00"


@PEER
@needs_mosquitto_clients
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_pub_and_sub(served: Served, version: str, qos: str) -> None:
    address = ["-h", "127.0.0.1", "-p", str(served.port), "-V", version, "-q", qos]
    retained = subprocess.run(["mosquitto_pub", *address, "-t", "m/r", "-m", "kept", "-r"], timeout=WAIT_S, check=False)
    assert retained.returncode == 0
    subscriber = subprocess.Popen(
        ["mosquitto_sub", *address, "-t", "m/#", "-C", "3", "-W", str(int(WAIT_S)), "-F", "%t %p %r %q"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert subscriber.stdout is not None
    # The retained message shows that the subscription stands: no need to wait for anything else.
    lines = [subscriber.stdout.readline().strip()]
    feed = "one\ntwo\n"
    sent = subprocess.run(
        ["mosquitto_pub", *address, "-t", "m/x", "-l"], input=feed, text=True, timeout=WAIT_S, check=False
    )
    assert sent.returncode == 0
    lines += [line.strip() for line in subscriber.stdout]
    assert subscriber.wait(WAIT_S) == 0
    subscriber.stdout.close()
    assert lines == [f"m/r kept 1 {qos}", f"m/x one 0 {qos}", f"m/x two 0 {qos}"]


def closed_without_answer(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "data",
    [
        b"\xc0\x00",
        bytes.fromhex("100d00044d5154540403003c000174"),
        bytes.fromhex("10ffffffff7f"),
        bytes.fromhex("1080808001"),
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
    ],
)
def test_bad_first_bytes_close_the_connection_and_nothing_else(served: Served, data: bytes) -> None:
    with served.connect() as bystander:
        bystander.sendall(CONNECT_311)
        assert bystander.recv(4) == b"\x20\x02\x00\x00"
        with served.connect() as client:
            client.sendall(data)
            assert closed_without_answer(client)
        bystander.sendall(b"\xc0\x00")
        assert bystander.recv(2) == b"\xd0\x00"


def test_one_byte_at_a_time(served: Served) -> None:
    with served.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in CONNECT_311 + bytes.fromhex("8206000100016100") + bytes.fromhex("30050001 61 6869") + b"\xc0\x00":
            client.sendall(bytes([byte]))
        answer = b""
        while len(answer) < 4 + 5 + 7 + 2:
            answer += client.recv(100)
        assert answer == bytes.fromhex("20020000 9003000100 30050001616869 d000")


def test_a_client_that_vanishes_within_a_packet_disturbs_nobody(served: Served) -> None:
    with served.connect() as client:
        client.sendall(CONNECT_311 + bytes.fromhex("30ff7f0001"))
        assert client.recv(4) == b"\x20\x02\x00\x00"
    assert alive(served)


def test_a_client_that_never_reads_is_cut_while_others_are_served(tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text("mqtt: {unread_timeout_s: 1}\n", encoding="utf-8")
    served = Served("--config", str(config))
    with served.connect() as deaf, served.connect() as talker:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Its will, which goes to w, tells that it was cut.
        deaf.sendall(bytes.fromhex("101300044d5154540406003c 000164 000177 000167 8206000100016101"))
        talker.sendall(CONNECT_311)
        assert talker.recv(4) == b"\x20\x02\x00\x00"
        talker.sendall(bytes.fromhex("8206000200017700"))
        assert talker.recv(5) == bytes.fromhex("9003000200")
        will = bytes.fromhex("300400017767")
        packet = bytes.fromhex("32") + b"\xf4\x87\x01" + b"\x00\x01a" + b"\x00\x01" + b"x" * 17_391
        reader = threading.Thread(target=_drain, args=(talker, 600 * 4 + len(will)))
        reader.start()
        for _ in range(600):  # 10 MB that the deaf client does not take
            talker.sendall(packet)
        reader.join(WAIT_S)
        assert not reader.is_alive(), "every publish was acknowledged, and the will came"
    assert alive(served)
    assert served.stop() == 0


def _drain(client: socket.socket, count: int) -> None:
    while count > 0:
        count -= len(client.recv(65_536))


def test_sigint_stops_cleanly_and_tells_mqtt_5_clients_why() -> None:
    served = Served()
    with served.connect() as client:
        client.sendall(bytes.fromhex("100e00044d51545405020000 00 000174"))
        assert client.recv(1024)[0] == 0x20
        assert served.stop(signal.SIGINT) == 0
        assert client.recv(100) == bytes.fromhex("e0018b")


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "assay.cli", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_an_unknown_key_is_refused_with_its_path(tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    config.write_text("mqtt:\n  recieve_maximum: 5\n", encoding="utf-8")
    finished = run_serve("--config", str(config))
    assert finished.returncode == 2
    assert "recieve_maximum" in finished.stderr
    assert "$.mqtt" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_missing_config_file_does_not_start_an_open_broker(tmp_path: Path) -> None:
    finished = run_serve("--config", str(tmp_path / "absent.yaml"))
    assert finished.returncode == 2
    assert "absent.yaml" in finished.stderr


@pytest.mark.parametrize("port", ["99999", "-5", "65536"])
def test_a_port_that_does_not_exist_is_refused(port: str) -> None:
    finished = run_serve("--port", port)
    assert finished.returncode == 2
    assert "listeners[0].port must be 0 to 65535" in finished.stderr


def test_a_configuration_that_is_not_utf8_or_has_a_key_twice_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "broker.yaml"
    for content, problem in ((b"node: caf\xe9\n", "not UTF-8"), (b"mqtt: {}\nmqtt: {}\n", "stands twice")):
        config.write_bytes(content)
        finished = run_serve("--check", "--config", str(config))
        assert (finished.returncode, "Traceback" in finished.stderr) == (2, False)
        assert problem in finished.stderr


def test_a_port_in_use_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finished = run_serve("--port", str(taken.getsockname()[1]))
    assert finished.returncode == 1
    assert "cannot start" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_the_trace_has_every_step_and_no_gap(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    config = tmp_path / "broker.yaml"
    config.write_text(f"trace: {{path: {trace}}}\n", encoding="utf-8")
    served = Served("--config", str(config))
    with served.connect() as client:
        client.sendall(CONNECT_311 + bytes.fromhex("8206000100016100") + bytes.fromhex("30050001 61 6869"))
        seen = b""
        while b"hi" not in seen:
            seen += client.recv(100)
    assert served.stop() == 0
    _header, events = read_trace(trace)
    kept = list(events)
    assert [event.seq for event in kept] == list(range(len(kept)))
    mine = [event.kind for event in kept if event.client_id == "t"]
    assert mine == [TraceKind.CONNECTED, TraceKind.SUBSCRIBED, TraceKind.PUBLISHED, TraceKind.DISCONNECTED]
