"""The fast ways of queue clients: batches of publishes to a queue, and runs of ``$ack`` ones.

What they do not take, because it is not plain, not allowed or may fail, goes the general way packet by packet,
which also finds out what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.batches.ack_runs import AckRun, AckRunReader
from assay.reference_broker.mqtt.batches.publish_batches import PublishBatch, PublishBatchReader
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopic, Verb
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import V5
from assay.reference_broker.mqtt.wire.wire_types import decode_string
from assay.reference_broker.queues import QueueAddress, QueueError
from assay.reference_broker.queues.messages.message_batch import MessageBatch
from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import remember

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.connections.connection import MqttConnection
    from assay.reference_broker.mqtt.connections.inbound import Inbound
    from assay.reference_broker.mqtt.connections.publish_acks import PendingAck
    from assay.reference_broker.mqtt.sessions.session import Session
    from assay.reference_broker.queues.jobs.confirms import Confirm

_PUBACK_START = b"\x40\x02"
_LOOK_AGAIN = 4
"""Packets behind one that begins no batch."""
MAX_TOPICS = 64
FEWEST = 8
"""Fewer publishes to a queue are not worth a batch."""


class _Place(NamedTuple):
    """What a topic stands for."""

    topic: str
    address: QueueAddress


class QueueBatches:
    """Those of one client."""

    def __init__(self, connection: MqttConnection, inbound: Inbound) -> None:
        self._connection = connection
        self._inbound = inbound
        self._broker = connection.broker
        self._traffic = connection.broker.traffic
        self._ack_reader = AckRunReader()
        self._reader = PublishBatchReader()
        self._topics: dict[bytes, str] = {}
        """Topics of runs, by their bytes."""

    def on_publishes(self, data: bytes, start: int, body: int, topic_end: int, end: int, now: float) -> int:
        """QoS 1 to a queue: enqueued by partition with those behind it. Returns their end; 0: nothing was done."""
        if data[end : end + 1] != data[start : start + 1] or self._was_refused(data, start):
            return 0
        topic_field = data[body:topic_end]
        first = self.granted_place(topic_field)
        if first is None:
            return 0
        places = {topic_field: first}

        def joins(topic_field: bytes) -> bool:
            """Whether packets of this topic go to the same queue."""
            place = places.get(topic_field) or self.granted_place(topic_field)
            if place is None or place.address.queue != first.address.queue:
                return False
            places[topic_field] = place
            return True

        five = self._connection.version == V5
        batch = self._reader.read(
            data, start, body, end, topic_field, joins, self._inbound.max_payload_bytes, five=five
        )
        if len(batch.payloads) >= FEWEST and self._enqueue(places, batch, now):
            return batch.end
        # Where each packet has an option, not each is looked at for a batch.
        self._refuse(data, max(batch.end, start + _LOOK_AGAIN * (end - start)))
        return 0

    def on_ack_run(self, data: bytes, start: int, body: int, topic_end: int, end: int, now: float) -> int:
        """``$ack`` publishes: settled together. Returns the end of those that were; 0: nothing was done."""
        if self._was_refused(data, start):
            return 0
        topic = self._topic(data[body:topic_end])
        read = None if topic is None else self._read(topic)
        if topic is None or read is None or read.verb is not Verb.ACK:
            return 0
        address = read.address
        run = self._ack_reader.read(data, start, data[body:topic_end], f"{address.queue}:".encode())
        if run is None:
            return 0
        count = self._ack(topic, address.queue, run, now)
        if 2 * count < len(run.places):
            # What was looked at in vain is not looked at again, packet by packet.
            self._refuse(data, run.ends[-1])
        return run.ends[count - 1] if count else 0

    def _topic(self, topic_field: bytes) -> str | None:
        """A topic by its bytes, length included. None for one that no message may have; the general way says so."""
        known = self._topics.get(topic_field)
        if known is not None:
            return known
        try:
            topic = decode_string(topic_field[2:], V5)
            self._inbound.check_topic(topic)
        except ProtocolError:
            return None
        if self._inbound.is_too_deep(topic):
            return None
        return remember(self._topics, topic_field, topic, len(topic_field), MAX_TOPICS)

    def _read(self, topic: str) -> QueueTopic | None:
        """What a topic means for this client; None where the general way must say why not, or speak for a tenant."""
        broker = self._broker
        try:
            read = broker.topics.read(topic)
            if broker.tenants is not None:
                session = self._connection.active_session
                if session.tenant is not None:
                    # Its names are to be translated, and its quotas charged.
                    return None
                broker.tenants.check_reach(session, read.address)
        except QueueError:
            return None
        return read

    def granted_place(self, topic_field: bytes) -> _Place | None:
        """Where a topic leads this client; None also where it may not publish, for a verb, and where other queues are
        bound to the topic: each of them gets it."""
        topic = self._topic(topic_field)
        grants = self._connection.grants
        if topic is None or (grants is not None and not grants.may_publish(topic)):
            return None
        read = self._read(topic)
        if read is None or read.verb is not None or read.address.bound:
            return None
        return _Place(topic, read.address)

    def _was_refused(self, data: bytes, start: int) -> bool:
        return data is self._inbound.refused and start < self._inbound.refused_end

    def _refuse(self, data: bytes, end: int) -> None:
        self._inbound.refused, self._inbound.refused_end = data, end

    def _enqueue(self, places: dict[bytes, _Place], batch: PublishBatch, now: float) -> bool:
        connection = self._connection
        count = len(batch.payloads)
        if not self._inbound.room_for(count):
            return False
        fields, payloads = batch.topic_fields, batch.payloads
        publisher = connection.client_id
        first = places[fields[0]]
        topics: Iterable[str] = repeat(first.topic)
        origins: Origin | list[Origin] = Origin(first.topic, publisher, first.address.routing_key)
        if len(places) > 1:
            known = {field: Origin(topic, publisher, address.routing_key) for field, (topic, address) in places.items()}
            origins = [known[field] for field in fields]
            topics = [origin.topic for origin in origins]
        messages = [
            Message(topic=topic, payload=payload, qos=1, publisher=publisher, user_properties=pairs)
            for topic, payload, pairs in zip(topics, payloads, batch.properties or repeat(()), strict=False)
        ]
        part = self._confirm_parts(connection.active_session, batch.ids)
        new = MessageBatch(messages, payloads, batch.properties, origins)
        if not self._broker.engine.publish_batch(first.address, new, now, part):
            return False
        self._note_run(count, sum(map(len, batch.payloads)))
        return True

    def _ack(self, topic: str, queue: str, run: AckRun, now: float) -> int:
        connection = self._connection
        session = connection.active_session
        if connection.grants is not None and not connection.grants.may_publish(topic):
            return 0
        if not self._inbound.room_for(len(run.places)):
            return 0
        try:
            group = run.group.decode()
        except UnicodeDecodeError:
            return 0

        def begin(count: int) -> Confirm:
            return self._confirm_parts(session, run.ids[: 2 * count])(range(count))

        count = self._broker.engine.ack_run(queue, group, run.places, connection.client_id, now, begin)
        self._note_run(count, 0)
        return count

    def _note_run(self, count: int, payload_bytes: int) -> None:
        self._broker.work += count >> 1
        self._traffic.publishes_received += count
        self._traffic.payload_bytes_received += payload_bytes

    def _confirm_parts(self, session: Session, ids: bytes) -> Callable[[Sequence[int]], Confirm]:
        """The confirms of QoS 1 publishes with these packet ids, some by some, named by their positions.

        The answers have one place, since they go out in the order of the publishes: when the last of them is known.
        """
        connection = self._connection
        slot: PendingAck | None = None
        left = len(ids) // 2
        errors: dict[int, QueueError] = {}

        def part(positions: Sequence[int]) -> Confirm:
            nonlocal slot
            place = slot = slot or self._inbound.wait_for_confirm(len(ids) // 2)

            def confirmed(error: QueueError | None) -> None:
                nonlocal left
                if error is not None:
                    errors.update(dict.fromkeys(positions, error))
                left -= len(positions)
                if left or session.connection is not connection:
                    return
                if errors:
                    self._answer_each(place, ids, errors)
                else:
                    self._inbound.answer(place, runs.acknowledgements(_PUBACK_START, ids))

            return confirmed

        return part

    def _answer_each(self, slot: PendingAck, ids: bytes, errors: Mapping[int, QueueError]) -> None:
        """Say what became of publishes with these packet ids; ``errors`` by position."""
        connection = self._connection
        answers: list[bytes] = []
        for position, packet_id in enumerate(runs.numbers(ids)):
            answer = handlers.acknowledgement(connection, 1, packet_id, errors.get(position), matched=True)
            if answer is None:
                connection.close_now(self._broker.now)
                return
            answers.append(answer)
        self._inbound.answer(slot, b"".join(answers))
