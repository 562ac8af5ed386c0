"""Bugs of tenants: ways out of one, and quotas that do not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.conformance.mutants import Patch, mutant
from assay.reference_broker.config import TenantConfig
from assay.reference_broker.core.rates import TokenBucket
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.core.tenants import Tenants
from assay.reference_broker.mqtt.connections import administration
from assay.reference_broker.mqtt.queue_topics import tenant_names
from assay.reference_broker.mqtt.sessions import transaction_requests
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.queues.limits.limits import QueueLimits
from assay.reference_broker.queues.messages.address import DEAD_LETTER_PREFIX, QUEUE_PREFIX
from assay.reference_broker.routing.message import Message


@mutant("queue-tenant-name-shows", "deliveries carry the broker's name of the queue, the tenant's included")
def name_shows(patch: Patch) -> None:
    patch.replace(tenant_names, "message_out", lambda tenant, message, queue: message)


@mutant("queue-tenant-name-in-refusals", "what a client is refused for is told in the broker's names of queues")
def name_in_refusals(patch: Patch) -> None:
    patch.replace(Tenant, "error_out", lambda _tenant, error: error)


@mutant("queue-tenant-dotted-names-pass", "a name that has a dot counts as one with a tenant already")
def dotted_names(patch: Patch) -> None:
    def make(original: Callable[[Tenant, str], str]) -> Callable[[Tenant, str], str]:
        return lambda tenant, topic: topic if "." in topic else original(tenant, topic)

    patch.wrap(tenant_names, "topic_in", make)


@mutant("queue-strangers-reach-tenants", "a client without a tenant may use the full names of tenants' queues")
def strangers(patch: Patch) -> None:
    patch.replace(Tenants, "check_reach", lambda self, session, address: None)


@mutant(
    "queue-strangers-use-verbs", "a client without a tenant is not refused what it asks of a tenant's queue by a verb"
)
def strangers_use_verbs(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def publish(self: MqttBroker, message: Message, *arguments: object) -> None:
            tenants = self.tenants
            if message.topic.rpartition("/")[2].startswith("$"):
                self.tenants = None
            try:
                original(self, message, *arguments)
            finally:
                self.tenants = tenants

        return publish

    patch.wrap(MqttBroker, "publish_to_queue", make)


@mutant("queue-tenant-dlq-suffix", "names that end in .dlq are taken for dead letters")
def dlq_suffix(patch: Patch) -> None:
    def make(original: Callable[[Tenant, str], str]) -> Callable[[Tenant, str], str]:
        def topic_in(tenant: Tenant, topic: str) -> str:
            if topic.startswith(QUEUE_PREFIX) and topic.endswith(".dlq"):
                topic = DEAD_LETTER_PREFIX + topic[len(QUEUE_PREFIX) : -len(".dlq")]
            return original(tenant, topic)

        return topic_in

    patch.wrap(tenant_names, "topic_in", make)


@mutant("queue-tenants-administer", "the administration is open to the clients of tenants")
def administer(patch: Patch) -> None:
    patch.replace(administration, "is_tenants", lambda _connection: False)


@mutant("queue-tenant-pays-twice", "a token bucket is charged twice for each message")
def pays_twice(patch: Patch) -> None:
    def make(original: Callable[[TokenBucket, float], None]) -> Callable[[TokenBucket, float], None]:
        return lambda self, count: original(self, 2 * count)

    patch.wrap(TokenBucket, "take", make)


def _without(patch: Patch, **quotas: float) -> None:
    """Tenants are made without some of their quotas."""

    def make(original: Callable[[Tenant, TenantConfig], None]) -> Callable[[Tenant, TenantConfig], None]:
        def build(self: Tenant, config: TenantConfig) -> None:
            fewer: Any = msgspec.structs.replace(config.quotas, **quotas)
            original(self, msgspec.structs.replace(config, quotas=fewer))

        return build

    patch.wrap(Tenant, "configure", make)


@mutant("queue-tenant-bytes-free", "the quota of bytes per second is read and never applied")
def bytes_free(patch: Patch) -> None:
    _without(patch, publish_bytes_per_s=0)


@mutant("queue-tenant-deliveries-dropped", "a delivery over the quota is not tried again")
def deliveries_dropped(patch: Patch) -> None:
    def make(original: Callable[..., float]) -> Callable[..., float]:
        def wait_s(self: Tenant, size: int, now: float) -> float:
            return 1e9 if original(self, size, now) else 0.0

        return wait_s

    patch.wrap(Tenant, "delivery_wait_s", make)


@mutant("queue-tenant-queues-uncounted", "queues of a tenant are created without a look at its quotas")
def queues_uncounted(patch: Patch) -> None:
    _without(patch, max_queues=0, max_partitions=0, max_partitions_per_queue=0)


@mutant("queue-tenant-messages-unchecked", "size and delay of a tenant's messages are not checked")
def messages_unchecked(patch: Patch) -> None:
    _without(patch, max_message_bytes=0, max_delay_hours=0)


@mutant("queue-tenant-connections-leak", "connections of a tenant that ended still count")
def connections_leak(patch: Patch) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def connected(self: Tenants, session: Any) -> None:
            original(self, session)
            if session.tenant is not None:
                session.tenant.connections += 1

        return connected

    patch.wrap(Tenants, "connected", make)


@mutant("queue-tenant-groups-uncounted", "consumer groups and consumers of a tenant are not counted")
def groups_uncounted(patch: Patch) -> None:
    patch.replace(Tenant, "check_new_group", lambda self, engine, queue, group, consumer_id: None)


@mutant("queue-tenant-storage-unbounded", "what a tenant stores is not bounded")
def storage_unbounded(patch: Patch) -> None:
    _without(patch, max_storage_bytes=0)


@mutant("queue-tenant-storage-kept", "the segment that is written to is never freed, whatever is settled of it")
def storage_kept(patch: Patch) -> None:
    patch.replace(QueueLimits, "free_settled", lambda _self, _now: None)


@mutant("queue-tenant-transactions-unknown", "a tenant's publishes name its transactions with the tenant before them")
def transactions_unknown(patch: Patch) -> None:
    def make(original: Callable[..., Message]) -> Callable[..., Message]:
        def message_in(tenant: Tenant, message: Message, **how: Any) -> Message:
            found = original(tenant, message, **how)
            pairs = tuple(
                (name, tenant.name_in(value) if name == "transaction-id" else value)
                for name, value in found.user_properties
            )
            return msgspec.structs.replace(found, user_properties=pairs)

        return message_in

    patch.wrap(tenant_names, "message_in", make)


@mutant("queue-transactions-name-any-queue", "a transaction takes any queue that a request names, and creates it")
def transactions_name_any_queue(patch: Patch) -> None:
    def queue_of(_state: MqttBroker, session: Session, name: str, _may_publish: Callable[[str], bool]) -> str:
        return name if session.tenant is None else session.tenant.name_in(name)

    patch.replace(transaction_requests, "queue_of", queue_of)
