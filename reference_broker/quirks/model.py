"""What a quirk is: a deviation of a real broker as classes that take the place of the reference broker's own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar, cast

import msgspec

from assay.reference_broker.core.routing import SubscriptionTree
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.packets import Packet, PacketType

_T = TypeVar("_T")


class Quirk(msgspec.Struct, frozen=True, kw_only=True):
    """One deviation. The classes override methods and call ``super()``, so that any number of quirks combine."""

    name: str
    what: str
    """What the broker does, in one sentence."""
    statements: tuple[str, ...]
    """The statements it breaks, each with its version: ``5.0 MQTT-3.8.3-4``."""
    citation: str = "docs/findings/mqtt.md"
    """Where it is reported: a link, or a page below ``docs`` with its heading."""
    fails: tuple[str, ...] = ()
    """Cases of the conformance suite that fail because of it."""
    reports: tuple[str, ...] = ()
    """Cases that report it without failing, since the standard only recommends otherwise."""
    connection: type[MqttConnection] | None = None
    inbound: type[Inbound] | None = None
    outbound: type[Outbound] | None = None
    state: type[MqttBroker] | None = None
    session: type[Session] | None = None
    tree: type[SubscriptionTree] | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The quirks of one broker."""

    name: str
    what: str
    quirks: tuple[str, ...]
    missing: str
    """What of the broker is not imitated."""


Content = Callable[[MqttConnection, int, bytes], bytes]
"""Of a packet, with its header: as the client might have sent it, or as it is."""


def reads(kinds: Collection[int], change: Content) -> type[MqttConnection]:
    """Packets of some kinds are taken as if their content were another."""

    class Reads(MqttConnection):
        __slots__ = ()

        def on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
            if header >> 4 in kinds:
                data = change(self, header, data[body:end])
                body, end = 0, len(data)
            super().on_packet(header, data, body, end, now)

    return Reads


def answers(
    kinds: Collection[int], answer: Callable[[MqttConnection, int, bytes, float], bool]
) -> type[MqttConnection]:
    """Packets of some kinds go no further where ``answer`` takes them: it gets connection, header, content and time."""

    class Answers(MqttConnection):
        __slots__ = ()

        def on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
            if header >> 4 not in kinds or not answer(self, header, data[body:end], now):
                super().on_packet(header, data, body, end, now)

    return Answers


def ignores_flags(*kinds: PacketType, flags: int = 0) -> type[MqttConnection]:
    """Packets of some kinds are taken as if their headers had the right flags."""

    class IgnoresFlags(MqttConnection):
        __slots__ = ()

        def on_packet(self, header: int, data: bytes, body: int, end: int, now: float) -> None:
            if header >> 4 in kinds:
                header = header & 0xF0 | flags
            super().on_packet(header, data, body, end, now)

    return IgnoresFlags


def takes_as(change: Callable[[Packet], Packet]) -> type[MqttConnection]:
    """Packets are served as if they were others."""

    class TakesAs(MqttConnection):
        __slots__ = ()

        def handle(self, packet: Packet, now: float) -> None:
            super().handle(change(packet), now)

    return TakesAs


class NodeClasses(msgspec.Struct, frozen=True, kw_only=True):
    """What a node builds its broker from."""

    connection: type[MqttConnection] = MqttConnection
    state: type[MqttBroker] = MqttBroker


def combine(quirks: Iterable[Quirk]) -> NodeClasses:
    """The classes of a node with these quirks; the reference broker's own classes stay as they are."""
    quirks = tuple(quirks)
    if not quirks:
        return NodeClasses()
    inbound = _mixed("QuirkyInbound", Inbound, (quirk.inbound for quirk in quirks), {})
    outbound = _mixed("QuirkyOutbound", Outbound, (quirk.outbound for quirk in quirks), {})
    session = _mixed("QuirkySession", Session, (quirk.session for quirk in quirks), {})
    tree = _mixed("QuirkyTree", SubscriptionTree, (quirk.tree for quirk in quirks), {})
    return NodeClasses(
        connection=_mixed(
            "QuirkyConnection",
            MqttConnection,
            (quirk.connection for quirk in quirks),
            {"inbound_class": inbound, "outbound_class": outbound},
        ),
        state=_mixed(
            "QuirkyState",
            MqttBroker,
            (quirk.state for quirk in quirks),
            {"session_class": session, "tree_class": tree},
        ),
    )


def _mixed(name: str, base: type[_T], parts: Iterable[type[_T] | None], attributes: dict[str, object]) -> type[_T]:
    chosen = list(dict.fromkeys(part for part in parts if part is not None))
    # A class that another one refines comes with that one.
    bases = tuple(part for part in chosen if not any(part is not other and issubclass(other, part) for other in chosen))
    return cast(type[_T], type(name, bases or (base,), attributes))
