"""A hundred lives go as they went: whatever the broker says to its clients, counts, and leaves on its disk."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from transcripts import golden
from transcripts.life import Life
from transcripts.world import Client, World

from assay.conformance.wire import Pingreq
from assay.reference_broker import node as node_module
from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.mqtt.connections import connection as connection_module
from assay.reference_broker.queues.delivery import dispatcher
from assay.reference_broker.trace.tracing import Tracing
from tests.small_sizes import small_sizes

_A_TEST = 4
"""Lives."""
_GOLDEN = golden.read()
_HOW = "if that is what you want: python tests/support/transcripts --update"


@pytest.mark.parametrize("first", range(0, golden.LIVES, _A_TEST))
def test_lives_go_as_they_went(first: int) -> None:
    for number in range(first, first + _A_TEST):
        lines = list(golden.difference(number, _GOLDEN[number], golden.played(number)))
        assert not lines, "\n".join([*lines, _HOW])


@pytest.mark.parametrize("number", range(0, golden.LIVES, 20))
def test_the_general_ways_say_the_same_as_the_fast_ones(number: int) -> None:
    """A broker that writes traces takes them."""
    assert not list(golden.difference(number, _GOLDEN[number], Life(number, traced=True).run()))


@pytest.mark.parametrize("number", range(0, golden.LIVES, 20))
def test_spans_change_nothing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every message is traced, lives go as they went, but for what deliveries say of their spans."""
    made: list[Tracing] = []

    def traced(_config: BrokerConfig, _rng: random.Random) -> Tracing:
        most = {"max_traces": 200, "max_spans": 20, "max_messages": 100}
        made.append(Tracing("n", random.Random(1), ratio=1.0, **most))
        return made[-1]

    monkeypatch.setattr(node_module, "tracing_of", traced)
    monkeypatch.setattr(dispatcher, "with_delivery_context", lambda message, _text: message)
    assert not list(golden.difference(number, _GOLDEN[number], golden.played(number)))
    assert sum(tracing.ring.spans for tracing in made) > 0
    for tracing in made:
        assert len(tracing) <= 100
        assert all(trace.status and len(trace.spans) <= 20 for trace in tracing.ring.latest())


class InPieces(World):
    """Whatever clients send comes in pieces of any size."""

    def receive(self, client: Client, data: bytes) -> None:
        rng, at = random.Random(len(data)), 0
        while at < len(data):
            end = at + rng.choice((1, 2, 3, 7, 20, 200))
            super().receive(client, data[at:end])
            at = end


class SlowReaders(World):
    """Of what clients are sent, their transports take one byte, and the rest when more is to be sent."""

    def take_output(self, connection: Connection) -> bytes:
        data = super().take_output(connection)
        if data and not connection.closing:
            connection.note_backlog(len(data) - 1, 1, self.now)
        return data


class ShortTurns(World):
    """A turn handles one packet of a client. Who is served in what order then is free to the broker."""

    def receive(self, client: Client, data: bytes) -> None:
        with mock.patch.object(connection_module, "PACKETS", range(1)):
            super().receive(client, data)
            self.turn()


@pytest.mark.parametrize("world", [InPieces, SlowReaders])
def test_lives_go_the_same_however_bytes_travel(world: type[World]) -> None:
    for number in range(3, golden.LIVES, 12):
        # In which order a turn writes what it changed of sessions is free, and shows in which of it is gone later.
        _go_the_same(number, Life(number, world=world), "disk: sessions/", "/bytes/")


def _go_the_same(number: int, life: Life, *free: str) -> None:
    """But for traces, and lines with texts that are ``free`` to differ."""
    texts = ("trace: ", *free)
    lives = _GOLDEN[number], life.run()
    before, now = ([line for line in lines if not any(text in line for text in texts)] for lines in lives)
    assert not list(golden.difference(number, before, now))


def test_everybody_is_served_however_short_turns_are() -> None:
    """And every count is right."""
    for number in range(6, golden.LIVES, 12):
        life = Life(number, world=ShortTurns)
        lines = life.run()
        assert not [line for line in lines if line.startswith("count: ")]
        for client in life.world.clients.values():
            life.world.send(client, Pingreq())
            assert not client.is_open or life.world.lines[-1] == f"{client.name} < PINGRESP"


def test_what_is_remembered_or_read_at_once_changes_nothing_but_speed() -> None:
    """Each cache has room for one thing, and files are read record by record: the lives are the same, but for how many
    bytes the figures of caches take."""
    with small_sizes():
        for number in range(1, golden.LIVES, 16):
            _go_the_same(number, Life(number), "/bytes/sent'")


def test_a_life_that_goes_otherwise_is_told() -> None:
    other = [line.replace("SUBACK", "SUBNACK") for line in _GOLDEN[0]]
    text = "\n".join(golden.difference(0, _GOLDEN[0], other))
    assert text.startswith("life 0 goes otherwise:\n--- as it was\n+++ as it is\n")
    assert "\n-ada < SUBACK" in text
    assert "\n+ada < SUBNACK" in text


@pytest.mark.parametrize(("hash_seed", "first"), [("1", 0), ("2", 6)])
def test_lives_are_the_same_in_every_process(hash_seed: str, first: int) -> None:
    """However sets and dictionaries of texts are ordered there."""
    command = (
        "from transcripts import golden\n"
        "lives = golden.read()\n"
        f"assert all(golden.played(number) == lives[number] for number in range({first}, 100, 8))\n"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join((str(root / "tests" / "support"), str(root), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", command], check=True, env=environment)
