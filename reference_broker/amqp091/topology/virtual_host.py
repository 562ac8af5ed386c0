"""One virtual host: its exchanges, the names of its queues, and the bindings between them (sec.3.1)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from assay.reference_broker.amqp091.topology.arguments import (
    Arguments,
    TopologyLimits,
    arguments_bytes,
    check_arguments,
    check_name,
    difference,
    first_fields,
    type_name,
)
from assay.reference_broker.amqp091.topology.bindings import Binding, Destination, DestinationKind, Routing
from assay.reference_broker.amqp091.topology.exchanges import (
    ALTERNATE_EXCHANGE,
    DEFAULT_EXCHANGE,
    PREDECLARED,
    RESERVED_PREFIX,
    Exchange,
)
from assay.reference_broker.amqp091.topology.records import (
    EXCHANGE,
    QUEUE,
    GoneError,
    Journal,
    StoredExchange,
    StoredQueue,
    binding_key,
    name_key,
    restored_arguments,
    stored_arguments,
    stored_binding,
)
from assay.reference_broker.amqp091.topology.refusals import (
    access_refused,
    named,
    not_found,
    precondition_failed,
)
from assay.reference_broker.amqp091.topology.routes import (
    NOWHERE,
    find_route,
    routing_keys_of,
    selects_keys,
)
from assay.reference_broker.amqp091.topology.tables import ExchangeKind, HeadersTable
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.routing.properties import Kind, Typed
from assay.reference_broker.routing.remembered import SharedMemory

_QUEUE_BYTES: Final = 800
QUEUE_DEFAULTS: Final[dict[str, Typed]] = {"x-queue-type": Typed(Kind.TEXT, "classic")}
"""What an argument is where it is not given, for those where that is the same as giving it."""


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue was declared as."""

    name: str
    durable: bool = False
    """False if it is exclusive: it ends with its connection anyway."""
    exclusive_owner: Hashable = None
    """What names the connection that alone may use it; None = everybody may."""
    auto_delete: bool = False
    arguments: Arguments = ()

    @property
    def destination(self) -> Destination:
        return Destination(DestinationKind.QUEUE, self.name)

    @property
    def size_bytes(self) -> int:
        """As it takes in memory."""
        return _QUEUE_BYTES + arguments_bytes(self.arguments)

    @property
    def stored(self) -> StoredQueue:
        """Of a durable one."""
        return StoredQueue(auto_delete=self.auto_delete, arguments=stored_arguments(self.arguments))


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What went with what was removed, and itself; empty when there was nothing."""

    queues: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    """Also those that are auto-delete and lost their last binding by it."""
    bindings: tuple[Binding, ...] = ()


class _QueueNames:
    """The table of the default exchange: each queue by its name (sec.3.1.3.1.auto-bind)."""

    looks_at_key = True
    looks_at_headers = False

    def __init__(self, queues: Mapping[str, QueueRecord]) -> None:
        self._queues = queues

    def add(self, binding: Binding) -> None:
        raise AssertionError("nothing is bound to the default exchange")

    remove = add

    def find(self, keys: Sequence[str], headers: Arguments) -> Collection[Destination]:
        return [queue.destination for key in keys if (queue := self._queues.get(key)) is not None]


class VirtualHost:
    """See the folder's docstring. Whatever is refused has changed nothing."""

    def __init__(
        self, name: str, limits: TopologyLimits, memory: SharedMemory | None = None, journal: Journal | None = None
    ) -> None:
        self.name = name
        self._limits = limits
        self._memory = memory or SharedMemory(limits.max_remembered_bytes)
        self._journal = journal or Journal()
        self._queues: dict[str, QueueRecord] = {}
        self._owned: dict[Hashable, dict[str, None]] = {}
        """Exclusive queues by owner."""
        self._bindings_to: dict[Destination, dict[Binding, None]] = {}
        self._binding_count = 0
        self._bytes = 0
        """Of all of it but the predeclared exchanges."""
        self._exchanges: dict[str, Exchange] = {}
        self._default = self._make(DEFAULT_EXCHANGE, ExchangeKind.DIRECT, _QueueNames(self._queues))
        for predeclared, kind in PREDECLARED.items():
            self._make(predeclared, kind)
        self._predeclared_count = len(self._exchanges)
        self.exchanges: Mapping[str, Exchange] = MappingProxyType(self._exchanges)
        """By name, the predeclared ones first."""
        self.queues: Mapping[str, QueueRecord] = MappingProxyType(self._queues)

    def _make(self, name: str, kind: ExchangeKind, table: _QueueNames | None = None) -> Exchange:
        exchange = self._exchanges[name] = Exchange(name, kind, self._memory, durable=True, table=table)
        return exchange

    def _check_room(self, what: str, size: int) -> None:
        """Raises :class:`AmqpError` for what would take more memory than there is for a virtual host."""
        left = self._limits.max_bytes - self._bytes
        if size > left:
            text = f"{what} takes {size} bytes, where {left} of {self._limits.max_bytes} are left"
            raise precondition_failed(text, "connection.open.virtual-host.separation")

    def _named(self, kind: str, name: str) -> str:
        return named(kind, name, self.name)

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def find_exchange(self, name: str, rule: str = "basic.publish.exchange.must-exist") -> Exchange:
        """Raises :class:`AmqpError`: 404, by ``rule``."""
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise not_found(self._named("exchange", name), rule)
        return exchange

    def declare_exchange(
        self,
        name: str,
        kind: str,
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments = (),
    ) -> Exchange:
        """``exchange.declare``. Of one that exists all but unknown arguments must be the same.

        Raises :class:`AmqpError`: 503 for an unknown type, 403 for reserved names and the default exchange, 404 if
        ``passive``, 406 for another declaration of the same, and over a limit.
        """
        if passive:
            self.check_not_default(name)
            return self.find_exchange(name, "exchange.declare.passive.not-found")
        kind = self._checked_kind(kind)
        self.check_not_default(name)
        exchange = self._exchanges.get(name)
        if exchange is not None:
            self._check_same_exchange(
                exchange, kind=kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
            )
            return exchange
        self.check_new_name("exchange", name)
        self._check_alternate(name, arguments)
        check_arguments(self._named("exchange", name), arguments, self._limits)
        if len(self._exchanges) - self._predeclared_count >= self._limits.max_exchanges:
            text = f"{self._named('exchange', name)} would be one more than {self._limits.max_exchanges}"
            raise precondition_failed(text, "exchange.declare.minimum")
        exchange = Exchange(
            name,
            kind,
            self._memory,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        self._check_room(self._named("exchange", name), exchange.size_bytes)
        self._put_exchange(exchange)
        self._write_exchange(exchange)
        return exchange

    def _put_exchange(self, exchange: Exchange) -> None:
        self._exchanges[exchange.name] = exchange
        self._bytes += exchange.size_bytes

    def _checked_kind(self, kind: str) -> ExchangeKind:
        try:
            return ExchangeKind(kind)
        except ValueError:
            text = f"unknown exchange type '{kind[:80]}'"
            raise AmqpError(Reply.COMMAND_INVALID, text, rule="exchange.declare.type.support") from None

    def check_not_default(self, name: str) -> None:
        """exchange.default-access; RabbitMQ lets it be named in publishes only."""
        if name == DEFAULT_EXCHANGE:
            raise access_refused("operation not permitted on the default exchange", "exchange.default-access")

    def check_new_name(self, kind: str, name: str) -> None:
        """Whether something may be declared by that name. Raises :class:`AmqpError`."""
        if name.startswith(RESERVED_PREFIX):
            text = f"{kind} name '{name[:80]}' contains reserved prefix '{RESERVED_PREFIX}*'"
            raise access_refused(text, f"{kind}.declare.{kind}.reserved")
        check_name(f"the name of {kind}", name)

    def _check_alternate(self, name: str, arguments: Arguments) -> None:
        given = first_fields(arguments).get(ALTERNATE_EXCHANGE)
        if given is not None and given.kind is not Kind.TEXT:
            where = self._named("exchange", name)
            text = f"invalid type '{type_name(given)}' for arg '{ALTERNATE_EXCHANGE}' in {where}"
            raise precondition_failed(text, "rmq.alternate-exchange")

    def _check_same_exchange(
        self,
        exchange: Exchange,
        *,
        kind: ExchangeKind,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Arguments,
    ) -> None:
        """exchange.declare.passive.equivalent, exchange.declare.type.typed."""
        what = self._named("exchange", exchange.name)
        rule = "exchange.declare.type.typed" if kind is not exchange.kind else "exchange.declare.passive.equivalent"
        _check_same(
            what,
            rule,
            ("type", exchange.kind.value, kind.value),
            ("durable", exchange.durable, durable),
            ("auto_delete", exchange.auto_delete, auto_delete),
            ("internal", exchange.internal, internal),
        )
        _check_same_arguments(what, rule, difference(exchange.arguments, arguments, {}, (ALTERNATE_EXCHANGE,)))

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> Removed:
        """``exchange.delete``, with its bindings; of one that is not there, too (rmq.queue.delete.idempotent).

        Raises :class:`AmqpError`: 403 for predeclared ones, 406 if ``if_unused`` and it has bindings.
        """
        self.check_not_default(name)
        if name.startswith(RESERVED_PREFIX):
            text = f"deletion of system {self._named('exchange', name)} not allowed"
            raise access_refused(text, "exchange.required-instances")
        exchange = self._exchanges.get(name)
        if exchange is None:
            return Removed()
        if if_unused and exchange.bindings:
            raise precondition_failed(f"{self._named('exchange', name)} in use", "exchange.delete.if-unused.in-use")
        return self.remove_bindings((), [exchange])

    # -- queues ------------------------------------------------------------------------------------------------------

    def find_queue(self, name: str, *, owner: Hashable, rule: str = "queue.purge.queue.must-exist") -> QueueRecord:
        """For whatever a connection does with a queue.

        Raises :class:`AmqpError`: 404 by ``rule``, and 405 for what is exclusive to another (rmq.exclusive.scope).
        """
        queue = self._queues.get(name)
        if queue is None:
            raise not_found(self._named("queue", name), rule)
        if queue.exclusive_owner is not None and queue.exclusive_owner != owner:
            raise self._locked(name)
        return queue

    def _locked(self, name: str) -> AmqpError:
        return AmqpError(
            Reply.RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked {self._named('queue', name)}. It could be originally declared "
            "on another connection or the exclusive property value does not match that of the original declaration.",
            rule="queue.declare.exclusive.exclusive",
        )

    def check_queue(
        self,
        name: str,
        *,
        owner: Hashable,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments = (),
        is_named_by_server: bool = False,
    ) -> QueueRecord | None:
        """``queue.declare``: the queue that is there, and equivalent; None = it may be added.

        What the arguments mean is for whoever adds it. Raises :class:`AmqpError`: 404 if ``passive``, 405 for what is
        exclusive to another or not exclusive as it should be, 406 for another declaration, 403 for reserved names.
        """
        if passive:
            return self.find_queue(name, owner=owner, rule="queue.declare.passive.passive")
        if name not in self._queues:
            if not is_named_by_server:
                self.check_new_name("queue", name)
            check_arguments(self._named("queue", name), arguments, self._limits)
            self._check_room(self._named("queue", name), _QUEUE_BYTES + arguments_bytes(arguments))
            return None
        queue = self.find_queue(name, owner=owner)
        if (queue.exclusive_owner is not None) != exclusive:
            raise self._locked(name)
        what, rule = self._named("queue", name), "queue.declare.passive.equivalent"
        _check_same(
            what,
            rule,
            ("durable", queue.durable, durable and not exclusive),
            ("auto_delete", queue.auto_delete, auto_delete),
        )
        _check_same_arguments(what, rule, difference(queue.arguments, arguments, QUEUE_DEFAULTS))
        return queue

    def add_queue(self, queue: QueueRecord) -> None:
        """One that :meth:`check_queue` found room for."""
        name = queue.name
        assert name not in self._queues, name
        if queue.exclusive_owner is not None:
            queue = msgspec.structs.replace(queue, durable=False)
            self._owned.setdefault(queue.exclusive_owner, {})[name] = None
        self._put_queue(queue)
        if queue.durable:
            self._journal.write(name_key(QUEUE, self.name, name), queue.stored)

    def _put_queue(self, queue: QueueRecord) -> None:
        self._queues[queue.name] = queue
        self._bytes += queue.size_bytes
        self._default.forget_routes()

    def remove_queue(self, name: str) -> Removed:
        """With its bindings (sec.3.1.5.bindings-die), and exchanges that lived for these.

        Its end may have to be durable before theirs: see :meth:`Topology.holding_deletions`.
        """
        queue = self._queues.pop(name, None)
        if queue is None:
            return Removed()
        self._bytes -= queue.size_bytes
        self._default.forget_routes()
        if queue.exclusive_owner is not None:
            owned = self._owned[queue.exclusive_owner]
            del owned[name]
            if not owned:
                del self._owned[queue.exclusive_owner]
        if queue.durable:
            self._journal.delete(name_key(QUEUE, self.name, name))
        removed = self.remove_bindings(self._bindings_to.get(queue.destination, ()), [])
        return msgspec.structs.replace(removed, queues=(name,))

    def queues_of(self, owner: Hashable) -> tuple[str, ...]:
        """Those that are exclusive to a connection, in the order of their declaration (sec.4.5.exclusive-delete)."""
        return tuple(self._owned.get(owner, ()))

    # -- bindings ----------------------------------------------------------------------------------------------------

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments = (), *, owner: Hashable = None
    ) -> bool:
        """``queue.bind``. Returns whether the binding is new (queue.bind.duplicates).

        Raises :class:`AmqpError`: 403 for the default exchange, 404 if one is missing, 405 for what is exclusive to
        another, 406 for arguments that the type of the exchange refuses, and over a limit.
        """
        self.check_not_default(exchange)
        source = self.find_exchange(exchange, "queue.bind.exchange.exchange-existence")
        record = self.find_queue(queue, owner=owner, rule="queue.bind.queue.must-exist")
        return self.bind(source, record.destination, routing_key, arguments)

    def bind_exchange(self, destination: str, source: str, routing_key: str, arguments: Arguments = ()) -> bool:
        """``exchange.bind``, also in circles (exchange.bind.cyclical). As :meth:`bind_queue`."""
        self.check_not_default(destination)
        self.check_not_default(source)
        from_here = self.find_exchange(source, "exchange.bind.source.exchange-existence")
        self.find_exchange(destination, "exchange.bind.destination.exchange-existence")
        return self.bind(from_here, Destination(DestinationKind.EXCHANGE, destination), routing_key, arguments)

    def bind(self, source: Exchange, destination: Destination, routing_key: str, arguments: Arguments) -> bool:
        """As :meth:`bind_queue`, of anything."""
        binding = Binding(source=source.name, destination=destination, routing_key=routing_key, arguments=arguments)
        check_name("routing key", routing_key)
        check_arguments(binding.in_words(), arguments, self._limits)
        if source.kind is ExchangeKind.HEADERS:
            HeadersTable.check(arguments)
        if binding.identity in source.bindings:
            return False
        if self._binding_count >= self._limits.max_bindings:
            text = f"{binding.in_words()} would be one more than {self._limits.max_bindings} in vhost '{self.name}'"
            raise precondition_failed(text, "queue.bind.binding-count")
        self._check_room(binding.in_words(), binding.size_bytes)
        self._link(source, binding)
        if source.durable and self.is_durable(destination):
            binding.number = self._journal.next_number()
            self._journal.write(binding_key(binding.number), stored_binding(self.name, binding))
        if not source.was_bound:
            source.was_bound = True
            if source.auto_delete:
                self._write_exchange(source)
        return True

    def is_durable(self, destination: Destination) -> bool:
        """Whether a queue or exchange outlives the broker."""
        if destination.kind is DestinationKind.QUEUE:
            return self._queues[destination.name].durable
        return self._exchanges[destination.name].durable

    def _link(self, source: Exchange, binding: Binding) -> None:
        source.bindings[binding.identity] = binding
        source.table.add(binding)
        self._bindings_to.setdefault(binding.destination, {})[binding] = None
        self._binding_count += 1
        self._bytes += binding.size_bytes
        source.forget_routes()

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str, arguments: Arguments = (), *, owner: Hashable = None
    ) -> Removed:
        """``queue.unbind``; what is not there is not bound, which is no error (rmq.queue.delete.idempotent).

        Raises :class:`AmqpError`: 403 for the default exchange, 405 for a queue that is exclusive to another.
        """
        self.check_not_default(exchange)
        if queue in self._queues:
            self.find_queue(queue, owner=owner)
        return self._unbind(exchange, Destination(DestinationKind.QUEUE, queue), routing_key, arguments)

    def unbind_exchange(self, destination: str, source: str, routing_key: str, arguments: Arguments = ()) -> Removed:
        """``exchange.unbind``; as :meth:`unbind_queue`."""
        self.check_not_default(destination)
        self.check_not_default(source)
        return self._unbind(source, Destination(DestinationKind.EXCHANGE, destination), routing_key, arguments)

    def _unbind(self, source: str, destination: Destination, routing_key: str, arguments: Arguments) -> Removed:
        asked = Binding(source=source, destination=destination, routing_key=routing_key, arguments=arguments)
        check_arguments(asked.in_words(), arguments, self._limits)
        exchange = self._exchanges.get(source)
        binding = None if exchange is None else exchange.bindings.get(asked.identity)
        return Removed() if binding is None else self.remove_bindings([binding], [])

    def unlink(self, binding: Binding, source: Exchange) -> None:
        """A binding goes."""
        del source.bindings[binding.identity]
        source.table.remove(binding)
        others = self._bindings_to[binding.destination]
        del others[binding]
        if not others:
            del self._bindings_to[binding.destination]
        self._binding_count -= 1
        self._bytes -= binding.size_bytes
        source.forget_routes()
        if binding.number:
            self._journal.delete(binding_key(binding.number))

    def remove_bindings(self, bindings: Iterable[Binding], doomed: list[Exchange]) -> Removed:
        """Bindings and exchanges, and whatever lived for them, however long the chain is (rmq.auto-delete.exchange)."""
        gone_bindings: list[Binding] = []
        gone_exchanges: list[str] = []
        waiting = tuple(bindings)
        while True:
            for binding in waiting:
                source = self._exchanges[binding.source]
                self.unlink(binding, source)
                if source.auto_delete and not source.bindings:
                    doomed.append(source)
            gone_bindings += waiting
            if not doomed:
                break
            exchange = doomed.pop()
            del self._exchanges[exchange.name]
            self._bytes -= exchange.size_bytes
            own = tuple(exchange.bindings.values())
            for binding in own:
                self.unlink(binding, exchange)
            gone_bindings += own
            exchange.forget_routes()
            if exchange.durable:
                self._journal.delete(name_key(EXCHANGE, self.name, exchange.name))
            gone_exchanges.append(exchange.name)
            waiting = tuple(self._bindings_to.get(exchange.destination, ()))
        return Removed(exchanges=tuple(gone_exchanges), bindings=tuple(gone_bindings))

    def list_bindings(
        self, *, source: str | None = None, queue: str | None = None, exchange: str | None = None
    ) -> Iterator[Binding]:
        """Those from ``source``, to ``queue`` or to ``exchange``, those of the default exchange among them.

        Without any of the three: all. What does not exist has none.
        """
        wanted = None
        if queue is not None:
            wanted = Destination(DestinationKind.QUEUE, queue)
        elif exchange is not None:
            wanted = Destination(DestinationKind.EXCHANGE, exchange)
        if source in (None, DEFAULT_EXCHANGE):
            for name in self._queues if wanted is None else self._queues.keys() & {queue}:
                destination = Destination(DestinationKind.QUEUE, name)
                yield Binding(source=DEFAULT_EXCHANGE, destination=destination, routing_key=name)
        if wanted is not None:
            for binding in self._bindings_to.get(wanted, ()):
                if source in (None, binding.source):
                    yield binding
            return
        for each in self._exchanges.values():
            if source in (None, each.name):
                yield from each.bindings.values()

    # -- messages ----------------------------------------------------------------------------------------------------

    def route(self, exchange: str, routing_key: str, headers: Arguments = ()) -> Routing:
        """Where a message goes that a client publishes.

        Raises :class:`AmqpError`: 404 without such an exchange (basic.publish.exchange.must-exist), 403 for an internal
        one (rmq.internal-exchange), 406 for headers ``CC`` or ``BCC`` that are no lists or too long.
        """
        entry = self.find_exchange(exchange)
        if entry.internal:
            text = f"cannot publish to internal {self._named('exchange', exchange)}"
            raise access_refused(text, "basic.publish.exchange.02")
        return self._route(entry, routing_key, headers)

    def route_dead_letter(self, exchange: str, routing_key: str, headers: Arguments = ()) -> Routing:
        """Where the broker's own messages go: through internal exchanges too, and nowhere if there is none.

        ``headers``: without ``CC`` and ``BCC`` unless they are to count.
        """
        entry = self._exchanges.get(exchange)
        try:
            return NOWHERE if entry is None else self._route(entry, routing_key, headers)
        except AmqpError:
            return NOWHERE

    def _route(self, entry: Exchange, routing_key: str, headers: Arguments) -> Routing:
        if headers and selects_keys(headers):
            keys = routing_keys_of(routing_key, headers, self._limits.max_routing_keys)
            return find_route(self._exchanges, entry, keys, headers)
        if entry is self._default:
            return Routing((routing_key,)) if routing_key in self._queues else NOWHERE
        known = entry.known.answers
        found = known.get(routing_key)
        if found is None:
            found = known.get(None)
        return find_route(self._exchanges, entry, (routing_key,), headers) if found is None else found

    # -- records -----------------------------------------------------------------------------------------------------

    def _write_exchange(self, exchange: Exchange) -> None:
        if exchange.durable:
            stored = StoredExchange(
                kind=exchange.kind,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                was_bound=exchange.was_bound,
                arguments=stored_arguments(exchange.arguments),
            )
            self._journal.write(name_key(EXCHANGE, self.name, exchange.name), stored)

    def restore_exchange(self, name: str, stored: StoredExchange) -> None:
        """One that the journal has. Raises :class:`ValueError`."""
        if name in self._exchanges:
            raise ValueError("it is predeclared")
        exchange = Exchange(
            name,
            stored.kind,
            self._memory,
            durable=True,
            auto_delete=stored.auto_delete,
            internal=stored.internal,
            arguments=restored_arguments(stored.arguments),
        )
        exchange.was_bound = stored.was_bound
        self._put_exchange(exchange)

    def restore_queue(self, name: str, stored: StoredQueue) -> None:
        """One that the journal has. Raises :class:`ValueError`."""
        self._put_queue(restored_queue(name, stored))

    def restore_binding(self, binding: Binding) -> None:
        """One that the journal has. Raises :class:`GoneError`, and :class:`AmqpError` as :meth:`bind_queue`."""
        source = self._exchanges.get(binding.source)
        if source is None or source is self._default:
            message = f"exchange '{binding.source}' is gone"
            raise GoneError(message)
        kind, name = binding.destination
        if name not in (self._queues if kind is DestinationKind.QUEUE else self._exchanges) or name == DEFAULT_EXCHANGE:
            message = f"{kind} '{name}' is gone"
            raise GoneError(message)
        if binding.identity in source.bindings:
            raise GoneError("it is there twice")
        if source.kind is ExchangeKind.HEADERS:
            HeadersTable.check(binding.arguments)
        self._link(source, binding)

    def remove_unused(self) -> Removed:
        """After all was restored: exchanges that are auto-delete and whose bindings did not outlive the broker."""
        unused = [
            each for each in self._exchanges.values() if each.auto_delete and each.was_bound and not each.bindings
        ]
        return self.remove_bindings((), unused)


def restored_queue(name: str, stored: StoredQueue) -> QueueRecord:
    """Raises :class:`ValueError`."""
    arguments = restored_arguments(stored.arguments)
    return QueueRecord(name=name, durable=True, auto_delete=stored.auto_delete, arguments=arguments)


def _check_same(what: str, rule: str, *fields: tuple[str, object, object]) -> None:
    """Name, what it is, what was asked for. Raises :class:`AmqpError`."""
    for name, current, received in fields:
        if current != received:
            text = f"received '{str(received).lower()}' but current is '{str(current).lower()}'"
            raise precondition_failed(f"inequivalent arg '{name}' for {what}: {text}", rule)


def _check_same_arguments(what: str, rule: str, found: tuple[str, str, str] | None) -> None:
    if found is not None:
        name, received, current = found
        text = f"received {received} but current is {current}"
        raise precondition_failed(f"inequivalent arg '{name[:80]}' for {what}: {text}", rule)
