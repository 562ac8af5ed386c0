"""Ask a broker for its faces of requests and answers: does it speak HTTP and gRPC, and which of the APIs?"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from assay.conformance.targets.errors import ProbeError, StrangeAnswerError, connected
from assay.conformance.targets.grpc import ask_health, ask_status
from assay.conformance.targets.model import CapabilityValue, Endpoint
from assay.conformance.wire.http import AnswerReader, HttpAnswer, MalformedHttpError, encode_request

_HTTP_PORT, _HTTPS_PORT = 80, 443
HTTP_APIS: Final = {
    "http_queues": ("GET", "/api/v1/queues", b"queues"),
    "http_topics": ("GET", "/topics", b"topics"),
    "http_schemas": ("GET", "/subjects", b"["),
    "http_bridge": ("POST", "/publish", b""),
    "http_traces": ("GET", "/traces/stats", b"enabled"),
    "http_views": ("GET", "/api/v1/whoami", b"scopes"),
}
"""A request to each API, and what must be in an answer of 200. One that is refused is there; 404 says it is not."""
HTTP_LIMITS: Final = {"http_wait_s": (50, 20, 10, 5, 2, 1, 0), "http_batch": (1_000, 100, 50, 10, 5, 2, 1)}
"""What a request to consume may ask for: the most that a case wants, and what is tried where that is refused."""


def is_told(url: str) -> bool:
    """Whether a target says where this is: port 0 stands for a listener that was not started, as does a placeholder."""
    try:
        return bool(url) and urlsplit(url).port != 0
    except ValueError:
        return False


def face_endpoint(endpoint: Endpoint, url: str) -> Endpoint:
    """Where a broker has a face, with the credentials of the target."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    port = parts.port or (_HTTPS_PORT if secure else _HTTP_PORT)
    tls = endpoint.tls if secure else None
    return msgspec.structs.replace(endpoint, host=parts.hostname or endpoint.host, port=port, tls=tls)


def http_request(endpoint: Endpoint, method: str, path: str, body: bytes = b"", *, timeout_s: float) -> HttpAnswer:
    """One request on a fresh connection; ``body`` is that of a POST. Raises :class:`ProbeError` without an answer."""
    where = f"{endpoint.host}:{endpoint.port}"
    deadline = time.monotonic() + timeout_s
    reader = AnswerReader()
    reader.expect(method)
    headers = {"host": where, "connection": "close", "content-type": "application/json", **endpoint.basic}
    try:
        with connected(endpoint, timeout_s) as sock:
            sock.sendall(encode_request(method, path, headers, body if method == "POST" else None))
            while True:
                sock.settimeout(max(0.01, deadline - time.monotonic()))
                data = sock.recv(65_536)
                found = [*reader.feed(data)] if data else [each for each in (reader.end(),) if each is not None]
                if found:
                    return found[0]
                if not data:
                    message = f"{where} closed the connection in place of an answer to {method} {path}"
                    raise ProbeError(message)
    except TimeoutError as error:
        message = f"{where} did not answer {method} {path} within {timeout_s:g} s"
        raise ProbeError(message) from error
    except ssl.SSLError as error:
        message = f"{where} cannot be reached by TLS: {error}"
        raise ProbeError(message) from error
    except OSError as error:
        message = f"{where} cannot be reached: {error.strerror or error}"
        raise ProbeError(message) from error
    except MalformedHttpError as error:
        message = f"{where} answered {method} {path} with what is no HTTP/1.1: {error}"
        raise StrangeAnswerError(message) from error


def http_found(endpoint: Endpoint, *, timeout_s: float) -> Mapping[str, CapabilityValue]:
    """What it can over HTTP. Raises :class:`ProbeError` where it does not speak that."""
    http_request(endpoint, "GET", "/health", timeout_s=timeout_s)
    found: dict[str, CapabilityValue] = {"http": True}
    for name, (method, path, sign) in HTTP_APIS.items():
        answer = http_request(endpoint, method, path, timeout_s=timeout_s)
        found[name] = answer.head.status != 404 and (answer.head.status != 200 or sign in answer.body)
    return found | (http_limits(endpoint, timeout_s=timeout_s) if found["http_queues"] else {})


def http_limits(endpoint: Endpoint, *, timeout_s: float) -> dict[str, int]:
    """How long a request to consume may ask to wait, and for how many messages: 400 says that it is too much.

    It is asked of a queue that there is not. Of one that makes it, and waits, nothing is known.
    """
    wait_s, batch = (most for most, *_ in HTTP_LIMITS.values())

    def is_taken(wait_s: int, batch: int) -> bool:
        asked = {"group": "assay-probe", "wait_s": wait_s, "max_messages": batch}
        path = "/api/v1/queues/assay-probe/consume"
        answer = http_request(endpoint, "POST", path, msgspec.json.encode(asked), timeout_s=timeout_s)
        return answer.head.status != 400

    try:
        if not is_taken(wait_s, batch):
            wait_s = next((each for each in HTTP_LIMITS["http_wait_s"] if is_taken(each, 1)), wait_s)
            batch = next((each for each in HTTP_LIMITS["http_batch"] if is_taken(0, each)), batch)
    except ProbeError:
        pass
    return {"http_wait_s": wait_s, "http_batch": batch}


GRPC_METHODS: Final = {
    "grpc_fluxmq": "/fluxmq.queue.v1.QueueService/ListQueues",
    "grpc_goqueue": "/goqueue.v1.HealthService/Check",
}
"""A method of each interface: one that is not there is ``UNIMPLEMENTED``."""


def grpc_greet(endpoint: Endpoint, *, timeout_s: float) -> None:
    """Raises :class:`ProbeError` where nobody answers by gRPC."""
    status = ask_health(endpoint.host, endpoint.port, timeout_s=timeout_s)
    if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        message = f"{endpoint.host}:{endpoint.port} does not answer by gRPC: {status}"
        raise ProbeError(message)


def grpc_found(endpoint: Endpoint, *, timeout_s: float) -> Mapping[str, CapabilityValue]:
    """What it can over gRPC. Raises :class:`ProbeError` where it does not speak that."""
    grpc_greet(endpoint, timeout_s=timeout_s)
    found: dict[str, CapabilityValue] = {"grpc": True}
    metadata = tuple(endpoint.basic.items())
    for name, path in GRPC_METHODS.items():
        status = ask_status(endpoint.host, endpoint.port, path, timeout_s=timeout_s, metadata=metadata)
        found[name] = status != "UNIMPLEMENTED"
    return found
