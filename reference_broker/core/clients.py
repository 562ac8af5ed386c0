"""What the broker asks of its clients, whatever they speak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from assay.reference_broker.routing.message import Message

if TYPE_CHECKING:
    from assay.reference_broker.core.tenant import Tenant


class Client(Protocol):
    """Who asks for something: a session of MQTT, a connection of a protocol without sessions."""

    client_id: str
    username: str | None
    """The verified user."""
    tenant: Tenant | None
    """Whose queues it uses; None = no tenant's."""
    may_administer: bool

    @property
    def connection(self) -> object | None:
        """What serves it now; None = it is away, and comes back."""


class Subscriber(Protocol):
    """Who gets the messages of topics."""

    @property
    def connection(self) -> object | None:
        """As of a :class:`Client`. A PUBLISH goes on as bytes where all connections are those of MQTT."""

    @property
    def ended(self) -> bool:
        """It is over, though it may still be listed."""

    @property
    def kept(self) -> object | None:
        """What writes down the messages that it holds; None = nothing does."""

    @property
    def has_room(self) -> bool:
        """It takes a message at once."""

    @property
    def can_wait(self) -> bool:
        """A message may wait for it."""

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        *,
        share: str = "",
    ) -> None:
        """Send it, or keep it for later. ``share``: the whole filter of the shared subscription that it comes by."""
