"""PUBLISH from a client: the publish flow's receiving half (5.0 section 4.3), with fast ways.

Packets that start with the same bytes (header, length, topic) form a run, which is found by comparing prefixes. Packets
of any topics and sizes that reach the same receivers are forwarded as one block, too: the very bytes, without their
packet ids (QoS 1 to QoS 0), or with other ones (see ``runs``). Everything else takes the general way, one at a time.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from assay.reference_broker.core.broker import MAX_WORK
from assay.reference_broker.core.routing import Route
from assay.reference_broker.mqtt.batches import runs
from assay.reference_broker.mqtt.batches.ack_runs import ACK_LEVEL
from assay.reference_broker.mqtt.batches.runs import AlikeRun, MixedRun
from assay.reference_broker.mqtt.connections import administration, handlers
from assay.reference_broker.mqtt.connections.publish_acks import ACK_STARTS, PublishAcks, settle_inbound
from assay.reference_broker.mqtt.connections.queue_batches import QueueBatches
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.mqtt.queue_topics.admin_topics import ADMIN_PREFIX
from assay.reference_broker.mqtt.queue_topics.publish_properties import wants_receipt
from assay.reference_broker.mqtt.queue_topics.served_topics import SERVED_PREFIXES
from assay.reference_broker.mqtt.queue_topics.transaction_topics import TRANSACTION_PREFIX
from assay.reference_broker.mqtt.sessions.session import LARGE_BYTES, MAX_PACKET_ID, Session
from assay.reference_broker.mqtt.wire.codec import decode_packet
from assay.reference_broker.mqtt.wire.errors import ProtocolError, Reason, rule_id
from assay.reference_broker.mqtt.wire.packets import V5, Publish
from assay.reference_broker.mqtt.wire.publish_encoder import check_response_topic, message_from
from assay.reference_broker.mqtt.wire.wire_types import decode_string, encode_variable_integer
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Stored, StoredAs, ignore
from assay.reference_broker.queues.messages.address import QUEUE_PREFIX
from assay.reference_broker.routing.message import Message, text_bytes
from assay.reference_broker.routing.topics import TooManyLevelsError, TopicError, is_sys_topic, validate_topic

if TYPE_CHECKING:
    from assay.reference_broker.core.routing import RouteEntry
    from assay.reference_broker.mqtt.connections.connection import MqttConnection

MAX_PLANS = 1_024
MAX_BLOCK = 4_096
"""Packets of different topics and sizes that are forwarded in one go."""
FEWEST_ALIKE = 8
"""Fewer packets of one topic and size are a block with others that are behind them."""
COMPARED_RECEIVERS = 32
"""Longer lists of receivers are not compared for each packet: they are the same where it is one list."""
MAX_PLAN_BYTES = 1024 * 1024
"""What the plans of one connection may take in memory; then they are made anew."""
_PLAN_BYTES = 320
"""What a plan takes beside its topic, with its places in tables."""
_CLAIM_BYTES = 16_384
"""Of this memory, the most that a connection claims at once."""
_RECEIVER_BYTES = 16
ALIAS_BYTES = 128
"""What a topic alias takes beside its topic."""
_UNLIMITED_BYTES = 1 << 32
_QOS_0_STARTS = [b"\x30" + encode_variable_integer(length) for length in range(16_384)]
"""The fixed header of a PUBLISH at QoS 0, by its remaining length."""
_QUEUE_START = QUEUE_PREFIX.encode()
_is_plain_level = re.compile(rb"[ !$-*,-.0-~\"]+").fullmatch
"""Printable ASCII without what topic names must not have, and without the separator."""
_ANY_LEVEL = "/\0"
"""Stands for a last level that no filter has; no topic has it either."""


class Plan:
    """How PUBLISH packets of one topic and QoS are served. ``targets`` is None where they must go the general way."""

    __slots__ = (
        "epoch",
        "is_lowered",
        "is_queue",
        "is_refused",
        "max_frame_bytes",
        "overhead_bytes",
        "route",
        "sessions_epoch",
        "targets",
        "topic",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.is_queue = topic[:1] == "$" and is_queue_topic(topic)
        self.overhead_bytes = 0
        """What its messages take in memory beside their payloads; 0 = not known yet."""
        self.is_refused = False
        """The general way says so."""
        self.max_frame_bytes = 0
        """Larger packets go the general way."""
        self.is_lowered = False
        """Published at QoS 1, and every receiver was granted QoS 0."""
        self.epoch = self.sessions_epoch = -1
        self.route: Route | None = None
        self.targets: list[MqttConnection] | None = None

    def go_as(self, other: Plan) -> None:
        """Its packets go where those of the other go, as long as that holds."""
        self.epoch, self.sessions_epoch, self.route = other.epoch, other.sessions_epoch, other.route
        self.targets, self.max_frame_bytes, self.is_lowered = other.targets, other.max_frame_bytes, other.is_lowered


_NO_PLANS: Final[tuple[dict[bytes, Plan], ...]] = ({}, {}, {})
"""What a connection has until it has plans to keep: most connections are idle, and are to take little memory."""
_NO_PLANS_BELOW: Final[tuple[dict[bytes, Plan | None], ...]] = ({}, {}, {})


class _Targets(NamedTuple):
    """Who gets the packets of a plan as they are, and as long as what this holds for."""

    entries: list[RouteEntry]
    sessions_epoch: int
    qos: int
    max_frame_bytes: int
    targets: list[MqttConnection] | None
    is_lowered: bool


class _Block(NamedTuple):
    """Packets that stand one behind the other, and where the parts of each are."""

    topics: list[int]
    """Where its topic begins, with its length."""
    topic_ends: list[int]
    ends: list[int]


class Inbound(PublishAcks):
    """What one client publishes."""

    def __init__(self, connection: MqttConnection) -> None:
        super().__init__(connection)
        self._broker = connection.broker
        self._traffic = connection.broker.traffic
        self._max_levels = connection.broker.config.mqtt.max_topic_levels
        self.max_payload_bytes = connection.broker.config.limits.max_payload_bytes or _UNLIMITED_BYTES
        self._aliases: dict[int, str] = {}
        self._alias_bytes = 0
        self._plans = _NO_PLANS
        """By QoS, then by the bytes of the topic."""
        self._plans_below = _NO_PLANS_BELOW
        """By QoS, then by the topic above: of the topics right below it whose last level no filter has."""
        self._is_full = False
        """It has as many plans as it may: no topic gets one of its own any more, until so many had none."""
        self._unkept = 0
        """Plans that were made since then, and not kept."""
        self._plan_bytes = 0
        self._plan_room = 0
        """What is left of these."""
        self._last_targets: _Targets | None = None
        self._queue_batches: QueueBatches | None = None
        """Made when its first packet to a queue comes."""
        self.refused = b""
        """A chunk with a run that no lane took, and where that run ends: its packets are taken one by one, and none of
        them is looked at for a run again."""
        self.refused_end = 0
        self.must_wait = False
        """Queues in memory hold too much: read no more until they do not."""

    def end(self) -> None:
        """The connection is over."""
        self._broker.waiting_publishers.pop(self._connection, None)
        if self._plan_bytes:
            self._forget_plans()
        if self._alias_bytes:
            self._broker.alias_memory.used -= self._alias_bytes
            self._alias_bytes = 0
            self._aliases = {}
        self.refused = b""
        self.forget_acks()

    def let_go(self) -> None:
        """Nobody asks it anything any more: leave no reference cycle."""
        del self._connection, self._queue_batches

    def _make_queue_batches(self) -> QueueBatches:
        batches = self._queue_batches = QueueBatches(self._connection, self)
        return batches

    def forget(self) -> None:
        """As :class:`Rememberer`: forget the plans."""
        for plans, below in zip(self._plans, self._plans_below, strict=True):
            plans.clear()
            below.clear()
        self._plan_bytes = self._plan_room = self._unkept = 0
        self._is_full = False
        self._last_targets = None

    def _forget_plans(self) -> None:
        self._broker.plan_memory.give_back(self, self._plan_bytes)
        self.forget()

    def _remember_plan(self, size: int) -> None:
        """Plans take so much more."""
        if size <= self._plan_room:
            self._plan_room -= size
            return
        if self._plan_bytes + size > MAX_PLAN_BYTES:
            self._forget_plans()
        # Some more than that at once: clients that publish to many topics need a new plan for most packets.
        more = max(size, min(self._plan_bytes, _CLAIM_BYTES, MAX_PLAN_BYTES - self._plan_bytes))
        self._broker.plan_memory.take(self, more)
        self._plan_bytes += more
        self._plan_room += more - size

    # -- the fast ways ------------------------------------------------------------------------------------------

    def on_bytes(self, header: int, data: bytes, start: int, body: int, end: int, now: float) -> int:
        """Handle the PUBLISH at ``start`` and perhaps its like behind it; returns where they end."""
        five = self._connection.version == V5
        qos = header >> 1 & 3
        topic_end = body + 2 + (data[body] << 8 | data[body + 1]) if end - body >= 2 else end + 1
        payload_at = topic_end + (2 if qos else 0) + (1 if five else 0)
        if header not in (0x30, 0x32, 0x34) or payload_at > end or (five and data[payload_at - 1]):
            if header == 0x32 and five and self._config.maximum_qos:
                ended = 0
                if data.endswith(ACK_LEVEL, body, topic_end):
                    ended = (self._queue_batches or self._make_queue_batches()).on_ack_run(
                        data, start, body, topic_end, end, now
                    )
                elif payload_at <= end and data.startswith(_QUEUE_START, body + 2):
                    ended = (self._queue_batches or self._make_queue_batches()).on_publishes(
                        data, start, body, topic_end, end, now
                    )
                if ended:
                    return ended
            packet = decode_packet(header, data, body, end, self._connection.version)
            assert isinstance(packet, Publish)
            self.on_publish(packet, now)
            return end
        # From here on: no DUP, no RETAIN, no properties.
        topic_bytes = data[body + 2 : topic_end]
        plan = self._plans[qos].get(topic_bytes)
        if plan is None or plan.epoch != self._broker.tree.epoch:
            plan = self._plan(topic_bytes, qos)
        stride = end - start
        targets = plan.targets
        # A remaining length that is not in its shortest form, which 3.1.1 does not demand, does not go to others.
        if targets is not None and stride <= plan.max_frame_bytes and (body - start == 2 or data[body - 1]):
            if plan.is_lowered:
                if not self._pending_acks and (run_end := self.forward_lowered(data, start, plan, five)):
                    return run_end
            elif not qos:
                prefix = data[start:payload_at]
                last = len(data) - stride
                run_end = end
                while run_end <= last and data.startswith(prefix, run_end):
                    run_end += stride
                count = (run_end - start) // stride
                payload_bytes = count * (end - payload_at)
                if run_end < len(data) and data[run_end] == 0x30:
                    block = self._block(data, run_end, 0x30, plan, five)
                    if block.ends:
                        count += len(block.ends)
                        payload_bytes += sum(block.ends) - sum(block.topic_ends) - five * len(block.ends)
                        run_end = block.ends[-1]
                self.forward(data[start:run_end], count, payload_bytes, targets)
                return run_end
            elif data is not self.refused or start >= self.refused_end:
                run, run_end = self.find_run(data, start, topic_end, payload_at, end, plan)
                if run is not None and self._forward_run(targets, qos, run):
                    return run_end
                self.refused, self.refused_end = data, run_end
        elif (
            plan.is_queue
            and qos == 1
            and (
                run_end := (self._queue_batches or self._make_queue_batches()).on_publishes(
                    data, start, body, topic_end, end, now
                )
            )
        ):
            return run_end
        self.on_plain(plan, qos, data, topic_end, payload_at, end, now)
        return end

    def find_run(
        self, data: bytes, start: int, topic_end: int, payload_at: int, end: int, plan: Plan
    ) -> tuple[AlikeRun | MixedRun | None, int]:
        """QoS 1 and 2: the packets from ``start`` on that go where the first goes, and where they end; None where it is
        alone, or goes the general way with those behind it."""
        five = self._connection.version == V5
        prefix, stride = data[start:topic_end], end - start
        # A longer run than any window takes is not looked for.
        last = min(len(data) - stride, start + MAX_PACKET_ID * stride)
        run_end = end
        while run_end <= last and data.startswith(prefix, run_end):
            run_end += stride
        is_last = data[run_end : run_end + 1] != data[start : start + 1]
        if run_end - start >= (2 if is_last else FEWEST_ALIKE) * stride:
            if five and any(data[payload_at - 1 : run_end : stride]):
                # Some have properties.
                return None, run_end
            return AlikeRun(plan.topic, data[start:run_end], stride, topic_end - start, payload_at - start), run_end
        _, topic_ends, ends = self._block(data, start, data[start], plan, five)
        if len(ends) < 2:
            return None, end
        skipped = payload_at - topic_end
        run = MixedRun(data[start : ends[-1]], [at - start for at in topic_ends], [at - start for at in ends], skipped)
        return run, ends[-1]

    def _block(self, data: bytes, position: int, header: int, plan: Plan, five: bool) -> _Block:
        """Packets from ``position`` on, of any topics and sizes, that this plan's receivers get as they get its own:
        those that start with ``header`` and have no properties."""
        size, epoch, targets, is_lowered = len(data), self._broker.tree.epoch, plan.targets, plan.is_lowered
        assert targets is not None
        is_compared = len(targets) <= COMPARED_RECEIVERS
        qos = header >> 1 & 3
        plan_of = self._plans[qos].get
        id_bytes = 2 if header & 6 else 0
        topics: list[int] = []
        topic_ends: list[int] = []
        ends: list[int] = []
        while size - position > 4 and data[position] == header and len(ends) < MAX_BLOCK:
            body = position + 2
            length = data[position + 1]
            if length >= 0x80:
                digit = data[body]
                body += 1
                if not 0 < digit < 0x80:
                    # Longer than 16 383 bytes, or not in its shortest form.
                    break
                length = length & 0x7F | digit << 7
            end = body + length
            if end > size or length < 2:
                break
            topic_end = body + 2 + (data[body] << 8 | data[body + 1])
            if topic_end + id_bytes + five > end:
                break
            topic = data[body + 2 : topic_end]
            other = plan_of(topic)
            if other is None and self._is_full:
                other = self._plan_below(topic, qos)
            if other is None or other.epoch != epoch:
                if self._broker.work >= MAX_WORK:
                    break
                self._broker.work += 1
                try:
                    other = self._plan(topic, qos)
                except ProtocolError:
                    # The general way says what is wrong.
                    break
            if (
                end - position > other.max_frame_bytes
                or (other.targets is not targets and not (is_compared and other.targets == targets))
                or other.is_lowered is not is_lowered
                or (five and data[topic_end + id_bytes])
            ):
                break
            topics.append(body)
            topic_ends.append(topic_end)
            ends.append(end)
            position = end
        self._broker.work += len(ends) >> 4
        return _Block(topics, topic_ends, ends)

    def forward_lowered(self, data: bytes, start: int, plan: Plan, five: bool) -> int:
        """QoS 1 to receivers that were granted QoS 0: the bytes without packet ids.

        Returns where that ended; 0: nothing was done, take the general way.
        """
        assert plan.targets is not None
        topics, topic_ends, ends = self._block(data, start, 0x32, plan, five)
        ids = [data[at : at + 2] for at in topic_ends]
        count = ids.index(b"\0\0") if b"\0\0" in ids else len(ids)
        if not count:
            return 0
        parts: list[bytes] = []
        payload_bytes = 0
        for topic_at, topic_end, end in zip(topics[:count], topic_ends, ends, strict=False):
            parts += (_QOS_0_STARTS[end - topic_at - 2], data[topic_at:topic_end], data[topic_end + 2 : end])
            payload_bytes += end - topic_end
        self.forward(b"".join(parts), count, payload_bytes - (2 + five) * count, plan.targets)
        self.acknowledge(runs.acknowledgements(ACK_STARTS[1], b"".join(ids[:count])), count)
        return ends[count - 1]

    def forward(self, block: bytes, count: int, payload_bytes: int, targets: list[MqttConnection]) -> None:
        """QoS 0: ``count`` packets with so many bytes of payload, to all of these."""
        traffic = self._traffic
        traffic.publishes_received += count
        traffic.payload_bytes_received += payload_bytes
        self._broker.published += count
        if targets:
            dropped = traffic.dropped
            for target in targets:
                target.forward(block, count)
            receivers = len(targets)
            if receivers >= 32:
                self._broker.work += receivers >> 5
            sent = count * receivers - (traffic.dropped - dropped)
            traffic.publishes_sent += sent
            # Who has no room loses the whole block.
            traffic.payload_bytes_sent += sent // count * payload_bytes

    def _forward_run(self, targets: list[MqttConnection], qos: int, run: AlikeRun | MixedRun) -> bool:
        """QoS 1 and 2: the bytes with packet ids of the receiver's. False: nothing was done, take the general way."""
        connection = self._connection
        session = connection.session
        assert session is not None
        broker = self._broker
        count, ids = run.count, run.ids
        if broker.room_bytes is not None:
            broker.room_bytes -= run.size
            if broker.room_bytes < 0:
                # What needs room on the disk is refused, one by one.
                return False
        inbound: list[int] = []
        if b"\0" in ids[0::2] and 0 in runs.numbers(ids):
            return False
        if (qos == 2 or self._pending_acks) and not self.room_for(count):
            return False
        if qos == 2:
            inbound = runs.numbers(ids)
            known = session.inbound_qos2
            if not known.keys().isdisjoint(inbound) or len(set(inbound)) < count:
                return False
            if len(known) + count > session.ids_paid and not session.pays_for_ids(len(known) + count):
                return False
        if not targets and connection.version == V5:
            return False
        if run.size >= count * LARGE_BYTES and run.size * len(targets) > self._config.turn_bytes:
            # One by one, until this turn has sent enough.
            return False
        starts = [target.outbound.can_send_run(run) for target in targets]
        if not all(starts):
            return False
        for target, first in zip(targets, starts, strict=True):
            target.outbound.send_run(run, qos, first, connection.client_id)
        if qos == 2:
            session.inbound_qos2.update(dict.fromkeys(inbound, True))
            self._left_over.difference_update(inbound)
        traffic = self._traffic
        sent = count * len(starts)
        self._broker.work += sent >> 6
        traffic.publishes_received += count
        traffic.payload_bytes_received += run.payload_bytes
        traffic.publishes_sent += sent
        traffic.payload_bytes_sent += len(starts) * run.payload_bytes
        self._broker.published += count
        self.acknowledge(runs.acknowledgements(ACK_STARTS[qos], ids), count * (qos == 1))
        return True

    def _plan(self, topic_bytes: bytes, qos: int) -> Plan:
        """The plan of a topic, as it is now. Raises :class:`ProtocolError`."""
        plan = self._plans[qos].get(topic_bytes)
        if plan is None:
            plan = self._new_plan(topic_bytes, qos)
        if plan.epoch != self._broker.tree.epoch:
            self.renew(plan, qos)
        return plan

    def _new_plan(self, topic_bytes: bytes, qos: int) -> Plan:
        topic = decode_string(topic_bytes, self._connection.version)
        plan = Plan(topic)
        below = self._plan_below(topic_bytes, qos) if self._is_full else None
        if below is not None:
            plan.go_as(below)
        else:
            self.check_topic(topic)
            if qos:
                self.check_flags(qos, retain=False)
            if len(topic) >= self._max_levels and self.is_too_deep(topic):
                plan.is_refused, plan.is_queue = True, False
        if self._is_full:
            self._unkept += 1
            if self._unkept < MAX_PLANS:
                return plan
            self._forget_plans()
        self._pay_for_plan(topic_bytes)
        if self._plans is _NO_PLANS:
            self._plans = ({}, {}, {})
        self._plans[qos][topic_bytes] = plan
        self._is_full = sum(map(len, self._plans)) >= MAX_PLANS
        return plan

    def _pay_for_plan(self, topic_bytes: bytes) -> None:
        # Its key and its topic, whose characters may take four bytes each.
        size = _PLAN_BYTES + (2 if topic_bytes.isascii() else 5) * len(topic_bytes)
        if size <= self._plan_room:
            self._plan_room -= size
        else:
            self._remember_plan(size)

    def _plan_below(self, topic_bytes: bytes, qos: int) -> Plan | None:
        """The plan of a topic that nobody may have sent before, as of all right below the topic above it: they go where
        each other goes, since no filter has their last levels. None where more is to be asked."""
        above, _, level = topic_bytes.rpartition(b"/")
        if not above or not _is_plain_level(level) or self._broker.tree.names(level.decode()):
            return None
        if self._connection.grants is not None or self._broker.asks_for_topics:
            # These ask for the whole topic.
            return None
        plans = self._plans_below[qos]
        plan = plans.get(above)
        is_known = plan is not None or above in plans
        if not is_known or (plan is not None and plan.epoch != self._broker.tree.epoch):
            if self._broker.work >= MAX_WORK:
                return None
            self._broker.work += 1
            plan = plan if is_known else self._new_plan_below(above, qos)
            if plan is not None:
                self.renew(plan, qos)
        return plan

    def _new_plan_below(self, above: bytes, qos: int) -> Plan | None:
        try:
            topic = decode_string(above, self._connection.version)
            self.check_topic(topic)
            self.check_flags(qos, retain=False)
        except ProtocolError:
            # The general way says what is wrong.
            return None
        if sum(map(len, self._plans_below)) >= MAX_PLANS:
            self._forget_plans()
        plan = None if self.is_too_deep(topic + _ANY_LEVEL) else Plan(topic + _ANY_LEVEL)
        self._pay_for_plan(above)
        if self._plans_below is _NO_PLANS_BELOW:
            self._plans_below = ({}, {}, {})
        self._plans_below[qos][above] = plan
        return plan

    def renew(self, plan: Plan, qos: int) -> None:
        """Find out whether packets of this plan may be forwarded as they are, and to whom."""
        connection = self._connection
        tree = self._broker.tree
        route = tree.route(plan.topic)
        if tree.walked:
            self._broker.work += tree.take_cost()
        plan.epoch = tree.epoch
        if route is plan.route and plan.sessions_epoch == tree.sessions_epoch:
            return  # only subscriptions that do not concern this topic have changed
        plan.route, plan.sessions_epoch = route, tree.sessions_epoch
        plan.targets = None
        if self._broker.tracer is not None or plan.topic[0] == "$":
            # The general way looks at the payload itself.
            return
        if plan.is_refused or route.groups or self._broker.is_taken(plan.topic):
            return
        if connection.grants is not None and not connection.grants.may_publish(plan.topic):
            return
        last = self._last_targets
        if (
            last is None
            or last.entries is not route.entries
            or last.sessions_epoch != tree.sessions_epoch
            or last.qos != qos
        ):
            last = self._last_targets = self._targets_of(route, qos)
        # Topics that nobody has sent before mostly go where others of their kind went.
        plan.targets, plan.max_frame_bytes, plan.is_lowered = last.targets, last.max_frame_bytes, last.is_lowered

    def _targets_of(self, route: Route, qos: int) -> _Targets:
        """Who gets packets of a route as they are."""
        connection = self._connection
        sessions_epoch = self._broker.tree.sessions_epoch
        targets: list[MqttConnection] = []
        max_frame_bytes = min(self.max_payload_bytes, self._config.max_packet_bytes)
        lowered = 0
        for merged in route.entries:
            entry = merged.own if merged.subscriber is connection.session else merged
            if entry is None:
                continue
            target = entry.subscriber.connection
            if (
                target is None
                or entry.identifiers
                or (entry.qos < qos and qos == 2)
                or not isinstance(target, type(connection))
                or target.version != connection.version
            ):
                return _Targets(route.entries, sessions_epoch, qos, 0, None, False)
            lowered += entry.qos < qos
            targets.append(target)
            max_frame_bytes = min(max_frame_bytes, target.max_packet_out)
        if lowered not in (0, len(targets)) or (lowered and connection in targets):
            # To who publishes them, acknowledgements and messages come in turn.
            return _Targets(route.entries, sessions_epoch, qos, 0, None, False)
        if targets:
            self._remember_plan(_RECEIVER_BYTES * len(targets))
        return _Targets(route.entries, sessions_epoch, qos, max_frame_bytes, targets, bool(lowered))

    # -- the general way -----------------------------------------------------------------------------------------

    def on_plain(
        self, plan: Plan, qos: int, data: bytes, topic_end: int, payload_at: int, end: int, now: float
    ) -> None:
        """A PUBLISH without flags and properties."""
        self._traffic.publishes_received += 1
        self._traffic.payload_bytes_received += end - payload_at
        overhead_bytes = plan.overhead_bytes
        message = Message(
            topic=plan.topic,
            payload=data[payload_at:end],
            qos=qos,
            publisher=self._connection.client_id,
            memory_bytes=overhead_bytes + end - payload_at if overhead_bytes else 0,
        )
        if not qos:
            self.publish_qos0(message, now)
            return
        packet_id = data[topic_end] << 8 | data[topic_end + 1]
        if not packet_id:
            raise self._no_packet_id()
        if qos == 1 or not self.is_repeated(packet_id):
            self.publish_confirmed(message, packet_id, now)
        if not overhead_bytes and message.memory_bytes:
            # Whoever holds messages has asked how large this one is.
            plan.overhead_bytes = message.memory_bytes - (end - payload_at)

    def on_publish(self, packet: Publish, now: float) -> None:
        """Any PUBLISH."""
        self._traffic.publishes_received += 1
        self._traffic.payload_bytes_received += len(packet.payload)
        topic = self.resolve_topic(packet)
        properties = packet.properties
        self.check_flags(packet.qos, retain=packet.retain)
        if properties.subscription_identifier:
            raise ProtocolError("a client must not send subscription identifiers", "MQTT-3.3.4-6")
        check_response_topic(properties)
        if packet.qos == 2 and self.is_repeated(packet.packet_id):
            return
        message = message_from(
            topic, packet.payload, packet.qos, packet.retain, properties, self._connection.client_id, now
        )
        if packet.qos == 0:
            self.publish_qos0(message, now)
        else:
            self.publish_confirmed(message, packet.packet_id, now)

    def check_flags(self, qos: int, *, retain: bool) -> None:
        version = self._connection.version
        if qos > self._config.maximum_qos:
            broken = rule_id(version, "MQTT-3.3.5-2", "MQTT-3.2.2-11")
            raise ProtocolError(f"QoS {qos} is not supported here", broken, Reason.QOS_NOT_SUPPORTED)
        if retain and not self._config.retain_available:
            broken = rule_id(version, "MQTT-3.3.5-2", "MQTT-3.2.2-14")
            raise ProtocolError("retained messages are not supported here", broken, Reason.RETAIN_NOT_SUPPORTED)

    def check_topic(self, topic: str) -> None:
        """Raises :class:`ProtocolError` for what is no topic name. One with too many levels breaks no rule of MQTT: it
        is refused like others that may not be published to."""
        try:
            validate_topic(topic, max_levels=self._max_levels)
        except TooManyLevelsError:
            return
        except TopicError as error:
            raise ProtocolError(str(error), error.statement, Reason.TOPIC_NAME_INVALID) from error

    def is_too_deep(self, topic: str) -> bool:
        """Over our limit of levels."""
        return topic.count("/") >= self._max_levels

    def resolve_topic(self, packet: Publish) -> str:
        alias = packet.properties.topic_alias
        if alias is None:
            self.check_topic(packet.topic)
            return packet.topic
        if not 0 < alias <= self._config.topic_alias_maximum:
            maximum = self._config.topic_alias_maximum
            statement = "MQTT-3.3.2-8" if alias == 0 else "MQTT-3.3.2-9" if maximum else "MQTT-3.2.2-18"
            raise ProtocolError(f"topic alias {alias} is not allowed", statement, Reason.TOPIC_ALIAS_INVALID)
        if packet.topic:
            self.check_topic(packet.topic)
            self.set_alias(alias, packet.topic)
        elif alias not in self._aliases:
            raise ProtocolError(f"topic alias {alias} was never set", "MQTT-3.3.2-7")
        return self._aliases[alias]

    def set_alias(self, alias: int, topic: str) -> None:
        """Have an alias stand for a topic from here on. Raises :class:`ProtocolError` (QUOTA_EXCEEDED)."""
        known = self._aliases.get(alias)
        if known == topic:
            return
        more = text_bytes(topic) + ALIAS_BYTES - (0 if known is None else text_bytes(known) + ALIAS_BYTES)
        memory = self._broker.alias_memory
        if more > 0 and not memory.admits(self._alias_bytes, more):
            text = "the topic aliases of all clients take too much memory"
            raise ProtocolError(text, "MQTT-4.13.2-1", Reason.QUOTA_EXCEEDED)
        memory.used += more
        self._alias_bytes += more
        self._aliases[alias] = topic

    def publish_qos0(self, message: Message, now: float) -> None:
        """At most once: what may not be published is dropped, as is a retained message over the limit."""
        grants = self._connection.grants
        topic = message.topic
        if (topic[:1] == "$" and is_sys_topic(topic)) or (grants is not None and not grants.may_publish(topic)):
            return
        if len(message.payload) > self.max_payload_bytes or topic.count("/") >= self._max_levels:
            self._traffic.dropped += 1
            return
        if topic.startswith(ADMIN_PREFIX):
            administration.request(self._connection, message, now, ignore)
            return
        if topic.startswith(TRANSACTION_PREFIX):
            administration.request_transaction(self._connection, message, now, [], ignore)
            return
        with contextlib.suppress(QueueError):
            self._broker.publish(message, self._connection.session, now)

    def publish_confirmed(self, message: Message, packet_id: int, now: float) -> None:
        """Publish at QoS 1 or 2; the acknowledgement leaves when the broker has taken responsibility."""
        connection = self._connection
        session = connection.session
        assert session is not None
        qos = message.qos
        if qos == 2 or self._pending_acks:
            self.check_receive_maximum(session)
        has_room = True
        if qos == 2:
            has_room = session.pays_for_ids(len(session.inbound_qos2) + 1)
            session.inbound_qos2[packet_id] = False
        grants = connection.grants
        topic = message.topic
        allowed = grants is None or grants.may_publish(topic)
        fits = len(message.payload) <= self.max_payload_bytes and topic.count("/") < self._max_levels
        error: QueueError | None = None
        matched = False
        try:
            if not (allowed and fits and has_room):
                raise self._refusal(topic, allowed=allowed, fits=fits)
            if topic[:1] == "$":
                if topic.startswith(SERVED_PREFIXES):
                    self._publish_to_queue(session, message, packet_id, now)
                    return
                if is_sys_topic(topic):
                    raise self._refusal(topic, allowed=True, fits=True)
            matched = self._broker.publish(message, session, now)
        except QueueError as refused:
            error = refused.bare()
        if qos == 2:
            settle_inbound(session, packet_id, error)
        data = handlers.acknowledgement(connection, qos, packet_id, error, matched=matched)
        if data is None:
            connection.close_now(now)
        elif self._pending_acks:
            self._wait(data, int(qos == 1))
        else:
            connection.send(data)

    def _refusal(self, topic: str, *, allowed: bool, fits: bool) -> QueueError:
        """Why a message may not be published."""
        if is_sys_topic(topic):
            return QueueError(QueueErrorCode.NOT_ALLOWED, "clients may not publish to $SYS topics")
        if not allowed:
            return QueueError(QueueErrorCode.NOT_ALLOWED, "the access rules do not allow this topic")
        if self.is_too_deep(topic):
            text = f"a topic name may have at most {self._max_levels} levels here"
            return QueueError(QueueErrorCode.BAD_ADDRESS, text)
        if not fits:
            # Not 0x95, which PUBACK does not have and which is about Maximum Packet Size (5.0 section 3.4.2.1).
            return QueueError(QueueErrorCode.TOO_LARGE, f"a payload has at most {self.max_payload_bytes} bytes here")
        return QueueError(QueueErrorCode.LIMIT, "the packet ids that are not released take too much memory")

    def _publish_to_queue(self, session: Session, message: Message, packet_id: int, now: float) -> None:
        qos = message.qos
        slot = self._wait(None, int(qos == 1))
        connection = self._connection
        told: list[tuple[str, str]] = []
        on_stored: Stored | None = None
        if message.user_properties and connection.version == V5 and wants_receipt(message.user_properties):

            def on_stored(kind: StoredAs, stored_id: str) -> None:
                told.append((kind.value, stored_id))

        def confirmed(error: QueueError | None) -> None:
            if qos == 2:
                settle_inbound(session, packet_id, error)
            if session.connection is not connection:
                return
            slot.data = handlers.acknowledgement(connection, qos, packet_id, error, matched=True, told=tuple(told))
            if slot.data is None:
                connection.close_now(self._broker.now)
            elif self._pending_acks[0] is slot:
                self._release_acks()

        if message.topic.startswith(ADMIN_PREFIX):
            administration.request(connection, message, now, confirmed)
        elif message.topic.startswith(TRANSACTION_PREFIX):
            administration.request_transaction(connection, message, now, told, confirmed)
        else:
            self._broker.publish_to_queue(message, session, now, confirmed, on_stored)
        memory = self._broker.engine.memory
        if memory is None or not memory.pressed or session.consumers or connection.closing:
            return
        if self._broker.is_pressed(message.topic, session):
            # One that consumes as well must be heard: its settlements make room. Its publishes are refused in the end.
            self.must_wait = True
            self._broker.waiting_publishers[connection] = None
