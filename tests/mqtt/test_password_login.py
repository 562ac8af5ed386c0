"""CONNECT with a password: the slow hash is no part of a turn, and nobody else waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.auth import MAX_WAITING_CHECKS, hash_password
from assay.reference_broker.config import AuthConfig, BrokerConfig, UserConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.queues import BackgroundJob

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

HASH = hash_password(b"secret")
AUTH = AuthConfig(users=(UserConfig(username="u", password_hash=HASH),), anonymous=True)


class Desk:
    """A world in which checks run when the test says so."""

    def __init__(self, make_world: type[World]) -> None:
        self.world = make_world(BrokerConfig(auth=AUTH))
        self.jobs: list[BackgroundJob] = []
        node = self.world.node

        def turn() -> None:
            while dirty := node.take_dirty(self.world.now):
                for connection in dirty:
                    self.world.clients[connection].flush()
            self.jobs += node.take_jobs(self.world.now)

        self.world.turn = turn  # type: ignore[method-assign]

    def run_checks(self) -> None:
        while self.jobs:
            jobs, self.jobs = self.jobs, []
            for job in jobs:
                job.run()
                self.world.node.job_done(job, None, self.world.now)
            self.world.turn()

    def log_in(self, password: bytes, *more: p.Packet, version: int = p.V5, client_id: str = "c") -> Client:
        client = self.world.open(version)
        connect = p.Connect(version=version, client_id=client_id, username="u", password=password, clean_start=True)
        client.send(connect, *more)
        return client


@pytest.fixture
def desk(make_world: type[World]) -> Desk:
    return Desk(make_world)


def connack_reason(client: Client) -> int:
    first = client.inbox[0]
    assert isinstance(first, p.Connack)
    return first.reason


@pytest.mark.parametrize("version", [p.V311, p.V5])
def test_what_comes_behind_connect_waits_for_the_answer(desk: Desk, version: int) -> None:
    request = p.SubscriptionRequest(topic_filter="t", qos=0)
    client = desk.log_in(b"secret", p.Subscribe(packet_id=1, requests=(request,)), version=version)
    assert client.inbox == []
    pauses = [client.connection.wants_pause]
    client.send(p.Publish(topic="t", payload=b"x"), p.Pingreq())
    assert client.inbox == []
    other = desk.world.connect("other")
    assert other.inbox, "others are served meanwhile"
    desk.run_checks()
    kinds = [type(packet) for packet in client.inbox]
    assert kinds == [p.Connack, p.Suback, p.Publish, p.Pingresp]
    pauses.append(client.connection.wants_pause)
    assert pauses == [True, False]
    assert client.connection.username == "u"
    again = desk.log_in(b"secret", client_id="again", version=version)
    assert connack_reason(again) == 0, "a password that was right is remembered"


@pytest.mark.parametrize(("version", "reason"), [(p.V311, 4), (p.V5, 0x86)])
def test_a_wrong_password_ends_the_connection(desk: Desk, version: int, reason: int) -> None:
    client = desk.log_in(b"wrong", p.Pingreq(), version=version)
    desk.run_checks()
    assert [type(packet) for packet in client.inbox] == [p.Connack]
    assert connack_reason(client) == reason
    assert client.closed


def test_a_client_that_goes_away_meanwhile_leaves_nothing(desk: Desk) -> None:
    desk.log_in(b"secret").lose()
    desk.run_checks()
    assert not desk.world.node.state.sessions
    assert desk.world.node.connection_count == 0
    assert desk.world.node.next_deadline() is None


@pytest.mark.parametrize(("version", "reason"), [(p.V311, 3), (p.V5, 0x89)])
def test_a_check_that_takes_too_long_is_given_up(desk: Desk, version: int, reason: int) -> None:
    client = desk.log_in(b"secret", version=version)
    desk.world.wait(11)
    assert connack_reason(client) == reason
    assert client.closed
    desk.run_checks()
    assert not desk.world.node.state.sessions


@pytest.mark.parametrize(("version", "reason"), [(p.V311, 3), (p.V5, 0x89)])
def test_a_crowd_of_guessers_is_told_to_come_back_later(desk: Desk, version: int, reason: int) -> None:
    guessers = [desk.log_in(b"%d" % number, client_id=f"g{number}") for number in range(MAX_WAITING_CHECKS + 2)]
    assert not any(guesser.inbox for guesser in guessers), "two run, the others wait"
    refused = desk.log_in(b"secret", version=version)
    assert connack_reason(refused) == reason
    assert refused.closed
    for guesser in guessers:
        guesser.lose()
    accepted = desk.log_in(b"secret", client_id="later")
    desk.run_checks()
    assert connack_reason(accepted) == 0
