"""GoQueue's topics: queues under that name, with its JSON. A topic ``orders.dlq`` is the dead letters of ``orders``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Query
from fastapi.responses import Response

from assay.reference_broker.api.consumers import MAX_ANSWER_BYTES
from assay.reference_broker.api.problems import Problem, problem_of
from assay.reference_broker.api.publishing import Became, NewMessage, publish
from assay.reference_broker.api.topics import queue_in, topic_out
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked, Body, Call, Limit, Name
from assay.reference_broker.http.routes.messages import PUBLISH_ERRORS, check_batch
from assay.reference_broker.http.shapes import Publish, published, text_of, timestamp
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.delays.delay_store import MAX_LISTED
from assay.reference_broker.queues.delays.delayed_message import DelayedMessage, delay_id_of, parse_delay_id
from assay.reference_broker.queues.groups.subscribe_options import EARLIEST
from assay.reference_broker.queues.messages.address import engine_name
from assay.reference_broker.queues.messages.durations import parse_time_ms
from assay.reference_broker.queues.messages.lanes import named
from assay.reference_broker.queues.messages.partitioner import PARTITION_KEY
from assay.reference_broker.queues.messages.publish_options import Priority, priority_named

AREA = Area("topics", "GoQueue's topics, which are queues; also at /topics and /v1/topics.")
_Q = QueueErrorCode
_HOUR_S = 3_600


class CreateTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_partitions: int | None = None
    retention_hours: float | None = None
    """Messages are kept so long, whoever has settled them."""


class TopicCreated(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: int
    created: bool = True


class TopicNames(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[str]


class PartitionEnds(msgspec.Struct, frozen=True, kw_only=True):
    earliest: int
    latest: int
    """Offset of the next message."""


class TopicDetails(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    partitions: int
    total_messages: int
    """Those that are kept."""
    total_size_bytes: int
    partition_offsets: dict[str, PartitionEnds]


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True):
    deleted: bool
    name: str


class TopicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published."""

    value: str = ""
    key: str | None = None
    partition: int | None = None
    delay: str | None = None
    """``30s``; nothing and 0 mean at once."""
    deliver_at: str | None = msgspec.field(default=None, name="deliverAt")
    """RFC 3339."""
    priority: str | int | None = None

    def read(self) -> NewMessage:
        """See :meth:`Publish.read`."""
        return Publish(
            payload=self.value,
            key=self.key,
            partition=self.partition,
            delay=None if self.delay is None or self.delay.startswith("-") else self.delay,
            deliver_at=self.deliver_at,
            priority=self.priority,
        ).read()


