"""Publishing: messages to one queue, each with what its publisher asks for and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

import msgspec

from assay.reference_broker.api.asking import Asked, decide_all
from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.turns import Turns
from assay.reference_broker.config import Scope
from assay.reference_broker.queues import PublishOptions, QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm, StoredAs
from assay.reference_broker.queues.messages.address import engine_name, parse_message_id, topic_of
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.routing.carried import is_mqtt_text, is_mqtt_topic
from assay.reference_broker.routing.message import Message


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published."""

    payload: bytes
    key: str | None = None
    routing_key: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    options: PublishOptions = PublishOptions()
    problem: QueueError | None = None
    """It cannot be read, and is refused so."""


class Became(msgspec.Struct, frozen=True, kw_only=True):
    """What a message became."""

    message_id: str | None = None
    partition: int = -1
    offset: int = -1
    """Below 0: no place yet."""
    delay_id: str | None = None
    """It waits for its time."""
    error: QueueError | None = None


async def publish(
    turns: Turns, caller: Caller, queue: str, messages: Sequence[NewMessage], within: TransactionKey | None = None
) -> list[Became]:
    """Publish in order; returns what became of each once all are as durable as their queue promises.

    ``queue``: as the caller knows it.
    """
    driver, now = turns.turn()
    if driver.node.state.hooks is not None:
        messages = await _decided(turns, caller, queue, messages)
        driver, now = turns.turn()
    broker, engine = driver.node.state, driver.node.engine
    told: list[list[tuple[StoredAs, str]]] = [[] for _ in messages]

    def start(message: NewMessage, told: list[tuple[StoredAs, str]], confirm: Confirm) -> None:
        if message.problem is not None:
            raise message.problem
        name = caller.queue(queue, Scope.WRITE, message.routing_key)
        topic = topic_of(name, message.routing_key)
        check_carried(topic, (message.content_type, message.key), message.headers)
        address = QueueAddress(queue=name, routing_key=message.routing_key, bound=engine.bound_to(topic, name))
        headers = message.headers if message.key is None else ((PARTITION_KEY, message.key), *message.headers)
        sent = Message(
            topic=topic,
            payload=message.payload,
            qos=1,
            publisher=caller.client_id,
            content_type=message.content_type,
            user_properties=caller.traced(headers),
        )
        stored = lambda kind, found: told.append((kind, found))  # noqa: E731
        asked = None if message.options == _NOTHING else message.options
        broker.enqueue(address, sent, asked, caller, now, confirm, stored, within)

    starts: list[Callable[[Confirm], object]] = [
        partial(start, message, place) for message, place in zip(messages, told, strict=True)
    ]
    errors = await turns.each_confirmed(starts)
    return [_became(caller, place, error) for place, error in zip(told, errors, strict=True)]


async def _decided(turns: Turns, caller: Caller, queue: str, messages: Sequence[NewMessage]) -> list[NewMessage]:
    """As hooks have them."""

    def asked(message: NewMessage) -> Asked | None:
        """None where it is refused anyway."""
        try:
            caller.queue(queue, Scope.WRITE, message.routing_key)
        except QueueError:
            return None
        topic = topic_of(engine_name(queue), message.routing_key)
        return None if message.problem is not None else Asked(topic, message.payload, message.headers)

    decided: list[NewMessage] = []
    for message, verdict in zip(messages, await decide_all(turns, caller, list(map(asked, messages))), strict=True):
        change = verdict.change
        decided.append(
            msgspec.structs.replace(
                message,
                problem=message.problem or verdict.error,
                payload=message.payload if change.payload is None else change.payload,
                headers=message.headers if change.properties is None else change.properties,
            )
        )
    return decided


def check_carried(topic: str, texts: Iterable[str | None], headers: Iterable[tuple[str, str]]) -> None:
    """Consumers of MQTT must be able to get a message, whoever published it: its topic is no filter, and no text of it
    has U+0000 or is longer than a field of theirs. Raises :class:`QueueError` (BAD_ADDRESS, BAD_OPTION)."""
    if not is_mqtt_topic(topic):
        raise QueueError(QueueErrorCode.BAD_ADDRESS, f"{topic[:80]!r} has a wildcard or U+0000, or is too long")
    for text in (*texts, *chain.from_iterable(headers)):
        if not is_mqtt_text(text):
            shown = "" if text is None else text[:40]
            raise QueueError(QueueErrorCode.BAD_OPTION, f"{shown!r} has U+0000, or is longer than 65 535 bytes")


_NOTHING = PublishOptions()


def _became(caller: Caller, told: list[tuple[StoredAs, str]], error: QueueError | None) -> Became:
    if error is not None or not told:
        return Became(error=None if error is None else caller.refusal(error))
    kind, name = told[0]
    if kind is StoredAs.DELAYED:
        return Became(delay_id=caller.told(name))
    _, partition, offset = parse_message_id(name)
    return Became(message_id=caller.told(name), partition=partition, offset=offset)
