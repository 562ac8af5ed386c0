"""Messages as JSON has them."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime

import msgspec
from fastapi.responses import Response

from assay.reference_broker.api.consumers import Taken
from assay.reference_broker.api.problems import PROBLEMS, Problem, problem_of
from assay.reference_broker.api.publishing import Became, NewMessage
from assay.reference_broker.http.areas import answered
from assay.reference_broker.queues import PublishOptions, QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.durations import parse_duration_ms, parse_time_ms
from assay.reference_broker.queues.messages.lanes import named
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY
from assay.reference_broker.queues.messages.publish_options import priority_named
from assay.reference_broker.queues.messages.stored_message import StoredMessage
from assay.reference_broker.routing.message import Message


class Publish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to be published: ``payload`` or ``payload_base64``."""

    payload: str | None = None
    payload_base64: str | None = None
    key: str | None = None
    """Chooses the partition."""
    routing_key: str = ""
    headers: dict[str, str] = {}
    content_type: str | None = None
    partition: int | None = None
    priority: str | int | None = None
    """``critical``, ``high``, ``normal``, ``low``, ``background``, or 0 to 4."""
    delay: str | None = None
    """Deliver no earlier than so long from now: ``30s``, ``1h30m``."""
    deliver_at: str | None = None
    """RFC 3339, or Unix milliseconds."""
    ttl: str | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    sequence: int | None = None
    transaction_id: str | None = None

    def read(self) -> NewMessage:
        """Never raises: what cannot be read is said in the message's ``problem``."""
        try:
            if (self.payload is None) == (self.payload_base64 is None):
                raise ValueError("a message has a payload or a payload_base64")
            content = (
                self.payload.encode()
                if self.payload is not None
                else base64.b64decode(self.payload_base64 or "", validate=True)
            )
            options = PublishOptions(
                partition=_whole("partition", self.partition, 31),
                priority=None if self.priority is None else priority_named(str(self.priority)),
                delay_ms=None if self.delay is None else parse_duration_ms(self.delay),
                deliver_at_ms=None if self.deliver_at is None else parse_time_ms(self.deliver_at),
                ttl_ms=None if self.ttl is None else parse_duration_ms(self.ttl),
                producer_id=_whole("producer_id", self.producer_id, 63),
                producer_epoch=_whole("producer_epoch", self.producer_epoch, 31),
                sequence=_whole("sequence", self.sequence, 63),
                transaction_id=self.transaction_id,
            )
            if options.delay_ms is not None and options.deliver_at_ms is not None:
                raise ValueError("a message has a delay or a deliver_at, not both")
        except (ValueError, binascii.Error) as error:
            return NewMessage(payload=b"", problem=QueueError(QueueErrorCode.BAD_OPTION, str(error)))
        return NewMessage(
            payload=content,
            key=self.key,
            routing_key=self.routing_key,
            headers=tuple(self.headers.items()),
            content_type=self.content_type,
            options=options,
        )


def _whole(name: str, value: int | None, bits: int) -> int | None:
    if value is not None and not 0 <= value < 1 << bits:
        raise ValueError(f"{name} must be a whole number from 0 to {(1 << bits) - 1}")
    return value


class PublishResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one message."""

    message_id: str | None = None
    partition: int | None = None
    offset: int | None = None
    delay_id: str | None = None
    """It waits for its time; this cancels it."""
    error: Problem | None = None


def result_of(became: Became) -> PublishResult:
    if became.error is not None:
        return PublishResult(error=problem_of(became.error))
    if became.delay_id is not None:
        return PublishResult(delay_id=became.delay_id)
    return PublishResult(message_id=became.message_id, partition=became.partition, offset=became.offset)


def published(told: object, results: list[Became]) -> Response:
    """The answer to a publish, with what is told of each message.

    200 when all were accepted, 207 when some were, else what the first was refused with, and when to come back.
    """
    errors = [each.error for each in results if each.error is not None]
    if not errors or len(errors) < len(results):
        return answered(told, 207 if errors else 200)
    row = PROBLEMS[errors[0].code]
    return answered(told, row.status, row.retry_after_s)


class Received(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that a consumer got, or that is read."""

    message_id: str
    partition: int
    offset: int
    enqueued_at: float
    """Unix seconds; 0 = not known."""
    payload: str | None = None
    """Text; a payload that is none is in ``payload_base64``."""
    payload_base64: str | None = None
    key: str | None = None
    routing_key: str = ""
    headers: dict[str, str] = {}
    content_type: str | None = None
    priority: int = 2
    """0 (critical) to 4 (background)."""
    receipt: str | None = None
    """Settles this one delivery."""
    group: str | None = None
    delivery_count: int | None = None


def text_of(payload: bytes) -> tuple[str | None, str | None]:
    """A payload as text, or in base64."""
    try:
        return payload.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(payload).decode()


def headers_of(message: Message) -> dict[str, str]:
    """User properties, but for the key; of one that is there twice the last."""
    return {name: value for name, value in message.user_properties if name != PARTITION_KEY}


def received(taken: Taken, told: str, receipt: str) -> Received:
    """``told``, ``receipt``: message id and receipt as the caller knows them."""
    delivery = taken.delivery
    message = delivery.message
    text, encoded = text_of(message.payload)
    return Received(
        message_id=told,
        partition=delivery.partition,
        offset=delivery.offset,
        enqueued_at=taken.enqueued_at,
        payload=text,
        payload_base64=encoded,
        key=message.user_property(PARTITION_KEY),
        routing_key=delivery.routing_key,
        headers=headers_of(message),
        content_type=message.content_type,
        priority=delivery.lane,
        receipt=receipt,
        group=delivery.group,
        delivery_count=delivery.delivery_count,
    )


def stored(told: str, partition: int, offset: int, found: StoredMessage) -> Received:
    """A message that is read; ``told``: its id as the caller knows it."""
    message = found.message
    text, encoded = text_of(message.payload)
    return Received(
        message_id=told,
        partition=partition,
        offset=offset,
        enqueued_at=found.enqueued_at,
        payload=text,
        payload_base64=encoded,
        key=message.user_property(PARTITION_KEY),
        routing_key=found.routing_key,
        headers=headers_of(message),
        content_type=message.content_type,
        priority=named(found.lane),
    )


def timestamp(seconds: float) -> str:
    """RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
