"""A case that acknowledges out of order is at fault itself: no broker is judged by what follows."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from assay.conformance.connection import Connection
from assay.conformance.offer import Offer
from assay.conformance.outcome import ClientFaultError
from assay.conformance.transcript import Transcript
from assay.conformance.wire import Packet, Puback, Publish, Pubrec, encode


class Context:
    """As much of a case as a connection needs."""

    lives = 1

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.offer = Offer((), {})
        self.settled: dict[tuple[str, str, int], int] = {}

    def look_at(self, _connection: object, _packet: Packet) -> None:
        """No case that asks for it."""

    def will_send(self, packet: Packet, client_id: str = "", *, topic: str = "", times: int = 1) -> None:
        """Nothing to clean up."""

    def is_foreign(self, *_asked: object) -> bool:
        return False

    def is_forgiven(self, *_asked: object) -> bool:
        return False


def delivered(*deliveries: tuple[int, int], dup: bool = False) -> Connection:
    """A connection to which messages came: QoS and identifier of each; the last with DUP."""

    async def scene() -> Connection:
        connection = Connection(cast("Any", Context()), "client", 5)
        for qos, packet_id in deliveries:
            again = dup and packet_id == deliveries[-1][1]
            connection.data_received(encode(Publish(topic="t", qos=qos, packet_id=packet_id, dup=again), 5))
        return connection

    return asyncio.run(scene())


def test_each_kind_has_an_order_of_its_own() -> None:
    connection = delivered((1, 1), (2, 2), (1, 3), (2, 4))
    connection.send(Pubrec(packet_id=2), Puback(packet_id=1), Pubrec(packet_id=4), Puback(packet_id=3))


@pytest.mark.parametrize(("qos", "kind"), [(1, Puback), (2, Pubrec)])
def test_the_second_before_the_first_is_a_fault_of_the_case(qos: int, kind: type[Puback | Pubrec]) -> None:
    connection = delivered((qos, 1), (qos, 2))
    with pytest.raises(ClientFaultError, match="while deliveries"):
        connection.send(kind(packet_id=2))


def test_what_was_never_delivered_may_be_acknowledged() -> None:
    delivered((1, 1)).send(Puback(packet_id=9))


def test_what_comes_again_was_there_before() -> None:
    delivered((1, 2), (1, 1), dup=True).send(Puback(packet_id=1), Puback(packet_id=2))
