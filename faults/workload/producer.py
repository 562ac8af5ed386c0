"""Producer of a queue workload: an open-loop schedule of QoS 1 publishes, none ever retried."""

from __future__ import annotations

import heapq
import random
from enum import Enum
from typing import Final

import msgspec

from assay.conformance.wire import Properties
from assay.faults.workload.client import ClientRole, Operation, Timing, WorkloadClient
from assay.faults.workload.drain import Ledger
from assay.faults.workload.history import EventFields, HistoryRecorder, intended_detail
from assay.faults.workload.mqtt_client import MqttClient
from assay.faults.workload.payload import encode_payload
from assay.faults.workload_kinds import LANES, QueueWorkload
from assay.reference_broker.trace.schema import OpKind, OpType

_LATE_S: Final = 0.0005
"""A publish sent later than this after its intended time says so in the history."""
_NORMAL: Final = LANES.index("normal")


class OpenLoopPublisher(WorkloadClient):
    """Publishes ``total`` messages at exponentially distributed intervals (a Poisson process).

    The schedule goes on whatever the broker does, and what cannot be sent yet waits for its turn.
    """

    role = ClientRole.PRODUCER

    def _schedule(self, rng: random.Random, rate_per_s: float, total: int) -> None:
        """Called by the constructors of those who publish."""
        self._rng = rng
        self._rate_per_s = rate_per_s
        self._sent = 0
        self._total = total
        self._intended_at: float | None = None

    @property
    def finished(self) -> bool:
        """Every message was published and has its completion."""
        return self._sent >= self._total and not self._in_flight

    def begin(self, now: float) -> None:
        """Start the schedule; the first message is due one interval from now."""
        super().begin(now)
        if self._intended_at is None:
            self._intended_at = now + self._interval()

    def cease(self, now: float) -> None:
        """Publish nothing more, although messages may be left: the broker was away for too long."""
        self._total = self._sent

    def _interval(self) -> float:
        return self._rng.expovariate(self._rate_per_s)

    def _may_publish(self) -> bool:
        return self._window() > 0

    def _publish_due(self, fields: EventFields, intended_at: float, now: float) -> None:
        """Publish the message of this moment; ``fields`` already has value, producer, seq and a late time."""
        raise NotImplementedError

    def _work(self, now: float) -> None:
        while (
            self._sent < self._total
            and self._intended_at is not None
            and self._intended_at <= now
            and not self.closing
            and self._may_publish()
        ):
            fields: EventFields = {
                "value": f"{self.client_id}-{self._sent}",
                "producer": self.client_id,
                "seq": self._sent,
            }
            if now - self._intended_at > _LATE_S:
                fields["detail"] = intended_detail(self.history.time_ns(self._intended_at))
            intended_at = self._intended_at
            self._sent += 1
            self._publish_due(fields, intended_at, now)
            self._intended_at = intended_at + self._interval()

    def _work_deadline(self) -> float | None:
        if self._sent >= self._total or not self._may_publish():
            return None
        return self._intended_at


class TransactionPhase(Enum):
    """Where a producer stands with its transactions."""

    NONE = "none"
    ASKING = "asking"
    """It asked for its producer id and a new epoch, which aborts what is open, or for a transaction."""
    OPEN = "open"
    ENDING = "ending"
    """Commit or abort is under way."""


class Fate(Enum):
    """How a transaction is to end."""

    COMMIT = "commit"
    ABORT = "abort"
    ABANDON = "abandon"


class _Transaction(msgspec.Struct, kw_only=True):
    """A transaction, or a run of messages outside of any (``fate`` None)."""

    size: int
    fate: Fate | None
    id: str = ""
    members: list[Operation] = []
    """Its publishes that may be in it."""
    sent: int = 0
    unanswered: int = 0


