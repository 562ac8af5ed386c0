"""Producer of a queue workload: an open-loop schedule of QoS 1 publishes, none ever retried."""

from __future__ import annotations

import random
from typing import Final

from assay.conformance.wire import Properties
from assay.faults.scenario import QueueWorkload
from assay.faults.workload.client import ClientRole, Operation, Timing, WorkloadClient
from assay.faults.workload.drain import Ledger
from assay.faults.workload.history import EventFields, HistoryRecorder, intended_detail
from assay.faults.workload.payload import encode_payload
from assay.reference_broker.trace.schema import OpKind, OpType

_LATE_S: Final = 0.0005
"""A publish sent later than this after its intended time says so in the history."""


class ProducerClient(WorkloadClient):
    """Publishes ``messages_per_producer`` values at exponentially distributed intervals (a Poisson process).

    A confirm is ``ok``, a refusal ``fail``, a timeout or a lost connection ``info``; the schedule goes on whatever the
    broker does, and what cannot be sent yet waits for its turn.
    """

    role = ClientRole.PRODUCER

    def __init__(
        self,
        client_id: str,
        workload: QueueWorkload,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
    ) -> None:
        timing = Timing(
            operation_timeout_s=workload.publish_timeout_s,
            reconnect_after_s=workload.reconnect_after_s,
            handshake_timeout_s=workload.handshake_timeout_s,
            keep_alive_s=workload.keep_alive_s,
        )
        super().__init__(client_id, timing, history, workload.max_unconfirmed)
        self._workload = workload
        self._rng = rng
        self._ledger = ledger
        self._topic = f"$queue/{workload.queue}"
        self._sent = 0
        self._total = workload.messages_per_producer
        self._intended_at: float | None = None

    @property
    def finished(self) -> bool:
        """Every message was published and has its completion."""
        return self._sent >= self._total and not self._in_flight

    def begin(self, now: float) -> None:
        """Start the schedule; the first message is due one interval from now."""
        if self._intended_at is None:
            self._intended_at = now + self._interval()

    def cease(self) -> None:
        """Publish nothing more, although messages may be left: the broker was away for too long."""
        self._total = self._sent

    def _interval(self) -> float:
        return self._rng.expovariate(self._workload.rate_per_s)

    def _work(self, now: float) -> None:
        while self._work_due(now):
            self._publish_next(now)

    def _work_due(self, now: float) -> bool:
        intended_at = self._intended_at
        remaining = self._total - self._sent
        return remaining > 0 and intended_at is not None and intended_at <= now and self._window() > 0

    def _work_deadline(self) -> float | None:
        if self._sent >= self._total or self._window() <= 0:
            return None
        return self._intended_at

    def _publish_next(self, now: float) -> None:
        intended_at = now if self._intended_at is None else self._intended_at
        key = f"k{self._rng.randrange(self._workload.keys)}"
        value = f"{self.client_id}-{self._sent}"
        fields: EventFields = {
            "queue": self._workload.queue,
            "key": key,
            "value": value,
            "producer": self.client_id,
            "seq": self._sent,
        }
        if now - intended_at > _LATE_S:
            fields["detail"] = intended_detail(self.history.time_ns(intended_at))
        self._publish(
            OpKind.PUBLISH,
            self._topic,
            encode_payload(value, key, self._workload.payload_bytes),
            Properties(user_property=(("partition-key", key),)),
            fields,
            now,
        )
        self._sent += 1
        self._intended_at = intended_at + self._interval()

    def _on_completed(self, operation: Operation, type_: OpType, now: float) -> None:
        if operation.f is OpKind.PUBLISH and type_ is OpType.OK:
            self._ledger.required(operation.fields["value"], now)

    def _on_timeout(self, now: float) -> None:
        self._retire()
        if self._window() <= 0 and not self._in_flight:
            # Every identifier the broker grants us is held by a publish that it never answered.
            self._abort("the broker left a whole window of publishes unanswered")
