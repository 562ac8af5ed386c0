"""Ask a broker by handshakes what it can: what it speaks, what its 5.0 CONNACK and its server-properties state."""

from __future__ import annotations

import contextlib
import ssl
import time
import uuid

from assay.conformance.targets.amqp import EXTENSIONS, amqp_endpoint, amqp_handshake, stated
from assay.conformance.targets.errors import ProbeError, StrangeAnswerError, connected
from assay.conformance.targets.faces import (
    GRPC_METHODS,
    HTTP_APIS,
    HTTP_LIMITS,
    face_endpoint,
    grpc_found,
    grpc_greet,
    http_found,
    http_request,
    is_told,
)
from assay.conformance.targets.model import DEFAULT_CAPABILITIES, CapabilityValue, Endpoint, Target
from assay.conformance.wire import Connack, Connect, Decoder, Disconnect, MalformedPacketError, describe, encode
from assay.conformance.wire.amqp091 import AMQP_091
from assay.conformance.wire.grpc import is_installed
from assay.conformance.wire.http import GRPC, HTTP_11

HANDSHAKE_TIMEOUT_S = 5.0
SURE_TIMEOUT_S = 60.0
"""Of brokers that speak what is asked for: one that had no time to answer would pass for one that does not."""
_MQTT = (("mqtt311", 4), ("mqtt5", 5))
_FACES = (("http", HTTP_11), ("grpc", GRPC))
_SPOKEN = ("mqtt311", "mqtt5", "amqp091", "http", "grpc")


