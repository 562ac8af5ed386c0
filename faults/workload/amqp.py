"""Clients of AMQP 0.9.1: publishers with confirms and transactions, consumers, and movers that do both in one commit.

Names of a space ``s``: the exchange ``s``; the queues ``s.q0``, ``s.q1`` and so on, whose groups in a history are
``q0``, ``q1``; the exchange ``s.dead`` and its queue, ``$dlq/s`` in a history. With movers also the queue ``s.moving``,
and ``s.moved``, exchange and queue, which in a history are a queue and a group of their own.

An acknowledgement is answered within a transaction alone, so that others have no completion: what the broker made of
them nobody knows.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from assay.conformance.wire.amqp091 import Arrival
from assay.faults.workload.amqp_client import PRECONDITION_FAILED, AmqpClient, Conversation, RefusedError
from assay.faults.workload.client import ClientPhase, ClientRole, Coming, Operation, Timing
from assay.faults.workload.consumer import CHOICES, OPERATION, Choice
from assay.faults.workload.drain import Ledger
from assay.faults.workload.history import EventFields, HistoryRecorder
from assay.faults.workload.payload import PayloadError, decode_payload, encode_payload
from assay.faults.workload.producer import OpenLoopPublisher
from assay.faults.workload_kinds import LANES, AmqpTransactions, AmqpWorkload, Settlement
from assay.reference_broker.trace.schema import OpKind, OpType

MAIN: Final = 1
"""The channel for confirms of a publisher, and for deliveries of a consumer."""
IN_TRANSACTIONS: Final = 2
"""A publisher's other channel."""
_MOST_LANE: Final = len(LANES) - 1
_ACKNOWLEDGES: Final = Settlement()
_PATIENCE_S: Final = 0.05
"""After which a mover commits fewer messages than it meant to."""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of the broker, and what histories call it."""

    name: str
    space: str
    group: str


class Fate(Enum):
    """How a transaction is to end."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    ABANDON = "abandon"


def draw_fate(part: AmqpTransactions, rng: random.Random) -> Fate:
    """As the workload weighs them."""
    return rng.choices(tuple(Fate), (part.commit, part.rollback, part.abandon))[0]


class Topology:
    """What the clients of one workload agree on: who finds it not yet declared declares it."""

    def __init__(self, workload: AmqpWorkload) -> None:
        self.workload = workload
        self.declared = False
        space = workload.name
        self.exchange = space
        self.moved = Queue(name=f"{space}.moved", space=f"{space}.moved", group="moved")
        self.dead = Queue(name=f"{space}.dead", space=f"$dlq/{space}", group="dead")
        self.queues = [Queue(name=f"{space}.q{n}", space=space, group=f"q{n}") for n in range(workload.queues)]
        self.moving = Queue(name=f"{space}.moving", space=space, group="moving")

    @property
    def bound(self) -> list[Queue]:
        """The queues that get every message."""
        return [*self.queues, self.moving] if self.workload.movers else self.queues

    def binding_keys(self) -> Iterator[str]:
        """Of bindings that take every message together."""
        if self.workload.exchange == "fanout":
            yield ""
            return
        for number in range(self.workload.keys):
            yield f"k{number}.*" if self.workload.exchange == "topic" else f"k{number}.m"

    def declare(self, client: AmqpClient, channel: int) -> Conversation:
        """Exchanges, queues and bindings, all of them durable."""
        workload, space = self.workload, self.workload.name
        yield from client.declare(channel, space, "exchange", self.exchange, type=workload.exchange)
        yield from client.declare(channel, space, "exchange", self.dead.name, type="fanout")
        yield from client.declare(channel, space, "queue", self.dead.name)
        yield from client.bind(channel, self.dead.name, self.dead.name, "")
        arguments: dict[str, Any] = {"x-dead-letter-exchange": self.dead.name}
        if workload.queue_type == "quorum":
            arguments["x-queue-type"] = "quorum"
        if workload.priorities:
            arguments["x-max-priority"] = _MOST_LANE
        if workload.delivery_limit:
            arguments["x-delivery-limit"] = workload.delivery_limit
        for queue in self.bound:
            yield from client.declare(channel, space, "queue", queue.name, arguments=arguments)
            for key in self.binding_keys():
                yield from client.bind(channel, queue.name, self.exchange, key)
        if workload.movers:
            yield from client.declare(channel, space, "exchange", self.moved.name, type="direct")
            yield from client.declare(channel, space, "queue", self.moved.name)
            yield from client.bind(channel, self.moved.name, self.moved.name, "moved")
        self.declared = True

    def ensure(self, client: AmqpClient, channel: int, queue: Queue) -> Conversation:
        """Declare what nobody has declared; what is declared must be there."""
        if self.declared:
            there = yield from client.look(channel, self.workload.name, "queue", queue.name)
            self.declared = there and self.declared
        if self.declared:
            there = yield from client.look(channel, self.workload.name, "exchange", self.exchange)
            self.declared = there and self.declared
        if not self.declared:
            yield from self.declare(client, channel)


