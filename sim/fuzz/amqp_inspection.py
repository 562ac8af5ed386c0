"""AMQP 0.9.1 from inside: bounds that must hold at any time, and what must be left when everybody has gone.

With ``inspection``, the only part of the fuzzer that knows the broker's private parts.
"""

from __future__ import annotations

from typing import Final

from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.connection import MAX_UNCONFIRMED, MAX_WAITING_BYTES, AmqpConnection
from assay.reference_broker.amqp091.topology import VirtualHost
from assay.reference_broker.node import BrokerNode
from assay.sim.fuzz.inspection import check_groups, live_timers, require

_BYTES_OF_ONE_SEND: Final = 512 * 1024
_TIMERS_OF_A_NODE: Final = 4


def _transacted(channel: Channel) -> tuple[int, int]:
    transaction = channel.publishing.transaction
    return (0, 0) if transaction is None else (transaction.count, transaction.bytes)


def check_connection(connection: AmqpConnection, *, is_settled: bool) -> None:
    """Bounds of one connection. ``is_settled``: no commit is under way. Raises :class:`FuzzFailureError`."""
    config = connection.broker.config
    buffered = len(connection._buffer)
    most = connection.frame_max_bytes + _BYTES_OF_ONE_SEND
    require(buffered <= most, "bound: partial frame", f"{buffered} bytes are kept")
    if connection.is_over:
        require(not connection.channels and not buffered, "over but not empty", f"{buffered} bytes")
        return
    channels = connection.channels.values()
    require(len(channels) <= config.amqp091.channel_max, "bound: channels", f"{len(channels)}")
    consumers = connection.consumer_count
    require(consumers <= config.amqp091.max_consumers, "bound: consumers", f"{consumers}")
    partial = sum(channel._content.size - channel._content.left for channel in channels if channel._content is not None)
    require(partial == connection.content_bytes, "content miscounted", f"{partial} are {connection.content_bytes}")
    waiting = sum(len(payload) for channel in channels for _, payload in channel._waiting or ())
    require(waiting == connection._waiting_bytes, "waiting frames miscounted", f"{waiting}")
    most = MAX_WAITING_BYTES + _BYTES_OF_ONE_SEND
    require(waiting <= most, "bound: waiting frames", f"{waiting} bytes wait")
    unconfirmed = connection.unconfirmed
    require(0 <= unconfirmed <= 4 * MAX_UNCONFIRMED, "bound: unconfirmed", f"{unconfirmed}")
    limits = config.queues.transactions
    require(connection.transacted_count <= limits.max_messages, "bound: transactions", "messages")
    require(connection.transacted_bytes <= limits.max_bytes, "bound: transactions", "bytes")
    held = [sum(pair) for pair in zip(*map(_transacted, channels), strict=True)] if channels else [0, 0]
    counts = [connection.transacted_count, connection.transacted_bytes]
    # Those that are being committed count as well.
    is_right = held == counts if is_settled else held[0] <= counts[0] and held[1] <= counts[1]
    require(is_right, "transactions miscounted", f"{held} are {counts}")


def _check_vhost(node: BrokerNode, vhost: VirtualHost) -> None:
    bindings = [binding for exchange in vhost.exchanges.values() for binding in exchange.bindings.values()]
    require(len(bindings) == vhost._binding_count, "bindings miscounted", f"{len(bindings)}")
    listed = sum(map(len, vhost._bindings_to.values()))
    require(listed == len(bindings), "bindings by destination", f"{listed} are {len(bindings)}")
    size = sum(binding.size_bytes for binding in bindings)
    size += sum(queue.size_bytes for queue in vhost.queues.values())
    size += sum(exchange.size_bytes for exchange in [*vhost.exchanges.values()][vhost._predeclared_count :])
    require(size == vhost._bytes, "topology bytes miscounted", f"{size} are {vhost._bytes}")
    require(size <= vhost._limits.max_bytes, "bound: topology", f"{size} bytes")
    for binding in bindings:
        kind, name = binding.destination
        known = vhost.queues if kind.value == "queue" else vhost.exchanges
        require(name in known, "a binding to nothing", f"{binding.in_words()}")
    owned = [name for names in vhost._owned.values() for name in names]
    exclusive = [name for name, queue in vhost.queues.items() if queue.exclusive_owner is not None]
    require(sorted(owned) == sorted(exclusive), "exclusive queues", f"{owned} are {exclusive}")
    for name, queue in vhost.queues.items():
        owner = queue.exclusive_owner
        alive = owner is None or (isinstance(owner, AmqpConnection) and not owner.is_over)
        require(alive, "exclusive to nobody", name)


