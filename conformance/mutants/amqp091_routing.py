"""Bugs of the reference broker's AMQP 0.9.1: where messages go: types of exchanges, bindings, what is declared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from assay.conformance.mutants import Patch, mutant
from assay.conformance.mutants.amqp091_answers import Handler, wrap_handlers
from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.topology import tables
from assay.reference_broker.amqp091.topology.arguments import Arguments
from assay.reference_broker.amqp091.topology.bindings import Binding, Destination, Routing
from assay.reference_broker.amqp091.topology.exchanges import DEFAULT_EXCHANGE
from assay.reference_broker.amqp091.topology.routes import NOWHERE
from assay.reference_broker.amqp091.topology.tables import TABLES, DirectTable, ExchangeKind, TopicTable
from assay.reference_broker.amqp091.topology.virtual_host import QueueRecord, Removed, VirtualHost
from assay.reference_broker.routing.properties import Kind, Typed


@mutant("amqp-direct-ignores-case", "a direct exchange takes upper and lower case for the same")
def direct_ignores_case(patch: Patch) -> None:
    def make_find(original: Callable[..., Collection[Destination]]) -> Callable[..., Collection[Destination]]:
        return lambda self, keys, headers: original(self, [key.lower() for key in keys], headers)

    def make_add(original: Callable[..., None]) -> Callable[..., None]:
        def change(self: DirectTable, binding: Binding) -> None:
            key, binding.routing_key = binding.routing_key, binding.routing_key.lower()
            original(self, binding)
            binding.routing_key = key

        return change

    patch.wrap(DirectTable, "find", make_find)
    patch.wrap(DirectTable, "add", make_add)
    patch.wrap(DirectTable, "remove", make_add)


@mutant("amqp-fanout-compares-keys", "a fanout exchange passes a message to the queues bound by its key")
def fanout_compares_keys(patch: Patch) -> None:
    patch.item(TABLES, ExchangeKind.FANOUT, DirectTable)


def _second_hash(name: str, what: str, old: str, new: str) -> None:
    def apply(patch: Patch) -> None:
        patch.rewrite(TopicTable, "add", old, new)
        patch.rewrite(TopicTable, "remove", old, new)

    mutant(name, what)(apply)


_second_hash(
    "amqp-topic-second-hash-needs-a-word",
    "in topic patterns a # behind a # is a place of its own, which no word at all does not reach",
    'if node.is_rest and word == "#":',
    "if False:",
)
_second_hash(
    "amqp-topic-second-hash-ends-it",
    "in topic patterns nothing counts behind the second # of two",
    "continue",
    "break",
)


def _x_match(others: Mapping[str, str], void: Typed | None = None) -> Callable[[Patch], None]:
    """Bindings to exchanges of headers mean something else: other values of ``x-match``, and of fields without one."""

    def read(arguments: Arguments) -> Arguments:
        fields = {"x-match": Typed(Kind.TEXT, "all"), **dict(arguments)}
        match = fields["x-match"].value
        fields["x-match"] = Typed(Kind.TEXT, others.get(match, match))
        return tuple(
            [(name, value if value.kind is not Kind.NULL or void is None else void) for name, value in fields.items()]
        )

    def apply(patch: Patch) -> None:
        patch.wrap(tables, "Pattern", lambda original: lambda arguments: original(read(arguments)))

    return apply


mutant("amqp-headers-any-for-all", "in bindings to exchanges of headers all means any, and any means all")(
    _x_match({"all": "any", "any": "all"})
)
mutant(
    "amqp-headers-x-and-void", "names with x- count where they should not, and not where they should; void is a value"
)(
    _x_match(
        {"all": "all-with-x", "any": "any-with-x", "all-with-x": "all", "any-with-x": "any"}, Typed(Kind.TEXT, "void")
    )
)


@mutant("amqp-a-copy-for-each-binding", "each binding that matches brings a copy of a message")
def copy_for_each_binding(patch: Patch) -> None:
    def matches(vhost: VirtualHost, exchange: str, key: str, headers: Arguments) -> int:
        entry = vhost.exchanges[exchange]
        found = 0
        for binding in entry.bindings.values():
            alone = TABLES[entry.kind]()
            alone.add(binding)
            found += bool(alone.find((key,), headers))
        return found

    def make(original: Callable[..., Routing]) -> Callable[..., Routing]:
        def route(self: VirtualHost, exchange: str, routing_key: str, headers: Arguments = ()) -> Routing:
            routing = original(self, exchange, routing_key, headers)
            return Routing(routing.queues * max(1, matches(self, exchange, routing_key, headers)))

        return route

    patch.wrap(VirtualHost, "route", make)


@mutant("amqp-no-default-bindings", "queues are not bound to the nameless exchange by themselves")
def no_default_bindings(patch: Patch) -> None:
    def make(original: Callable[..., Routing]) -> Callable[..., Routing]:
        def route(self: VirtualHost, exchange: str, routing_key: str, headers: Arguments = ()) -> Routing:
            return NOWHERE if exchange == DEFAULT_EXCHANGE else original(self, exchange, routing_key, headers)

        return route

    patch.wrap(VirtualHost, "route", make)


@mutant("amqp-auto-delete-exchanges-stay", "an auto-delete exchange is never deleted by itself")
def auto_delete_exchanges_stay(patch: Patch) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **named: original(*arguments, **{**named, "auto_delete": False})

    patch.wrap(VirtualHost, "declare_exchange", make)


@mutant("amqp-bindings-come-back", "a queue that is declared again has the bindings of the one before")
def bindings_come_back(patch: Patch) -> None:
    left: dict[str, list[Binding]] = {}

    def make_remove(original: Callable[..., Removed]) -> Callable[..., Removed]:
        def remove(self: VirtualHost, name: str) -> Removed:
            left[name] = [each for each in self.list_bindings(queue=name) if each.source != DEFAULT_EXCHANGE]
            return original(self, name)

        return remove

    def make_add(original: Callable[..., None]) -> Callable[..., None]:
        def add(self: VirtualHost, queue: QueueRecord) -> None:
            original(self, queue)
            for each in left.pop(queue.name, ()):
                owner = queue.exclusive_owner
                self.bind_queue(queue.name, each.source, each.routing_key, each.arguments, owner=owner)

        return add

    patch.wrap(VirtualHost, "remove_queue", make_remove)
    patch.wrap(VirtualHost, "add_queue", make_add)


@mutant("amqp-exclusive-queues-stay", "exclusive queues outlive their connection")
def exclusive_queues_stay(patch: Patch) -> None:
    patch.wrap(VirtualHost, "queues_of", lambda original: lambda self, owner: ())


# What outlives the server


def _declared_as(places: Mapping[str, tuple[int, bool]]) -> Callable[[Patch], None]:
    """Declarations mean something else: of each method the place of an argument, and what it always is."""

    def apply(patch: Patch) -> None:
        def make(name: str, original: Handler) -> Handler:
            place, value = places[name]

            def declare(channel: Channel, *values: Any) -> None:
                original(channel, *values[:place], value, *values[place + 1 :])

            return declare

        wrap_handlers(patch, places, make)

    return apply


mutant("amqp-nothing-durable", "no queue and no exchange is durable, whatever is said")(
    _declared_as({"queue.declare": (2, False), "exchange.declare": (3, False)})
)
mutant("amqp-all-queues-exclusive", "a queue belongs to the connection that declares it, whatever is said")(
    _declared_as({"queue.declare": (3, True)})
)


@mutant("amqp-bindings-not-durable", "no binding outlives the server")
def bindings_not_durable(patch: Patch) -> None:
    patch.wrap(VirtualHost, "is_durable", lambda original: lambda self, destination: False)
