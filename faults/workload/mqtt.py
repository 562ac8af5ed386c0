"""Clients of plain MQTT, both versions: publishers, subscribers with sessions, readers of retained messages, wills.

Topics of a space ``s``: ``s/t/<n>`` ordinary messages, ``s/w`` wills, ``s/r/<n>`` retained messages. In histories the
first two are ``$mqtt/s``, the last ``$retained/s``, and the key is ``<topic>:<qos of the publish>``.
"""

from __future__ import annotations

import random
import zlib
from typing import Final

import msgspec

from assay.conformance.wire import (
    Connack,
    Connect,
    Pingreq,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from assay.faults.workload.client import (
    ClientPhase,
    ClientRole,
    Coming,
    Exit,
    Operation,
    Timing,
)
from assay.faults.workload.drain import Ledger
from assay.faults.workload.history import EventFields, HistoryRecorder
from assay.faults.workload.mqtt_client import MqttClient
from assay.faults.workload.payload import PayloadError, decode_payload, encode_payload
from assay.faults.workload.producer import OpenLoopPublisher
from assay.faults.workload_kinds import MAX_RECEIVE, MqttWorkload, Retained, Wills
from assay.reference_broker.trace.schema import OpKind, OpType

MQTT_PREFIX: Final = "$mqtt/"
RETAINED_PREFIX: Final = "$retained/"
REMOVES: Final = "removes"
_REFUSED: Final = 0x80
_FOR_EVER_S: Final = 2**32 - 1
_LEVEL: Final = {"3.1.1": 4, "5.0": 5}


def version_of(workload: MqttWorkload) -> int:
    """Protocol level in CONNECT."""
    return _LEVEL[workload.protocol]


class PublisherClient(OpenLoopPublisher, MqttClient):
    """Publishes with QoS 0, 1 and 2 and a session of its own: what is unanswered is sent again in the next connection.

    An answered publish is ``ok`` (QoS 2: at PUBCOMP); one at QoS 0 has no completion. With ``retained`` it replaces and
    removes retained messages instead.
    """

    def __init__(
        self,
        client_id: str,
        workload: MqttWorkload,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
        retained: Retained | None = None,
    ) -> None:
        version = version_of(workload)
        super().__init__(client_id, Timing.of(workload), history, workload.max_unconfirmed, version=version)
        rate, total = workload.rate_per_s, workload.messages_per_publisher
        if retained is not None:
            rate, total = retained.rate_per_s, retained.writes_per_writer
        self._schedule(rng, rate, total)
        self.resumes = True
        self._workload = workload
        self._retained = retained
        self._ledger = ledger

    def _connect_packet(self) -> Connect:
        return session_connect(super()._connect_packet(), _FOR_EVER_S)

    def _connect(self, now: float, fields: EventFields) -> None:
        super()._connect(now, {"group": self.client_id, "detail": f"MQTT {self._workload.protocol}"})

    def _publish_due(self, fields: EventFields, intended_at: float, now: float) -> None:
        workload, part = self._workload, self._retained
        # At QoS 0 a broker may drop what is retained whenever it likes, so that nothing would follow from it.
        weights = workload.qos if part is None or not any(workload.qos[1:]) else (0.0, *workload.qos[1:])
        qos = self._rng.choices((0, 1, 2), weights)[0]
        number = self._rng.randrange(workload.topics if part is None else part.topics)
        removes = self._rng.random() < part.removal if part is not None else False
        topic = f"{workload.name}/{'t' if part is None else 'r'}/{number}"
        fields |= {"key": f"{topic}:{qos}", "qos": qos}
        fields["queue"] = (MQTT_PREFIX if part is None else RETAINED_PREFIX) + workload.name
        payload = encode_payload(fields["value"], fields["key"], workload.payload_bytes)
        if removes:
            fields["reason"], payload = REMOVES, b""
        self._publish(OpKind.PUBLISH, topic, payload, Properties(), fields, now, qos=qos, retain=part is not None)

    def _on_completed(self, operation: Operation, type_: OpType, now: float) -> None:
        if operation.f is OpKind.PUBLISH and type_ is OpType.OK and self._retained is None:
            self._ledger.required(operation.fields["value"], now)


def session_connect(packet: Connect, expiry_s: int) -> Connect:
    """A CONNECT that resumes its session, and asks for one that outlives the connection."""
    is_new = packet.version == 5
    asked = msgspec.structs.replace(packet.properties, session_expiry_interval=expiry_s if is_new else None)
    return msgspec.structs.replace(packet, clean=False, properties=asked)


class Session:
    """What the clients' side knows of one session. Two devices share it, so that one can take it over."""

    def __init__(self, name: str, ledger: Ledger, history: HistoryRecorder, space: str, share: str = "") -> None:
        self.name = name
        self.share = share
        self.lives = 0
        self.received: dict[int, tuple[str, int]] = {}
        """Packet identifiers of QoS 2 messages that the broker has not released yet; value and event of each."""
        self.subscribed = False
        self.devices: list[SubscriberClient] = []
        self.active: SubscriberClient | None = None
        self.connected: SubscriberClient | None = None
        """The device whose CONNACK came last; what others still read counts no more."""
        self.doubtful = False
        """A CONNECT since then has no answer: it may have begun the session anew, if it had expired by then."""
        self.alive_at = 0.0
        """When the session was last known to live."""
        self._ledger = ledger
        self._history = history
        self.queue = MQTT_PREFIX + space

    @property
    def group(self) -> str:
        """The subscriber in the history: this life of the session, or what it shares a subscription with."""
        if self.share:
            return f"$share/{self.share}"
        return self.name if self.lives <= 1 else f"{self.name}~{self.lives}"

    def renew(self, now: float) -> None:
        """The broker has a new session for it: to the old one nothing is owed any more."""
        if self.lives:
            self._ledger.leave(self.group)
            self._history.record(
                now, "drain", OpKind.DRAIN, OpType.FAIL, queue=self.queue, group=self.group, detail="the session ended"
            )
        self.lives += 1
        self.received.clear()
        self.subscribed = False


class SubscriberClient(MqttClient):
    """One device of a session: subscribes once, takes what comes, answers as the standard has it."""

    role = ClientRole.CONSUMER

    def __init__(
        self,
        client_id: str,
        workload: MqttWorkload,
        history: HistoryRecorder,
        ledger: Ledger,
        session: Session,
        *,
        clean: bool,
        coming: Coming | None,
    ) -> None:
        version = version_of(workload)
        super().__init__(client_id, Timing.of(workload), history, MAX_RECEIVE, coming=coming, version=version)
        self._takes_at_once = workload.receive_maximum
        self._workload = workload
        self._ledger = ledger
        self._session = session
        self._clean = clean
        shared = bool(session.share)
        self._expiry_s = 0 if clean else _FOR_EVER_S if shared or version == 4 else workload.session_expiry_s
        ordinary = f"{workload.name}/t/#"
        self._filters = (f"$share/{session.share}/{ordinary}",) if shared else (ordinary, f"{workload.name}/w")
        self._subscribe_id = 0
        session.devices.append(self)
        session.active = session.devices[0]

    # -- which device it is --------------------------------------------------------------------------------------

    @property
    def _active(self) -> bool:
        return self._session.active is self

    def start(self, now: float) -> None:
        """The first device connects."""
        if self._active:
            super().start(now)

    @property
    def prepared(self) -> bool:
        """Subscribed, if it is the device in use."""
        return not self._active or self.ready

    at_rest = prepared

    def begin(self, now: float) -> None:
        """From now on the session comes and goes; its first device decides."""
        if self._session.devices[0] is self:
            super().begin(now)

    def drain(self, now: float) -> None:
        """Come back, if it is the device in use."""
        if self._active:
            super().drain(now)
        self._move_at = None

    def connection_lost(self, now: float) -> None:
        """As ever; a device that is not in use any more stays away."""
        if self._has_session:
            self._session.alive_at = self._heard_at
        elif self.phase is ClientPhase.CONNECTING:
            self._session.doubtful = True
        super().connection_lost(now)
        if not self._active and self.phase is ClientPhase.WAITING:
            self.phase, self._phase_deadline = ClientPhase.IDLE, None

    def next_deadline(self) -> float | None:
        """The first device keeps the time of both, also while it is not in use."""
        due = super().next_deadline()
        if self.phase is not ClientPhase.IDLE or self._move_at is None:
            return due
        return self._move_at if due is None else min(due, self._move_at)

    def tick(self, now: float) -> None:
        """Do what is due."""
        if self.phase is ClientPhase.IDLE and self._move_at is not None and now >= self._move_at:
            self._move(now)
        super().tick(now)

    def _move(self, now: float) -> None:
        assert self._coming is not None
        chosen, pause_s = self._coming.choose(), self._coming.away_s()
        self._move_at = now + pause_s + self._coming.stay_s()
        active = self._session.active
        if active is None or not active.ready:
            return
        if chosen is not Exit.TAKE_OVER or len(self._session.devices) == 1:
            active._go(chosen, now, pause_s)
            return
        other = next(device for device in self._session.devices if device is not active)
        if other.phase is ClientPhase.IDLE:
            self._session.active = other
            other.phase = ClientPhase.WANTED

    # -- the session ---------------------------------------------------------------------------------------------

    def _connect_packet(self) -> Connect:
        packet = super()._connect_packet()
        if not self._clean:
            packet = session_connect(packet, self._expiry_s)
        # The devices of a session are one client to the broker.
        return Connect(
            client_id=f"{self._workload.name}-{self._session.name}",
            version=packet.version,
            clean=self._clean,
            keep_alive_s=packet.keep_alive_s,
            properties=packet.properties,
        )

    def _connect(self, now: float, fields: EventFields) -> None:
        for_ever = self._expiry_s == _FOR_EVER_S
        fields = {"group": self._session.name, "detail": f"MQTT {self._workload.protocol}"}
        fields["delay_ns"] = -1 if for_ever else self._expiry_s * 1_000_000_000
        super()._connect(now, fields)

    def _accepted(self, packet: Connack, now: float) -> None:
        super()._accepted(packet, now)
        session = self._session
        expired = session.doubtful and now >= session.alive_at + self._expiry_s - 1.0
        if not packet.session_present or not session.lives or expired:
            session.renew(now)
        session.doubtful = False
        session.connected = self

    def _connected(self, now: float) -> None:
        session = self._session
        if session.subscribed:
            self._become_ready(now)
            return
        self._subscribe_id = self._free_packet_id()
        subscriptions = tuple(Subscription(filter=each, qos=2) for each in self._filters)
        self._send(Subscribe(packet_id=self._subscribe_id, subscriptions=subscriptions))
        fields: EventFields = {"queue": session.queue, "group": session.group, "qos": 2}
        self._begin_handshake(ClientPhase.SUBSCRIBING, OpKind.SUBSCRIBE, now, fields)

    def _on_suback(self, packet: Suback, now: float) -> None:
        if packet.packet_id != self._subscribe_id or len(packet.reason_codes) != len(self._filters):
            self._abort("SUBACK does not answer our SUBSCRIBE")
        elif max(packet.reason_codes) >= _REFUSED:
            self._end_handshake(OpType.FAIL, now, f"reason 0x{max(packet.reason_codes):02x}")
            self._abort("the subscription was refused")
        else:
            self._end_handshake(OpType.OK, now)
            self._session.subscribed = True
            self._ledger.join(self._session.group)
            self._ledger.progress(now)
            self._become_ready(now)

    def _session_ended(self, now: float) -> None:
        self._ledger.progress(now)
        if self._clean:
            self._session.subscribed = False

    # -- messages ------------------------------------------------------------------------------------------------

    def on_publish(self, packet: Publish, now: float) -> None:
        session = self._session
        if session.connected is not self:
            return
        message = identity_of(packet)
        if packet.qos < 2:
            self._record(OpKind.DELIVER, packet, message, now)
        elif packet.packet_id not in session.received:
            index = self._record(OpKind.DELIVER, packet, message, now)
            session.received[packet.packet_id] = (message["value"], index)
        elif session.received[packet.packet_id][0] != message["value"]:
            message["op"] = session.received[packet.packet_id][1]
            self._record(OpKind.IGNORE, packet, message, now)
        if packet.qos == 1:
            self._send(Puback(packet_id=packet.packet_id))
        elif packet.qos == 2:
            self._send(Pubrec(packet_id=packet.packet_id))

    def _on_pubrel(self, packet: Pubrel, now: float) -> None:
        if self._session.connected is self:
            self._session.received.pop(packet.packet_id, None)
            self._send(Pubcomp(packet_id=packet.packet_id))

    def _record(self, f: OpKind, packet: Publish, message: EventFields, now: float) -> int:
        group = self._session.group
        message |= {"queue": self._session.queue, "group": group, "qos": packet.qos, "redelivered": packet.dup}
        if f is OpKind.DELIVER:
            self._ledger.seen(message["value"], group, now)
        return self.history.record(now, self.process, f, OpType.OK, **message)


def identity_of(packet: Publish) -> EventFields:
    """Value, key, producer and sequence of a delivered message; what is altered, or on another topic, is corrupt."""
    try:
        payload = decode_payload(packet.payload)
        if payload.key.rpartition(":")[0] != packet.topic:
            message = f"{payload.value} was published to {payload.key}, not to {packet.topic}"
            raise PayloadError(message)
    except PayloadError as error:
        return {"value": f"corrupt:{zlib.crc32(packet.payload):08x}", "detail": str(error)}
    return {"value": payload.value, "key": payload.key, "producer": payload.producer, "seq": payload.seq}


class RetainedReader(MqttClient):
    """Subscribes to all retained topics again and again, each time in a new session, and notes what is there.

    Topics without a message are noted once a ping that was sent after ``read_s`` is answered: what the broker had to
    send for the subscription came before.
    """

    role = ClientRole.CONSUMER

    def __init__(
        self, client_id: str, workload: MqttWorkload, part: Retained, rng: random.Random, history: HistoryRecorder
    ) -> None:
        version = version_of(workload)
        super().__init__(client_id, Timing.of(workload), history, MAX_RECEIVE, version=version)
        self._workload = workload
        self._part = part
        self._rng = rng
        self._queue = RETAINED_PREFIX + workload.name
        self._topics = tuple(f"{workload.name}/r/{number}" for number in range(part.topics))
        self._seen: dict[str, str] = {}
        self._reading: Operation | None = None
        self._ask_at: float | None = None
        self._last_began = False
        self._last_done = False

    @property
    def prepared(self) -> bool:
        """Nobody waits for a reader."""
        return True

    @property
    def at_rest(self) -> bool:
        """The last reading, after all writing, is done."""
        return self._last_done

    def drain(self, now: float) -> None:
        """Read once more, from the beginning."""
        super().drain(now)
        self._last_began = True
        if self.phase not in (ClientPhase.IDLE, ClientPhase.WAITING, ClientPhase.WANTED):
            self._abort(Exit.DROP.value)

    def _connected(self, now: float) -> None:
        self._seen.clear()
        packet_id = self._free_packet_id()
        everything = Subscription(filter=f"{self._workload.name}/r/+", qos=2)
        self._send(Subscribe(packet_id=packet_id, subscriptions=(everything,)))
        self._begin_handshake(ClientPhase.SUBSCRIBING, OpKind.READ, now, {"queue": self._queue})

    def _on_suback(self, packet: Suback, now: float) -> None:
        if max(packet.reason_codes) >= _REFUSED:
            self._end_handshake(OpType.FAIL, now, f"reason 0x{max(packet.reason_codes):02x}")
            self._abort("the subscription was refused")
            return
        self._reading, self._handshake = self._handshake, None
        self._ask_at = now + self._part.read_s
        self._become_ready(now)

    def _session_ended(self, now: float) -> None:
        self._reading = self._ask_at = None

    def _work(self, now: float) -> None:
        if self._ask_at is not None and now >= self._ask_at:
            self._ask_at = None
            self._send(Pingreq())
            self._ping_deadline = now + self._ping_after_s

    def _work_deadline(self) -> float | None:
        return self._ask_at

    def _on_pingresp(self, now: float) -> None:
        read = self._reading
        if read is None or self._ask_at is not None:
            return
        self._reading = None
        for topic in self._topics:
            if topic not in self._seen:
                self._note(read, now, topic, {})
        if self._last_began:
            self._last_done = True
        self._go(Exit.LEAVE, now, self._rng.uniform(*self._part.pause_s))

    def _note(self, read: Operation, now: float, topic: str, fields: EventFields) -> None:
        fields = {**fields, "queue": self._queue, "op": read.index, "group": topic}
        self.history.record(now, self.process, OpKind.READ, OpType.OK, **fields)

    def on_publish(self, packet: Publish, now: float) -> None:
        if packet.qos == 1:
            self._send(Puback(packet_id=packet.packet_id))
        elif packet.qos == 2:
            self._send(Pubrec(packet_id=packet.packet_id))
        read = self._reading or self._handshake
        if not packet.retain or read is None or packet.topic in self._seen:
            return
        fields = identity_of(packet)
        fields |= {"qos": packet.qos}
        self._seen[packet.topic] = fields["value"]
        self._note(read, now, packet.topic, fields)

    def _on_pubrel(self, packet: Pubrel, now: float) -> None:
        self._send(Pubcomp(packet_id=packet.packet_id))

    def wants_connection(self, now: float) -> bool:
        """Not after the last reading."""
        return super().wants_connection(now) and not self._last_done


class WillClient(MqttClient):
    """Leaves a will with each connection, and goes with or without DISCONNECT."""

    role = ClientRole.PRODUCER

    def __init__(
        self,
        client_id: str,
        workload: MqttWorkload,
        part: Wills,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
    ) -> None:
        version = version_of(workload)
        coming = Coming(absences=part.absences, rng=rng)
        super().__init__(client_id, Timing.of(workload), history, MAX_RECEIVE, coming=coming, version=version)
        self._workload = workload
        self._part = part
        self._rng = rng
        self._ledger = ledger
        self._number = 0
        self._delay_s = 0
        self._left: Operation | None = None
        self.finished = True

    def _connect_packet(self) -> Connect:
        packet = session_connect(super()._connect_packet(), _FOR_EVER_S)
        fields = self._fields
        delay = Properties(will_delay_interval=self._delay_s) if self.version == 5 and self._delay_s else Properties()
        payload = encode_payload(fields["value"], fields["key"], self._workload.payload_bytes)
        will = Will(topic=f"{self._workload.name}/w", payload=payload, qos=1, properties=delay)
        return Connect(
            client_id=f"{self._workload.name}-{self.client_id}",
            version=packet.version,
            clean=False,
            keep_alive_s=packet.keep_alive_s,
            will=will,
            properties=packet.properties,
        )

    @property
    def _fields(self) -> EventFields:
        return {
            "queue": MQTT_PREFIX + self._workload.name,
            "key": f"{self._workload.name}/w:1",
            "value": f"{self.client_id}-{self._number}",
            "producer": self.client_id,
            "seq": self._number,
            "group": self.client_id,
            "qos": 1,
            "delay_ns": self._delay_s * 1_000_000_000,
        }

    def _connect(self, now: float, fields: EventFields) -> None:
        self._number += 1
        self._delay_s = self._rng.randint(*self._part.delay_s)
        given = self._fields
        index = self.history.record(now, self.process, OpKind.WILL, OpType.INVOKE, **given)
        self._left = Operation(f=OpKind.WILL, process=self.process, index=index, deadline=0.0, fields=given)
        super()._connect(now, {"group": self.client_id, "detail": f"MQTT {self._workload.protocol}"})

    def connection_lost(self, now: float) -> None:
        """What becomes of the will is known only if the connection had been accepted."""
        left, self._left = self._left, None
        accepted, polite = self._has_session, self._end_detail in (Exit.LEAVE.value, "disconnect")
        super().connection_lost(now)
        if left is not None:
            type_ = (OpType.FAIL if polite else OpType.OK) if accepted else OpType.INFO
            self._record_completion(left, type_, now, "DISCONNECT" if polite else "connection lost")
            self._ledger.progress(now)
            if type_ is OpType.OK and not self._delay_s:
                self._ledger.required(left.fields["value"], now)

    def cease(self, now: float) -> None:
        """Leave for good, in good order: nobody is owed this will."""
        self._move_at = None
        self.stop(now)
