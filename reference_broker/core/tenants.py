"""Tenants: queues of their own under names of their own, and quotas on what their clients use together.

A tenant's client writes ``$queue/orders``; the engine knows that queue as ``<tenant>.orders``. Names are translated
where they come in (topics, and the ids that settlements and cancels name) and where they go out (deliveries, receipts).
A tenant's name has no dot, so that the first dot ends it, and dead letters are told by their prefix, not by the end of
a name: nothing that a client can write leads out of its tenant. Clients without a tenant do not reach the queues of
any, unless they may administer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from assay.reference_broker.config import QueueConfig, TenantConfig
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.address import DEAD_LETTER_PREFIX, QueueAddress, is_dead_letter

if TYPE_CHECKING:
    from assay.reference_broker.core.clients import Client
    from assay.reference_broker.queues import QueueEngine


class Tenants:
    """All tenants of a broker, and the way of their clients to the queues."""

    def __init__(self, configs: tuple[TenantConfig, ...], engine: QueueEngine) -> None:
        self._engine = engine
        self._by_name: dict[str, Tenant] = {}
        self._by_user: dict[str, Tenant] = {}
        self._by_client: list[tuple[re.Pattern[str], Tenant]] = []
        self.configure(configs)
        engine.admit_queue = self._admit_queue

    def configure(self, configs: tuple[TenantConfig, ...]) -> None:
        """Take other tenants; one that stays under its name is the same object, and keeps what it has used."""
        known, self._by_name = self._by_name, {}
        self._by_user.clear()
        self._by_client.clear()
        for config in configs:
            tenant = self._by_name[config.name] = known.get(config.name) or Tenant(config)
            tenant.agenda = self._engine.agenda
            tenant.configure(config)
            self._by_user.update(dict.fromkeys(config.users, tenant))
            self._by_client += [(_pattern(pattern), tenant) for pattern in config.clients]

    def of_client(self, username: str | None, client_id: str) -> Tenant | None:
        """The tenant of a client: by its verified user name, else by the first pattern that its id fits."""
        if username is not None and (tenant := self._by_user.get(username)) is not None:
            return tenant
        return next((tenant for pattern, tenant in self._by_client if pattern.fullmatch(client_id)), None)

    def named(self, name: str) -> Tenant | None:
        """The tenant of that name."""
        return self._by_name.get(name)

    def of_queue(self, queue: str) -> Tenant | None:
        """The tenant that an engine name belongs to."""
        name = queue[len(DEAD_LETTER_PREFIX) :] if is_dead_letter(queue) else queue
        first, dot, _ = name.partition(".")
        return self._by_name.get(first) if dot else None

    def connected(self, session: Client) -> None:
        """A client connected to its session, whose user is known."""
        session.tenant = self.of_client(session.username, session.client_id)
        if session.tenant is not None:
            session.tenant.connections += 1

    def is_full(self, username: str | None, client_id: str, previous: Client | None) -> bool:
        """Whether the client's tenant may have no further connection; one that is taken over makes room."""
        tenant = self.of_client(username, client_id)
        if tenant is None or not tenant.quotas.max_connections:
            return False
        replaces = previous is not None and previous.connection is not None and previous.tenant is tenant
        return tenant.connections - replaces >= tenant.quotas.max_connections

    def check_consumer(self, session: Client, address: QueueAddress, group: str) -> None:
        """Whether a client may consume there. Raises :class:`QueueError` (NOT_ALLOWED, QUOTA)."""
        self.check_reach(session, address)
        if session.tenant is not None:
            pattern = "" if address.routing_key == "#" else address.routing_key
            group_id = f"{group}@{pattern}" if pattern else group
            session.tenant.check_new_group(self._engine, address.queue, group_id, session.client_id)

    def _admit_queue(self, config: QueueConfig, by_use: bool) -> QueueConfig:
        if is_dead_letter(config.name) or (tenant := self.of_queue(config.name)) is None:
            return config
        return tenant.admit_queue(self._engine, config, by_use=by_use)

    def reaches(self, username: str | None, client_id: str, address: QueueAddress) -> bool:
        """Whether a client that may not administer reaches a queue; ``address`` holds its tenant's name for it."""
        return self.of_client(username, client_id) is not None or self._is_nobodys(address)

    def _is_nobodys(self, address: QueueAddress) -> bool:
        return all(self.of_queue(queue) is None for queue in (address.queue, *address.bound))

    def check_reach(self, session: Client | None, address: QueueAddress) -> None:
        """A client without a tenant reaches no tenant's queue unless it may administer. Raises :class:`QueueError`."""
        if session is None or session.tenant is not None or session.may_administer:
            return
        if not self._is_nobodys(address):
            raise QueueError(QueueErrorCode.NOT_ALLOWED, f"{address.queue[:80]!r} belongs to a tenant")


def _pattern(text: str) -> re.Pattern[str]:
    parts = (".*" if one == "*" else "." if one == "?" else re.escape(one) for one in text)
    return re.compile("".join(parts), re.DOTALL)
