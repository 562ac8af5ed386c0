"""Performs a life of queues on real sockets, and asks the oracle about all that comes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterable

from assay.conformance.case import CLOCK_TOPIC
from assay.conformance.explore.held import Held
from assay.conformance.explore.queues import life as plan
from assay.conformance.explore.queues.asking import FIRST_FAILURE_CODE, Producer
from assay.conformance.explore.queues.books import violation
from assay.conformance.explore.queues.clients import ADMIN, PATIENCE_S, QueueClient, violation_of
from assay.conformance.explore.queues.deliveries import KEPT, NUMBER
from assay.conformance.explore.queues.oracle import Oracle
from assay.conformance.explore.queues.producers import NumberedRequests
from assay.conformance.explore.queues.requests import (
    RETAINED_S,
    message_id,
    message_of,
    places,
    ranges,
)
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.state import Copy, Fate, Group, Member, Message, Queue
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.explore.sockets import Wire
from assay.conformance.targets import CapabilityValue, Endpoint
from assay.conformance.wire import (
    Connack,
    Disconnect,
    Packet,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)

_SOON_S = 0.25
"""What an eager broker sends is waited for so long, so that a life meets it; that it does not come says nothing."""
_GIVES_UP = 4
"""A broker that was not eager so often is not waited for any more."""
_LONG_S = 300_000
_VERSION = 5
_MOST_ROUNDS = 2_000
Answered = Callable[[bool | None, Iterable[str]], None]
"""Called with whether a settlement was accepted (None: nobody knows), and what was not pending."""


class QueuePlayer(NumberedRequests):
    """Plays lives of queues, one after the other, on one broker."""

    def __init__(
        self,
        endpoint: Endpoint,
        capabilities: dict[str, CapabilityValue],
        *,
        run_token: str,
        patience_s: float = PATIENCE_S,
        restart: Callable[[float], Endpoint] | None = None,
        tidies: bool = True,
        tenant: str = "",
        held: Collection[str] = (),
    ) -> None:
        """As :class:`assay.conformance.explore.player.Player`; ``tidies``: its queues are deleted after a life.

        ``tenant``: whose clients have ids that begin with its name and ``-``; without, no life has one. ``held``: names
        for :class:`Held`.
        """
        self._tidies, self._tenant = tidies, tenant
        super().__init__(endpoint, capabilities, patience_s)
        self._run_token, self._lives, self.restart = run_token, itertools.count(1), restart
        self._late = 0
        self._held = Held(held)
        self._begin(plan.QueueLife(queues=(), groups=(), consumers=(), steps=()))

    def _begin(self, life: plan.QueueLife) -> None:
        self.begin_life()
        self.token, self._life = f"{self._run_token}q{next(self._lives):x}", life
        self._settles_each = any(isinstance(step, plan.Settle) and step.each for step in life.steps)
        self.tenant = self._tenant if life.tenant else ""
        self.oracle = Oracle((f"{self.token}n{number}" for number in range(len(life.queues))), life.queues)
        self.clients: dict[str, QueueClient] = {}
        self._producers: dict[int, Producer] = {}
        self._delayed: list[Message] = []
        self._beside: dict[tuple[Group, int], int] = {}
        self._settled: dict[int, list[Copy]] = {}
        """Consumer to what it settled, for it to be settled once more."""
        self._numbers = itertools.count()
        self.begin_numbers()
        self.unheard = False
        """Nobody waits for answers: the broker is about to be killed."""

    # A life

    def play(self, life: plan.QueueLife) -> None:
        """Play a life and its audit. Raises :class:`ViolationError`, :class:`TargetUnreachableError`."""
        self._begin(life)
        self._held.begin(self.control, self.patience_s)
        try:
            self.oracle.now = self.now
            for queue in self.oracle.queues:
                queue.owner = f"{self.tenant}." if self.tenant else ""
                self._create(queue)
                if self.tenant:
                    self._admin("queue/create", {"name": queue.name, "message_ttl_s": RETAINED_S})
                    self.request(self.client(ADMIN), f"$queue/{queue.name}", payload=b"of nobody")
            for step in life.steps:
                self.note(str(step))
                self._next_round()
                self._perform(step)
                self._settle()
            self._audit()
            self._held.end(self.control, self.patience_s)
        finally:
            self.end_life()

    def _next_round(self) -> None:
        self.oracle.round += 1
        self.oracle.tick(self.now)

    def _perform(self, step: plan.Step) -> None:
        match step:
            case plan.Publish():
                self._publish(step)
            case plan.Burst():
                self._burst(step.publishes, together=step.together)
            case plan.Join():
                self._join(step.consumer)
            case plan.Leave():
                self._leave(step.consumer, step.how)
            case plan.Settle():
                self._settle_deliveries(step)
            case plan.Withhold():
                self._withhold(step.consumer, on=step.on)
            case plan.Begin():
                self._begin_transaction(step)
            case plan.End():
                self._end_transaction(step.producer, commit=step.commit)
            case plan.Cancel():
                self._cancel(step)
            case plan.Reset():
                self._reset(step)
            case plan.Purge():
                queue = self.oracle.queues[step.queue % len(self.oracle.queues)]
                self.oracle.purge(queue)(self._admin(f"queue/{queue.owner}{queue.name}/purge"))
            case plan.Delete() if step.group >= 0:
                self._delete_group(step.group)
            case plan.Delete():
                self._delete_queue(self._queue(step.queue))
            case plan.Claim():
                self._claim(step)
            case plan.Commit():
                self._commit(step)
            case plan.Grow():
                self._grow(step)
            case plan.Change():
                self._change(step)
            case plan.Replay():
                self._replay(step)
            case plan.Numbered():
                self.number(step)
            case plan.Stray():
                self.name_what_is_not(step)
            case plan.Look():
                self._look(self.oracle.queues[step.queue % len(self.oracle.queues)])
            case plan.Advance():
                self._advance(step.seconds)
            case plan.Restart():
                self._restart(step.amid)

    def _audit(self) -> None:
        """All groups take what is left, one consumer each; then nothing is left, and nothing comes any more."""
        self.note("the audit begins")
        self._next_round()
        for number in self._producers:
            self._end_transaction(number, commit=False)
        self._settle()
        self._advance(_LONG_S)
        oracle = self.oracle
        oracle.auditing = True
        for number, _consumer in enumerate(self._life.consumers):
            self._leave(number, plan.Leaving.DISCONNECT)
        letters = [plan.GroupPlan(queue=number, dead=True) for number in range(len(oracle.queues))]
        groups = [*enumerate(self._life.groups), *((-1 - number, each) for number, each in enumerate(letters))]
        for which in (False, True):  # what fails in the queues is a letter by then
            self._next_round()
            for number, group in groups:
                if group.dead == which:
                    self._join_as(1_000 + number, number, group, 0, 0)
                    self._settle()
            self._drain()
            waiting = -1
            while waiting != (waiting := oracle.waiting_for_room()):
                self._advance(_LONG_S)  # what found no room is tried again
                self._drain()
            oracle.rest()
            self._drain()
            self._advance(_LONG_S)
            self._drain()
        self.barrier(*self.clients.values())
        self.await_(lambda: oracle.missing_letter() is None, lambda: oracle.missing_letter() or _gone_meanwhile())
        self._drain()
        oracle.finish()
        for queue in oracle.queues:
            self._look(queue)
            if self.tenant:
                self._look_beside(queue)
        self._clean_up()

    def _drain(self) -> None:
        """Whatever comes is acknowledged, until nothing does."""
        for _ in range(_MOST_ROUNDS):
            self._settle()
            some = False
            for client in [client for client in self.clients.values() if client.member is not None]:
                member = client.member
                copies = self._held_by(member) if member is not None and member.left is None else []
                if copies and member is not None:
                    self._next_round()
                    some = True
                    self._send_settlement(client, member, copies, plan.Settle(each=self._settles_each), None)
            if not some:
                return

    def _clean_up(self) -> None:
        for queue in self.oracle.queues if self._tidies else ():  # of a tenant there are none but in brokers of ours
            with contextlib.suppress(ViolationError):
                self._admin(f"queue/{queue.owner}{queue.name}/delete")
                if queue.letters is not None:
                    self._admin(f"queue/dlq/{queue.owner}{queue.name}/delete")
        for client in self.clients.values():
            if client.open:
                self.write(client, Disconnect())
                self.drop(client)

    # Clients

    # Publishing

    def _publish(self, step: plan.Publish) -> None:
        self._burst((step,))

    def _burst(self, steps: Iterable[plan.Publish], *, together: bool = False) -> None:
        waiting: list[tuple[QueueClient, int, Message, Callable[[bool | None], None], int]] = []
        with self.together() if together else contextlib.nullcontext():
            self._send_publishes(steps, waiting)
        for client, packet_id, message, answered, qos in waiting:
            if self.unheard:
                answered(None)
                continue
            if not qos:
                self.barrier(client)
                message.sure = True
                continue
            what = f"the publish of message {message.number}"
            answer = self.answer(client, packet_id, what)
            assert isinstance(answer, Puback | Pubrec | Pubcomp)
            accepted = answer.reason_code < FIRST_FAILURE_CODE
            answered(accepted)
            if accepted and message.delay_s:
                message.delay_id = dict(answer.properties.user_property).get("delay-id", "")
                if not message.delay_id:
                    raise violation(QueueRule.CANCEL, f"{what} tells no delay-id: {answer}", "Q-DELAY-07")
                self._delayed.append(message)

    def _send_publishes(
        self,
        steps: Iterable[plan.Publish],
        waiting: list[tuple[QueueClient, int, Message, Callable[[bool | None], None], int]],
    ) -> None:
        for step in steps:
            queue = self._queue(step.queue)
            producer = self._producers.get(step.client) if step.transaction and not step.delay_s else None
            inside = producer if producer is not None and producer.transaction is not None else None
            if inside is not None and inside.transaction is not None and inside.transaction.fate is not Fate.OPEN:
                continue
            client = self.client(f"t{step.client}" if inside is not None else f"p{step.client}")
            number = next(self._numbers)
            message, properties = message_of(step, queue, number, self.oracle.serial, self.token)
            if inside is not None:
                named = *properties.user_property, *inside.identity.items()
                named = *named, ("transaction-id", inside.transaction_id)
                properties = Properties(
                    **{name: getattr(properties, name) for name in ("message_expiry_interval", *KEPT)},
                    user_property=named,
                )
            message.burst, message.client = self.oracle.round, step.client + 10 * (inside is not None)
            is_told = inside is not None or step.delay_s or queue.is_limited or queue.plan.max_message_bytes
            qos = 1 if is_told else step.qos
            answered = self.oracle.publish(queue, message, inside.transaction if inside is not None else None)
            packet_id = self.next_id(client) if qos else 0
            packet = Publish(
                topic=message.topic, payload=message.payload, qos=qos, packet_id=packet_id, properties=properties
            )
            client.answers.pop(packet_id, None)
            self.write(client, packet)
            waiting.append((client, packet_id, message, answered, qos))

    def _cancel(self, step: plan.Cancel) -> None:
        if not self._delayed:
            return
        message = self._delayed[step.which % len(self._delayed)]
        answered = self.oracle.cancel(message)
        topic = f"$queue/{message.queue.name}/$cancel"
        self._told(self.request(self.client("p0"), topic, [("delay-id", message.delay_id)]), answered)

    # Consumers

    def _join(self, number: int) -> None:
        consumer = self._life.consumers[number % len(self._life.consumers)]
        number %= len(self._life.consumers)
        group_number = consumer.group % len(self._life.groups)
        group = self._life.groups[group_number]
        self._join_as(number, group_number, group, consumer.prefetch, consumer.receive_maximum)

    def _join_as(
        self, number: int, group_number: int, group: plan.GroupPlan, prefetch: int, receive_maximum: int
    ) -> None:
        queue = self._queue(group.queue)
        if group.dead:
            assert queue.letters is not None
            queue = queue.letters
        name = f"c{number}"
        older = self.clients.get(name)
        if older is not None and older.open:
            self.barrier(older)
        client = older if older is not None and older.open and older.member is None else None
        if client is None:
            if older is not None and older.member is not None:
                self.oracle.leave(older.member)
            client = self.connect(name, receive_maximum)
            if older is not None:
                self._gone(older)
        client.consumer = number
        is_new = f"g{group_number}" not in queue.groups
        named = [("consumer-group", f"g{group_number}")]
        named += [("prefetch", str(prefetch))] if prefetch else []
        named += [("cursor", "latest" if group.latest else "earliest")]
        topic_filter = (queue.name if group.dead else f"$queue/{queue.name}") + (
            f"/{group.filter}" if group.filter and not group.dead else ""
        )
        client.member = self.oracle.join(
            queue,
            f"g{group_number}",
            group,
            lambda made: Member(made, client.name, client.client_id, prefetch, receive_maximum, self.oracle.round),
            number,
        )
        packet_id = self.next_id(client)
        packet = Subscribe(
            packet_id=packet_id,
            subscriptions=(Subscription(filter=topic_filter, qos=1),),
            properties=Properties(user_property=tuple(named)),
        )
        answer = self.ask(client, packet, packet_id, f"SUBSCRIBE {topic_filter}")
        if isinstance(answer, Suback) and answer.reason_codes[0] >= FIRST_FAILURE_CODE:
            raise violation(QueueRule.SUBSCRIBE, f"{client.name}: {topic_filter} is refused: {answer}")
        if is_new and not group.dead:
            self._weigh(queue)

    def _leave(self, number: int, how: plan.Leaving) -> None:
        number = number % len(self._life.consumers) if number < 1_000 else number
        client = self.clients.get(f"c{number}")
        if client is None or not client.open or client.member is None:
            return
        self.barrier(client)
        self.oracle.leave(client.member)
        if how is plan.Leaving.UNSUBSCRIBE:
            group = client.member.group
            dead = group.is_dead
            topic_filter = (group.queue.name if dead else f"$queue/{group.queue.name}") + (
                f"/{group.plan.filter}" if group.plan.filter and not dead else ""
            )
            packet_id = self.next_id(client)
            packet = Unsubscribe(packet_id=packet_id, filters=(topic_filter,))
            self.ask(client, packet, packet_id, f"UNSUBSCRIBE {topic_filter}")
            client.member = None
            return
        if how is plan.Leaving.DISCONNECT:
            self.write(client, Disconnect())
            client.ended = True
            deadline = time.monotonic() + 0.5
            while client.open and time.monotonic() < deadline:
                self.read(max(0.0, deadline - time.monotonic()))
        if client.open:
            self.drop(client, reset=how is plan.Leaving.RESET)
        self._gone(client)
        for _ in range(2):  # what ended a moment ago is seen by a broker before the second round trip of somebody else
            self.control.round_trip()

    def _gone(self, client: QueueClient) -> None:
        if client.open:
            self.read(0.0)
        if client.open:
            self.drop(client)
        if client.member is not None:
            if client.member.left is None:
                self.oracle.leave(client.member)
            client.member = None

    def _delete_queue(self, queue: Queue) -> None:
        """Consumers leave before: what they are told of its end is not judged here."""
        if self.oracle.is_in_transaction(queue):
            return
        both = [each for each in (queue, queue.letters) if each is not None]
        for each in both:
            for number in [number for group in each.groups.values() for number in group.members]:
                self._leave(number, plan.Leaving.DISCONNECT)
        for name in (f"{queue.owner}{queue.name}", f"dlq/{queue.owner}{queue.name}"):
            if self._admin(f"queue/{name}/delete") is False and not name.startswith("dlq/"):
                raise violation(QueueRule.REQUEST, f"the deletion of {queue.name} is refused", "Q-ADMIN-07")
        self.oracle.deleted(queue)
        self._delayed = [message for message in self._delayed if message.queue is not queue]
        for copies in self._settled.values():
            copies[:] = [copy for copy in copies if copy.group.queue not in both]
        self.forget_numbers(queue)
        self._create(queue)

    def _withhold(self, number: int, *, on: bool) -> None:
        client = self.clients.get(f"c{number % len(self._life.consumers)}")
        if client is None or not client.open:
            return
        client.withholds = on
        if not on:
            for packet_id in client.held:
                self._acknowledge(client, packet_id)
            client.held = []

    def _acknowledge(self, client: QueueClient, packet_id: int) -> None:
        if client.member is not None:
            client.member.unacknowledged.discard(packet_id)
        if client.open:
            self.write(client, Puback(packet_id=packet_id))

    # Settlements

    def _settle_deliveries(self, step: plan.Settle) -> None:
        number = step.consumer % len(self._life.consumers)
        client = self.clients.get(f"c{number}")
        if client is None or not client.open or client.member is None:
            return
        member = client.member
        held = self._held_by(member)
        old = [copy for copy in self._settled.get(number, []) if copy.group is member.group and copy not in held]
        chosen = {copy: None for at in step.which for copy in (held[at:] or old[-1:])[:1]}
        copies = [copy for copy in chosen if copy.message.place is not None]
        if not copies:
            return
        producer = self._producers.get(step.producer) if step.verb == "ack" else None
        if producer is not None and (producer.transaction is None or producer.transaction.fate is not Fate.OPEN):
            producer = None
        shows = step.form is plan.Form.RECEIPTS and producer is None and all(copy.receipts for copy in copies)
        shower = self.clients.get(f"c{step.shown_by % len(self._life.consumers)}") if step.shown_by >= 0 else None
        if shows and shower is not None and shower.open:
            client = shower
        self._send_settlement(client, member, copies, step, producer, shows=shows)
        self._settled.setdefault(number, []).extend(copies)

    def _send_settlement(
        self,
        client: QueueClient,
        member: Member,
        copies: list[Copy],
        step: plan.Settle,
        producer: Producer | None,
        *,
        shows: bool = False,
    ) -> None:
        """By one request, or as many as there are deliveries."""
        asked: list[tuple[QueueClient, int, Answered]] = []
        with self.together():
            asked += [
                self._ask_settlement(client, member, some, step, producer, shows=shows)
                for some in ([[copy] for copy in copies] if step.each else [copies])
            ]
        for each in asked:
            self._hear_settlement(*each)

    def _ask_settlement(
        self,
        client: QueueClient,
        member: Member,
        copies: list[Copy],
        step: plan.Settle,
        producer: Producer | None,
        *,
        shows: bool,
    ) -> tuple[QueueClient, int, Answered]:
        queue = member.group.queue
        told = f"g-{step.verb}" if step.verb == "reject" else ""
        by_receipt = None
        if shows:
            shown = [copy.receipts[0 if step.first_receipt else -1] for copy in copies]
            by_receipt = {copy: int(receipt.split(":")[-2]) for copy, receipt in zip(copies, shown, strict=True)}
            named = [("receipt", receipt) for receipt in shown]
        elif step.form is plan.Form.OFFSETS:
            first = copies[0].message.place
            assert first is not None
            placed = [(copy, copy.message.place) for copy in copies if copy.message.place is not None]
            copies = [copy for copy, place in placed if place[0] == first[0]]
            offsets = ranges(place[1] for _, place in placed if place[0] == first[0])
            named = [("partition", str(first[0])), ("offsets", offsets)]
        else:
            named = [("message-id", message_id(queue, copy)) for copy in copies]
        if by_receipt is None:
            named.append(("group-id", self._group_id(member.group)))
        time_s = {"nack": step.delay_s, "extend": step.extend_s}.get(step.verb, 0)
        if time_s:
            named.append(("delay" if step.verb == "nack" else "extend", f"{time_s}s"))
        if told:
            named.append(("reason", told))
        if producer is not None:
            named += [*producer.identity.items(), ("transaction-id", producer.transaction_id)]
        into = producer.transaction if producer is not None else None
        answered = self.oracle.settle(member, copies, step.verb, time_s, told, into, by_receipt)
        return client, self.send_request(client, self._topic(queue, step.verb), named), answered

    def _hear_settlement(self, client: QueueClient, packet_id: int, answered: Answered) -> None:
        if self.unheard:
            answered(None, ())
            return
        answer = self.answer(client, packet_id, "a settlement")
        assert isinstance(answer, Puback)
        told_gone = [value for name, value in answer.properties.user_property if name == "not-pending"]
        gone = [place for value in told_gone for place in places(value)]
        answered(answer.reason_code < FIRST_FAILURE_CODE, gone)

    def _advance(self, seconds: int) -> None:
        if not self.capabilities.get("clock", False):
            return
        self.barrier(*self.clients.values())
        self.oracle.about_to_move()
        self.control.publish(CLOCK_TOPIC, payload=repr(float(seconds)).encode())
        self.ahead_s += seconds
        self.note(f"the broker's clock was moved by {seconds} s")
        for _ in range(2):
            self.control.round_trip()
        self._next_round()

    def _restart(self, amid: plan.Step | None) -> None:
        if self.restart is None:
            return
        self.barrier(*self.clients.values())
        if amid is not None:
            for name in ("n0", "n1") if isinstance(amid, plan.Numbered) else ("p0", "p1"):
                assert self.client(name).open
            self.unheard = True
            try:
                self._perform(amid)
            finally:
                self.unheard = False
        self.endpoint = self.restart(self.ahead_s)
        self.control.close()
        self.control = self.new_control()
        self.note("the broker was killed and started again")
        for client in self.clients.values():
            if client.open:
                self.drop(client)
            client.member = None
        self.clients = {}
        self._next_round()
        self.oracle.killed(self.now)
        for queue in self.oracle.queues:
            if queue.plan.durability == "memory":
                self._create(queue)
            else:
                self._look(queue)
        # Their ids may be given out anew.
        self._delayed = [message for message in self._delayed if message.queue.plan.durability != "memory"]

    # Waiting

    def _settle(self) -> None:
        """Read until what must come has come; for what an eager broker sends, a moment. Raises a violation."""
        if self.unheard:
            return
        oracle = self.oracle
        oracle.now = self.now
        while oracle.due(hard=True) is not None:
            self._await_due()
        deadline = time.monotonic() + _SOON_S
        while self._late < _GIVES_UP and oracle.due(hard=False) is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._late += 1
                return
            self.read(left_s)
            oracle.now = self.now
        self.read(0.0)

    def _await_due(self) -> None:
        first = self.oracle.due(hard=True)
        came = len(self.log)
        self.await_(
            lambda: self.oracle.due(hard=True) is not first or len(self.log) < came,
            lambda: self.oracle.missing(first) if first is not None else violation(QueueRule.LOST, "something"),
        )

    # Packets

    def received(self, wire: Wire, packet: Packet) -> None:
        assert isinstance(wire, QueueClient)
        self.oracle.now = self.now
        match packet:
            case Connack():
                if packet.reason_code:
                    raise violation_of(Rule.CONNACK, f"{wire.name}: refused with {packet.reason_code:#x}")
                wire.is_ready = True
            case Pingresp():
                wire.pings -= 1
            case Puback() | Suback() | Unsuback() | Pubcomp():
                wire.answers.setdefault(packet.packet_id, packet)
            case Pubrec():
                if packet.reason_code < FIRST_FAILURE_CODE:
                    self.write(wire, Pubrel(packet_id=packet.packet_id))
                else:
                    wire.answers[packet.packet_id] = packet
            case Publish():
                self._delivery(wire, packet)
            case Disconnect() if not wire.ended and self.is_current(wire):
                raise violation_of(Rule.ENDED, f"{wire.name}: {packet}")

    def _delivery(self, wire: QueueClient, packet: Publish) -> None:
        member = wire.member
        if packet.topic.startswith("assay/"):
            wire.inbox.append(packet)
            return
        if member is not None and packet.qos:
            member.unacknowledged.add(packet.packet_id)
            if len(member.unacknowledged) > member.receive_maximum:
                text = f"{wire.name}: {len(member.unacknowledged)} deliveries, it takes {member.receive_maximum}"
                raise violation_of(Rule.RECEIVE_MAXIMUM, text)
        if packet.qos and wire.withholds:
            wire.held.append(packet.packet_id)
        elif packet.qos:
            self._acknowledge(wire, packet.packet_id)
        if packet.topic.endswith(("/$assignment", "/$ended")) or member is None:
            return
        number = dict(packet.properties.user_property).get(NUMBER, "")
        if not number.isdecimal():
            raise violation(QueueRule.UNKNOWN, f"{wire.name} is given {packet}")
        self.oracle.delivered(member, packet, int(number))
        member.group.told = dict(packet.properties.user_property)["group-id"]


def _gone_meanwhile() -> ViolationError:
    return violation(QueueRule.LETTER_LOST, "a dead letter came late", waited=True)
