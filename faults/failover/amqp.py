"""A publisher with confirms over AMQP 0.9.1, and no more of the protocol than that.

Layouts from the AMQP 0-9-1 specification, sections 2.3.5 and 4.2.3 and its methods; confirms are RabbitMQ's class 85.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from assay.faults.failover.measure import FailoverError

_METHOD: Final = 1
_FRAME_END: Final = 0xCE
_START_OK, _TUNE, _TUNE_OK, _OPEN, _OPEN_OK = (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
_CHANNEL_OPEN, _CHANNEL_OPEN_OK, _DECLARE, _DECLARE_OK = (20, 10), (20, 11), (50, 10), (50, 11)
_PUBLISH, _ACK, _NACK, _SELECT, _SELECT_OK = (60, 40), (60, 80), (60, 120), (85, 10), (85, 11)
_READ_BYTES: Final = 65_536
_MAX_BUFFER_BYTES: Final = 1_048_576
_TIMEOUT_S: Final = 15.0
_PAYLOAD: Final = b"x" * 100
_DURABLE: Final = 0x02


def _short(text: str) -> bytes:
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((_FRAME_END,))


def _method(name: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return _frame(_METHOD, channel, struct.pack(">HH", *name) + arguments)


class AmqpPublisher:
    """One connection and channel, and a quorum queue; see :class:`assay.faults.failover.measure.Publisher`.

    Raises :class:`OSError` when the connection ends, :class:`FailoverError` for what it does not expect.
    """

    def __init__(self, port: int, queue: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self._unread = b""
        self._published = 0
        self._confirmed: set[int] = set()
        self._upto = 0
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect((10, 10))
        plain = b"\0guest\0guest"
        self._send(
            _START_OK, bytes(4) + _short("PLAIN") + struct.pack(">I", len(plain)) + plain + _short("en_US"), channel=0
        )
        tuned = self._expect(_TUNE)
        self._send(_TUNE_OK, tuned[:6] + b"\0\0", channel=0)  # no heartbeats
        self._send(_OPEN, _short("/") + b"\0\0", channel=0)
        self._expect(_OPEN_OK)
        self._send(_CHANNEL_OPEN, b"\0")
        self._expect(_CHANNEL_OPEN_OK)
        table = _short("x-queue-type") + b"S" + struct.pack(">I", 6) + b"quorum"
        declared = struct.pack(">H", 0) + _short(queue) + bytes((_DURABLE,)) + struct.pack(">I", len(table)) + table
        self._send(_DECLARE, declared)
        found = self._expect(_DECLARE_OK)
        self.messages = int(struct.unpack_from(">I", found, 1 + found[0])[0])
        """In the queue when it was declared."""
        self._send(_SELECT, b"\0")
        self._expect(_SELECT_OK)
        header = struct.pack(">HHQHB", 60, 0, len(_PAYLOAD), 0x1000, 2)
        publish = _method(_PUBLISH, b"\0\0" + _short("") + _short(queue) + b"\0")
        self._message = publish + _frame(2, 1, header) + _frame(3, 1, _PAYLOAD)

    def publish(self, timeout_s: float) -> bool:
        """Publish, and wait for the confirm of this very message."""
        self._published += 1
        number = self._published
        self._socket.settimeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        try:
            self._socket.sendall(self._message)
            while self._upto < number and number not in self._confirmed:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._socket.settimeout(left_s)
                self._read()
                self._take_confirms()
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self._socket.close()

    def _send(self, name: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> None:
        self._socket.sendall(_method(name, arguments, channel))

    def _read(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self._unread += data
        if len(self._unread) > _MAX_BUFFER_BYTES:
            raise ConnectionAbortedError("the broker sent a frame without an end")

    def _next(self) -> tuple[tuple[int, int], bytes] | None:
        """The next whole method; None when none is there."""
        while len(self._unread) >= 7:
            kind, _, size = struct.unpack_from(">BHI", self._unread)
            if len(self._unread) < size + 8:
                return None
            payload, self._unread = self._unread[7 : 7 + size], self._unread[8 + size :]
            if kind == _METHOD:
                class_id, method_id = struct.unpack_from(">HH", payload)
                return (class_id, method_id), payload[4:]
        return None

    def _expect(self, name: tuple[int, int]) -> bytes:
        while (found := self._next()) is None:
            self._read()
        if found[0] != name:
            message = f"the broker answered with method {found[0]}, not {name}: {found[1][:100]!r}"
            raise FailoverError(message)
        return found[1]

    def _take_confirms(self) -> None:
        while (found := self._next()) is not None:
            name, arguments = found
            if name not in (_ACK, _NACK):
                message = f"the broker sent method {name}: {arguments[:100]!r}"
                raise FailoverError(message)
            tag, many = struct.unpack_from(">QB", arguments)
            if name == _ACK and many & 1:
                self._upto = max(self._upto, tag)
                self._confirmed = {each for each in self._confirmed if each > tag}
            elif name == _ACK:
                self._confirmed.add(tag)
