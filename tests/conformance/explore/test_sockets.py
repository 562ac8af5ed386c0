"""What clients of lives write goes out as they mean it: each by itself, in one piece, or in two."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from assay.conformance.explore.player import Player as LifePlayer
from assay.conformance.explore.sockets import Sockets, Wire
from assay.conformance.explore.state import Link, Session
from assay.conformance.wire import Connect, Decoder, Pingreq, Publish, encode

PING = encode(Pingreq(), 5)


class Player(Sockets):
    """One connection, whose other end a test reads."""

    def __init__(self) -> None:
        self.begin_life()
        near, self.far = socket.socketpair()
        self.far.setblocking(False)
        self.wire = Wire(name="c", version=5, sock=near, decoder=Decoder(5))
        self.watch(self.wire)
        self.passed: list[bytes] = []

    def received(self, wire: Wire, packet: Any) -> None:
        self.write(wire, Pingreq())

    def ended_by_broker(self, wire: Wire) -> None:
        self.drop(wire)

    def round_trip(self) -> float:
        return 0.0

    def let_pass(self) -> None:
        self.passed.append(self.seen())

    def seen(self) -> bytes:
        try:
            return self.far.recv(1_000)
        except BlockingIOError:
            return b""


@pytest.fixture
def player() -> Iterator[Player]:
    made = Player()
    yield made
    made.end_life()
    made.far.close()


def test_what_is_sent_together_goes_out_at_the_end(player: Player) -> None:
    with player.together():
        player.write(player.wire, Pingreq())
        assert player.seen() == b""
        player.write(player.wire, Pingreq())
    assert player.seen() == 2 * PING
    player.write(player.wire, Pingreq())
    assert player.seen() == PING


def test_a_wait_sends_what_was_gathered(player: Player) -> None:
    with player.together():
        player.write(player.wire, Pingreq())
        player.read(0.0)
        assert player.seen() == PING


def test_answers_to_one_chunk_go_out_in_one_piece(player: Player) -> None:
    player.answers_together = True
    player.far.sendall(2 * b"\xd0\x00")
    player.read(1.0)
    assert player.seen() == 2 * PING


def test_packets_in_two_pieces(player: Player) -> None:
    player.wire.pieces = True
    player.write(player.wire, Pingreq())
    (first,) = player.passed
    assert 0 < len(first) < len(PING)
    assert first + player.seen() == PING


def test_what_was_acknowledged_before_a_kill_may_come_again() -> None:
    """HiveMQ had not written the PUBACK down, which nothing answers, and was accused of a second delivery."""
    player = Answering()
    player._may_return = {(2, 1, "t", b"m")}
    link = Link(name="c2", client=2, connect=Connect(client_id="c"), kept_s=0.0, last_sent_at=0.0)
    link.session = Session(client=2, version=5)
    again = Publish(topic="t", payload=b"m", qos=1, packet_id=1, dup=True)
    assert player._has_returned(link, again)
    for other in (replace(again, dup=False), replace(again, packet_id=2), replace(again, payload=b"n")):
        assert not player._has_returned(link, other)


class Answering(LifePlayer):
    """A delivery comes before the first PINGRESP, and is answered."""

    def __init__(self) -> None:
        self._said = self.rounds = 0

    def _settle(self, *, until: Callable[[], bool] | None = None) -> None:
        self.rounds += 1
        self._said += self.rounds == 1


def test_what_is_answered_while_a_ping_is_under_way_is_heard_as_well() -> None:
    """Mosquitto was accused of what it sent again: the PUBREC behind the PINGREQ had gone with a reset connection."""
    player = Answering()
    player._barrier()
    assert player.rounds == 2
