"""All virtual hosts of a broker, and their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

import msgspec

from assay.reference_broker.amqp091.topology.arguments import TopologyLimits
from assay.reference_broker.amqp091.topology.records import (
    BINDING,
    EXCHANGE,
    QUEUE,
    RECORD_PREFIX,
    Change,
    GoneError,
    Held,
    Journal,
    StoredBinding,
    StoredExchange,
    StoredQueue,
    declared_in,
    decode,
    names_of,
    number_of,
    restored_binding,
)
from assay.reference_broker.amqp091.topology.refusals import named
from assay.reference_broker.amqp091.topology.virtual_host import VirtualHost, restored_queue
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.routing.remembered import SharedMemory

DEFAULT_VHOST = "/"


class Topology:
    """Virtual hosts by name. They share nothing but memory for routes (connection.open.virtual-host.separation)."""

    def __init__(self, limits: TopologyLimits | None = None) -> None:
        self._limits = limits or TopologyLimits()
        self._memory = SharedMemory(self._limits.max_remembered_bytes)
        self._journal = Journal()
        self.vhosts: dict[str, VirtualHost] = {}

    def vhost(self, name: str) -> VirtualHost:
        """Made when it is first asked for: which there may be is for whoever asks."""
        found = self.vhosts.get(name)
        if found is None:
            found = self.vhosts[name] = VirtualHost(name, self._limits, self._memory, self._journal)
        return found

    @property
    def has_changes(self) -> bool:
        """Something is to be written."""
        return self._journal.has_changes

    def take_changes(self) -> list[Change]:
        """Records that a turn changed, None for what is deleted; to be written as a whole."""
        return self._journal.take_changes()

    def restore(
        self,
        records: Mapping[bytes, bytes],
        on_problem: Callable[[str], None],
        *,
        has_queue: Callable[[str, str], bool] | None = None,
        declarations: Iterable[str] = (),
    ) -> None:
        """What records say, into an empty topology; those of other prefixes are passed over.

        ``has_queue``: whether there are messages, or room for them, of a queue of a virtual host. What is not
        understood stays in the log; what refers to something that is gone is deleted with the next changes, or it
        would come to life with another of the same name. ``on_problem`` is told of both. ``declarations``: what queues
        keep themselves (:func:`declaration_of`), for those whose records were lost.
        """
        assert not self.vhosts
        by_kind: dict[bytes, dict[bytes, bytes]] = {EXCHANGE: {}, QUEUE: {}, BINDING: {}}
        for key, value in records.items():
            if key[:1] == RECORD_PREFIX:
                found = by_kind.get(key[:2])
                if found is None:
                    on_problem(f"the record with key {key[:80]!r} is of an unknown kind, and is left out")
                    continue
                found[key] = value
        for key, value in by_kind[EXCHANGE].items():
            self._try(key, value, self._restore_exchange, on_problem)
        for key, value in by_kind[QUEUE].items():
            self._try(key, value, lambda key, value: self._restore_queue(key, value, has_queue), on_problem)
        for text in declarations:
            self._restore_declared(text, on_problem)
        for key, value in by_kind[BINDING].items():
            self._try(key, value, self._restore_binding, on_problem)
        for vhost in self.vhosts.values():
            vhost.remove_unused()

    def _restore_declared(self, text: str, on_problem: Callable[[str], None]) -> None:
        try:
            name, queue, stored = declared_in(text)
            vhost = self.vhost(name)
            if queue not in vhost.queues:
                vhost.add_queue(restored_queue(queue, stored))
        except (ValueError, msgspec.MsgspecError) as error:
            on_problem(f"what a queue was declared as is not understood: {error}")

    def holding_deletions(self) -> AbstractContextManager[Held]:
        """What is removed meanwhile stays in the log until :meth:`let_go`."""
        return self._journal.holding_deletions()

    def let_go(self, held: Held) -> None:
        """What was removed may leave the log."""
        self._journal.let_go(held)

    def _try(
        self, key: bytes, value: bytes, restore: Callable[[bytes, bytes], None], on_problem: Callable[[str], None]
    ) -> None:
        self._journal.restored(key)
        try:
            restore(key, value)
        except GoneError as error:
            on_problem(f"the record with key {key[:80]!r} is left out, and deleted: {error.args[0]}")
            self._journal.delete(key)
        except (ValueError, msgspec.MsgspecError, RecursionError, AmqpError) as error:
            on_problem(f"the record with key {key[:80]!r} is not understood, and is left out: {error}")

    def _restore_exchange(self, key: bytes, value: bytes) -> None:
        vhost, name = names_of(key)
        stored = decode(value, StoredExchange)
        self.vhost(vhost).restore_exchange(name, stored)

    def _restore_queue(self, key: bytes, value: bytes, has_queue: Callable[[str, str], bool] | None) -> None:
        vhost, name = names_of(key)
        stored = decode(value, StoredQueue)
        if has_queue is not None and not has_queue(vhost, name):
            message = f"{named('queue', name, vhost)} is gone"
            raise GoneError(message)
        self.vhost(vhost).restore_queue(name, stored)

    def _restore_binding(self, key: bytes, value: bytes) -> None:
        number = number_of(key)
        self._journal.newest_number = max(self._journal.newest_number, number)
        stored = decode(value, StoredBinding)
        self.vhost(stored.vhost).restore_binding(restored_binding(stored, number))
