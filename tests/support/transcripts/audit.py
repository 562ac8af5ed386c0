"""Counts that the broker keeps beside what they count, against what is there now.

A count that is a little wrong harms nobody for a day, and then refuses clients, or lets memory grow without a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from assay.reference_broker.core.connection import Connection
from assay.reference_broker.core.routing import SubscriptionTree
from assay.reference_broker.core.timers import TimerHeap
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import ALIAS_BYTES
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.retained import LEVEL_BYTES, RetainedStore
from assay.reference_broker.mqtt.sessions.session import FREE_IDS, ID_BYTES, Session, session_bytes
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.routing.message import HOLDER_BYTES, Message, memory_bytes, text_bytes

Count = tuple[str, object, object]
"""What is counted, the count that is kept, and what there is."""


def wrong_counts(node: BrokerNode, connections: Iterable[Connection]) -> list[str]:
    """Every count that is wrong; ``connections`` are those that are open."""
    broker = node.state
    some = [each for each in connections if isinstance(each, MqttConnection) and not each.is_over]
    counts = [
        *(count for session in broker.sessions.values() for count in _of_session(session)),
        *_of_all(broker),
        *_of_connections(broker, some),
        *_of_retained(broker.retained),
        *_of_timers(broker.timers),
        *_of_syncs(node.engine._agenda),
        *(count for queue in node.engine._registry.queues.values() for count in _of_queue(queue)),
    ]
    return [f"{what} is {kept}, but there are {found}" for what, kept, found in counts if kept != found]


def _of_session(session: Session) -> Iterator[Count]:
    name = f"session {session.client_id}"
    held = {id(each): each.size for each in session.in_flight.values()}
    yield f"{name}: in_flight_bytes", session.in_flight_bytes, sum(held.values())
    yield f"{name}: queued_bytes", session.queued_bytes, sum(memory_bytes(each.message) for each in session.queued)
    due: list[float | None] = [None, None]
    if session.connection is None:
        will, lost_at = session.will, session.disconnected_at
        due[0] = None if session.expiry_s == inf else lost_at + session.expiry_s
        due[1] = lost_at + will.delay_s if will is not None and will.delay_s < session.expiry_s else None
    timers = [session.expiry_timer, session.will_timer]
    kept = [None if timer is None or timer.callback is None else timer.deadline for timer in timers]
    yield f"{name}: when its end and its will are due", kept, due
    if session.connection is not None and session.queued and len(session.in_flight) < session.window:
        size = memory_bytes(session.queued[0].message)
        waits = bool(session.in_flight) and session.in_flight_bytes + size > session.max_in_flight_bytes
        yield f"{name}: messages that wait for nothing", 0, int(not waits)


def _of_all(broker: MqttBroker) -> Iterator[Count]:
    sessions = list(broker.sessions.values())
    waiting: dict[int, tuple[Message, int]] = {}
    for message in [each.message for session in sessions for each in session.queued] + [
        session.will.message for session in sessions if session.will is not None
    ]:
        waiting[id(message)] = message, waiting.get(id(message), (message, 0))[1] + 1
    for message, holders in waiting.values():
        yield f"a message on {message.topic}: holders", message.holders, holders
    used = sum(memory_bytes(message) + (holders - 1) * HOLDER_BYTES for message, holders in waiting.values())
    used += sum(session.in_flight_bytes + session_bytes(session.client_id) for session in sessions)
    used += sum(ID_BYTES * (session.ids_paid - FREE_IDS) for session in sessions)
    yield "bytes that sessions hold", broker.held.used, used
    filters = sum(session.subscription_bytes for session in sessions)
    yield "bytes of subscriptions", broker.filter_memory.used, filters
    leaving = [subscription for _, subscriptions in broker.leaving for subscription in subscriptions]
    yield "subscriptions of ended sessions", broker._leaving_count, len(leaving)
    subscribed = [each for session in sessions for each in session.subscriptions.values()] + leaving
    yield "subscriptions", broker.traffic.subscriptions, len(subscribed)
    shared = sum(each.share_name is not None for each in subscribed)
    yield "shared subscriptions", broker.traffic.shared_subscriptions, shared
    yield "connected", broker.traffic.connected, sum(session.connection is not None for session in sessions)
    ordinary = [each for each in subscribed if not each.topic_filter.startswith(("$queue/", "$dlq/"))]
    yield "subscriptions in the tree", _in_tree(broker.tree), len(ordinary)


def _in_tree(tree: SubscriptionTree) -> int:
    found, left = 0, [tree._root]
    while left:
        node = left.pop()
        found += len(node.subscribers) + sum(len(group.members) for group in node.groups.values())
        left += node.children.values()
    return found


def _of_connections(broker: MqttBroker, connections: list[MqttConnection]) -> Iterator[Count]:
    aliases = [topic for each in connections for topic in each.inbound._aliases.values()]
    yield "bytes of aliases", broker.alias_memory.used, sum(text_bytes(each) + ALIAS_BYTES for each in aliases)
    plans = sum(each.inbound._plan_bytes for each in connections)
    yield "bytes of plans", broker.plan_memory.used_bytes, plans
    waiting = sum(len(each._rest) - each._at for each in connections if each._rest is not None)
    yield "bytes that wait for a turn", broker.traffic.waiting_bytes, waiting
    unread = sum(each.noted_unread_bytes for each in connections)
    yield "bytes that nobody has read", broker.traffic.unread_bytes, unread
    partial = sum(len(each._partial) for each in connections)
    yield "bytes of packets that have begun", broker.partial_packets.used_bytes, partial


def _of_retained(store: RetainedStore) -> Iterator[Count]:
    messages, held_bytes, left = 0, 0, [store._root]
    while left:
        level = left.pop()
        if level.message is not None:
            messages += 1
            held_bytes += memory_bytes(level.message)
        held_bytes += LEVEL_BYTES + text_bytes(level.name) if level is not store._root else 0
        left += (level.children or {}).values()
    yield "retained messages", len(store), messages
    yield "bytes of retained messages", store.held_bytes, held_bytes


def _of_timers(timers: TimerHeap) -> Iterator[Count]:
    """Whoever is over waits for nothing."""
    owners = [getattr(timer.callback, "__self__", None) for _, _, timer in timers._entries]
    late = [owner.client_id for owner in owners if isinstance(owner, Connection) and owner.closing]
    yield "timers of closed connections", 0, len(late)


def _of_syncs(agenda: Agenda) -> Iterator[Count]:
    """Whatever is not on the disk is looked after: by the next sync, or the one under way."""
    for point in agenda.owners:
        if point._synced_log.needs_sync and point.failure is None and not point.is_syncing:
            yield (
                "logs that nobody will sync",
                0,
                int(point not in agenda.unsynced and point not in agenda.awaited_syncs),
            )


def _of_queue(queue: DurableQueue) -> Iterator[Count]:
    for group in queue.groups.values():
        name = f"group {group.group_id} of {queue.name}"
        places = list(group.every_place)
        passed = sum(place.passed for place in group.places) + sum(len(place.gone()) for place in places)
        yield f"{name}: passed", group.cursor_total, passed
        pending = [entry for place in places for entry in place.pending.values()]
        yield f"{name}: unsettled", group.unsettled, len(pending)
        waiting = [entry for entry in pending if entry.state is EntryState.WAITING]
        yield f"{name}: waiting", group.waiting_count, len(waiting)
        yield f"{name}: untried", group.untried_count, sum(not entry.delivery_count for entry in waiting)
        moving = sum(entry.state is EntryState.DEAD_LETTERING for entry in pending)
        yield f"{name}: on their way to the dead letters", group.moving_count, moving
        if group._counts_bytes:
            unsettled_bytes = sum(place.unsettled_bytes() for place in places)
            unwritten_bytes = sum(place.partition.unwritten_bytes for place in group.places)
            yield f"{name}: bytes", group.held_bytes, unsettled_bytes + unwritten_bytes