class _Run(msgspec.Struct, kw_only=True):
    """A transaction, or a run of messages outside of any (``fate`` None)."""

    size: int
    fate: Fate | None
    name: str
    members: list[Operation] = []
    sent: int = 0
    ending: Operation | None = None
    """Its commit or rollback, under way."""


class AmqpPublisher(OpenLoopPublisher, AmqpClient):
    """Publishes ``messages_per_publisher`` persistent messages to the exchange.

    With confirms: an ack is ``ok``; a nack, a timeout or a lost connection ``info``. In a transaction they
    complete as that does.
    """

    def __init__(
        self,
        client_id: str,
        topology: Topology,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
        choices: random.Random,
    ) -> None:
        workload = topology.workload
        super().__init__(client_id, Timing.of(workload), history, workload.max_unconfirmed)
        self._schedule(rng, workload.rate_per_s, workload.messages_per_publisher)
        self._topology = topology
        self._workload = workload
        self._ledger = ledger
        self._choices = choices
        self._lane_weights = tuple(workload.priorities.get(name, 0.0) for name in LANES)
        self._tag = 0
        self._run: _Run | None = None
        self._runs = 0

    @property
    def finished(self) -> bool:
        """Every message was published and has its completion, and so has every transaction."""
        return super().finished and self._run is None

    def cease(self, now: float) -> None:
        """Publish nothing more; a transaction that is open stays so."""
        super().cease(now)
        if self._run is not None and self._run.ending is None:
            self._end(OpType.FAIL, now)

    def prepare(self) -> Conversation:
        """Both channels."""
        yield from self._open(MAIN)
        yield from self._need(MAIN, "confirm.select")
        self._tag = 0
        if self._workload.transactions is not None:
            yield from self._open(IN_TRANSACTIONS)
            yield from self._need(IN_TRANSACTIONS, "tx.select")

    # -- runs ----------------------------------------------------------------------------------------------------

    def _may_publish(self) -> bool:
        run = self._run
        if self._workload.transactions is None:
            return super()._may_publish()
        return super()._may_publish() and run is not None and run.ending is None and run.sent < run.size

    def _work_deadline(self) -> float | None:
        if self._run is None and self._sent < self._total and self._window() > 0:
            return self._intended_at
        return super()._work_deadline()

    def _work(self, now: float) -> None:
        while True:
            self._begin_run(now)
            super()._work(now)
            if self.closing or not self._end_run(now):
                return

    def _begin_run(self, now: float) -> None:
        part = self._workload.transactions
        due = self._sent < self._total and self._intended_at is not None and self._intended_at <= now
        if part is None or self._run is not None or not due:
            return
        inside = self._choices.random() < part.share
        size = min(self._choices.randint(*part.messages), self._total - self._sent)
        fate = draw_fate(part, self._choices)
        self._run = _Run(size=size, fate=fate if inside else None, name=f"{self.client_id}/{self._runs}")
        self._runs += 1

    def _end_run(self, now: float) -> bool:
        """Whether the run is over, so that the next may begin at once."""
        run = self._run
        if run is None or run.ending is not None or (run.sent < run.size and self._sent < self._total):
            return False
        if run.fate is None:
            self._run = None
            return True
        if run.fate is Fate.ABANDON:
            self._end(OpType.FAIL, now)
            self._abort("abandons its transaction")
            return False
        self._converse(self._ask_for_the_end(run, run.fate))
        return False

    def _ask_for_the_end(self, run: _Run, fate: Fate) -> Conversation:
        run.ending = begin_ending(self, fate, self._workload.name, run.name)
        answer = yield from self._ask(IN_TRANSACTIONS, f"tx.{fate.value}")
        self._end(outcome_of(answer), self._now)
        if answer.name == "channel.close":
            message = f"{fate.value} was refused: {answer['reply-code']} {answer['reply-text']}"
            raise RefusedError(message)

    def _end(self, type_: OpType, now: float) -> None:
        """The transaction is over; ``type_``: what became of its end, of what was never asked for ``fail``."""
        run, self._run = self._run, None
        if run is None or run.fate is None:
            return
        committed = type_ if run.fate is Fate.COMMIT and run.ending is not None else OpType.FAIL
        if run.ending is not None:
            self._record_completion(run.ending, type_, now, "")
        for operation in run.members:
            self._record_completion(operation, committed, now, DETAILS[committed])
            if committed is OpType.OK:
                self._ledger.required(operation.fields["value"], now)

    def _session_ended(self, now: float) -> None:
        run = self._run
        self._end(OpType.INFO if run is not None and run.ending is not None else OpType.FAIL, now)

    # -- messages ------------------------------------------------------------------------------------------------

    def _publish_due(self, fields: EventFields, intended_at: float, now: float) -> None:
        workload, run = self._workload, self._run
        inside = run is not None and run.fate is not None
        key = f"k{self._rng.randrange(workload.keys)}.m"
        # One channel, one exchange, one queue: one order, whatever the routing key (4.7).
        fields |= {"queue": workload.name, "key": "transactions" if inside else "confirms"}
        properties: dict[str, Any] = {}
        if workload.priorities:
            lane = self._choices.choices(range(len(LANES)), self._lane_weights)[0]
            fields["lane"] = lane
            properties["priority"] = _MOST_LANE - lane
        if inside and run is not None:
            fields["txn"] = run.name
        payload = encode_payload(fields["value"], fields["key"], workload.payload_bytes)
        index = self.history.record(now, self.process, OpKind.PUBLISH, OpType.INVOKE, **fields)
        deadline = now + self.timing.operation_timeout_s
        operation = Operation(f=OpKind.PUBLISH, process=self.process, index=index, deadline=deadline, fields=fields)
        if run is not None:
            run.sent += 1
        if inside and run is not None:
            run.members.append(operation)
        else:
            self._tag += 1
            self._in_flight[self._tag] = operation
        self._put(IN_TRANSACTIONS if inside else MAIN, self._topology.exchange, key, payload, properties)

    def on_arrival(self, event: Arrival, now: float) -> None:
        """A confirm."""
        if event.channel != MAIN or event.name not in ("basic.ack", "basic.nack"):
            super().on_arrival(event, now)
            return
        tags = [tag for tag in self._in_flight if tag <= event.tag] if event["multiple"] else [event.tag]
        # Some queue did not take it; nothing is said of others that it goes to.
        type_ = OpType.OK if event.name == "basic.ack" else OpType.INFO
        for tag in tags:
            operation = self._in_flight.pop(tag, None)
            if operation is not None:
                self._complete(operation, type_, now, "" if type_ is OpType.OK else "nack")
            elif tag not in self._abandoned:
                self._abort(f"{event.name} of {tag}, which was confirmed or never published")
        if type_ is OpType.INFO:
            self._retire()
        self._abandoned = {tag for tag in self._abandoned if tag > event.tag or not event["multiple"]} - set(tags)

    def _on_completed(self, operation: Operation, type_: OpType, now: float) -> None:
        if operation.f is OpKind.PUBLISH and type_ is OpType.OK:
            self._ledger.required(operation.fields["value"], now)

    def _on_timeout(self, now: float) -> None:
        self._retire()


