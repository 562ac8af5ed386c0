"""The clients of a life of queues: connections over MQTT 5.0, and requests that wait for their answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from assay.conformance.explore.control import Control, connected, with_credentials
from assay.conformance.explore.life import keep_alive_s
from assay.conformance.explore.queues.books import violation
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.state import Member
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.explore.sockets import Sockets, Wire
from assay.conformance.targets import CapabilityValue, Endpoint
from assay.conformance.wire import (
    Connect,
    Decoder,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Publish,
)

PATIENCE_S = 4.0
ADMIN = "a"
"""Who administers, and belongs to no tenant."""
_VERSION = 5


@dataclass(eq=False, kw_only=True)
class QueueClient(Wire):
    client_id: str
    key: str
    """What it is called in its life."""
    member: Member | None = None
    consumer: int = -1
    answers: dict[int, Packet] = field(default_factory=dict)
    """Packet identifier to what was answered."""
    is_ready: bool = False
    pings: int = 0
    held: list[int] = field(default_factory=list)
    """Packet identifiers of deliveries that it does not acknowledge for the time being."""
    withholds: bool = False
    packet_id: int = 0
    producer: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    inbox: list[Publish] = field(default_factory=list)


def violation_of(rule: Rule, text: str) -> ViolationError:
    return ViolationError(rule, _VERSION, text, waited=rule in (Rule.CONNACK, Rule.PINGRESP))


class QueueClients(Sockets):
    """What a player of queues does its work with."""

    def __init__(self, endpoint: Endpoint, capabilities: dict[str, CapabilityValue], patience_s: float) -> None:
        self.endpoint, self.capabilities, self.patience_s = endpoint, capabilities, patience_s
        self.ahead_s = 0.0
        self.control = self.new_control()
        self.token = self.tenant = ""
        """What names begin with in this life; the tenant that all clients belong to but one."""
        self._names = itertools.count(1)
        self.clients: dict[str, QueueClient] = {}
        self.unheard = False
        """Nobody waits for answers: the broker is about to be killed."""

    def new_control(self) -> Control:
        return Control(self.endpoint, _VERSION, keep_alive_s(self.capabilities))

    def round_trip(self) -> float:
        return self.control.round_trip()

    @property
    def now(self) -> float:
        """The broker's clock."""
        return time.monotonic() + self.ahead_s

    def client(self, name: str) -> QueueClient:
        client = self.clients.get(name)
        return client if client is not None and client.open else self.connect(name)

    def connect(self, name: str, receive_maximum: int = 0) -> QueueClient:
        client = QueueClient(
            name=f"{name}.{next(self._names)}",
            version=_VERSION,
            sock=connected(self.endpoint),
            decoder=Decoder(_VERSION),
            client_id=f"{self.tenant}-{self.token}{name}" if self.tenant and name != ADMIN else f"{self.token}{name}",
            key=name,
        )
        self.clients[name] = client
        self.watch(client)
        properties = Properties(receive_maximum=receive_maximum or None)
        packet = Connect(
            client_id=client.client_id,
            version=_VERSION,
            keep_alive_s=keep_alive_s(self.capabilities),
            properties=properties,
        )
        self.write(client, with_credentials(packet, self.endpoint))
        self.await_(lambda: client.is_ready, lambda: violation_of(Rule.CONNACK, f"{client.name}: CONNACK"))
        return client

    def is_current(self, wire: QueueClient) -> bool:
        """Nobody has taken its place."""
        return self.clients.get(wire.key) is wire

    def next_id(self, client: QueueClient) -> int:
        client.packet_id = client.packet_id % 65_535 + 1
        return client.packet_id

    def ask(self, client: QueueClient, packet: Packet, packet_id: int, what: str) -> Packet | None:
        """What is answered; None if nobody waits for that."""
        client.answers.pop(packet_id, None)
        self.write(client, packet)
        return None if self.unheard else self.answer(client, packet_id, what)

    def answer(self, client: QueueClient, packet_id: int, what: str) -> Packet:
        """What comes for a packet that was sent. Raises :class:`ViolationError` when nothing does."""
        self.await_(
            lambda: packet_id in client.answers,
            lambda: violation(QueueRule.UNANSWERED, f"{client.name}: {what} is not answered", waited=True),
        )
        return client.answers.pop(packet_id)

    def request(
        self, client: QueueClient, topic: str, named: Iterable[tuple[str, str]] = (), payload: bytes = b"", **more: Any
    ) -> Puback | None:
        packet_id = self.send_request(client, topic, named, payload, **more)
        answer = None if self.unheard else self.answer(client, packet_id, topic)
        assert answer is None or isinstance(answer, Puback)
        return answer

    def send_request(
        self, client: QueueClient, topic: str, named: Iterable[tuple[str, str]] = (), payload: bytes = b"", **more: Any
    ) -> int:
        """Returns the packet identifier of what is to be answered."""
        packet_id = self.next_id(client)
        properties = Properties(user_property=tuple(named), **more)
        packet = Publish(topic=topic, payload=payload, qos=1, packet_id=packet_id, properties=properties)
        client.answers.pop(packet_id, None)
        self.write(client, packet)
        return packet_id

    def barrier(self, *clients: QueueClient) -> None:
        """What was sent on these connections has been handled, or they are over."""
        there = [client for client in clients if client.open]
        for client in there:
            client.pings += 1
            self.write(client, Pingreq())
        self.await_(
            lambda: not any(client.pings and client.open for client in there),
            lambda: violation_of(Rule.PINGRESP, "PINGRESP"),
        )

    def ended_by_broker(self, wire: Wire) -> None:
        assert isinstance(wire, QueueClient)
        self.drop(wire)
        if not wire.ended and self.is_current(wire) and not self.unheard:
            raise violation_of(Rule.ENDED, f"{wire.name}: the broker ended the connection")