def handshake(endpoint: Endpoint, version: int, *, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> Connack:
    """CONNECT, CONNACK, DISCONNECT on a fresh connection. Raises :class:`ProbeError` unless it is accepted."""
    where = f"{endpoint.host}:{endpoint.port}"
    connect = Connect(
        client_id=f"probe{uuid.uuid4().hex[:12]}",
        version=version,
        username=endpoint.username,
        password=None if endpoint.password is None else endpoint.password.encode(),
    )
    decoder = Decoder(version)
    deadline = time.monotonic() + timeout_s
    try:
        with connected(endpoint, timeout_s) as sock:
            sock.sendall(encode(connect, version))
            while True:
                sock.settimeout(max(0.01, deadline - time.monotonic()))
                data = sock.recv(65_536)
                if not data:
                    message = f"{where} closed the connection in place of a CONNACK (MQTT version {version})"
                    raise ProbeError(message)
                for packet in decoder.feed(data):
                    if not isinstance(packet, Connack) or packet.reason_code:
                        message = f"{where} answered CONNECT (MQTT version {version}) with {describe(packet)}"
                        raise StrangeAnswerError(message)
                    with contextlib.suppress(OSError):  # it was accepted, whatever the broker did next
                        sock.sendall(encode(Disconnect(), version))
                    return packet
    except TimeoutError as error:
        message = f"{where} did not answer CONNECT (MQTT version {version}) within {timeout_s:g} s"
        raise ProbeError(message) from error
    except ssl.SSLCertVerificationError as error:
        message = f"the certificate of {where} is not trusted: {error.verify_message}; --ca FILE names its authority"
        raise ProbeError(message) from error
    except ssl.SSLError as error:
        message = f"{where} cannot be reached by TLS: {error}"
        raise ProbeError(message) from error
    except OSError as error:
        message = f"{where} cannot be reached: {error.strerror or error}"
        raise ProbeError(message) from error
    except MalformedPacketError as error:
        message = f"{where} answered CONNECT (MQTT version {version}) with a malformed packet: {error}"
        raise StrangeAnswerError(message) from error


def greet(endpoint: Endpoint, version: int, *, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> None:
    """A handshake of that version of MQTT, or of AMQP 0.9.1, or any answer by HTTP or gRPC.

    Raises :class:`ProbeError` unless it is accepted.
    """
    if version == AMQP_091:
        amqp_handshake(endpoint, timeout_s=timeout_s)
    elif version == HTTP_11:
        http_request(endpoint, "GET", "/health", timeout_s=timeout_s)
    elif version == GRPC:
        grpc_greet(endpoint, timeout_s=timeout_s)
    else:
        handshake(endpoint, version, timeout_s=timeout_s)


def greetings(target: Target, endpoint: Endpoint) -> list[tuple[int, Endpoint]]:
    """What may be tried on the broker, and where: nothing that the target file denies, AMQP where nothing else may be
    or the file names it, HTTP and gRPC where the file says where."""
    said = target.capabilities
    found = [(version, endpoint) for name, version in _MQTT if said.get(name) is not False]
    asks = said.get("amqp091") or not found or not (target.start or said)
    found += [(AMQP_091, amqp_endpoint(endpoint, said))] if asks and said.get("amqp091") is not False else []
    for name, version in _FACES:
        url = str(said.get(f"{name}_url", ""))
        if is_told(url) and said.get(name) is not False and (version != GRPC or is_installed()):
            found.append((version, face_endpoint(endpoint, url)))
    return found


def _amqp_found(target: Target, endpoint: Endpoint, timeout_s: float) -> dict[str, CapabilityValue]:
    """What it can in AMQP; raises :class:`ProbeError`."""
    where = amqp_endpoint(endpoint, target.capabilities)
    shown: dict[str, CapabilityValue] = stated(amqp_handshake(where, timeout_s=timeout_s))
    declared = {name: bool(shown[name] and target.capabilities.get(name, True)) for name in shown}
    return {**declared, "amqp091": True}


def _stated(connack: Connack) -> dict[str, CapabilityValue]:
    """What a 5.0 CONNACK says; an absent property has the value that 3.2.2.3 gives it."""
    said = connack.properties
    maximum_qos = 2 if said.maximum_qos is None else said.maximum_qos
    return {
        "qos1": maximum_qos >= 1,
        "qos2": maximum_qos >= 2,
        "retain": said.retain_available != 0,
        "wildcards": said.wildcard_subscription_available != 0,
        "shared": said.shared_subscription_available != 0,
        "subscription_identifiers": said.subscription_identifier_available != 0,
        "receive_maximum": said.receive_maximum or 65_535,
        "topic_alias_maximum": said.topic_alias_maximum or 0,
        "maximum_packet_size": said.maximum_packet_size or 0,
        "server_keep_alive": said.server_keep_alive or 0,
    }


def probe(target: Target, endpoint: Endpoint, *, timeout_s: float | None = None) -> dict[str, CapabilityValue]:
    """Capabilities of a running target: defaults, what it shows, what its file declares.

    Each handshake has ``timeout_s``: by default a minute for brokers of ours, and five seconds for others.
    A declaration may take away what the probe shows (the file knows of a restriction), never add to it.
    Raises :class:`ProbeError` when nothing is spoken.
    """
    timeout_s = timeout_s or (SURE_TIMEOUT_S if target.is_ours else HANDSHAKE_TIMEOUT_S)
    found = dict(DEFAULT_CAPABILITIES)
    connack: Connack | None = None
    errors = []
    may_be = {version for version, _ in greetings(target, endpoint)}
    for name, version in _MQTT:
        if version not in may_be:
            found[name] = False
            continue
        try:
            answer = handshake(endpoint, version, timeout_s=timeout_s)
        except ProbeError as error:
            found[name] = False
            errors.append(str(error))
            continue
        found[name] = True
        if version == 5:
            connack = answer
    speaks = found["mqtt311"] or found["mqtt5"]
    if AMQP_091 in may_be and (target.capabilities.get("amqp091") or not speaks):
        try:
            found |= _amqp_found(target, endpoint, timeout_s)
            speaks = True
        except ProbeError as error:
            errors.append(str(error))
    for version, where in greetings(target, endpoint):
        if version in (HTTP_11, GRPC):
            try:
                found |= (http_found if version == HTTP_11 else grpc_found)(where, timeout_s=timeout_s)
                speaks = True
            except ProbeError as error:
                errors.append(str(error))
    if not speaks:
        raise ProbeError("; ".join(errors))
    shown = _stated(connack) if connack is not None else {}
    shown |= {name: found[name] for name in (*HTTP_APIS, *HTTP_LIMITS, *GRPC_METHODS)}
    for name, value in {**target.capabilities, **shown}.items():
        if name in _SPOKEN or name in EXTENSIONS.values():
            continue
        declared = target.capabilities.get(name, value)
        found[name] = declared and value if isinstance(value, bool) else value
    for name in ("mqtt311", "mqtt5"):
        found[name] = bool(found[name]) and target.capabilities.get(name) is not False
    return found
