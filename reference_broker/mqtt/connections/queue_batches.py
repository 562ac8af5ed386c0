"""The fast ways of queue clients: runs of publishes to a queue, plain or with user properties, and of ``$ack`` ones.

What they do not take, because it is not plain, not allowed or may fail, goes the general way packet by packet,
which also finds out what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.batches.ack_runs import AckRun, AckRunReader
from assay.reference_broker.mqtt.batches.property_runs import PropertyRun, PropertyRunReader
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopic, Verb
from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.reference_broker.mqtt.wire.packets import V5
from assay.reference_broker.mqtt.wire.wire_types import decode_string
from assay.reference_broker.queues import QueueAddress, QueueError
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.remembered import remember

if TYPE_CHECKING:
    from assay.reference_broker.mqtt.connections.connection import MqttConnection
    from assay.reference_broker.mqtt.connections.inbound import Inbound
    from assay.reference_broker.mqtt.connections.publish_acks import PendingAck
    from assay.reference_broker.mqtt.sessions.session import Session
    from assay.reference_broker.queues.jobs.confirms import Confirm

_PUBACK_START = b"\x40\x02"
_UNLIMITED_BYTES = 1 << 32
_LOOK_AGAIN = 4
"""Packets behind one that begins no run with user properties."""
_MAX_TOPICS = 64
_FEWEST = 8
"""Fewer publishes to a queue are not worth a run."""
_MOST = 2_048
"""Packets of a run: a turn ends between runs."""


class QueueBatches:
    """Those of one client."""

    def __init__(self, connection: MqttConnection, inbound: Inbound) -> None:
        self._connection = connection
        self._inbound = inbound
        self._broker = connection.broker
        self._traffic = connection.broker.traffic
        self._ack_reader = AckRunReader()
        self._property_reader = PropertyRunReader()
        self._topics: dict[bytes, str] = {}
        """Topics of runs, by their bytes."""
        self._max_payload_bytes = connection.broker.config.limits.max_payload_bytes or _UNLIMITED_BYTES

    def on_publish_run(
        self, topic: str, data: bytes, start: int, end: int, topic_end: int, payload_at: int, prefix: bytes, now: float
    ) -> int:
        """QoS 1 to a queue: the run is enqueued in blocks. Returns its end; 0: nothing was done."""
        if self._was_refused(data, start):
            return 0
        stride = end - start
        last = min(len(data) - stride, start + (_MOST - 1) * stride)
        run_end = end
        while run_end <= last and data.startswith(prefix, run_end):
            run_end += stride
        if run_end - start < _FEWEST * stride:
            return 0
        if self._enqueue(topic, data[start:run_end], stride, topic_end - start, payload_at - start, now):
            return run_end
        self._refuse(data, run_end)
        return 0

    def on_ack_run(self, data: bytes, start: int, body: int, topic_end: int, end: int, now: float) -> int:
        """``$ack`` publishes: settled together. Returns the end of those that were; 0: nothing was done."""
        if end + 2 >= len(data) or self._was_refused(data, start):
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

    def on_property_run(self, data: bytes, start: int, body: int, topic_end: int, end: int, now: float) -> int:
        """QoS 1 to a queue, with user properties: enqueued by partition. Returns its end; 0: nothing was done."""
        if data[end : end + 1] != data[start : start + 1] or self._was_refused(data, start):
            return 0
        topic_field = data[body:topic_end]
        topic = self._topic(topic_field)
        if topic is None:
            return 0
        run = self._property_reader.read(data, start, topic_field, self._max_payload_bytes)
        if len(run.payloads) >= _FEWEST and self._enqueue_keyed(topic, run, now):
            return run.end
        # Where each packet has an option, not each is looked at for a run.
        self._refuse(data, max(run.end, start + _LOOK_AGAIN * (end - start)))
        return 0

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
        return remember(self._topics, topic_field, topic, len(topic_field), _MAX_TOPICS)

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

    def _granted_address(self, topic: str) -> QueueAddress | None:
        """Where a topic leads this client; None also where the client may not publish, and for a verb."""
        grants = self._connection.grants
        read = None if grants is not None and not grants.may_publish(topic) else self._read(topic)
        return None if read is None or read.verb is not None else read.address

    def _was_refused(self, data: bytes, start: int) -> bool:
        return data is self._inbound.refused and start < self._inbound.refused_end

    def _refuse(self, data: bytes, end: int) -> None:
        self._inbound.refused, self._inbound.refused_end = data, end

    def _enqueue(self, topic: str, run: bytes, stride: int, id_at: int, payload_at: int, now: float) -> bool:
        count = len(run) // stride
        connection, version = self._connection, self._connection.version
        session = connection.active_session
        payload_bytes = stride - payload_at
        ids = runs.ids_of(run, stride, id_at)
        if (b"\0" in ids[0::2] and 0 in runs.numbers(ids)) or payload_bytes > self._max_payload_bytes:
            return False
        if (version == V5 and any(run[payload_at - 1 :: stride])) or not self._inbound.room_for(count):
            return False
        address = self._granted_address(topic)
        if address is None:
            return False
        client_id = connection.client_id
        messages = [
            Message(topic=topic, payload=run[at + payload_at : at + stride], qos=1, publisher=client_id)
            for at in range(0, len(run), stride)
        ]
        given = 0

        def part(size: int) -> Confirm:
            nonlocal given
            some = ids[2 * given : 2 * (given + size)]
            given += size
            return self._confirm_all(session, some)

        try:
            if not self._broker.engine.publish_run(address, messages, now, part, alike=True):
                return False
        except QueueError:
            return False
        self._note_run(count, count * payload_bytes)
        return True

    def _enqueue_keyed(self, topic: str, run: PropertyRun, now: float) -> bool:
        connection = self._connection
        count = len(run.payloads)
        if not self._inbound.room_for(count):
            return False
        address = self._granted_address(topic)
        if address is None:
            return False
        client_id = connection.client_id
        messages = [
            Message(topic=topic, payload=payload, qos=1, publisher=client_id, user_properties=pairs)
            for payload, pairs in zip(run.payloads, run.properties, strict=True)
        ]
        part = self._confirm_parts(connection.active_session, run.ids)
        if not self._broker.engine.publish_keyed(address, messages, now, part):
            return False
        self._note_run(count, sum(map(len, run.payloads)))
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
            return self._confirm_all(session, run.ids[: 2 * count])

        count = self._broker.engine.ack_run(queue, group, run.places, connection.client_id, now, begin)
        self._note_run(count, 0)
        return count

    def _note_run(self, count: int, payload_bytes: int) -> None:
        self._broker.work += count >> 1
        self._traffic.publishes_received += count
        self._traffic.payload_bytes_received += payload_bytes

    def _confirm_all(self, session: Session, ids: bytes) -> Confirm:
        """The confirm of QoS 1 publishes with these packet ids."""
        connection = self._connection
        slot = self._inbound.wait_for_confirm(len(ids) // 2)

        def confirmed(error: QueueError | None) -> None:
            if session.connection is not connection:
                return
            if error is None:
                self._inbound.answer(slot, runs.acknowledgements(_PUBACK_START, ids))
            else:
                self._answer_each(slot, ids, dict.fromkeys(range(len(ids) // 2), error))

        return confirmed

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
