"""The three roles of a load run: publisher, subscriber, and queue consumer, each one connection."""

from __future__ import annotations

from collections import deque

from assay.loadtests import payload
from assay.loadtests.client import FIRST_FAILURE_CODE, Clock, LoadClient
from assay.loadtests.ledger import Ledger, PublisherLog
from assay.loadtests.packets import (
    PUBACK,
    PUBREC,
    Frame,
    acknowledgement,
    find_user_property,
    property_section,
    publish_frame,
    read_publish,
    user_property,
)

PACKET_IDS = 65_535
SETTLE_QOS = 1


class PublisherClient(LoadClient):
    """Sends what the schedule hands it; keeps at most ``in_flight`` QoS 1 and 2 messages unacknowledged."""

    def __init__(
        self,
        client_id: str,
        version: int,
        clock: Clock,
        *,
        ledger: Ledger,
        log: PublisherLog,
        topic: str,
        payload_bytes: int,
        in_flight: int,
        properties: bytes = b"",
    ) -> None:
        super().__init__(client_id, version, clock)
        self._ledger, self._log = ledger, log
        self._topic = topic.encode()
        self._section = property_section(properties, version)
        self._filler = payload.filler(payload_bytes)
        self._limit = in_flight
        self._in_flight: dict[int, int] = {}
        self._backlog: deque[int] = deque()  # bounded by the schedule
        self._packet_id = 0

    def offer(self, seq: int, now_ns: int) -> None:
        """The message is due. It is sent with the next :meth:`flush`, or once the in-flight window has room."""
        self._log.offered_ns[seq] = now_ns
        if self._log.qos and len(self._in_flight) >= min(self._limit, self.receive_maximum):
            self._backlog.append(seq)
        else:
            self._send(seq, now_ns)

    def _send(self, seq: int, now_ns: int) -> None:
        log = self._log
        log.sent_ns[seq] = now_ns
        if log.qos:
            self._packet_id = self._packet_id % PACKET_IDS + 1
            while self._packet_id in self._in_flight:
                self._packet_id = self._packet_id % PACKET_IDS + 1
            self._in_flight[self._packet_id] = seq
        body = payload.build(self._ledger.run_id, log.number, seq, log.intended_ns[seq], self._filler)
        self.output.append(publish_frame(log.qos, self._topic, self._packet_id, self._section, body))

    def on_completed(self, packet_id: int, reason: int, now_ns: int) -> None:
        seq = self._in_flight.pop(packet_id, None)
        if seq is None:
            message = f"{self.client_id}: an acknowledgement for packet id {packet_id}, which is not in flight"
            raise ValueError(message)
        log = self._log
        if reason >= FIRST_FAILURE_CODE:
            log.refused.add(seq)
            # Nobody will receive it, so nobody need wait for it.
            self._ledger.complete(log.completions // len(log))
        else:
            log.acked_ns[seq] = now_ns
            self._ledger.complete()
        if self._backlog:
            self._send(self._backlog.popleft(), now_ns)

    def on_failure(self) -> None:
        self._ledger.fail(f"{self.client_id}: {self.failure}")


class _Receiver(LoadClient):
    """Common to subscribers and consumers: notes deliveries, finds repetition and disorder."""

    def __init__(self, client_id: str, version: int, clock: Clock, *, ledger: Ledger, copy: int) -> None:
        super().__init__(client_id, version, clock)
        self._ledger = ledger
        self._copy = copy
        self._highest: dict[int, int] = {}

    def _note(self, body: bytes, now_ns: int) -> tuple[PublisherLog, int] | None:
        """Publisher and sequence number of a first delivery; None for a repeated or foreign one."""
        ledger = self._ledger
        try:
            run_id, number, seq, _ = payload.parse(body)
        except payload.PayloadError:
            ledger.foreign.add(body[:16].hex())
            return None
        if run_id != ledger.run_id or number >= len(ledger.logs) or seq >= len(ledger.logs[number]):
            ledger.foreign.add(f"{number}-{seq}")
            return None
        log = ledger.logs[number]
        delivered_ns = log.delivered_ns[self._copy]
        if delivered_ns[seq]:
            log.duplicates.add(f"{log.name}-{seq}")
            return None
        delivered_ns[seq] = now_ns
        ledger.complete()
        if seq < self._highest.get(number, -1):
            log.disorder.add(f"{log.name}-{seq}")
        else:
            self._highest[number] = seq
        return log, seq

    def on_failure(self) -> None:
        self._ledger.fail(f"{self.client_id}: {self.failure}")


class SubscriberClient(_Receiver):
    """Receives and acknowledges."""

    def on_publish(self, buffer: bytes, frame: Frame, now_ns: int) -> None:
        _, packet_id, _, body = read_publish(buffer, frame, self.version)
        if packet_id:
            kind = PUBREC if frame[0] & 4 else PUBACK
            self.output.append(acknowledgement(kind, packet_id))
        self._note(body, now_ns)


class ConsumerClient(_Receiver):
    """A member of a consumer group: settles every delivery by a QoS 1 publish to ``$queue/<name>/$ack``."""

    def __init__(self, client_id: str, clock: Clock, *, ledger: Ledger, copy: int, queue_topic: str) -> None:
        super().__init__(client_id, 5, clock, ledger=ledger, copy=copy)
        self._ack_topic = f"{queue_topic}/$ack".encode()
        self._settling: dict[int, tuple[PublisherLog, int] | None] = {}
        self._backlog: deque[tuple[bytes, tuple[PublisherLog, int] | None]] = deque()  # bounded by the deliveries
        self._packet_id = 0

    def on_publish(self, buffer: bytes, frame: Frame, now_ns: int) -> None:
        _, packet_id, properties, body = read_publish(buffer, frame, self.version)
        if packet_id:
            self.output.append(acknowledgement(PUBREC if frame[0] & 4 else PUBACK, packet_id))
        noted = self._note(body, now_ns)
        names = (b"message-id", b"group-id")
        values = [find_user_property(properties, name) for name in names]
        if not values[0]:
            self._ledger.lack(
                "queues (durable queues addressed as $queue/<name>): deliveries carry no user property message-id, "
                "so nothing can be settled"
            )
            return
        pairs = b"".join(user_property(name, value) for name, value in zip(names, values, strict=True))
        self._settle(pairs, noted, now_ns)

    def _settle(self, properties: bytes, message: tuple[PublisherLog, int] | None, now_ns: int) -> None:
        if len(self._settling) >= self.receive_maximum:
            self._backlog.append((properties, message))
            return
        self._packet_id = self._packet_id % PACKET_IDS + 1
        while self._packet_id in self._settling:
            self._packet_id = self._packet_id % PACKET_IDS + 1
        self._settling[self._packet_id] = message
        section = property_section(properties, self.version)
        self.output.append(publish_frame(SETTLE_QOS, self._ack_topic, self._packet_id, section, b""))
        if message is not None:
            log, seq = message
            if not log.settle_sent_ns[self._copy][seq]:
                log.settle_sent_ns[self._copy][seq] = now_ns

    def on_completed(self, packet_id: int, reason: int, now_ns: int) -> None:
        if packet_id not in self._settling:
            message = f"{self.client_id}: an acknowledgement for packet id {packet_id}, which is not in flight"
            raise ValueError(message)
        settled = self._settling.pop(packet_id)
        if settled is not None:
            log, seq = settled
            if reason >= FIRST_FAILURE_CODE:
                self._ledger.refused_settlements.add(f"{log.name}-{seq}")
                self._ledger.complete()
            elif not log.settled_ns[self._copy][seq]:
                log.settled_ns[self._copy][seq] = now_ns
                self._ledger.complete()
        if self._backlog:
            properties, waiting = self._backlog.popleft()
            self._settle(properties, waiting, now_ns)
