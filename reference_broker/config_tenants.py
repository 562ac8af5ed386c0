"""The configuration of tenants: who they are, and what they may use."""

from __future__ import annotations

import re
from typing import Annotated

from assay.reference_broker.config_mqtt import Section
from assay.reference_broker.config_numbers import Range

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RESERVED = ("dlq",)


class TenantQuotas(Section, frozen=True, kw_only=True):
    """What all clients of a tenant may use of the queues together; 0 = no limit."""

    publish_messages_per_s: float = 0.0
    """Messages published to queues in the long run; over it they are refused."""
    publish_bytes_per_s: float = 0.0
    consume_messages_per_s: float = 0.0
    """Deliveries in the long run; over it they wait."""
    consume_bytes_per_s: float = 0.0
    burst_s: Annotated[float, Range(0.001, 3_600)] = 1.0
    """A tenant that was idle may use what these rates allow in this time at once."""
    max_storage_bytes: int = 0
    """Of all its logs; known to about a second."""
    max_queues: int = 0
    max_partitions_per_queue: int = 0
    """A queue that is created by use gets no more than so many."""
    max_partitions: int = 0
    max_message_bytes: int = 0
    max_delay_hours: float = 0.0
    max_connections: int = 0
    max_groups: int = 0
    """Consumer groups of all its queues."""
    max_consumers_per_group: int = 0


class TenantConfig(Section, frozen=True, kw_only=True):
    """One tenant. Its clients see its queues only, under names without the tenant's; for others they are
    ``<tenant>.<queue>``."""

    name: str
    """Letters, digits, ``-`` and ``_``."""
    users: tuple[str, ...] = ()
    """Verified user names whose clients belong to it."""
    clients: tuple[str, ...] = ()
    """Client ids that belong to it, whoever connects: ``*`` stands for any characters, ``?`` for one."""
    quotas: TenantQuotas = TenantQuotas()


def tenant_problems(tenants: tuple[TenantConfig, ...]) -> list[str]:
    """What is wrong with the tenants."""
    problems: list[str] = []
    names: set[str] = set()
    owners: dict[str, str] = {}
    for tenant in tenants:
        where = f"queues.tenants.{tenant.name[:80]}"
        if not _NAME.fullmatch(tenant.name) or tenant.name in _RESERVED:
            problems.append(f"{where}: a tenant's name has 1 to 64 letters, digits, '-' and '_', and is not 'dlq'")
        if tenant.name in names:
            problems.append(f"{where} is there twice")
        names.add(tenant.name)
        problems += [
            f"{where}: the user {user[:80]!r} belongs to {owners[user]!r} already"
            for user in tenant.users
            if owners.setdefault(user, tenant.name) != tenant.name
        ]
        if not tenant.users and not tenant.clients:
            problems.append(f"{where} has neither users nor clients: nobody could belong to it")
    return problems
