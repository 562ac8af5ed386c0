"""What the parts of a connection know of it and of each other, and what they hand to each other.

A connection makes channels, and a channel its halves and its methods; what they in turn need of those above them stands
here, so that no arrow leads back.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from assay.reference_broker.amqp091.direct_replies import ReplyTaker
from assay.reference_broker.amqp091.rights import Bearer
from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.amqp091.topology import QueueRecord, VirtualHost
from assay.reference_broker.amqp091.wire.fields import Table
from assay.reference_broker.amqp091.wire.replies import AmqpError
from assay.reference_broker.config import Amqp091Config
from assay.reference_broker.core.broker import Broker
from assay.reference_broker.core.clients import Client
from assay.reference_broker.queues import Consumer, Outcome
from assay.reference_broker.queues.groups.pending import UNLIMITED
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.messages.publish_options import TransactionKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from assay.reference_broker.core.tenant import Tenant


class ConnectionHandle(Client, Bearer, Protocol):
    """A connection, as its channels know it."""

    service: Amqp091
    vhost: VirtualHost | None
    config: Amqp091Config
    capabilities: frozenset[str]
    frame_max_bytes: int
    content_bytes: int
    unconfirmed: int
    transacted_count: int
    transacted_bytes: int
    is_full: bool

    def __hash__(self) -> int: ...

    @property
    def broker(self) -> Broker: ...

    @property
    def channels(self) -> MutableMapping[int, Any]: ...

    @property
    def behind(self) -> MutableMapping[int, Any]: ...

    @property
    def consumer_count(self) -> int: ...

    @property
    def room_bytes(self) -> int: ...

    @property
    def is_over(self) -> bool: ...

    def send(self, data: bytes) -> None: ...

    def send_method(self, channel: int, name: str, *values: Any) -> None: ...

    def flush_later(self, channel: Any) -> None: ...

    def count_waiting(self, size: int) -> None: ...

    def confirmed(self, count: int) -> None: ...

    def press(self) -> None: ...

    def note_topology(self) -> None: ...

    def take_back(self, number: int, kind: int, payload: bytes, now: float) -> None: ...

    def fail(self, error: AmqpError, now: float) -> None: ...


class AmqpConsumer:
    """One consumer, as a client of the engine: each has a name of its own there."""

    __slots__ = (
        "_connection",
        "_on_end",
        "client_id",
        "consumer",
        "held",
        "is_cancelled",
        "is_exclusive",
        "is_stream",
        "may_administer",
        "no_ack",
        "prefetch",
        "record",
        "served_at",
        "tag",
        "tenant",
        "username",
    )
    tenant: Tenant | None

    def __init__(
        self,
        connection: ConnectionHandle,
        record: QueueRecord,
        tag: str,
        client_id: str,
        *,
        no_ack: bool,
        on_end: Callable[[AmqpConsumer], None],
    ) -> None:
        """``on_end`` is told when its queue is deleted."""
        self._connection = connection
        self._on_end = on_end
        self.record = record
        self.tag = tag
        """Empty for the one that gets."""
        self.client_id = client_id
        self.username = connection.username
        self.tenant = connection.tenant
        self.may_administer = connection.may_administer
        self.no_ack = no_ack
        self.is_exclusive = False
        self.is_stream = False
        """It reads a stream: whatever it says of a message, that stays where it is."""
        self.prefetch = 0
        """Of one that commits by itself what it reads: acknowledgements ask for more, and do nothing else."""
        self.held = 0
        """Deliveries that it was given and that are not settled."""
        self.served_at = 0
        """The tag of its last delivery."""
        self.is_cancelled = False
        self.consumer: Consumer | None = None

    @property
    def connection(self) -> object | None:
        return self._connection.connection

    def set_active(self, *, active: bool) -> None:
        """Whether it is the one that gets messages, of a queue that has but one."""
        broker = self._connection.broker
        if self.consumer is not None:
            broker.engine.grant(self.consumer, UNLIMITED if active else 0, broker.now)

    def queue_ended(self) -> None:
        """The queue was deleted."""
        self._on_end(self)


class Unsettled(NamedTuple):
    """A delivery that the client has not acknowledged. As :class:`Held`."""

    consumer: AmqpConsumer
    partition: int
    offset: int

    @property
    def queue(self) -> str:
        assert self.consumer.consumer is not None
        return self.consumer.consumer.queue

    @property
    def group(self) -> str:
        assert self.consumer.consumer is not None
        return self.consumer.consumer.group


class Settlement(NamedTuple):
    tag: int
    held: Unsettled
    outcome: Outcome


class ConsumingHandle(ReplyTaker, Protocol):
    """The consuming half of a channel, as the rest of it knows it."""

    def resume(self) -> None: ...

    def settled(self) -> None: ...

    def settle_next(self, taken: Sequence[tuple[int, Unsettled]], at: int, outcome: Outcome) -> int: ...

    def carry_out(
        self, settlement: Settlement, now: float, on_done: Confirm, within: TransactionKey | None = None
    ) -> None: ...

    def take_back(self, settlements: list[Settlement]) -> None: ...

    def reader_of(self, stream: QueueRecord, group: str) -> AmqpConsumer | None: ...


class OpenTransaction(Protocol):
    """What is to be done at the commit."""

    settlements: list[Settlement]


class PublishingHandle(Protocol):
    """The publishing half of a channel, as the rest of it knows it."""

    @property
    def transaction(self) -> OpenTransaction | None: ...

    def settle_later(self, settlement: Settlement) -> None: ...

    def check_rights(self, exchange: str, routing_key: str, headers: Table) -> None: ...


class ChannelHandle(Protocol):
    """A channel, as its halves and its methods know it; what it does they say there."""

    connection: ConnectionHandle
    number: int
    last_queue: str

    @property
    def vhost(self) -> VirtualHost: ...

    @property
    def service(self) -> Amqp091: ...

    @property
    def is_open(self) -> bool: ...

    @property
    def consuming(self) -> ConsumingHandle: ...

    @property
    def publishing(self) -> PublishingHandle: ...

    def send(self, name: str, *values: Any) -> None: ...

    def answer_later(self) -> Callable[..., None]: ...

    def later(self, name: str, carry_out: Callable[[float], None]) -> Confirm: ...