class ProducerClient(OpenLoopPublisher, MqttClient):
    """Publishes ``messages_per_producer`` values to a queue.

    A confirm is ``ok``, a refusal ``fail``, a timeout or a lost connection ``info``. The messages of a transaction
    complete as that does.
    """

    def __init__(
        self,
        client_id: str,
        workload: QueueWorkload,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
        choices: random.Random,
        *,
        ids_last: bool = True,
    ) -> None:
        """``ids_last``: no fault may take what the broker confirmed, and with it what an id stands for."""
        super().__init__(client_id, Timing.of(workload), history, workload.max_unconfirmed)
        self._ids_last = ids_last
        self._schedule(rng, workload.rate_per_s, workload.messages_per_producer)
        self._workload = workload
        self._choices = choices
        self._ledger = ledger
        self._topic = f"$queue/{workload.queue}"
        self._lane_weights = tuple(workload.priorities.get(name, 0.0) for name in LANES)
        self._takebacks: list[tuple[float, str, str]] = []
        """Delayed messages to be taken back: when, value, id of the delay."""
        self._phase_of_txn = TransactionPhase.NONE
        self._txn: _Transaction | None = None
        self._identity: tuple[tuple[str, str], ...] = ()
        self._begun = 0

    @property
    def finished(self) -> bool:
        """Every message was published and has its completion, and so has every transaction."""
        return super().finished and self._txn is None and not self._takebacks

    def cease(self, now: float) -> None:
        """Publish nothing more; what is open stays so."""
        super().cease(now)
        self._takebacks.clear()
        if self._phase_of_txn is not TransactionPhase.ENDING:
            self._abandon(now)

    # -- transactions --------------------------------------------------------------------------------------------

    def _may_publish(self) -> bool:
        if self._workload.transactions is None:
            return super()._may_publish()
        if self._txn is None:
            return super()._may_publish()
        return (
            super()._may_publish()
            and self._txn.sent < self._txn.size
            and (self._txn.fate is None or self._phase_of_txn is TransactionPhase.OPEN)
        )

    def _work(self, now: float) -> None:
        if self._workload.transactions is not None:
            self._end_run(now)
            self._begin_run(now)
        super()._work(now)
        while self._takebacks and self._takebacks[0][0] <= now and self._window() > 0:
            _, value, delay_id = heapq.heappop(self._takebacks)
            fields: EventFields = {"queue": self._workload.queue, "value": value}
            named = Properties(user_property=(("delay-id", delay_id),))
            self._publish(OpKind.CANCEL, f"{self._topic}/$cancel", b"", named, fields, now)

    def _work_deadline(self) -> float | None:
        due = super()._work_deadline()
        if not self._takebacks or self._window() <= 0:
            return due
        return self._takebacks[0][0] if due is None else min(due, self._takebacks[0][0])

    def _begin_run(self, now: float) -> None:
        """Draw the next transaction, or run of messages outside, once a message is due."""
        part = self._workload.transactions
        assert part is not None
        due = self._sent < self._total and self._intended_at is not None and self._intended_at <= now
        if self._txn is None and due:
            inside = self._choices.random() < part.share
            size = min(self._choices.randint(*part.messages), self._total - self._sent)
            fate = self._choices.choices(tuple(Fate), (part.commit, part.abort, part.abandon))[0]
            self._txn = _Transaction(size=size, fate=fate if inside else None)
        if self._txn is not None and self._txn.fate is not None and not self._txn.id and self._window() > 0:
            if not self._identity and self._phase_of_txn is not TransactionPhase.ASKING:
                self._ask("init", (("transactional-id", f"{self._workload.queue}-{self.client_id}"),), now)
            elif self._phase_of_txn is TransactionPhase.NONE:
                self._ask("begin", (*self._identity, ("timeout", f"{round(part.timeout_s * 1000)}ms")), now)

    def _ask(self, what: str, properties: tuple[tuple[str, str], ...], now: float) -> None:
        self._phase_of_txn = TransactionPhase.ASKING
        self._publish(None, f"$txn/{what}", b"", Properties(user_property=properties), {"detail": what}, now)

    def _asked(self, operation: Operation, type_: OpType) -> None:
        """Answer to a request for an identity or a transaction."""
        given = dict(operation.answer.user_property)
        self._phase_of_txn = TransactionPhase.NONE
        if type_ is not OpType.OK:
            self._identity = ()
            if type_ is OpType.FAIL:
                self._abort(f"{operation.fields['detail']} of a transaction was refused")
        elif operation.fields["detail"] == "init":
            self._identity = tuple((name, given.get(name, "")) for name in ("producer-id", "producer-epoch"))
        elif self._txn is not None:
            self._txn.id = given.get("transaction-id", "")
            self._phase_of_txn = TransactionPhase.OPEN

    def _end_run(self, now: float) -> None:
        """Everything of the run is sent and answered."""
        txn = self._txn
        if txn is None or txn.unanswered or (txn.sent < txn.size and self._sent < self._total):
            return
        if txn.fate is None:
            self._txn = None
        elif self._phase_of_txn is TransactionPhase.OPEN and self._window() > 0:
            if txn.fate is Fate.ABANDON:
                self._abandon(now)
                return
            self._phase_of_txn = TransactionPhase.ENDING
            kind = OpKind.COMMIT if txn.fate is Fate.COMMIT else OpKind.ABORT
            fields: EventFields = {"queue": self._workload.queue, "producer": self.client_id, "txn": self._txn_name}
            named = Properties(user_property=(*self._identity, ("transaction-id", txn.id)))
            self._publish(kind, f"$txn/{kind.value}", b"", named, fields, now)

    @property
    def _txn_name(self) -> str:
        return f"{self.client_id}/{self._begun}"

    def _ended(self, type_: OpType, now: float, *, asked: bool = True) -> None:
        """The transaction is over for its producer: its messages complete. ``asked``: a commit was sent."""
        txn, self._txn = self._txn, None
        self._phase_of_txn = TransactionPhase.NONE
        if txn is None or txn.fate is None:
            return
        self._begun += 1
        if type_ is not OpType.OK:
            self._identity = ()  # a new epoch ends whatever may still be open
        committed = type_ if asked and txn.fate is Fate.COMMIT else OpType.FAIL
        details = {OpType.OK: "committed", OpType.INFO: "the commit is unknown", OpType.FAIL: "never committed"}
        for operation in txn.members:
            self._record_completion(operation, committed, now, details[committed])
            if committed is OpType.OK:
                self._ledger.required(operation.fields["value"], now)

    def _abandon(self, now: float) -> None:
        if self._txn is not None:
            self._ended(OpType.FAIL, now, asked=False)

    def _session_ended(self, now: float) -> None:
        if not self._ids_last:
            # A broker that lost what it had confirmed gives its id to another message.
            self._takebacks.clear()
        if self._phase_of_txn is not TransactionPhase.ENDING:
            self._abandon(now)
        self._phase_of_txn = TransactionPhase.NONE
        self._identity = ()

    def _is_complete(self, operation: Operation, type_: OpType) -> bool:
        """A message of a transaction completes with that, unless it was refused or may be missing from it."""
        if operation.f is not OpKind.PUBLISH or not operation.fields.get("txn"):
            return True
        return type_ is OpType.FAIL

    # -- messages ------------------------------------------------------------------------------------------------

    def _publish_due(self, fields: EventFields, intended_at: float, now: float) -> None:
        workload, txn = self._workload, self._txn
        key = f"k{self._rng.randrange(workload.keys)}"
        named = [("partition-key", key)]
        fields |= {"queue": workload.queue, "key": key}
        if workload.priorities:
            lane = self._choices.choices(range(len(LANES)), self._lane_weights)[0]
            fields["lane"] = lane
            if lane != _NORMAL:
                named.append(("priority", LANES[lane]))
        if workload.delays is not None:
            self._delay(fields, named, now, inside=txn is not None and txn.fate is not None)
        if txn is not None and txn.fate is not None:
            fields["txn"] = self._txn_name
            named += [*self._identity, ("transaction-id", txn.id)]
        payload = encode_payload(fields["value"], key, workload.payload_bytes)
        self._publish(OpKind.PUBLISH, self._topic, payload, Properties(user_property=tuple(named)), fields, now)
        if txn is not None:
            txn.sent += 1
            txn.unanswered += 1

    def _delay(self, fields: EventFields, named: list[tuple[str, str]], now: float, *, inside: bool) -> None:
        """A message in a transaction cannot be delayed."""
        part, chance = self._workload.delays, self._choices
        assert part is not None
        delayed, at = chance.random() < part.share, chance.random() < part.deliver_at
        delay_ms = round(chance.uniform(*part.delay_s) * 1000)
        if not delayed or inside:
            return
        if at:
            due_ms = int(now * 1000) + delay_ms
            named.append(("deliver-at", str(due_ms)))
            fields["delay_ns"] = max(0, round((due_ms / 1000 - now) * 1e9))
        else:
            named.append(("delay", f"{delay_ms}ms"))
            fields["delay_ns"] = delay_ms * 1_000_000

    def _on_completed(self, operation: Operation, type_: OpType, now: float) -> None:
        fields, txn = operation.fields, self._txn
        match operation.f:
            case None:
                self._asked(operation, type_)
            case OpKind.COMMIT | OpKind.ABORT:
                self._ended(type_, now)
            case OpKind.CANCEL:
                self._ledger.taken_back(fields["value"], type_, now)
            case OpKind.PUBLISH if fields.get("txn"):
                self._answered_inside(operation, type_, now)
            case OpKind.PUBLISH:
                if type_ is OpType.OK:
                    self._ledger.required(fields["value"], now)
                    self._plan_takeback(operation, now)
                if txn is not None and txn.fate is None:
                    txn.unanswered -= 1

    def _answered_inside(self, operation: Operation, type_: OpType, now: float) -> None:
        txn = self._txn
        if txn is None or operation.fields["txn"] != self._txn_name:
            # Its transaction was given up while it was under way; nothing will commit it.
            if type_ is not OpType.FAIL:
                self._record_completion(operation, OpType.FAIL, now, "never committed")
            return
        txn.unanswered -= 1
        if type_ is not OpType.FAIL:
            txn.members.append(operation)
        if type_ is OpType.INFO:
            self._abandon(now)

    def _plan_takeback(self, operation: Operation, now: float) -> None:
        part, delay_ns = self._workload.delays, operation.fields.get("delay_ns", -1)
        delay_id = dict(operation.answer.user_property).get("delay-id", "")
        if part is None or delay_ns < 0 or not delay_id:
            return
        chosen, place = self._choices.random() < part.cancel, self._choices.random()
        if chosen:
            heapq.heappush(self._takebacks, (now + place * delay_ns / 1e9, operation.fields["value"], delay_id))

    def _on_timeout(self, now: float) -> None:
        self._retire()
        if self._window() <= 0 and not self._in_flight:
            # Every identifier the broker grants us is held by a publish that it never answered.
            self._abort("the broker left a whole window of publishes unanswered")