DETAILS: Final = {
    OpType.OK: "committed",
    OpType.INFO: "the commit is unknown",
    OpType.FAIL: "never committed",
}


def begin_ending(client: AmqpClient, fate: Fate, space: str, txn: str) -> Operation:
    """Record that a transaction's end is asked for."""
    kind = OpKind.COMMIT if fate is Fate.COMMIT else OpKind.ABORT
    fields: EventFields = {"queue": space, "producer": client.client_id, "txn": txn}
    return client.invoke(kind, fields)


def outcome_of(answer: Arrival) -> OpType:
    """What a commit came to. Only 406 says that nothing was done."""
    if answer.name != "channel.close":
        return OpType.OK
    return OpType.FAIL if answer["reply-code"] == PRECONDITION_FAILED else OpType.INFO


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that a consumer has not settled."""

    tag: int
    value: str
    fields: EventFields
    """Of what is told of it."""
    choice: Choice


class AmqpConsumer(AmqpClient):
    """A consumer of one queue, with a prefetch. ``dead_letters``: it reads what was given up."""

    role = ClientRole.CONSUMER

    def __init__(
        self,
        client_id: str,
        topology: Topology,
        queue: Queue,
        rng: random.Random,
        history: HistoryRecorder,
        ledger: Ledger,
        *,
        dead_letters: bool = False,
        settlement: Settlement = _ACKNOWLEDGES,
        coming: Coming | None = None,
    ) -> None:
        workload = topology.workload
        super().__init__(client_id, Timing.of(workload), history, 1, coming)
        self._topology = topology
        self._workload = workload
        self.queue = queue
        self._dead_letters = dead_letters
        self._weights = (settlement.ack, settlement.nack, settlement.reject, settlement.ignore)
        self._rng = rng
        self._ledger = ledger
        self._draining = False
        self._held: dict[int, Held] = {}
        self._due: list[tuple[float, int]] = []
        """When which delivery is to be settled."""

    @property
    def at_rest(self) -> bool:
        """Subscribed, and holds no deliveries."""
        return self.ready and not self._held and not self.converses

    @property
    def life(self) -> str:
        """The group, as the history knows it."""
        return self.queue.group

    def drain(self, now: float) -> None:
        """From now on acknowledge everything, also what was to be ignored."""
        super().drain(now)
        self._draining = True
        waiting = {tag for _, tag in self._due} | self._being_settled()
        for tag in self._held:
            if tag not in waiting:
                heapq.heappush(self._due, (now, tag))
        if self.ready and not self.closing:
            self._work(now)

    def _being_settled(self) -> set[int]:
        """Of what it holds: no second time."""
        return set()

    def prepare(self) -> Conversation:
        """Whatever is not declared, and the subscription."""
        yield from self._open(MAIN)
        yield from self._topology.ensure(self, MAIN, self.queue)
        yield from self._need(MAIN, "basic.qos", prefetch_count=self._workload.prefetch)
        yield from self._consume()

    def _consume(self, reason: str = "") -> Conversation:
        if self._handshake is None:
            fields: EventFields = {"queue": self.queue.space, "group": self.life, "reason": reason}
            self._begin_handshake(ClientPhase.SUBSCRIBING, OpKind.SUBSCRIBE, self._now, fields)
        yield from self._need(MAIN, "basic.consume", queue=self.queue.name, consumer_tag=self.client_id)
        self._end_handshake(OpType.OK, self._now)
        self._ledger.progress(self._now)

    def _session_ended(self, now: float) -> None:
        self._held.clear()
        self._due.clear()
        self._ledger.progress(now)

    def on_arrival(self, event: Arrival, now: float) -> None:
        """A delivery."""
        if event.name != "basic.deliver" or event.channel != MAIN:
            super().on_arrival(event, now)
            return
        held = self._record_delivery(event, now)
        self._held[held.tag] = held
        if self._draining or held.choice is not Choice.IGNORE:
            heapq.heappush(self._due, (now + self._rng.uniform(*self._workload.process_s), held.tag))

    def _record_delivery(self, event: Arrival, now: float) -> Held:
        fields: EventFields = {"queue": self.queue.space, "group": self.life}
        known = True
        try:
            payload = decode_payload(event.body)
            fields |= {"value": payload.value, "key": payload.key, "producer": payload.producer, "seq": payload.seq}
        except PayloadError as error:
            fields |= {"value": f"corrupt:{zlib.crc32(event.body):08x}", "detail": str(error)}
            known = False
        choice = self._rng.choices(CHOICES, self._weights)[0]
        told = fields.copy()
        told["redelivered"] = bool(event["redelivered"]) and not self._dead_letters
        death = _first_death(event.headers) if self._dead_letters else {}
        if self._dead_letters:
            told["reason"] = str(death.get("reason", ""))
            told["detail"] = f"given up by queue {death.get('queue', '')}"
        self.history.record(now, self.process, OpKind.DELIVER, OpType.OK, **told)
        if known and self._dead_letters:
            self._ledger.dead_lettered(fields["value"], str(death.get("queue", "")).rpartition(".")[2], now)
        elif known:
            self._ledger.required(fields["value"], now)
        return Held(tag=event.tag, value=fields["value"], fields=fields, choice=choice)

    def _work(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            held = self._held.get(heapq.heappop(self._due)[1])
            if held is not None:
                self._settle(held, self._choice_of(held), now)

    def _choice_of(self, held: Held) -> OpKind:
        return OPERATION[Choice.ACK if self._draining or held.choice is Choice.IGNORE else held.choice]

    def _work_deadline(self) -> float | None:
        return self._due[0][0] if self._due else None

    def _settle(self, held: Held, f: OpKind, now: float) -> None:
        several = f is OpKind.ACK and self._rng.random() < self._workload.multiple
        settled = [each for each in self._held.values() if each.tag <= held.tag] if several else [held]
        for each in settled:
            del self._held[each.tag]
            self.history.record(now, self.process, f, OpType.INVOKE, **each.fields)
            if not self._dead_letters:
                self._ledger.settled(each.value, self.life, f, OpType.OK, now)
        self._tell_settlement(held.tag, f, multiple=several)

    def _tell_settlement(self, tag: int, f: OpKind, *, multiple: bool = False) -> None:
        if f is OpKind.ACK:
            self._tell(MAIN, "basic.ack", delivery_tag=tag, multiple=multiple)
        elif f is OpKind.NACK:
            self._tell(MAIN, "basic.nack", delivery_tag=tag, requeue=True)
        else:
            self._tell(MAIN, "basic.reject", delivery_tag=tag, requeue=False)


def _first_death(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last one of ``x-death``, which stands first."""
    deaths = headers.get("x-death")
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], Mapping):
        return {name: v.decode(errors="replace") if isinstance(v, bytes) else v for name, v in deaths[0].items()}
    return {}


