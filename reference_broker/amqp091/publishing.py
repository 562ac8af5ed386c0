"""What a channel publishes: routes, returns, confirms, transactions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, cast

import msgspec

from assay.reference_broker.amqp091 import rights
from assay.reference_broker.amqp091.direct_replies import REPLY_TO, is_reply_name, name_of
from assay.reference_broker.amqp091.handles import ChannelHandle, Settlement
from assay.reference_broker.amqp091.messages import message_from
from assay.reference_broker.amqp091.names import DEFAULT_VHOST
from assay.reference_broker.amqp091.runs import Head, Way
from assay.reference_broker.amqp091.stream_commits import commit, committed_stream
from assay.reference_broker.amqp091.topology import TopologyLimits, mqtt_topic_of, routing_keys_of, stripped
from assay.reference_broker.amqp091.topology.routes import BCC
from assay.reference_broker.amqp091.transactions import SEMANTICS, Commit, Published, Transaction
from assay.reference_broker.amqp091.wire.content import NONE, BasicProperties, encode_header
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.frames import FRAME_OVERHEAD_BYTES, content_frames
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.queues import QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.messages.message_batch import MessageBatch
from assay.reference_broker.queues.messages.origin import Origin
from assay.reference_broker.routing.carried import as_mqtt_carries
from assay.reference_broker.routing.message import Message, changed
from assay.reference_broker.routing.remembered import Known

_MAX_KEYS: Final = TopologyLimits().max_routing_keys
_MOST_PLANS: Final = 4_096
"""Remembered of a channel."""
_PLAN_BYTES: Final = 512
_ROUTE_BYTES: Final = 64


class _Plan(NamedTuple):
    """What becomes of publishes that go the same way, as exchanges, queues and rights stand now."""

    exchange: str
    queues: tuple[str, ...]
    is_reply: bool
    """Some key may be a name for direct replies."""
    is_topical: bool
    stream: str
    """That they commit; empty = none."""
    is_plain: bool
    """Beside what they are published for nothing becomes of them."""
    properties: BasicProperties | None
    """With the name for direct replies that stands for the channel now; None = as they came."""


class _Run:
    """Publishes on their way to their queues, and what is decided of them."""

    __slots__ = ("by_route", "failed", "first_tag", "left", "messages", "origins")

    def __init__(self, first_tag: int) -> None:
        self.first_tag = first_tag
        """0 = nobody waits for confirms."""
        self.by_route: dict[tuple[str, ...], list[int]] = {}
        """Positions of those that go to these queues, whatever their heads."""
        self.messages: list[Message] = []
        self.origins: list[Origin | None] = []
        self.left = 1
        """Places in queues, and commits of streams, that are not decided; one more as long as others may come."""
        self.failed: set[int] = set()
        """Positions of those that some queue did not take."""


class Publishing:
    """The publishing half of a channel."""

    def __init__(self, channel: ChannelHandle) -> None:
        self._channel = channel
        self._confirms = False
        self._transaction: Transaction | None = None
        self._next_tag = 1
        self._floor = 1
        """All before it are answered."""
        self._beyond: dict[int, int] = {}
        """Tags above it that are answered: the first and behind the last."""
        memory = channel.connection.broker.engine.known
        self._plans: Known[Way | Head, _Plan] = Known(memory, _MOST_PLANS)
        self._basis: tuple[int, int, object] = (-1, -1, None)
        """Of what stands they were made."""
        self._answered: list[tuple[int, int, bool]] = []
        """Tags that are decided and not answered yet: the first, behind the last, and whether they failed."""

    # -- publishes -------------------------------------------------------------------------------------------------

    def publish(self, heads: Sequence[Head], bodies: Sequence[bytes], now: float) -> int:
        """Publishes in their order; returns how many the turn had room for, at least one.

        Raises :class:`AmqpError` for the first that is refused; those before it are on their way then.
        """
        run = _Run(self._next_tag if self._confirms else 0)
        self._forget_plans()
        try:
            self.take(run, heads, bodies, now)
        finally:
            if run.first_tag:
                self._next_tag += len(run.messages)
            self._enqueue(run, now)
        return len(run.messages)

    def take(self, run: _Run, heads: Sequence[Head], bodies: Sequence[bytes], now: float) -> None:
        """As many of them as the turn has room for. Raises :class:`AmqpError`."""
        broker, messages, origins = self._channel.connection.broker, run.messages, run.origins
        plans, by_route = self._plans.answers, run.by_route
        route: tuple[str, ...] | None = None
        positions: list[int] = []
        at, count = 0, len(heads)
        while at < count and (broker.work < MAX_WORK or not at):
            head = heads[at]
            plan = plans.get(head.goes_by) or self._plan(head)
            queues, like, first = plan.queues, head.like, at
            work = len(queues) >> 1
            if plan.is_plain and self._transaction is None and (queues or not head.way.mandatory):
                at += 1
                if like is None:
                    broker.work += work
                    messages.append(self._make(head, plan, bodies[first], now))
                    origins.append(head.origin)
                else:
                    while at < count and heads[at] is head:
                        at += 1
                    if work:
                        at = min(at, first + max(1, -(-(MAX_WORK - broker.work) // work)))
                        broker.work += work * (at - first)
                    for body in bodies[first:at]:
                        # All that it has is named, since a copy takes longer.
                        messages.append(
                            Message(
                                topic="",
                                payload=body,
                                publisher=like.publisher,
                                content_type=like.content_type,
                                response_topic=like.response_topic,
                                properties=like.properties,
                                written=head.written,
                            )
                        )
                        origins.append(head.origin)
            else:
                at += 1
                broker.work += work
                queues = self._take_alone(run, head, plan, bodies[first], now)
            if queues:
                if queues is not route and queues != route:
                    route = queues
                    positions = by_route.setdefault(queues, [])
                if at - first == 1:
                    positions.append(first)
                else:
                    positions += range(first, at)

    def _take_alone(self, run: _Run, head: Head, plan: _Plan, body: bytes, now: float) -> tuple[str, ...]:
        """One of which more becomes; returns the queues that it goes to at once. Raises :class:`AmqpError`."""
        if plan.is_reply:
            self._reply(head.way.routing_key, plan.properties or head.properties, body)
        message = self._make(head, plan, body, now)
        queues = self.go_elsewhere(run, head, plan, message, now)
        run.messages.append(message)
        run.origins.append(head.origin)
        return queues

    def _make(self, head: Head, plan: _Plan, body: bytes, now: float) -> Message:
        """A message of a head, the first of it perhaps. Raises :class:`AmqpError`."""
        publisher = self._channel.connection.client_id
        properties = plan.properties or head.properties
        message = message_from(properties, body, plan.exchange, head.way.routing_key, publisher, now)
        if plan.properties is None:
            message.written = head.written
            if not message.expires_at and head.origin is None:
                like = message
                if head.is_common:
                    like = head.like = changed(message, payload=b"")
                head.origin = Origin("", publisher, "", like, head.is_common)
        return message

    def go_elsewhere(self, run: _Run, head: Head, plan: _Plan, message: Message, now: float) -> tuple[str, ...]:
        """What else becomes of a message; returns the queues that it goes to at once. Raises :class:`AmqpError`."""
        connection, queues = self._channel.connection, plan.queues
        key, mandatory = head.way.routing_key, head.way.mandatory
        properties, body = plan.properties or head.properties, message.payload
        topical = self._for_topics(plan.exchange, key, message) if plan.is_topical else None
        if plan.stream:
            self._commit_stream(run, plan.stream, properties.headers or (), now)
        elif self._transaction is not None:
            back = partial(self.return_unrouted, plan.exchange, key, properties, body) if mandatory else None
            if queues or topical is not None or back is not None:
                self._transaction.add(Published(message, queues, topical, back), self._channel)
            return ()
        else:
            if topical is not None:
                # Nobody can say beforehand who listens.
                mandatory = not connection.broker.publish(topical, connection, now) and mandatory
            if mandatory and not queues:
                self.return_unrouted(plan.exchange, key, properties, body)
        return queues

    def _forget_plans(self) -> None:
        """Those of an earlier run, if anything that they were made of may be otherwise now."""
        connection, service = self._channel.connection, self._channel.service
        basis = service.version, connection.broker.engine.version, connection.grants
        if basis != self._basis:
            self._basis = basis
            self._plans.let_go()

    def _plan(self, head: Head) -> _Plan:
        """Raises :class:`AmqpError` where the client may not publish so."""
        channel, way, properties = self._channel, head.way, head.properties
        if way.immediate:
            raise AmqpError(Reply.NOT_IMPLEMENTED, "immediate=true", rule="basic.publish.immediate.01")
        name, routing_key, headers = stripped(way.exchange), way.routing_key, properties.headers or ()
        self.check_rights(name, routing_key, headers)
        user, own = properties.user_id, channel.connection.asserted_name
        if user is not None and user != own:
            text = f"user_id property set to '{user[:80]}' but authenticated user was '{own[:80]}'"
            raise AmqpError(Reply.PRECONDITION_FAILED, text, rule="rmq.user-id.validated")
        own_reply = None
        if properties.reply_to == REPLY_TO:
            own_reply = msgspec.structs.replace(properties, reply_to=name_of(channel.consuming))
        vhost, service = channel.vhost, channel.service
        queues = vhost.route(name, routing_key, headers).queues
        if [queue for queue in queues if not service.exists(vhost, queue)]:
            # They were deleted over another protocol, and their bindings are gone with them now.
            queues = vhost.route(name, routing_key, headers).queues
        is_reply = not name and (bool(headers) or is_reply_name(routing_key))
        is_topical = name == rights.TOPICS
        stream = "" if queues or name else committed_stream(routing_key)
        is_plain = not (is_reply or is_topical or stream)
        plan = _Plan(name, queues, is_reply, is_topical, stream, is_plain, own_reply)
        if not is_reply and own_reply is None and (head.goes_by is way or head.is_common):
            size = _PLAN_BYTES + _ROUTE_BYTES * len(queues)
            self._plans.remember(head.goes_by, plan, len(routing_key), size)
        return plan

    def _commit_stream(self, run: _Run, stream: str, headers: Table, now: float) -> None:
        """See :func:`commit`; it is part of no transaction."""
        position = len(run.messages)

        def committed(error: QueueError | None) -> None:
            if error is not None:
                run.failed.add(position)
            run.left -= 1
            if not run.left:
                self.decided(run)

        run.left += 1
        try:
            commit(self._channel, stream, headers, now, committed)
        except (AmqpError, QueueError):
            run.left -= 1
            raise

    def check_rights(self, exchange: str, routing_key: str, headers: Table) -> None:
        """Whether the client may publish there, with each of its keys; queues that came over MQTT are found by theirs.

        Raises :class:`AmqpError` (403, 406).
        """
        channel = self._channel
        connection, service, vhost = channel.connection, channel.service, channel.vhost
        if exchange and connection.grants is None:
            return
        for key in routing_keys_of(routing_key, headers, _MAX_KEYS) if headers else (routing_key,):
            if exchange:
                rights.check_exchange(connection, exchange, routing_key=key)
                continue
            if is_reply_name(key):
                # Who knows the name may reply.
                continue
            rights.check_queue(connection, key, read=False)
            service.exists(vhost, key)

    def _reply(self, routing_key: str, properties: BasicProperties, body: bytes) -> None:
        """Those keys that are names for direct replies lead there, and to no queue."""
        channel, headers = self._channel, properties.headers or ()
        if any(name == BCC for name, _ in headers):
            kept = tuple([field for field in headers if field[0] != BCC])
            properties = msgspec.structs.replace(properties, headers=kept or None)
        for key in dict.fromkeys(routing_keys_of(routing_key, headers, _MAX_KEYS)):
            if is_reply_name(key):
                channel.service.replies.deliver(channel.vhost.name, key, properties, body)

    def _for_topics(self, exchange: str, routing_key: str, message: Message) -> Message | None:
        """What of ``amq.topic`` goes to subscribers of MQTT; None = nothing does."""
        topic = mqtt_topic_of(routing_key) if exchange == rights.TOPICS else None
        if topic is None or self._channel.vhost.name != DEFAULT_VHOST:
            return None
        kept = message.properties
        is_persistent = kept is not None and kept.durable is True
        return changed(as_mqtt_carries(message), topic=topic, qos=int(is_persistent))

    def _enqueue(self, run: _Run, now: float) -> None:
        """Give them to their queues: to each its own in one piece, where it takes that."""
        by_queue: dict[str, list[int]] = {}
        for queues, positions in run.by_route.items():
            if positions:
                run.left += len(queues) * len(positions)
                for queue in queues:
                    others = by_queue.get(queue)
                    by_queue[queue] = positions if others is None else sorted(others + positions)
        self._channel.connection.unconfirmed += sum(map(len, by_queue.values()))
        batch: MessageBatch | None = None
        some: list[int] | None = None
        for queue, positions in by_queue.items():
            if positions is not some:
                # Mostly all that the queues of a fanout get.
                some, batch = positions, self._batch(run, positions)
            self._enqueue_to(queue, run, positions, batch, now)
        run.left -= 1
        if not run.left:
            self.decided(run)

    def _enqueue_to(self, queue: str, run: _Run, positions: list[int], batch: MessageBatch | None, now: float) -> None:
        channel = self._channel
        connection, service, vhost = channel.connection, channel.service, channel.vhost
        broker = connection.broker

        def part(some: Sequence[int]) -> Confirm:
            def confirmed(error: QueueError | None) -> None:
                connection.confirmed(len(some))
                if error is not None and error.code is not QueueErrorCode.UNKNOWN_QUEUE:
                    # A queue that is deleted meanwhile has done with it, and does not speak for the others.
                    run.failed.update([positions[each] for each in some])
                run.left -= len(some)
                if not run.left:
                    self.decided(run)

            return confirmed

        place = QueueAddress(queue=service.engine_name(vhost, queue))
        is_taken = batch is not None and broker.enqueue_batch(place, batch, connection, part, now)
        if not is_taken:
            for at, position in enumerate(positions):
                broker.enqueue(place, run.messages[position], None, connection, now, part((at,)))
        if broker.engine.is_pressed(place):
            connection.press()

    @staticmethod
    def _batch(run: _Run, positions: list[int]) -> MessageBatch | None:
        """These as one; None where some go by themselves."""
        messages, found = run.messages, run.origins
        if len(positions) != len(messages):
            messages, found = [messages[each] for each in positions], [found[each] for each in positions]
        first = found[0]
        is_alike = found.count(first) == len(found)
        if first is None or (not is_alike and None in found):
            return None
        origins = first if is_alike else cast(list[Origin], found)
        return MessageBatch(messages, [message.payload for message in messages], None, origins, {})

    def decided(self, run: _Run) -> None:
        """All that their queues say of them is known."""
        if not run.first_tag or not run.messages:
            return
        at = first = run.first_tag
        for position in sorted(run.failed):
            tag = first + position
            if tag > at:
                self._answered.append((at, tag, False))
            self._answered.append((tag, tag + 1, True))
            at = tag + 1
        if first + len(run.messages) > at:
            self._answered.append((at, first + len(run.messages), False))
        self._channel.connection.flush_later(self._channel)

    def return_unrouted(self, exchange: str, routing_key: str, properties: BasicProperties, body: bytes) -> None:
        """basic.publish.mandatory.01"""
        channel = self._channel
        channel.send("basic.return", int(Reply.NO_ROUTE), "NO_ROUTE", exchange, routing_key)
        connection = channel.connection
        header = header_of(len(body), properties, connection.frame_max_bytes)
        connection.send(content_frames(channel.number, header, body, connection.frame_max_bytes))

    # -- confirms ----------------------------------------------------------------------------------------------------

    def select_confirms(self, no_wait: bool, _now: float) -> None:
        if self._transaction is not None:
            raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from tx to confirm mode", rule=SEMANTICS)
        self._confirms = True
        if not no_wait:
            self._channel.send("confirm.select-ok")

    def flush(self) -> None:
        """End of a turn: what is decided is answered, as many at once as come one after the other."""
        if not self._answered or not self._channel.is_open:
            return
        channel, beyond = self._channel, self._beyond
        answered, self._answered = sorted(self._answered), []
        since = up_to = 0
        for first, end, failed in answered:
            if first == self._floor and not failed:
                since, up_to = since or first, end - 1
            else:
                if since:
                    channel.send("basic.ack", up_to, up_to > since)
                    since = 0
                for tag in range(first, end):
                    if failed:
                        channel.send("basic.nack", tag, False, False)
                    else:
                        channel.send("basic.ack", tag, False)
            if first == self._floor:
                self._floor = end
                while self._floor in beyond:
                    self._floor = beyond.pop(self._floor)
            else:
                beyond[first] = end
        if since:
            channel.send("basic.ack", up_to, up_to > since)

    # -- transactions ------------------------------------------------------------------------------------------------

    @property
    def transaction(self) -> Transaction | None:
        """The open one."""
        return self._transaction

    def settle_later(self, settlement: Settlement) -> None:
        """A settlement within the transaction."""
        assert self._transaction is not None
        self._transaction.add_settlement(settlement, self._channel)

    def select_tx(self, _now: float) -> None:
        if self._confirms:
            raise AmqpError(Reply.PRECONDITION_FAILED, "cannot switch from confirm to tx mode", rule=SEMANTICS)
        if self._transaction is None:
            self._transaction = Transaction()
        self._channel.send("tx.select-ok")

    def take_transaction(self) -> Transaction:
        """The open one; another begins. Raises :class:`AmqpError` (406)."""
        transaction = self._transaction
        if transaction is None:
            raise AmqpError(Reply.PRECONDITION_FAILED, "channel is not transactional", rule="tx.commit.transacted")
        self._transaction = Transaction()
        return transaction

    def commit(self, now: float) -> None:
        Commit(self._channel, self.take_transaction()).begin(now)

    def rollback(self, _now: float) -> None:
        transaction = self.take_transaction()
        transaction.give_room_back(self._channel)
        self._channel.consuming.take_back(transaction.settlements)
        self._channel.send("tx.rollback-ok")

    def end(self) -> None:
        """The channel is over: nothing is answered any more."""
        self._plans.let_go()
        self._answered.clear()
        if self._transaction is not None:
            self._transaction.give_room_back(self._channel)
            self._transaction = Transaction()


def header_of(size: int, properties: BasicProperties, max_bytes: int) -> bytes:
    """A content header in a frame of ``max_bytes``: it cannot be cut, so that headers which do not fit are left out."""
    if properties is NONE:
        return b"\x00\x3c\x00\x00%b\x00\x00" % size.to_bytes(8, "big")
    header = encode_header(size, properties)
    if len(header) > max_bytes - FRAME_OVERHEAD_BYTES:
        header = encode_header(size, msgspec.structs.replace(properties, headers=None))
    return header
