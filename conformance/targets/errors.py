"""How a greeting fails, and the socket that all greetings begin with."""

from __future__ import annotations

import socket

from assay.conformance.targets.model import Endpoint


class ProbeError(Exception):
    """No handshake with the broker succeeded; the text says how far it came."""


class StrangeAnswerError(ProbeError):
    """A broker that is alive answered in another way than by accepting."""


def connected(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
    context = endpoint.tls_context
    if context is None:
        return sock
    try:
        return context.wrap_socket(sock, server_hostname=endpoint.server_name)
    except BaseException:
        sock.close()
        raise
