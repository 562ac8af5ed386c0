"""Greet a broker by AMQP 0.9.1: does it speak that, and what do its server-properties say that it can?"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from assay.conformance.targets.errors import ProbeError, StrangeAnswerError, connected
from assay.conformance.targets.model import CapabilityValue, Endpoint
from assay.conformance.wire.amqp091 import (
    PROTOCOL_HEADER,
    Arrival,
    Assembler,
    MalformedFrameError,
    Method,
    ProtocolHeader,
    describe,
    encode_method,
)

DEFAULT_USER = "guest"
"""The name and the password that 0.9.1 brokers come with."""
EXTENSIONS = {
    "publisher_confirms": "publisher_confirms",
    "exchange_exchange_bindings": "exchange_exchange_bindings",
    "basic.nack": "basic_nack",
    "consumer_cancel_notify": "consumer_cancel_notify",
    "consumer_priorities": "consumer_priorities",
    "authentication_failure_close": "authentication_failure_close",
    "per_consumer_qos": "per_consumer_qos",
    "direct_reply_to": "direct_reply_to",
}
"""Names in the table of capabilities to ours."""


def amqp_endpoint(endpoint: Endpoint, capabilities: Mapping[str, CapabilityValue]) -> Endpoint:
    """Where the broker speaks AMQP: at its endpoint, unless ``amqp091_url`` names another place; with credentials."""
    url = str(capabilities.get("amqp091_url", ""))
    if url:
        parts = urlsplit(url)
        endpoint = msgspec.structs.replace(endpoint, host=parts.hostname or endpoint.host, port=parts.port or 5672)
    if endpoint.username is None or url:
        endpoint = msgspec.structs.replace(endpoint, username=DEFAULT_USER, password=DEFAULT_USER)
    return endpoint


def plain(endpoint: Endpoint) -> bytes:
    """The response of SASL PLAIN."""
    return f"\0{endpoint.username or ''}\0{endpoint.password or ''}".encode()


def _events(sock: socket.socket, where: str, deadline: float) -> Iterator[Arrival | ProtocolHeader]:
    assembler = Assembler()
    while True:
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        data = sock.recv(65_536)
        if not data:
            message = f"{where} closed the connection in the middle of the AMQP 0.9.1 handshake"
            raise ProbeError(message)
        for event in assembler.feed(data):
            if isinstance(event, Arrival | ProtocolHeader):
                yield event


def _expect(events: Iterator[Arrival | ProtocolHeader], where: str, name: str) -> Arrival:
    event = next(events)
    if isinstance(event, Arrival) and event.name == name:
        return event
    seen = describe(event.method if isinstance(event, Arrival) else event)
    message = f"{where} answered the AMQP 0.9.1 handshake with {seen} in place of {name}"
    raise StrangeAnswerError(message)


def amqp_handshake(endpoint: Endpoint, *, timeout_s: float) -> Mapping[str, Any]:
    """Open and close a connection; returns the server-properties. Raises :class:`ProbeError` unless it is accepted."""
    where = f"{endpoint.host}:{endpoint.port}"
    deadline = time.monotonic() + timeout_s
    try:
        with connected(endpoint, timeout_s) as sock:
            sock.sendall(PROTOCOL_HEADER)
            events = _events(sock, where, deadline)
            start = _expect(events, where, "connection.start")
            properties: Mapping[str, Any] = start["server-properties"]
            answer = Method("connection.start-ok", mechanism="PLAIN", response=plain(endpoint), locale="en_US")
            sock.sendall(encode_method(0, answer))
            tune = _expect(events, where, "connection.tune")
            tuned = Method("connection.tune-ok", channel_max=tune["channel-max"], frame_max=tune["frame-max"])
            sock.sendall(encode_method(0, tuned) + encode_method(0, Method("connection.open", virtual_host="/")))
            _expect(events, where, "connection.open-ok")
            with contextlib.suppress(OSError, ProbeError, MalformedFrameError):  # accepted, whatever it does next
                sock.sendall(encode_method(0, Method("connection.close", reply_code=200, reply_text="bye")))
                next(events)
            return properties
    except TimeoutError as error:
        message = f"{where} did not finish the AMQP 0.9.1 handshake within {timeout_s:g} s"
        raise ProbeError(message) from error
    except ssl.SSLError as error:
        message = f"{where} cannot be reached by TLS: {error}"
        raise ProbeError(message) from error
    except OSError as error:
        message = f"{where} cannot be reached: {error.strerror or error}"
        raise ProbeError(message) from error
    except MalformedFrameError as error:
        message = f"{where} answered the AMQP 0.9.1 handshake with bytes that are no frames: {error}"
        raise StrangeAnswerError(message) from error


def stated(properties: Mapping[str, Any]) -> dict[str, CapabilityValue]:
    """What server-properties say of extensions."""
    table = properties.get("capabilities", {})
    known = table if isinstance(table, Mapping) else {}
    return {ours: known.get(theirs) is True for theirs, ours in EXTENSIONS.items()}
