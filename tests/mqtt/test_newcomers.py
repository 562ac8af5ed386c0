"""Who has not said yet who it is: so many at most, and one that says nothing keeps nobody out who does."""

from __future__ import annotations

import random

import pytest

from assay.reference_broker.config import AuthConfig, BrokerConfig, MqttConfig, UserConfig
from assay.reference_broker.core.newcomers import Newcomers
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from tests.mqtt.conftest import Client, World

_HELLO = encode_packet(p.Connect(version=p.V5, client_id="c"), p.V5)


def _world(make_world: type[World], most: int) -> World:
    return make_world(BrokerConfig(mqtt=MqttConfig(max_connecting=most)))


def _from(world: World, address: str) -> Client:
    return world.open(source=("listener", address))


def test_connections_without_connect(make_world: type[World]) -> None:
    world = _world(make_world, 3)
    connecting = world.node.state.connecting
    first, second, third = (_from(world, "10.0.0.1") for _ in range(3))
    second.send_bytes(_HELLO[:-1])
    assert connecting.count == 3, "exactly as many as the limit"
    fourth = _from(world, "10.0.0.1")
    assert [client.closed for client in (first, second, third, fourth)] == [True, False, False, False]
    assert first.connection.cut
    second.send_bytes(_HELLO[-1:])
    assert connecting.count == 2
    fifth = _from(world, "10.0.0.1")
    assert not third.closed, "one that has connected makes room"
    fifth.lose()
    _from(world, "10.0.0.1")
    assert not third.closed, "and one that has gone"
    _from(world, "10.0.0.1")
    assert third.closed
    assert not second.closed, "who is connected is not concerned"


def test_idle_connections_of_one_address_push_out_no_other(make_world: type[World]) -> None:
    world = _world(make_world, 10)
    slow = _from(world, "10.0.0.1")
    for _ in range(100):
        _from(world, "10.0.0.2")
    assert not slow.closed, "the address with most loses its own"
    prompt = _from(world, "10.0.0.3")
    assert isinstance(prompt.send(p.Connect(version=p.V5, client_id="p"))[0], p.Connack)
    assert isinstance(slow.send(p.Connect(version=p.V5, client_id="s"))[0], p.Connack)


def test_a_crowd_of_addresses_keeps_nobody_out_who_connects_promptly(make_world: type[World]) -> None:
    world = _world(make_world, 10)
    for number in range(200):
        _from(world, f"10.0.1.{number}")
        world.wait(0.01)
        if number % 10 == 0:
            prompt = _from(world, f"10.0.2.{number}")
            assert isinstance(prompt.send(p.Connect(version=p.V5, client_id=f"p{number}"))[0], p.Connack)
    assert world.node.state.connecting.count == 10
    world.wait(11)
    for client in list(world.clients.values()):
        if client.closed:
            client.lose()
    assert world.node.state.connecting.count == 0


def test_one_that_is_refused_and_stays_counts_until_it_has_gone(make_world: type[World]) -> None:
    world = _world(make_world, 2)
    refused = _from(world, "10.0.0.1")
    refused.send_bytes(b"\xc0\x00")
    assert refused.closed
    assert not refused.connection.cut, "it may read why, and close"
    assert world.node.state.connecting.count == 1
    for _ in range(2):
        _from(world, "10.0.0.1")
    assert refused.connection.cut


def test_a_client_whose_password_is_being_checked_has_done_its_part(make_world: type[World]) -> None:
    user = UserConfig(username="u", password_hash="scrypt$2$8$1$00$00000000000000000000000000000000")
    world = make_world(BrokerConfig(mqtt=MqttConfig(max_connecting=1), auth=AuthConfig(users=(user,))))
    client = _from(world, "10.0.0.1")
    hello = encode_packet(p.Connect(version=p.V5, client_id="c", username="u", password=b"x"), p.V5)
    world.node.receive(client.connection, hello, world.now)
    assert client.connection.phase.name == "VERIFYING"
    _from(world, "10.0.0.1")
    _from(world, "10.0.0.1")
    assert not client.closed


class _Waiting:
    def __init__(self, place: Newcomers) -> None:
        self.place = place
        self.gone = False

    def give_way(self, now: float) -> None:
        self.gone = True
        self.place.remove(self)


@pytest.mark.parametrize("limit", [1, 7])
def test_the_figures_agree_with_a_plain_count(limit: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    place = Newcomers(limit)
    there: list[tuple[_Waiting, str]] = []
    for _ in range(2_000):
        if rng.random() < 0.7:
            counts = [source for each, source in there]
            newcomer, source = _Waiting(place), f"s{rng.randrange(4)}"
            place.add(newcomer, source, 0.0)
            there.append((newcomer, source))
            gone = [pair for pair in there if pair[0].gone]
            assert len(gone) == max(0, len(counts) + 1 - limit)
            for each in gone:
                counts = [other for _, other in there]
                assert counts.count(each[1]) == max(map(counts.count, counts)), "an address with most"
                assert each is next(pair for pair in there if pair[1] == each[1]), "the oldest of it"
                there.remove(each)
        elif there:
            newcomer, _ = there.pop(rng.randrange(len(there)))
            place.remove(newcomer)
            place.remove(newcomer)
        assert place.count == len(there)
    while place.make_room(0.0):
        pass
    assert not place._of_source
    assert not place._levels
