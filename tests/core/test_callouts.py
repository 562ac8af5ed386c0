"""Callouts: what is asked, what an answer does, and that who cannot be asked lets nobody in."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from assay.reference_broker.auth import CheckQueueFullError, LoginCheck
from assay.reference_broker.config import (
    AclConfig,
    AclRuleConfig,
    AuthConfig,
    BrokerConfig,
    CalloutConfig,
    ConfigError,
    DefaultAccess,
    Permission,
    UserConfig,
    parse_config,
)
from assay.reference_broker.core import callouts as core_callouts
from assay.reference_broker.core.callouts import MAX_CALLOUTS, MAX_RULES, ExternalUsers
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues.jobs.outbox import OutboundRequest

START = 1_700_000_000.0
URL = "https://users.example/auth/authenticate"
NO_PASSWORD = "scrypt$2$8$1$00$" + "00" * 32


class Bench:
    """External users, the time, and what clients were told."""

    def __init__(self, **settings: Any) -> None:
        self.now = START
        self.users = ExternalUsers(CalloutConfig(url=URL, **settings), b"key", lambda: self.now)
        self.told: list[bool | None] = []

    def check(self, username: str = "ann", password: bytes = b"secret") -> LoginCheck:
        return self.users.check(username, password, None, self.told.append, "c1", "mqtt")

    def asked(self) -> list[OutboundRequest]:
        return self.users.outbox.take(self.now)

    def answer(self, request: OutboundRequest, body: bytes | None) -> None:
        self.users.outbox.done(request, accepted=body is not None, now=self.now, answer=body or b"")


YES, NO = b'{"authenticated": true}', b'{"authenticated": false, "reason": "wrong"}'


def test_what_is_asked() -> None:
    bench = Bench(token="t0ken", timeout_s=1.5)
    bench.check()
    bench.check("bob", b"\xff")
    first, second = bench.asked()
    assert (first.url, first.timeout_s, first.headers) == (URL, 1.5, (("Authorization", "Bearer t0ken"),))
    asked = {"client_id": "c1", "username": "ann", "protocol": "mqtt", "password": "secret"}
    assert msgspec.json.decode(first.body) == asked
    assert msgspec.json.decode(second.body)["password_base64"] == "/w=="


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (YES, True),
        (NO, False),
        (b"{}", None),
        (b'{"authenticated": 1}', None),
        (b"no JSON", None),
        (b'{"authenticated": true, "rules": [{"topic": "a/#/b", "access": "read"}]}', None),
        (
            b'{"authenticated": true, "rules": [%s]}' % b",".join([b'{"topic":"a","access":"read"}'] * (MAX_RULES + 1)),
            None,
        ),
    ],
)
def test_what_an_answer_says(body: bytes, told: bool | None) -> None:
    bench = Bench()
    bench.check()
    bench.answer(bench.asked()[0], body)
    assert bench.told == [told]


def test_who_was_allowed_is_remembered_for_a_while() -> None:
    bench = Bench(cache_s=60.0)
    bench.check()
    bench.answer(bench.asked()[0], YES)
    assert bench.users.knows("ann", b"secret")
    assert not bench.users.knows("ann", b"other")
    bench.now += 60.0
    assert not bench.users.knows("ann", b"secret")
    bench.check("bob")
    bench.answer(bench.asked()[0], NO)
    assert not bench.users.knows("bob", b"secret")


def test_a_bounded_number_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_callouts, "MAX_REMEMBERED", 2)
    bench, rules = Bench(), [{"topic": "t", "access": "read"}]
    for name in ("a", "b", "a", "c"):
        bench.check(name)
        body = {"authenticated": True, "id": f"id of {name}", "rules": rules}
        bench.answer(bench.asked()[0], msgspec.json.encode(body))
    users = bench.users
    assert [users.knows(name, b"secret") for name in "abc"] == [True, False, True], "b was allowed longest ago"
    assert [bool(users.rules(name)) for name in "abc"] == [True, False, True]
    assert [users.id_of(name) for name in "abc"] == ["id of a", "", "id of c"]


def test_nobody_is_let_in_while_nobody_answers() -> None:
    bench = Bench(attempts=2, breaker_failures=4, breaker_pause_s=10.0)
    bench.check()
    bench.answer(bench.asked()[0], None)
    bench.now += 0.1
    bench.answer(bench.asked()[0], None)
    assert bench.told == [None]
    bench.check("bob")
    bench.check("eve")
    requests = bench.asked()
    for request in requests:
        bench.answer(request, None)
    assert bench.told == [None] * 3, "those who wait for another try are not kept waiting"
    with pytest.raises(CheckQueueFullError):
        bench.check()
    bench.now += 10.0
    bench.check()
    bench.answer(bench.asked()[0], YES)
    assert bench.told[-1] is True


def test_callouts_are_bounded() -> None:
    bench = Bench()
    for number in range(MAX_CALLOUTS):
        bench.check(f"user-{number}")
    with pytest.raises(CheckQueueFullError):
        bench.check()
    assert len(bench.asked()) == core_callouts.MAX_RUNNING_CALLOUTS


def test_nobody_is_told_who_does_not_wait_any_more() -> None:
    bench = Bench()
    bench.check().cancel()
    bench.answer(bench.asked()[0], YES)
    assert bench.told == []


# -- in a broker -----------------------------------------------------------------------------------------------------


def connect(client_id: str, username: str, password: str) -> bytes:
    """A CONNECT of MQTT 3.1.1."""
    parts = b"".join(len(each).to_bytes(2, "big") + each.encode() for each in (client_id, username, password))
    body = bytes.fromhex("00044d51545404c2003c") + parts
    return b"\x10" + bytes([len(body)]) + body


class Client:
    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.connection = node.accept("peer", START)

    def send(self, data: bytes) -> bytes:
        self.node.receive(self.connection, data, START)
        return self.taken()

    def taken(self) -> bytes:
        self.node.take_dirty(START)
        return bytes(self.connection.take_output())


def make(acl: AclConfig | None = None) -> tuple[BrokerNode, Client]:
    config = BrokerConfig(
        authenticate=CalloutConfig(url=URL),
        acl=acl,
        auth=AuthConfig(users=(UserConfig(username="local", password_hash=NO_PASSWORD),)),
    )
    node = BrokerNode(config, None, random.Random(1), START)
    return node, Client(node)


def answer(node: BrokerNode, body: bytes | None) -> None:
    assert node.external_users is not None
    outbox = node.external_users.outbox
    for request in outbox.take(START):
        outbox.done(request, accepted=body is not None, now=START, answer=body or b"")


CONNACK, WRONG, UNAVAILABLE = (bytes.fromhex(f"200200{code}") for code in ("00", "04", "03"))


@pytest.mark.parametrize(("body", "told"), [(YES, CONNACK), (NO, WRONG), (b"?", UNAVAILABLE)])
def test_a_client_waits_for_the_answer(body: bytes, told: bytes) -> None:
    node, client = make()
    assert client.send(connect("c", "ann", "secret") + bytes.fromhex("c000")) == b""
    answer(node, body)
    expected = told + bytes.fromhex("d000") if told == CONNACK else told  # what came behind it waited as well
    assert client.taken() == expected
    if told == CONNACK:
        assert Client(node).send(connect("d", "ann", "secret")) == CONNACK, "it is not asked again"


def test_users_of_the_file_are_asked_about_nowhere() -> None:
    node, client = make()
    client.send(connect("c", "local", "secret"))
    assert node.external_users is not None
    assert node.external_users.outbox.take(START) == []
    assert len(node.take_jobs(START)) == 1


def test_an_answer_says_what_a_user_may() -> None:
    rule = AclRuleConfig(topic="free/#", access=Permission.READ)
    node, client = make(AclConfig(default=DefaultAccess.DENY, rules=(rule,)))
    client.send(connect("c", "ann", "secret"))
    answer(node, b'{"authenticated": true, "rules": [{"topic": "own/%u/#", "access": "readwrite"}]}')
    assert client.taken() == CONNACK
    access = node.state.access
    assert access is not None
    ann, bob = access.grants("ann", "c"), access.grants("bob", "c")
    assert [ann.may_subscribe(topic) for topic in ("free/1", "own/ann/1", "own/bob/1")] == [True, True, False]
    assert [bob.may_subscribe(topic) for topic in ("free/1", "own/ann/1", "own/bob/1")] == [True, False, False]
    node.reload(node.config, START)
    assert node.state.access is not access
    assert node.state.access is not None
    assert node.state.access.grants("ann", "c").may_publish("own/ann/1")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"url": "ftp://x"}, "authenticate.url"),
        ({"url": URL, "attempts": 0}, "authenticate.attempts"),
        ({"url": URL, "timeout_s": 0}, "authenticate.timeout_s"),
        ({"url": URL, "cache_s": -1}, "authenticate.cache_s"),
    ],
)
def test_a_configuration_that_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"authenticate": settings})
    assert key in str(caught.value)
