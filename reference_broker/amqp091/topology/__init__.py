"""Exchanges, bindings and the names of queues, by virtual host: what AMQP calls a topology. Pure; no bytes, no clock.

A connection gets its :class:`VirtualHost` from the broker's one :class:`Topology`; ``x=`` is by keyword only::

    topology = Topology(limits=TopologyLimits())
    topology.restore(records, on_problem, has_queue=, declarations=)  # at the start; keys begin with RECORD_PREFIX
    vhost = topology.vhost("/")                                   # made when it is asked for
    topology.take_changes()                                       # each turn: list[tuple[bytes, bytes | None]]

    vhost.declare_exchange(name, kind, passive=, durable=, auto_delete=, internal=, arguments=) -> Exchange
    vhost.find_exchange(name) -> Exchange
    vhost.delete_exchange(name, if_unused=) -> Removed            # of one that is not there: nothing went
    vhost.check_queue(name, passive=, durable=, exclusive=, auto_delete=, arguments=, owner=) -> QueueRecord | None
    vhost.add_queue(QueueRecord(...))                             # after check_queue said None
    vhost.find_queue(name, owner=) -> QueueRecord                 # 404, 405
    vhost.remove_queue(name) -> Removed
    vhost.queues_of(owner) -> tuple[str, ...]                     # exclusive ones, when a connection ends
    vhost.bind_queue(queue, exchange, routing_key, arguments, owner=) -> bool      # whether it is new
    vhost.unbind_queue(queue, exchange, routing_key, arguments, owner=) -> Removed
    vhost.bind_exchange(destination, source, routing_key, arguments) -> bool
    vhost.unbind_exchange(destination, source, routing_key, arguments) -> Removed
    vhost.route(exchange, routing_key, headers) -> Routing        # of a client's publish: 404, 403, 406 (CC, BCC)
    vhost.route_dead_letter(exchange, routing_key, headers) -> Routing             # never refuses
    vhost.exchanges, vhost.queues                                 # mappings by name
    vhost.list_bindings(source=, queue=, exchange=) -> Iterator[Binding]

All of them raise :class:`AmqpError` of the wire's, with its rule, and have changed nothing then. Tables of arguments
and of headers are ``tuple[tuple[str, Typed], ...]``, an owner is whatever names a connection (anything hashable), and
names are expected without line feeds (:func:`stripped`). Whoever calls has asked before whether the user may.
"""

from assay.reference_broker.amqp091.topology.arguments import Arguments, TopologyLimits, stripped
from assay.reference_broker.amqp091.topology.bindings import Binding, Destination, DestinationKind, Routing
from assay.reference_broker.amqp091.topology.exchanges import Exchange
from assay.reference_broker.amqp091.topology.mqtt_topics import mqtt_topic_of, routing_key_of
from assay.reference_broker.amqp091.topology.records import RECORD_PREFIX, Held, declaration_of, declared_in
from assay.reference_broker.amqp091.topology.routes import routing_keys_of
from assay.reference_broker.amqp091.topology.tables import ExchangeKind
from assay.reference_broker.amqp091.topology.topology import Topology
from assay.reference_broker.amqp091.topology.virtual_host import QueueRecord, Removed, VirtualHost, restored_queue

__all__ = [
    "RECORD_PREFIX",
    "Arguments",
    "Binding",
    "Destination",
    "DestinationKind",
    "Exchange",
    "ExchangeKind",
    "Held",
    "QueueRecord",
    "Removed",
    "Routing",
    "Topology",
    "TopologyLimits",
    "VirtualHost",
    "declaration_of",
    "declared_in",
    "mqtt_topic_of",
    "restored_queue",
    "routing_key_of",
    "routing_keys_of",
    "stripped",
]