class TopicPublish(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[TopicMessage]


class TopicResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one message."""

    partition: int | None = None
    offset: int | None = None
    """Of a delayed one, the number that cancels it."""
    priority: str | None = None
    delayed: bool = False
    deliver_at: str | None = msgspec.field(default=None, name="deliverAt")
    error: str | None = None
    problem: Problem | None = None
    """The same for programs."""


class TopicPublished(msgspec.Struct, frozen=True, kw_only=True):
    results: list[TopicResult]


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a topic."""

    offset: int
    timestamp: str
    """RFC 3339."""
    key: str
    value: str | None = None
    """Text; a payload that is none is in ``value_base64``."""
    value_base64: str | None = None
    priority: str
    receipt_handle: str | None = None


class TopicRead(msgspec.Struct, frozen=True, kw_only=True):
    messages: list[TopicRecord]
    next_offset: int


class TopicPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    leader: str
    replicas: list[str]
    isr: list[str]
    version: int = 0


class TopicPartitions(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partitions: list[TopicPartition]


class Delayed(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its time."""

    topic: str
    partition: int
    offset: int
    """The number that cancels it."""
    deliver_at: str
    time_remaining: str
    """As in ``12.5s``."""
    state: str
    """``pending``, or ``refused`` when it is due and the queue did not take it yet."""


class DelayedList(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    messages: list[Delayed]
    count: int
    limit: int
    skip: int


class DelayCancelled(msgspec.Struct, frozen=True, kw_only=True):
    canceled: bool
    topic: str
    partition: int
    offset: int


@AREA.post("/topics", Scope.ADMIN, status=201, errors=(_Q.EXISTS, _Q.LIMIT))
async def create_topic(call: Asked, wanted: Body[CreateTopic]) -> TopicCreated:
    """Create a topic."""
    call.caller.administer("create")
    name = engine_name(wanted.name)
    settings: dict[str, Any] = {}
    if wanted.num_partitions is not None:
        settings["partitions"] = wanted.num_partitions
    if wanted.retention_hours is not None:
        settings["retention"] = {"max_age_s": wanted.retention_hours * _HOUR_S, "keep_settled": True}
    if call.service.engine.exists(name):
        raise QueueError(_Q.EXISTS, f"there is a topic {name[:80]!r} already")
    config = await call.service.created(name, settings)
    return TopicCreated(name=name, partitions=config.partitions)


@AREA.get("/topics", Scope.READ)
async def list_topics(call: Asked) -> TopicNames:
    """Names of the topics that the caller may read."""
    names = [name for name in call.service.engine.queues() if call.caller.reads(name)]
    return TopicNames(topics=sorted(topic_out(call.caller.told(name)) for name in names))


@AREA.get("/topics/{topic}", Scope.READ, errors=(_Q.UNKNOWN_QUEUE,))
async def get_topic(call: Asked, topic: Name) -> TopicDetails:
    """A topic and where its partitions begin and end."""
    name = call.caller.queue(queue_in(call, topic), Scope.READ)
    engine = call.service.engine
    places = engine.places(name, EARLIEST)
    return TopicDetails(
        name=topic,
        partitions=len(places),
        total_messages=sum(end - start for start, _, end in places),
        total_size_bytes=engine.stats(name).stored_bytes,
        partition_offsets={
            str(index): PartitionEnds(earliest=start, latest=end) for index, (start, _, end) in enumerate(places)
        },
    )


@AREA.delete("/topics/{topic}", Scope.ADMIN, errors=(_Q.UNKNOWN_QUEUE, _Q.IN_USE, _Q.STORAGE_FAILED))
async def delete_topic(call: Asked, topic: Name) -> TopicDeleted:
    """Delete a topic with all it holds."""
    name = call.caller.administered(queue_in(call, topic), "delete")
    await call.service.finished(lambda engine, now, confirm: engine.delete_queue(name, now, confirm))
    return TopicDeleted(deleted=True, name=topic)


@AREA.post("/topics/{topic}/messages", Scope.WRITE, answer=TopicPublished, also=(207,), errors=PUBLISH_ERRORS)
async def publish_to_topic(call: Asked, topic: Name, wanted: Body[TopicPublish]) -> Response:
    """Publish messages. 200: all were accepted; 207: some were; else none."""
    check_batch(call.service, len(wanted.messages))
    queue = queue_in(call, topic)
    results = await publish(call.service, call.caller, queue, [each.read() for each in wanted.messages])
    now = call.service.turn()[1]
    told = [_result(call, each, became, now) for each, became in zip(wanted.messages, results, strict=True)]
    return published(TopicPublished(results=told), results)


def _result(call: Call, message: TopicMessage, became: Became, now: float) -> TopicResult:
    if became.error is not None:
        return TopicResult(error=became.error.text, problem=problem_of(became.error))
    lane = Priority.NORMAL if message.priority is None else priority_named(str(message.priority))
    priority = lane.name.lower()
    if became.delay_id is None:
        return TopicResult(partition=became.partition, offset=became.offset, priority=priority)
    at = message.deliver_at
    due_s = parse_time_ms(at) / 1_000 if at is not None else now + (message.read().options.delay_ms or 0) / 1_000
    return TopicResult(
        partition=0,
        offset=int(became.delay_id.rpartition(":")[2]),
        priority=priority,
        delayed=True,
        deliver_at=timestamp(due_s),
    )


@AREA.get("/topics/{topic}/messages", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.STORAGE_FAILED))
async def read_topic(
    call: Asked,
    topic: Name,
    partition: Annotated[int, Query(ge=0)] = 0,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Limit = 100,
) -> TopicRead:
    """Messages of a partition, whoever has settled them, as long as they are kept."""
    driver, now = call.service.turn()
    name = call.caller.queue(queue_in(call, topic), Scope.READ)
    found, next_offset = driver.node.engine.read(name, partition, offset, limit, now, MAX_ANSWER_BYTES)
    return TopicRead(
        messages=[
            record(
                at, stored.enqueued_at, stored.message.payload, stored.message.user_property(PARTITION_KEY), stored.lane
            )
            for at, stored in found
        ],
        next_offset=next_offset,
    )


@AREA.get("/topics/{topic}/partitions/{partition}/messages", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.STORAGE_FAILED))
async def read_topic_partition(
    call: Asked,
    topic: Name,
    partition: int,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Limit = 100,
) -> TopicRead:
    """Messages of a partition, whoever has settled them, as long as they are kept."""
    return await read_topic(call, topic, partition, offset, limit)


def record(
    offset: int, enqueued_at: float, payload: bytes, key: str | None, lane: int, receipt: str | None = None
) -> TopicRecord:
    """A message with GoQueue's names."""
    text, encoded = text_of(payload)
    return TopicRecord(
        offset=offset,
        timestamp=timestamp(enqueued_at),
        key=key or "",
        value=text,
        value_base64=encoded,
        priority=named(lane).name.lower(),
        receipt_handle=receipt,
    )


@AREA.get("/topics/{topic}/partitions", Scope.READ, errors=(_Q.UNKNOWN_QUEUE,))
async def list_topic_partitions(call: Asked, topic: Name) -> TopicPartitions:
    """Partitions, and who has them: this node, which is alone."""
    name = call.caller.queue(queue_in(call, topic), Scope.READ)
    driver, _ = call.service.turn()
    node = driver.node.config.node
    count = len(driver.node.engine.places(name, EARLIEST))
    return TopicPartitions(
        topic=topic,
        partitions=[
            TopicPartition(partition=index, leader=node, replicas=[node], isr=[node]) for index in range(count)
        ],
    )


# -- delayed messages ----------------------------------------------------------------------------------------------


def _delayed(topic: str, found: DelayedMessage, now: float) -> Delayed:
    return Delayed(
        topic=topic,
        partition=0,
        offset=int(found.delay_id.rpartition(":")[2]),
        deliver_at=timestamp(found.deliver_at),
        time_remaining=f"{max(0.0, found.deliver_at - now):.3f}s",
        state="refused" if found.refused else "pending",
    )


@AREA.get("/topics/{topic}/delayed", Scope.READ, errors=(_Q.UNKNOWN_QUEUE,))
async def list_delayed(
    call: Asked,
    topic: Name,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    skip: Annotated[int, Query(ge=0, le=500)] = 0,
) -> DelayedList:
    """Messages that wait for their time, in the order in which they were published."""
    name = call.caller.queue(queue_in(call, topic), Scope.READ)
    driver, now = call.service.turn()
    found = driver.node.engine.delayed(name, limit=min(skip + limit, MAX_LISTED))[skip:]
    messages = [_delayed(topic, each, now) for each in found]
    return DelayedList(topic=topic, messages=messages, count=len(messages), limit=limit, skip=skip)


@AREA.get("/topics/{topic}/delayed/{offset}", Scope.READ, errors=(_Q.UNKNOWN_QUEUE, _Q.NOT_PENDING))
async def get_delayed(call: Asked, topic: Name, offset: int) -> Delayed:
    """One of them."""
    name = call.caller.queue(queue_in(call, topic), Scope.READ)
    driver, now = call.service.turn()
    after = delay_id_of(name, offset - 1) if offset > 0 else None
    wanted = delay_id_of(name, offset)
    parse_delay_id(name, wanted)
    for found in driver.node.engine.delayed(name, limit=1, after=after):
        if found.delay_id == wanted:
            return _delayed(topic, found, now)
    raise QueueError(_Q.NOT_PENDING, f"no message {offset} of {topic[:80]!r} waits for its time")


@AREA.delete(
    "/topics/{topic}/delayed/{partition}/{offset}",
    Scope.WRITE,
    errors=(_Q.UNKNOWN_QUEUE, _Q.NOT_PENDING, _Q.STORAGE_FAILED),
)
async def cancel_delayed(call: Asked, topic: Name, partition: int, offset: int) -> DelayCancelled:
    """Cancel one: it is never delivered."""
    name = call.caller.queue(queue_in(call, topic), Scope.WRITE)

    text = f"no message {offset} of {topic[:80]!r} waits for its time"
    await call.service.cancelled(name, delay_id_of(name, offset), text)
    return DelayCancelled(canceled=True, topic=topic, partition=partition, offset=offset)
