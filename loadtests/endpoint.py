"""From what a user names as target to a broker that runs."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from assay.conformance.targets import Endpoint, Target, TargetError, load_target
from assay.loadtests import null_broker

DEFAULT_PORT = 1_883


def parse_endpoint(url: str) -> Endpoint:
    """``mqtt://[user[:password]@]host[:port]``. Raises :class:`TargetError`."""
    parts = urlsplit(url)
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError as error:
        message = f"{url}: {error}"
        raise TargetError(message) from error
    if parts.scheme != "mqtt" or not parts.hostname or parts.path not in ("", "/"):
        message = f"{url} is not mqtt://[user[:password]@]host[:port]"
        raise TargetError(message)
    return Endpoint(
        host=parts.hostname,
        port=port,
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )


def find_target(name: str, *, queues: bool | None = None) -> Target:
    """``reference``, ``mosquitto``, ``null``, a target file, or a URL of a broker that runs.

    ``queues`` says whether a broker given by URL has ``$queue`` topics. Raises :class:`TargetError`.
    """
    if "://" in name:
        endpoint = parse_endpoint(name)
        return Target(name=f"{endpoint.host}:{endpoint.port}", endpoint=endpoint, capabilities={"queues": bool(queues)})
    return null_broker.target() if name == "null" else load_target(name)


def has_queues(target: Target) -> bool:
    """Whether the target file says that the broker has durable queues."""
    return bool(target.capabilities.get("queues", False))
