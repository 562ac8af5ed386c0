"""Many connections at once: opened side by side, their handshakes in one thread, packets encoded once.

``open_crowd`` hands over non-blocking sockets past CONNACK and SUBACK. More connections than one source address has
ports for come from several addresses of the loopback network.
"""

from __future__ import annotations

import errno
import resource
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from assay.conformance.targets import Endpoint
from assay.conformance.wire import Connect, Subscribe, Subscription, encode
from assay.loadtests.bench.workload import BenchError, UnsupportedError

CONNECTIONS_PER_ADDRESS = 20_000
AT_ONCE = 100
"""Handshakes under way at most: fewer than the listen backlog of any broker."""
ANSWER_BYTES = 65_536
CONNACK_BYTES = 4
_CONNACK_ACCEPTED = b"\x20\x02\x00\x00"
_SUBACK = 0x90
_SPARE_FILES = 256
_BIND_ADDRESS_NO_PORT = getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24)

Filters = Sequence[tuple[str, int]]
"""Topic filters and the QoS asked for."""


def raise_file_limit(wanted: int) -> int:
    """Allow this process ``wanted`` connections besides its other files, if it may; returns how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - _SPARE_FILES)


def connect_packet(endpoint: Endpoint, client_id: str, *, keep_alive_s: int = 0) -> bytes:
    """CONNECT of MQTT 3.1.1 with a clean session."""
    password = None if endpoint.password is None else endpoint.password.encode()
    packet = Connect(
        client_id=client_id, version=4, keep_alive_s=keep_alive_s, username=endpoint.username, password=password
    )
    return encode(packet, 4)


def subscribe_packet(packet_id: int, filters: Filters) -> bytes:
    """SUBSCRIBE of MQTT 3.1.1."""
    subscriptions = tuple(Subscription(filter=name, qos=qos) for name, qos in filters)
    return encode(Subscribe(packet_id=packet_id, subscriptions=subscriptions), 4)


def start_connect(endpoint: Endpoint, source: int = 0) -> socket.socket:
    """A non-blocking socket that connects. ``source`` counts addresses from 127.0.0.1 on, for loopback brokers."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source and endpoint.host.startswith("127."):
            # The port is chosen at connect, when the destination is known: two sources may then share one.
            connection.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
            connection.bind((f"127.0.{source // 250}.{source % 250 + 1}", 0))
        code = connection.connect_ex((endpoint.host, endpoint.port))
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, f"cannot connect to {endpoint.host}:{endpoint.port}")
    except BaseException:
        connection.close()
        raise
    return connection


def check_connack(data: bytes) -> None:
    """Raises :class:`BenchError` unless it is an accepting CONNACK without a session."""
    if data != _CONNACK_ACCEPTED:
        message = f"CONNECT was answered with {data.hex() or 'the end of the connection'}"
        raise BenchError(message)


def check_suback(data: bytes, granted: bytes) -> bool:
    """Whether a SUBACK that grants the QoS levels asked for has come; False while it is not whole.

    Raises :class:`UnsupportedError` when less is granted, :class:`BenchError` for anything else.
    """
    length_bytes = 1 if len(granted) + 2 < 128 else 2
    if len(data) < 1 + length_bytes + 2 + len(granted):
        return False
    codes = data[1 + length_bytes + 2 :]
    if data[0] != _SUBACK or len(codes) != len(granted):
        message = f"SUBSCRIBE was answered with {data[:32].hex()}"
        raise BenchError(message)
    if codes != granted:
        got, asked = next((got, asked) for got, asked in zip(codes, granted, strict=True) if got != asked)
        message = f"QoS {asked} is granted as {'failure' if got >= 0x80 else got}"
        raise UnsupportedError(message)
    return True


class _Opening:
    """One connection on its way: what it still has to send, and how its answer must begin."""

    __slots__ = ("answer", "granted", "index", "packets", "socket")

    def __init__(self, index: int, connection: socket.socket, packets: list[bytes], granted: bytes) -> None:
        self.index = index
        self.socket = connection
        self.packets = packets
        self.granted = granted
        self.answer = b""

    def writable(self) -> None:
        self.socket.send(self.packets.pop(0))

    def readable(self) -> bool:
        """Whether the connection is ready for use."""
        data = self.socket.recv(ANSWER_BYTES)
        self.answer += data
        if self.answer.startswith(_CONNACK_ACCEPTED):
            rest = self.answer[CONNACK_BYTES:]
            if not self.granted or check_suback(rest, self.granted):
                return True
            if not rest and self.packets:
                self.writable()
        elif not data or len(self.answer) >= CONNACK_BYTES:
            check_connack(self.answer)
        if not data:
            message = "the broker closed a connection before it was ready"
            raise BenchError(message)
        return False


def open_crowd(
    endpoint: Endpoint,
    client_ids: Sequence[str],
    *,
    subscriptions: Callable[[int], Filters] = lambda index: (),
    keep_alive_s: int = 0,
    timeout_s: float = 30.0,
) -> list[socket.socket]:
    """A connection for each client id, in their order, each with the subscriptions of its index.

    Raises :class:`BenchError` (refused, or not all ready in time), :class:`UnsupportedError`, :class:`OSError`.
    """
    opening: dict[int, _Opening] = {}
    ready: dict[int, socket.socket] = {}
    begun = 0
    deadline = time.monotonic() + timeout_s
    poll = select.epoll()
    try:
        while len(ready) < len(client_ids):
            while begun < len(client_ids) and len(opening) < AT_ONCE:
                connection = start_connect(endpoint, begun // CONNECTIONS_PER_ADDRESS)
                filters = subscriptions(begun)
                packets = [connect_packet(endpoint, client_ids[begun], keep_alive_s=keep_alive_s)]
                if filters:
                    packets.append(subscribe_packet(1, filters))
                opening[connection.fileno()] = _Opening(begun, connection, packets, bytes(qos for _, qos in filters))
                poll.register(connection, select.EPOLLOUT)
                begun += 1
            for fd, event in poll.poll(max(0.0, deadline - time.monotonic())):
                client = opening[fd]
                if event & select.EPOLLOUT:
                    client.writable()
                    poll.modify(fd, select.EPOLLIN)
                elif client.readable():
                    poll.unregister(fd)
                    ready[client.index] = opening.pop(fd).socket
            if time.monotonic() > deadline:
                message = f"{len(ready)} of {len(client_ids)} connections were ready after {timeout_s:g} s"
                raise BenchError(message)
    except BaseException:
        close_all([*ready.values(), *(client.socket for client in opening.values())])
        raise
    finally:
        poll.close()
    return [ready[index] for index in range(len(client_ids))]


def close_all(connections: Sequence[socket.socket]) -> None:
    """Say goodbye and close."""
    for connection in connections:
        with suppress(OSError):
            connection.send(b"\xe0\x00")
        connection.close()
