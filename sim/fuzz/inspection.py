"""The broker from inside: bounds that must hold at any time, and what must be left when everybody has gone.

The only part of the fuzzer that knows the broker's private parts.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from math import inf

import msgspec

from assay.reference_broker.core.routing import SubscriptionTree, subscription_bytes
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import ALIAS_BYTES
from assay.reference_broker.mqtt.connections.phase import Phase
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.mqtt.sessions.retained import LEVEL_BYTES, RetainedStore
from assay.reference_broker.mqtt.sessions.session import Released, Session, session_bytes
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.queues.groups.pending import EntryState
from assay.reference_broker.routing.message import HOLDER_BYTES, Message, memory_bytes, text_bytes
from assay.sim.fuzz.failure import FuzzFailureError

_MAX_PLANS = 1_024
_ACKS_OF_ONE_SEND = 512
_BYTES_OF_ONE_SEND = 512 * 1024
_TIMERS_OF_A_NODE = 4


def require(condition: bool, signature: str, message: str) -> None:
    """Raises :class:`FuzzFailureError`."""
    if not condition:
        raise FuzzFailureError(signature, message)


def check_connection(connection: MqttConnection, *, inherited: int = 0) -> None:
    """Bounds of one connection and its session. Raises :class:`FuzzFailureError`.

    ``inherited``: QoS 2 messages that earlier connections of the session left unreleased. They do not count for the
    quota, which starts anew with each connection (5.0 section 4.9); 3.1.1 has none.
    """
    config = connection.broker.config.mqtt
    partial = len(connection._partial)
    # While a password is checked, or earlier input waits for its turn, what follows waits: all of one send, since the
    # driver then reads no more.
    waits = connection.phase is Phase.VERIFYING or connection._rest is not None
    most = config.max_packet_bytes + (_BYTES_OF_ONE_SEND if waits else 0)
    require(partial <= most, "bound: partial packet", f"{partial} bytes are kept")
    aliases = len(connection.inbound._aliases)
    alias_bytes = sum(text_bytes(topic) + ALIAS_BYTES for topic in connection.inbound._aliases.values())
    require(alias_bytes == connection.inbound._alias_bytes, "alias bytes miscounted", f"{alias_bytes}")
    require(aliases <= config.topic_alias_maximum, "bound: aliases", f"{aliases} aliases")
    plans = sum(map(len, connection.inbound._plans))
    require(plans <= _MAX_PLANS, "bound: plans", f"{plans} plans")
    unconfirmed = connection.inbound.unconfirmed
    most = 4 * config.receive_maximum + _ACKS_OF_ONE_SEND
    require(unconfirmed <= most, "bound: unconfirmed", f"{unconfirmed} acknowledgements wait")
    if connection.phase is Phase.CLOSED:
        require(not partial and not unconfirmed, "closed but not empty", f"{partial} bytes, {unconfirmed} waiting")
        session = connection.session
        require(session is None or session.connection is not connection, "closed but attached", connection.client_id)
    elif connection.session is not None:
        check_session(connection.session, connection)
        unreleased = unreleased_by(connection)
        most = config.receive_maximum + inherited
        require(connection.version < 5 or unreleased <= most, "bound: receive maximum", f"{unreleased} unreleased")


def unreleased_by(connection: MqttConnection) -> int:
    """QoS 2 messages that the client has not released."""
    return len(connection.session.inbound_qos2) if connection.session is not None else 0


def in_flight_bytes(session: Session) -> int:
    """What a session has in flight, found by looking at all of it."""
    return sum(outgoing.size for outgoing in dict.fromkeys(session.in_flight.values()))


def held_bytes(sessions: Iterable[Session]) -> int:
    """What all sessions hold, found by looking at all of it."""
    total = 0
    holders = Counter[int]()
    messages: dict[int, Message] = {}
    for session in sessions:
        total += in_flight_bytes(session) + session_bytes(session.client_id)
        held = [outgoing.message for outgoing in session.queued]
        if session.will is not None:
            held.append(session.will.message)
        for message in held:
            messages[id(message)] = message
            holders[id(message)] += 1
    return total + sum(memory_bytes(message) + HOLDER_BYTES * (holders[key] - 1) for key, message in messages.items())


def retained_bytes(store: RetainedStore) -> int:
    """What retained messages and the levels of their topics take, found by walking the tree."""
    size, stack = 0, [store._root]
    while stack:
        level = stack.pop()
        size += 0 if level.message is None else memory_bytes(level.message)
        children = level.children or {}
        size += sum(LEVEL_BYTES + text_bytes(name) for name in children)
        stack.extend(children.values())
    return size


def check_session(session: Session, connection: MqttConnection | None) -> None:
    """Bounds of one session. Raises :class:`FuzzFailureError`."""
    queued = len(session.queued)
    require(queued <= session.max_queued, "bound: queued messages", f"{queued} messages")
    size = sum(memory_bytes(outgoing.message) for outgoing in session.queued)
    require(size == session.queued_bytes, "queued bytes miscounted", f"{size} are {session.queued_bytes}")
    require(size <= session.max_queued_bytes, "bound: queued bytes", f"{size} bytes")
    size = in_flight_bytes(session)
    require(size == session.in_flight_bytes, "bytes in flight miscounted", f"{size} are {session.in_flight_bytes}")
    if connection is not None:
        limits = connection.broker.config.mqtt
        waiting = dict(session.unsent)
        flying = sum(
            not isinstance(outgoing, Released) and waiting.get(packet_id) is not outgoing
            for packet_id, outgoing in session.in_flight.items()
        )
        most = session.receive_maximum
        require(flying <= most, "bound: in flight", f"{flying} in a window of {most}")
        subscriptions = len(session.subscriptions)
        most = limits.max_subscriptions_per_client
        require(subscriptions <= most, "bound: subscriptions", f"{subscriptions} subscriptions")


def tree_size(tree: SubscriptionTree) -> tuple[int, int]:
    """(nodes below the root, subscriptions)."""
    nodes = subscriptions = 0
    stack = [tree._root]
    while stack:
        node = stack.pop()
        nodes += len(node.children)
        subscriptions += len(node.subscribers) + sum(len(group.members) for group in node.groups.values())
        stack.extend(node.children.values())
    return nodes, subscriptions


def live_timers(node: BrokerNode) -> int:
    """Timers that wait, the cancelled ones not counted."""
    return sum(entry[2].callback is not None for entry in node.state.timers._entries)


def check_groups(engine: QueueEngine) -> None:
    """What groups count is what they have. Raises :class:`FuzzFailureError`."""
    for queue in engine._queues.values():
        for group in queue.groups.values():
            entries = [entry for place in group.every_place for entry in place.pending.values()]
            counted, found = group.unsettled, len(entries)
            require(counted == found, "unsettled miscounted", f"{group.group_id}: {found} are {counted}")
            counted, found = group.waiting_count, sum(entry.state is EntryState.WAITING for entry in entries)
            require(counted == found, "waiting miscounted", f"{group.group_id}: {found} are {counted}")


def check_node(node: BrokerNode, open_connections: int) -> None:
    """What must add up in a whole broker, at any time. Raises :class:`FuzzFailureError`."""
    state = node.state
    check_groups(node.engine)
    sessions = list(state.sessions.values())
    count = node.connection_count
    require(count == open_connections, "connections miscounted", f"{count} are {open_connections}")
    connected = sum(session.connection is not None for session in sessions)
    traffic = state.traffic
    require(traffic.connected == connected, "clients miscounted", f"{connected} are {traffic.connected}")
    filters = [(name, entry) for session in sessions for name, entry in session.subscriptions.items()]
    require(traffic.subscriptions == len(filters), "subscriptions miscounted", f"{len(filters)}")
    shared = sum(entry.share_name is not None for _, entry in filters)
    require(traffic.shared_subscriptions == shared, "shared subscriptions miscounted", f"{shared}")
    held = held_bytes(sessions)
    require(held == state.held.used, "bytes held miscounted", f"{held} are {state.held.used}")
    require(held <= state.held.limit, "bound: bytes held", f"{held} bytes")
    retained = retained_bytes(state.retained)
    require(retained == state.retained.held_bytes, "retained bytes miscounted", f"{retained}")
    require(retained <= state.config.mqtt.max_retained_bytes, "bound: retained bytes", f"{retained}")
    filters_bytes = sum(
        subscription_bytes(name, session.consumer_options.get(name, ()))
        for session in sessions
        for name in session.subscriptions
    )
    require(filters_bytes == state.filter_memory.used, "filter bytes miscounted", f"{filters_bytes}")
    require(filters_bytes <= state.filter_memory.limit, "bound: filter bytes", f"{filters_bytes}")
    connections = [connection for connection in node._connections if isinstance(connection, MqttConnection)]
    inbounds = [connection.inbound for connection in connections]
    aliases = sum(inbound._alias_bytes for inbound in inbounds)
    require(aliases == state.alias_memory.used, "alias bytes miscounted", f"{aliases}")
    partial = sum(len(connection._partial) for connection in connections)
    require(partial == state.partial_packets.used_bytes, "partial packets miscounted", f"{partial}")
    require(partial <= state.partial_packets.limit_bytes, "bound: partial packets", f"{partial}")
    plans = sum(inbound._plan_bytes for inbound in inbounds)
    require(plans == state.plan_memory.used_bytes, "plan bytes miscounted", f"{plans}")
    require(plans <= state.plan_memory.limit_bytes, "bound: plan bytes", f"{plans}")
    in_tree = tree_size(state.tree)[1]
    ordinary = sum(not is_queue_topic(name) for name, _ in filters)
    require(in_tree == ordinary, "subscription tree", f"{in_tree} subscriptions in the tree, {ordinary} in sessions")
    most = 2 * count + 2 * len(sessions) + _TIMERS_OF_A_NODE
    timers = live_timers(node)
    require(timers <= most, "bound: timers", f"{timers} timers for {count} connections, {len(sessions)} sessions")
    require(len(state.retained) <= state.config.mqtt.max_retained_messages, "bound: retained", "too many")
    for session in sessions:
        connection = session.connection
        if isinstance(connection, MqttConnection):
            check_session(session, connection)
            require(connection.session is session, "foreign session", session.client_id)
        else:
            check_session(session, None)
            waits = session.expiry_timer is not None or session.expiry_s == inf
            require(waits, "session without end", f"{session.client_id!r} expires in {session.expiry_s} s")


def check_empty(node: BrokerNode) -> None:
    """Everybody has gone and every session has ended. Raises :class:`FuzzFailureError`."""
    state = node.state
    left = {
        "connections": node.connection_count,
        "sessions": len(state.sessions),
        "nodes of the subscription tree": tree_size(state.tree)[0],
        "timers": live_timers(node),
        "bytes held": state.held.used,
        "bytes of filters": state.filter_memory.used,
        "bytes of partial packets": state.partial_packets.used_bytes,
        "bytes of aliases": state.alias_memory.used,
        "bytes of plans": state.plan_memory.used_bytes,
        "connected clients": state.traffic.connected,
        "subscriptions": state.traffic.subscriptions,
        "shared subscriptions": state.traffic.shared_subscriptions,
        "queue consumers": sum(node.engine.stats(name).consumers for name in node.engine.queues()),
    }
    if state.tracer is not None or not state.config.mqtt.retain_available:
        # Else some may lie below a first level with a $ that nobody knows.
        left["retained messages"] = len(state.retained)
    found = {name: number for name, number in left.items() if number}
    require(not found, "left behind: " + ", ".join(sorted(found)), f"{found}")


def survivors() -> int:
    """Objects of finished lives that something still refers to: nodes, connections and sessions in memory."""
    gc.collect()
    return sum(isinstance(thing, BrokerNode | MqttConnection | Session) for thing in gc.get_objects())


def without_payload(message: Message) -> Message:
    """The message that deletes a retained one."""
    return msgspec.structs.replace(message, payload=b"", retain=True, qos=0)
