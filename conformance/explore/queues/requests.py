"""What clients write: the settings of a queue, messages, and how deliveries are named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from assay.conformance.explore.queues import life as plan
from assay.conformance.explore.queues.deliveries import KEPT, NUMBER, RICH
from assay.conformance.explore.queues.state import Copy, Message, Queue
from assay.conformance.wire import Properties

_TRANSACTION_BYTES = 200
"""What the properties take at most that put a message into a transaction."""
RETAINED_S = 10**8


def settings_of(queue: Queue) -> dict[str, Any]:
    """The request that creates it."""
    fields = queue.plan
    retry: dict[str, Any] = {"max_retries": fields.max_retries, "total_timeout_s": fields.total_timeout_s or RETAINED_S}
    if fields.backoff_s:
        retry |= {"initial_backoff_s": fields.backoff_s, "max_backoff_s": 4 * fields.backoff_s, "multiplier": 2}
        retry["nack_immediately"] = False
    request: dict[str, Any] = {
        "name": f"{queue.owner}{queue.name}",
        "partitions": queue.partitions,
        "ordering": fields.ordering,
        "durability": fields.durability,
        "delivery_timeout_s": fields.timeout_s,
        "dead_letters": fields.dead_letters,
        "message_ttl_s": fields.ttl_s or RETAINED_S,
        "overflow": fields.overflow,
        "retry": retry,
    }
    for name in (
        "max_depth",
        "max_bytes",
        "max_in_flight",
        "max_message_bytes",
        "partitioner",
        "receipts",
        "compression",
    ):
        if getattr(fields, name):
            request[name] = getattr(fields, name)
    if fields.to_letters:
        request["expired_to_dead_letters"] = True
    if fields.group_max_in_flight:
        request["group"] = {"max_in_flight": fields.group_max_in_flight}
    return request


def message_of(
    step: plan.Publish, queue: Queue, number: int, serial: int, token: str, rich: Properties = RICH
) -> tuple[Message, Properties]:
    """A message as it is published to a queue outside of transactions; ``rich``: what one has that has all there is."""
    message = Message(queue, number, serial)
    message.key, message.route, message.lane = step.key, step.route, step.lane
    message.kept, message.delay_s, message.expiry_s = rich if step.rich else Properties(), step.delay_s, 0
    message.topic = f"$queue/{queue.name}" + (f"/{step.route}" if step.route else "")
    own = (NUMBER, str(number)), *message.kept.user_property
    named: list[tuple[str, str]] = [*own]
    if step.key:
        named.append(("partition-key", step.key))
    message.of_partitions = queue.partitions
    if step.partition >= 0:
        message.partition = step.partition % queue.partitions
        named.append(("partition", str(message.partition)))
    if step.lane != 2:
        named.append(("priority", plan.LANES[step.lane]))
    if step.delay_s:
        named.append(("delay", f"{step.delay_s}s"))
    expiry_s = 0 if step.delay_s else step.expiry_s
    if step.ttl_s and not step.delay_s:
        named.append(("ttl", f"{step.ttl_s}s"))
    message.expiry_s = min([each for each in (expiry_s, 0 if step.delay_s else step.ttl_s) if each], default=0)
    beside = sum(len(n.encode()) + len(v.encode()) for n, v in own)
    size_bytes = step.size_bytes
    if step.over_limit >= 0 and queue.plan.max_message_bytes:
        size_bytes = queue.plan.max_message_bytes - beside + step.over_limit
    message.payload = f"{token}:{number}:".encode().ljust(size_bytes, b".") if size_bytes else b""
    few = len(message.payload) + beside
    many = len(message.payload) + sum(len(n.encode()) + len(v.encode()) + 8 for n, v in named)
    message.size = few, many + (_TRANSACTION_BYTES if step.transaction else 8)
    if len(named) == len(own) and not step.transaction:
        message.most_bytes = few
    else:
        message.most_bytes = message.size[1]
    fields: dict[str, Any] = {name: getattr(message.kept, name) for name in KEPT}
    return message, Properties(message_expiry_interval=expiry_s or None, user_property=tuple(named), **fields)


def message_id(queue: Queue, copy: Copy) -> str:
    place = copy.message.place
    assert place is not None
    return f"{queue.name}:{place[0]}:{place[1]}"


def places(text: str) -> list[str]:
    """The message ids of ``queue:partition:1,3-5``."""
    head, _, offsets = text.rpartition(":")
    ends = [part.partition("-") for part in offsets.split(",")]
    if not all(first.isdecimal() and (not dash or last.isdecimal()) for first, dash, last in ends):
        return [text]
    return [f"{head}:{at}" for first, dash, last in ends for at in range(int(first), int(last if dash else first) + 1)]


def ranges(offsets: Iterable[int]) -> str:
    """As ``1-5,7``."""
    texts: list[str] = []
    ordered = sorted(set(offsets))
    while ordered:
        last = next(at for at, value in enumerate(ordered) if at + 1 == len(ordered) or ordered[at + 1] != value + 1)
        texts.append(str(ordered[0]) if not last else f"{ordered[0]}-{ordered[last]}")
        ordered = ordered[last + 1 :]
    return ",".join(texts)
