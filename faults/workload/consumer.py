"""Consumer of a queue workload: subscribes in a group, takes deliveries, settles each after a processing time."""

from __future__ import annotations

import heapq
import random
import zlib
from enum import Enum, StrEnum
from itertools import accumulate
from typing import Final

import msgspec

from assay.conformance.wire import (
    Packet,
    Properties,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from assay.faults.workload.client import ClientPhase, ClientRole, Coming, Operation, Timing
from assay.faults.workload.drain import Ledger
from assay.faults.workload.history import EventFields, HistoryRecorder
from assay.faults.workload.mqtt_client import MqttClient
from assay.faults.workload.payload import PayloadError, decode_payload
from assay.faults.workload_kinds import PassingGroup, QueueWorkload, Settlement
from assay.reference_broker.trace.schema import OpKind, OpType

DLQ_GROUP: Final = "dead-letter-watch"
"""Consumer group of those who read the dead-letter queue."""
REJECT_REASON: Final = "rejected by the workload"
MAX_UNSETTLED: Final = 65_536
"""Deliveries that a consumer holds unsettled; a broker that sends more is not heeding its own in-flight limit."""
_MAX_IN_FLIGHT: Final = 1_024
_REFUSED: Final = 0x80
_ENDED: Final = "/$ended"
_DLQ_REASON: Final = "_dlq_reason"
_DLQ_GROUP: Final = "_dlq_group"
"""User properties of a dead letter: why it is one, and the group that gave it up."""


class Choice(StrEnum):
    """What a consumer does with a delivery."""

    ACK = "ack"
    NACK = "nack"
    REJECT = "reject"
    IGNORE = "ignore"


_VERB: Final = {OpKind.ACK: "$ack", OpKind.NACK: "$nack", OpKind.REJECT: "$reject"}
CHOICES: Final = tuple(Choice)
OPERATION: Final = {Choice.ACK: OpKind.ACK, Choice.NACK: OpKind.NACK, Choice.REJECT: OpKind.REJECT}


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that this consumer still has to settle."""

    value: str
    key: str
    message_id: str
    group: str
    partition: int
    offset: int
    delivery_count: int
    choice: Choice


class ConsumerClient(MqttClient):
    """One member of one consumer group, or the watcher of a dead-letter queue.

    A settlement without answer ends the session: only so is it certain which later deliveries it may have caused.
    """

    role = ClientRole.CONSUMER

    def __init__(
        self,
        client_id: str,
        workload: QueueWorkload,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
        *,
        group: str,
        dead_letters: bool = False,
        coming: Coming | None = None,
    ) -> None:
        super().__init__(client_id, Timing.of(workload), history, _MAX_IN_FLIGHT, coming=coming)
        self._takes_at_once = workload.receive_maximum
        self.group = group
        """As the broker knows it."""
        self.life = group
        """As the history knows it: each life of a group that is deleted has a name of its own."""
        self.queue = f"$dlq/{workload.queue}" if dead_letters else workload.queue
        self.topic = self.queue if dead_letters else f"$queue/{workload.queue}"
        self._dead_letters = dead_letters
        self._process_s = (0.0, 0.0) if dead_letters else workload.process_s
        settlement = Settlement() if dead_letters else workload.settlement
        self._weights = tuple(accumulate((settlement.ack, settlement.nack, settlement.reject, settlement.ignore)))
        self._rng = rng
        self._ledger = ledger
        self._draining = False
        self._due: list[tuple[float, int, Delivery]] = []
        self._ignored: list[Delivery] = []
        self._deliveries = 0
        self._subscribe_id = 0

    @property
    def at_rest(self) -> bool:
        """Subscribed, holds no deliveries, and waits for no answer to a settlement."""
        return self.ready and not (self.unsettled or self.unanswered)

    @property
    def unsettled(self) -> int:
        """Deliveries held."""
        return len(self._due) + len(self._ignored)

    def drain(self, now: float) -> None:
        """From now on acknowledge everything, also what was to be ignored."""
        super().drain(now)
        self._draining = True
        ignored, self._ignored = self._ignored, []
        for delivery in ignored:
            self._schedule(msgspec.structs.replace(delivery, choice=Choice.ACK), now)
        if self.ready and not self.closing:
            self._work(now)

    def _connected(self, now: float) -> None:
        self._subscribe(now)

    def _subscribe(self, now: float, *more: tuple[str, str]) -> None:
        """``more``: user properties beside the group's name."""
        self._subscribe_id = self._free_packet_id()
        self._send(
            Subscribe(
                packet_id=self._subscribe_id,
                subscriptions=(Subscription(filter=self.topic, qos=1),),
                properties=Properties(user_property=(("consumer-group", self.group), *more)),
            )
        )
        fields: EventFields = {"queue": self.queue, "group": self.life}
        fields["reason"] = dict(more).get("cursor", "")
        self._begin_handshake(ClientPhase.SUBSCRIBING, OpKind.SUBSCRIBE, now, fields)

    def _on_suback(self, packet: Suback, now: float) -> None:
        if packet.packet_id != self._subscribe_id or len(packet.reason_codes) != 1:
            self._abort("SUBACK does not answer our SUBSCRIBE")
        elif packet.reason_codes[0] >= _REFUSED:
            detail = f"subscription refused, reason 0x{packet.reason_codes[0]:02x}"
            self._end_handshake(OpType.FAIL, now, detail)
            self._abort(detail)
        else:
            self._end_handshake(OpType.OK, now)
            self._ledger.progress(now)
            self._become_ready(now)

    def _session_ended(self, now: float) -> None:
        self._due.clear()
        self._ignored.clear()
        self._ledger.progress(now)

    def _on_timeout(self, now: float) -> None:
        self._abort("a settlement got no answer")

    def on_publish(self, packet: Publish, now: float) -> None:
        if packet.topic.endswith(_ENDED):
            # No delivery: the broker says so of a queue that is not there any more, or that the disk did not make.
            self._abort("the subscription was ended with its queue")
            return
        delivery = self._record_delivery(packet, now)
        if packet.qos == 1:
            self._send(Puback(packet_id=packet.packet_id))
        elif packet.qos == 2:
            self._abort("delivery at QoS 2, above the subscription's")
            return
        if self.unsettled >= MAX_UNSETTLED:
            self._abort(f"more than {MAX_UNSETTLED} unsettled deliveries")
        elif delivery.choice is Choice.IGNORE:
            self._ignored.append(delivery)
        else:
            self._schedule(delivery, now + self._rng.uniform(*self._process_s))

    def _schedule(self, delivery: Delivery, due_at: float) -> None:
        self._deliveries += 1
        heapq.heappush(self._due, (due_at, self._deliveries, delivery))

    def _choose(self) -> Choice:
        # Drawn even while draining, so that the stream of random numbers does not depend on when the drain began.
        choice = self._rng.choices(CHOICES, cum_weights=self._weights)[0]
        return Choice.ACK if self._draining else choice

    def _record_delivery(self, packet: Publish, now: float) -> Delivery:
        given: dict[str, str] = {}
        for name, value in packet.properties.user_property:
            given.setdefault(name, value)
        fields: EventFields = {"queue": self.queue, "group": self.life}
        try:
            payload = decode_payload(packet.payload)
            fields |= {"value": payload.value, "key": payload.key, "producer": payload.producer, "seq": payload.seq}
            known = True
        except PayloadError as error:
            fields |= {"value": f"corrupt:{zlib.crc32(packet.payload):08x}", "detail": str(error)}
            known = False
        count = _number(given.get("delivery-count"), 0)
        delivery = Delivery(
            value=fields["value"],
            key=fields.get("key", ""),
            message_id=given.get("message-id", ""),
            group=given.get("group-id", self.group),
            partition=_number(given.get("partition"), -1),
            offset=_number(given.get("offset"), -1),
            delivery_count=count,
            choice=self._choose(),
        )
        fields |= {
            "message_id": delivery.message_id,
            "partition": delivery.partition,
            "offset": delivery.offset,
            "delivery_count": count,
            "redelivered": packet.dup or count > 1,
        }
        if self._dead_letters:
            fields["reason"] = given.get(_DLQ_REASON, "")
            fields["detail"] = f"given up by group {given[_DLQ_GROUP]}" if _DLQ_GROUP in given else ""
        self.history.record(now, self.process, OpKind.DELIVER, OpType.OK, **fields)
        if known and self._dead_letters:
            self._ledger.dead_lettered(delivery.value, given.get(_DLQ_GROUP), now)
        elif known:
            self._ledger.required(delivery.value, now)
        return delivery

    def _work(self, now: float) -> None:
        while self._due and self._due[0][0] <= now and self._window() > 0:
            _, _, delivery = heapq.heappop(self._due)
            choice = Choice.ACK if self._draining else delivery.choice
            self._settle(delivery, OPERATION[choice], now)

    def _work_deadline(self) -> float | None:
        return self._due[0][0] if self._due and self._window() > 0 else None

    def _settle(self, delivery: Delivery, f: OpKind, now: float) -> None:
        properties = [("message-id", delivery.message_id), ("group-id", delivery.group)]
        fields: EventFields = {
            "queue": self.queue,
            "key": delivery.key,
            "value": delivery.value,
            "group": self.life,
            "message_id": delivery.message_id,
            "partition": delivery.partition,
            "offset": delivery.offset,
            "delivery_count": delivery.delivery_count,
        }
        if f is OpKind.REJECT:
            properties.append(("reason", REJECT_REASON))
            fields["reason"] = REJECT_REASON
        topic = f"{self.topic}/{_VERB[f]}"
        self._publish(f, topic, b"", Properties(user_property=tuple(properties)), fields, now)

    def _on_completed(self, operation: Operation, type_: OpType, now: float) -> None:
        if operation.f in _VERB and not self._dead_letters:
            self._ledger.settled(operation.fields["value"], operation.fields["group"], operation.f, type_, now)


def _number(text: str | None, absent: int) -> int:
    return int(text) if text is not None and text.isdigit() else absent


class Membership(Enum):
    """Where a passing group stands."""

    ABSENT = "absent"
    """It does not exist, and comes when its time has come."""
    MEMBER = "member"
    LEAVING = "leaving"
    """UNSUBSCRIBE is under way."""
    DELETING = "deleting"


_DELETE_AGAIN_S: Final = 0.1
_NO_GROUP: Final = "has no group"
"""In the reason of a deletion of what is deleted."""


class PassingConsumer(ConsumerClient):
    """The one consumer of a group that comes late; it may leave, have the group deleted, and come again.

    A deletion whose answer is lost is asked for again: either it is confirmed then, or the group is unknown by then.
    """

    def __init__(
        self,
        client_id: str,
        workload: QueueWorkload,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
        passing: PassingGroup,
    ) -> None:
        super().__init__(client_id, workload, rng, history, ledger, group=passing.name)
        self._passing = passing
        self._lives = 0
        self._membership = Membership.ABSENT
        self._came = False

    def start(self, now: float) -> None:
        """It comes later."""

    @property
    def prepared(self) -> bool:
        """Nobody waits for who comes later."""
        return True

    @property
    def at_rest(self) -> bool:
        """A member, with nothing under way."""
        return super().at_rest and self._membership is Membership.MEMBER

    def begin(self, now: float) -> None:
        """Come when it is time."""
        self.phase = ClientPhase.WAITING
        self._phase_deadline = now + self._passing.at_s

    def drain(self, now: float) -> None:
        """Come now, if the group is not there, and stay."""
        super().drain(now)
        if self._membership is Membership.DELETING:
            self._move_at = now + _DELETE_AGAIN_S
        if self.phase is ClientPhase.IDLE:
            self.phase = ClientPhase.WANTED
        elif self._membership is Membership.ABSENT and self.ready:
            self._come(now)

    def _connected(self, now: float) -> None:
        if self._membership in (Membership.LEAVING, Membership.DELETING):
            # The end of the connection was the end of the membership.
            self._membership = Membership.DELETING
            self._become_ready(now)
        else:
            self._come(now)

    def _come(self, now: float) -> None:
        if self._membership is Membership.ABSENT:
            self._lives += 1
            self.life = self.group if self._lives == 1 else f"{self.group}~{self._lives}"
            self._membership = Membership.MEMBER
        self._subscribe(now, ("cursor", self._passing.cursor))

    def _become_ready(self, now: float) -> None:
        if self._membership is Membership.MEMBER:
            self._ledger.join(self.life)
        if self._membership is Membership.MEMBER and self._passing.stay_s and not self._draining:
            self._move_at = now + self._passing.stay_s
        elif self._membership is Membership.DELETING:
            self._move_at = now
        super()._become_ready(now)

    def _move(self, now: float) -> None:
        self._move_at = None
        if not self.ready:
            return
        match self._membership:
            case Membership.MEMBER:
                self._membership = Membership.LEAVING
                self._due.clear()
                self._ignored.clear()
                self._subscribe_id = self._free_packet_id()
                self._send(Unsubscribe(packet_id=self._subscribe_id, filters=(self.topic,)))
                fields: EventFields = {"queue": self.queue, "group": self.life}
                self._begin_handshake(ClientPhase.SUBSCRIBING, OpKind.UNSUBSCRIBE, now, fields)
            case Membership.DELETING if not self.unanswered:
                body = msgspec.json.encode({"group": self.group, "delete": True})
                topic = f"$admin/queue/{self.queue}/groups"
                asked: EventFields = {"queue": self.queue, "group": self.life}
                self._publish(OpKind.DELETE, topic, body, Properties(), asked, now)
            case Membership.ABSENT:
                self._come(now)
            case _:
                self._move_at = now + _DELETE_AGAIN_S

    def _on_other(self, packet: Packet, now: float) -> None:
        expected = isinstance(packet, Unsuback) and packet.packet_id == self._subscribe_id
        if not expected or self._membership is not Membership.LEAVING:
            super()._on_other(packet, now)
            return
        self._end_handshake(OpType.OK, now)
        self._membership = Membership.DELETING
        self._become_ready(now)

    def _on_completed(self, operation: Operation, type_: OpType, now: float) -> None:
        super()._on_completed(operation, type_, now)
        if operation.f is not OpKind.DELETE:
            return
        unknown = _NO_GROUP in (operation.answer.reason_string or "")
        if type_ is OpType.OK or (type_ is OpType.FAIL and unknown):
            self._ledger.leave(self.life)
            self.history.record(
                now, "drain", OpKind.DRAIN, OpType.FAIL, queue=self.queue, group=self.life, detail="deleted"
            )
            self._membership = Membership.ABSENT
            self._move_at = now if self._draining else now + self._passing.away_s
        elif type_ is OpType.FAIL:
            self._move_at = now + _DELETE_AGAIN_S
