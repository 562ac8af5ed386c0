"""A client of AMQP 0.9.1 in memory, for what drives a node by hand: a method in, what the broker says to it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from assay.conformance.wire.amqp091 import (
    PROTOCOL_HEADER,
    Arrival,
    Assembler,
    Method,
    encode_content,
    encode_method,
)
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.node import BrokerNode

FRAME_MAX: Final = 131_072
CAPABILITIES: Final[Mapping[str, Any]] = {
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "authentication_failure_close": True,
}
NULL_LOGIN: Final = b"\0guest\0guest"


class UnexpectedAnswerError(RuntimeError):
    """The broker said something else than what was asked for."""


class InMemoryClient:
    """One connection. ``turn`` lets the node do all that it can do at once; it calls :meth:`collect` whenever there is
    output."""

    def __init__(self, node: BrokerNode, turn: Callable[[InMemoryClient], None], now: float) -> None:
        self.node = node
        self.is_answered = False
        """What :meth:`call` waits for has been said."""
        self._expected: tuple[str, ...] = ()
        self._heard: list[Arrival] = []
        self.now = now
        self._turn = turn
        self.end: Connection = node.accept("in-memory", now, protocol="amqp091")
        self.assembler = Assembler()
        self.send(PROTOCOL_HEADER)
        self.hear()
        self.ask(
            0,
            "connection.start-ok",
            client_properties={"capabilities": CAPABILITIES},
            mechanism="PLAIN",
            response=NULL_LOGIN,
            locale="en_US",
        )
        self.tell(0, "connection.tune-ok", channel_max=2_047, frame_max=FRAME_MAX, heartbeat=0)
        self.ask(0, "connection.open", virtual_host="/")

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.node.receive(self.end, data, self.now)

    def hear(self) -> list[Arrival]:
        """What the broker has said since, after a turn of its."""
        self._turn(self)
        self.collect()
        heard, self._heard = self._heard, []
        return heard

    def collect(self) -> None:
        """Take what the broker says now."""
        said = [each for each in self.assembler.feed(self.end.take_output()) if isinstance(each, Arrival)]
        self.is_answered |= any(each.name in self._expected for each in said)
        self._heard += said

    def expect(self, *methods: str) -> None:
        """The next thing is answered by one of these."""
        self._expected, self.is_answered = methods, False

    def tell(self, channel: int, method: str, **values: Any) -> None:
        """A method that nobody answers, or whose answer is heard later."""
        self.send(encode_method(channel, Method(method, **values)))

    def ask(self, channel: int, method: str, **values: Any) -> list[Arrival]:
        """A method, and what is heard to it."""
        self.tell(channel, method, **values)
        return self.hear()

    def call(self, channel: int, method: str, **values: Any) -> Arrival:
        """A method that is answered as it should be. Raises :class:`UnexpectedAnswerError`."""
        expected = Method(method).spec.replies
        self.expect(*expected)
        heard = self.ask(channel, method, **values)
        found = next((each for each in heard if each.name in expected and each.channel == channel), None)
        if found is None:
            message = f"{method}: {[(each.name, each.method.values) for each in heard]}"
            raise UnexpectedAnswerError(message)
        return found

    def publish(
        self, channel: int, exchange: str, routing_key: str, body: bytes, properties: Mapping[str, Any] = {}
    ) -> None:
        """Nothing is heard."""
        method = Method("basic.publish", exchange=exchange, routing_key=routing_key)
        self.send(encode_content(channel, method, body, properties))

    def declared(self, kind: str, name: str) -> bool:
        """Whether there is such a queue or exchange: asked on a channel of its own."""
        self.call(9, "channel.open")
        [answer] = self.ask(9, f"{kind}.declare", **{kind: name, "passive": True})
        if answer.name == "channel.close":
            self.tell(9, "channel.close-ok")
            return False
        self.call(9, "channel.close")
        return True

    def lose(self) -> None:
        """The transport ends."""
        self.node.connection_lost(self.end, self.now)
        self._turn(self)
