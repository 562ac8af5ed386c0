"""What clients say over HTTP, and what comes as the model of queues knows it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from assay.conformance.explore.queues.deliveries import NUMBER
from assay.conformance.explore.queues.life import LANES, Publish
from assay.conformance.explore.queues.state import Message
from assay.conformance.wire import Properties
from assay.conformance.wire import Publish as Packet

HTTP_RICH = Properties(content_type="text/plain; ü", user_property=(("x-a", "2 ü"), ("x-z", "")))
"""All that a message can have over HTTP: of a name there is one header."""
OUTCOMES: Mapping[str, str] = {
    "ack": "accept",
    "nack": "fail",
    "release": "release",
    "reject": "reject",
    "extend": "extend",
}
_API = "/api/v1/queues"
_NORMAL = 2
"""The lane that need not be named."""


def route_of(operation: str, request: dict[str, Any] | None) -> tuple[str, str, Any]:
    """Method, path and body of an operation that is called ``queue/<name>/<verb>`` over MQTT."""
    asked = request or {}
    if operation == "queue/create":
        settings = {name: value for name, value in asked.items() if name != "name"}
        return "POST", _API, {"name": asked["name"], "settings": settings}
    _, name, verb = operation.split("/")
    match verb:
        case "config":
            return "PATCH", f"{_API}/{name}", asked
        case "partitions":
            return "PUT", f"{_API}/{name}/partitions", asked
        case "reset":
            return "POST", f"{_API}/{name}/groups/{quote(asked['group'], safe='')}/reset", {"to": asked["to"]}
        case "replay":
            return "POST", f"{_API}/{name}/dlq/replay", asked
        case "delete":
            return "DELETE", f"{_API}/{name}", None
    return "POST", f"{_API}/{name}/{verb}", asked


def message_body(step: Publish, message: Message) -> dict[str, Any]:
    """A message of a publish. What is no plain one has its payload in base64."""
    body: dict[str, Any] = {"headers": {NUMBER: str(message.number), **dict(message.kept.user_property)}}
    if step.rich:
        body["payload_base64"] = base64.b64encode(message.payload).decode()
        body["content_type"] = message.kept.content_type
    else:
        body["payload"] = message.payload.decode()
    named = {
        "key": step.key,
        "routing_key": step.route,
        "delay": f"{step.delay_s}s" * bool(step.delay_s),
        "ttl": f"{step.ttl_s}s" * bool(step.ttl_s and not step.delay_s),
        "priority": LANES[step.lane] * (step.lane != _NORMAL),
    }
    body |= {name: value for name, value in named.items() if value}
    if message.partition >= 0:
        body["partition"] = message.partition
    return body


def as_packet(told: dict[str, Any], topic: str, *, is_strict: bool) -> Packet:
    """A message that a consumer got as it would have come over MQTT; HTTP does not tell its ``topic``.

    Raises :class:`KeyError`, :class:`TypeError`, :class:`ValueError` where it does not have what it must.
    """
    payload = told.get("payload")
    content = base64.b64decode(told["payload_base64"], validate=True) if payload is None else str(payload).encode()
    count, queue = int(told["delivery_count"]), str(told["message_id"]).rpartition(":")[0].rpartition(":")[0]
    lane = LANES[told.get("priority", _NORMAL)]
    own = sorted(told["headers"].items(), key=lambda pair: (pair[0] != NUMBER, pair[0]))
    named = {
        "message-id": told["message_id"],
        "group-id": told["group"],
        "queue": queue,
        "partition": told["partition"],
        "offset": told["offset"],
        "delivery-count": count,
        "redelivered": "true" if count > 1 else "false",
        "priority": "normal" if is_strict else lane,
    }
    pairs = (*own, *((name, str(value)) for name, value in named.items()))
    return Packet(
        topic=topic, payload=content, properties=Properties(content_type=told.get("content_type"), user_property=pairs)
    )