def check_node(node: BrokerNode, open_connections: int, *, is_settled: bool) -> None:
    """What must add up in a whole broker, at any time. Raises :class:`FuzzFailureError`."""
    check_groups(node.engine)
    state, service = node.state, node.amqp091
    count = node.connection_count
    require(count == open_connections, "connections miscounted", f"{count} are {open_connections}")
    connections = [each for each in node._connections if isinstance(each, AmqpConnection)]
    for connection in connections:
        check_connection(connection, is_settled=is_settled)
    partial = sum(connection._counted_bytes for connection in connections if not connection.is_over)
    require(partial == state.partial_packets.used_bytes, "partial packets miscounted", f"{partial}")
    require(partial <= state.partial_packets.limit_bytes, "bound: partial packets", f"{partial}")
    for vhost in service.topology.vhosts.values():
        _check_vhost(node, vhost)
    names = {service.engine_name(vhost, name) for vhost in service.topology.vhosts.values() for name in vhost.queues}
    require(service._uses.keys() <= names, "uses of no queue", f"{service._uses.keys() - names}")
    require(service._letter_takers.keys() <= names, "letters of no queue", f"{service._letter_takers.keys() - names}")
    used = sum(len(use.consumers) for use in service._uses.values())
    consuming = sum(len(ch.consuming._consumers) for conn in connections for ch in conn.channels.values())
    require(used == consuming, "consumers miscounted", f"{used} are {consuming}")
    # One each for a handshake or heartbeat, and for a queue that expires.
    most = 2 * count + len(service._uses) + _TIMERS_OF_A_NODE
    timers = live_timers(node)
    require(timers <= most, "bound: timers", f"{timers} timers for {count} connections, {len(service._uses)} queues")


def check_idle(node: BrokerNode) -> None:
    """The control client alone is there. Raises :class:`FuzzFailureError`."""
    check_node(node, 1, is_settled=True)
    left = {
        "transactions": len(node.engine.transactions.list()),
        "publishers that wait": len(node.state.waiting_publishers),
        "work that is not finished": len(node.state.unfinished),
        "bytes of partial frames": node.state.partial_packets.used_bytes,
        "consumers": sum(node.engine.stats(name).consumers for name in node.engine.queues()) - 1,
    }
    found = {name: number for name, number in left.items() if number}
    require(not found, "left behind: " + ", ".join(sorted(found)), f"{found}")


def unbind_predeclared(vhost: VirtualHost) -> None:
    """Bindings between exchanges that nobody can delete go, whatever their arguments are."""
    for binding in [*vhost.list_bindings()]:
        if binding.source:
            vhost.unbind_exchange(binding.destination.name, binding.source, binding.routing_key, binding.arguments)


def check_empty(node: BrokerNode) -> None:
    """Everybody has gone, and all was deleted. Raises :class:`FuzzFailureError`."""
    vhost = node.amqp091.topology.vhost("/")
    left = {
        "connections": node.connection_count,
        "queues": len(node.engine.queues()),
        "queues of the virtual host": len(vhost.queues),
        "bindings": vhost._binding_count,
        "bytes of the topology": vhost._bytes,
        "uses": len(node.amqp091._uses),
        "timers": live_timers(node),
    }
    found = {name: number for name, number in left.items() if number}
    require(not found, "left behind: " + ", ".join(sorted(found)), f"{found}")