class _Move(msgspec.Struct, kw_only=True):
    """A transaction of a mover."""

    name: str
    fate: Fate
    size: int
    since: float
    held: list[Held] = []
    operations: list[Operation] = []
    """Settlements and publishes."""
    ending: Operation | None = None


class AmqpMover(AmqpConsumer):
    """Consumes a queue in transactions: each acknowledgement goes with the publish of a copy, under a value of the
    mover's own; rejections and returns count with the commit as well.
    """

    def __init__(
        self, client_id: str, topology: Topology, rng: random.Random, history: HistoryRecorder, ledgers: Ledgers
    ) -> None:
        workload = topology.workload
        here, there = ledgers
        super().__init__(client_id, topology, topology.moving, rng, history, here, settlement=workload.settlement)
        self._there = there
        self._moves = 0
        self._moved = 0
        self._move_now: _Move | None = None

    def _being_settled(self) -> set[int]:
        return set() if self._move_now is None else {held.tag for held in self._move_now.held}

    def prepare(self) -> Conversation:
        """As a consumer, on a channel in transactions."""
        yield from self._open(MAIN)
        yield from self._need(MAIN, "tx.select")
        yield from self._topology.ensure(self, MAIN, self.queue)
        yield from self._need(MAIN, "basic.qos", prefetch_count=self._workload.prefetch)
        yield from self._consume()

    @property
    def at_rest(self) -> bool:
        """Nothing held, and no transaction open."""
        return super().at_rest and self._move_now is None

    def _work(self, now: float) -> None:
        while self._due and self._due[0][0] <= now and (self._move_now is None or self._move_now.ending is None):
            held = self._held.get(heapq.heappop(self._due)[1])
            if held is not None:
                self._settle(held, self._choice_of(held), now)
                self._end_if_due(now)
                if self.closing:
                    return
        self._end_if_due(now)

    def _work_deadline(self) -> float | None:
        move = self._move_now
        if move is not None and move.ending is not None:
            return None
        due = super()._work_deadline()
        patience = None if move is None else move.since + _PATIENCE_S
        known = [each for each in (due, patience) if each is not None]
        return min(known, default=None)

    def _settle(self, held: Held, f: OpKind, now: float) -> None:
        move = self._move_now
        if move is None:
            part = self._workload.transactions or AmqpTransactions()
            fate = Fate.COMMIT if self._draining else draw_fate(part, self._rng)
            size = self._rng.randint(*part.messages)
            move = self._move_now = _Move(name=f"{self.client_id}/{self._moves}", fate=fate, size=size, since=now)
            self._moves += 1
        move.held.append(held)
        move.operations.append(self.invoke(f, {**held.fields, "txn": move.name}))
        self._tell_settlement(held.tag, f)
        if f is OpKind.ACK:
            fields: EventFields = {"queue": self._topology.moved.space, "key": "moved", "producer": self.client_id}
            fields |= {"value": f"{self.client_id}-{self._moved}", "seq": self._moved, "txn": move.name}
            self._moved += 1
            move.operations.append(self.invoke(OpKind.PUBLISH, fields))
            payload = encode_payload(fields["value"], fields["key"], self._workload.payload_bytes)
            self._put(MAIN, self._topology.moved.name, "moved", payload, {})

    def _end_if_due(self, now: float) -> None:
        move = self._move_now
        if move is None or move.ending is not None:
            return
        if len(move.held) < move.size and now < move.since + _PATIENCE_S:
            return
        if move.fate is Fate.ABANDON:
            self._end_move(OpType.FAIL, now)
            self._abort("abandons its transaction")
            return
        self._converse(self._ask_for_the_end(move))

    def _ask_for_the_end(self, move: _Move) -> Conversation:
        move.ending = begin_ending(self, move.fate, self._topology.moved.space, move.name)
        answer = yield from self._ask(MAIN, f"tx.{move.fate.value}")
        type_ = outcome_of(answer)
        self._end_move(type_, self._now)
        if answer.name == "channel.close":
            message = f"{move.fate.value} was refused: {answer['reply-code']} {answer['reply-text']}"
            raise RefusedError(message)
        for held in move.held:
            if move.fate is Fate.COMMIT:
                del self._held[held.tag]
            else:  # still with this channel, and settled in another transaction
                heapq.heappush(self._due, (self._now, held.tag))

    def _end_move(self, type_: OpType, now: float) -> None:
        move, self._move_now = self._move_now, None
        if move is None:
            return
        committed = type_ if move.fate is Fate.COMMIT and move.ending is not None else OpType.FAIL
        if move.ending is not None:
            self._record_completion(move.ending, type_, now, "")
        for operation in move.operations:
            self._record_completion(operation, committed, now, DETAILS[committed])
            assert operation.f is not None
            if operation.f is not OpKind.PUBLISH:
                self._ledger.settled(operation.fields["value"], self.life, operation.f, committed, now)
            elif committed is OpType.OK:
                self._there.required(operation.fields["value"], now)

    def _session_ended(self, now: float) -> None:
        move = self._move_now
        self._end_move(OpType.INFO if move is not None and move.ending is not None else OpType.FAIL, now)
        super()._session_ended(now)


Ledgers = tuple[Ledger, Ledger]
"""Of the workload's queues, and of what is moved."""
