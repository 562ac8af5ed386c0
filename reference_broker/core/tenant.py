"""One tenant: its names for queues, and what its clients have used of its quotas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from assay.reference_broker.config import EventKind, QueueConfig, TenantConfig
from assay.reference_broker.core.rates import TokenBucket
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.delays.delays import due_time_ms
from assay.reference_broker.queues.messages.address import DEAD_LETTER_PREFIX, is_dead_letter
from assay.reference_broker.queues.messages.publish_options import PublishOptions
from assay.reference_broker.queues.messages.stored_message import message_bytes
from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.queues import QueueEngine
    from assay.reference_broker.queues.jobs.agenda import Agenda

_USAGE_INTERVAL_S = 1.0
_MIN_WAIT_S = 0.001
"""Shorter ones might end before the clock, a float, has moved."""


class Tenant:
    """One tenant, and what its clients have used."""

    def __init__(self, config: TenantConfig) -> None:
        self.name = config.name
        self.prefix = f"{config.name}."
        self.connections = 0
        self.agenda: Agenda | None = None
        """Whom to tell when a quota is used up."""
        self._stored_bytes = 0
        """At the last look, and what was published since."""
        self._looked_at = float("-inf")
        self.configure(config)

    def configure(self, config: TenantConfig) -> None:
        """Take other quotas; rates begin anew."""
        quotas = self.quotas = config.quotas
        self.publish_messages, self.publish_bytes, self.consume_messages, self.consume_bytes = (
            TokenBucket(rate, max(1.0, rate * quotas.burst_s), 0.0) if rate else None
            for rate in (
                quotas.publish_messages_per_s,
                quotas.publish_bytes_per_s,
                quotas.consume_messages_per_s,
                quotas.consume_bytes_per_s,
            )
        )

    # -- names ---------------------------------------------------------------------------------------------------

    def owns(self, queue: str) -> bool:
        """Whether an engine name is that of one of its queues, or of the dead letters of one."""
        return (queue[len(DEAD_LETTER_PREFIX) :] if is_dead_letter(queue) else queue).startswith(self.prefix)

    def name_in(self, name: str) -> str:
        """The engine's form of a name or id that begins with a queue's name."""
        if name.startswith(DEAD_LETTER_PREFIX):
            return f"{DEAD_LETTER_PREFIX}{self.prefix}{name[len(DEAD_LETTER_PREFIX) :]}"
        return self.prefix + name

    def name_out(self, name: str) -> str:
        """The opposite."""
        if name.startswith(DEAD_LETTER_PREFIX + self.prefix):
            return DEAD_LETTER_PREFIX + name[len(DEAD_LETTER_PREFIX) + len(self.prefix) :]
        return name.removeprefix(self.prefix)

    def error_out(self, error: QueueError) -> QueueError:
        """What a client is refused for, in its own names: details begin with them, texts have them anywhere."""
        details = tuple((name, self.name_out(value)) for name, value in error.details)
        text = re.sub(rf"(?<![\w.]){re.escape(self.prefix)}", "", error.text)
        return QueueError(error.code, text, details)

    # -- quotas --------------------------------------------------------------------------------------------------

    def check_publish(
        self, messages: Sequence[Message], options: PublishOptions | None, engine: QueueEngine, now: float
    ) -> int:
        """Whether publishes to queues may be charged together; returns their bytes. Charges nothing.

        ``options``: of the only one. Raises :class:`QueueError` (QUOTA).
        """
        quotas = self.quotas
        sizes = list(map(message_bytes, messages))
        size = sum(sizes)
        if quotas.max_message_bytes and max(sizes) > quotas.max_message_bytes:
            raise self._over(f"a message has at most {quotas.max_message_bytes} bytes")
        if quotas.max_delay_hours and options is not None:
            due_ms = due_time_ms(options, messages[0], now)
            if due_ms is not None and due_ms > (now + quotas.max_delay_hours * 3_600) * 1000 + 1:
                raise self._over(f"a delay has at most {quotas.max_delay_hours:g} hours")
        if quotas.max_storage_bytes:
            if now - self._looked_at >= _USAGE_INTERVAL_S:
                self._looked_at = now
                self._stored_bytes = engine.usage(self.owns).stored_bytes
                if self._stored_bytes + size > quotas.max_storage_bytes:
                    engine.free_settled(self.owns, now)
            if self._stored_bytes + size > quotas.max_storage_bytes:
                raise self._over(f"it stores {quotas.max_storage_bytes} bytes at most")
        count, octets = self.publish_messages, self.publish_bytes
        if count is not None and count.available(now) < len(sizes):
            raise self._over(f"it publishes {quotas.publish_messages_per_s:g} messages a second at most")
        # A message larger than the bucket passes when that is full, and is paid for by those behind it.
        if octets is not None and octets.available(now) < size - sizes[-1] + min(sizes[-1], octets.capacity):
            raise self._over(f"it publishes {quotas.publish_bytes_per_s:g} bytes a second at most")
        return size

    def charge(self, count: int, size: int) -> None:
        """So many publishes, which were found to fit."""
        if self.publish_messages is not None:
            self.publish_messages.take(count)
        if self.publish_bytes is not None:
            self.publish_bytes.take(size)
        self._stored_bytes += size

    def delivery_wait_s(self, size: int, now: float) -> float:
        """Charge a delivery; or seconds to wait before it is tried again, with nothing charged."""
        messages, octets = self.consume_messages, self.consume_bytes
        if messages is not None and messages.available(now) < 1:
            return max(messages.wait_s(1), _MIN_WAIT_S)
        if octets is not None and octets.available(now) < min(size, octets.capacity):
            return max(octets.wait_s(size), _MIN_WAIT_S)
        if messages is not None:
            messages.take(1)
        if octets is not None:
            octets.take(size)
        return 0.0

    @property
    def limits_consuming(self) -> bool:
        return self.consume_messages is not None or self.consume_bytes is not None

    def check_new_group(self, engine: QueueEngine, queue: str, group: str, consumer_id: str) -> None:
        """Whether a consumer may join. Raises :class:`QueueError` (QUOTA)."""
        quotas = self.quotas
        if not quotas.max_groups and not quotas.max_consumers_per_group:
            return
        members = engine.members(queue, group)
        if members is None:
            if quotas.max_groups and engine.usage(self.owns).groups >= quotas.max_groups:
                raise self._over(f"it has {quotas.max_groups} consumer groups at most")
            return
        most = quotas.max_consumers_per_group
        if most and consumer_id not in members and len(members) >= most:
            raise self._over(f"a consumer group has {most} consumers at most")

    def admit_queue(self, engine: QueueEngine, config: QueueConfig, *, by_use: bool) -> QueueConfig:
        """A new queue as it may be created; one that is created by use is cut down. Raises :class:`QueueError`."""
        quotas = self.quotas
        most = quotas.max_partitions_per_queue
        if most and config.partitions > most:
            if not by_use:
                raise self._over(f"a queue has {most} partitions at most")
            config = msgspec.structs.replace(config, partitions=most)
        if quotas.max_queues or quotas.max_partitions:
            usage = engine.usage(self.owns)
            if quotas.max_queues and usage.queues >= quotas.max_queues:
                raise self._over(f"it has {quotas.max_queues} queues at most")
            if quotas.max_partitions and usage.partitions + config.partitions > quotas.max_partitions:
                raise self._over(f"it has {quotas.max_partitions} partitions at most")
        return config

    def _over(self, text: str) -> QueueError:
        if self.agenda is not None:
            self.agenda.tell(EventKind.OVER_QUOTA, self.name, {"tenant": self.name, "reason": text})
        return QueueError(QueueErrorCode.QUOTA, f"the quota of tenant {self.name!r} is used up: {text}")
