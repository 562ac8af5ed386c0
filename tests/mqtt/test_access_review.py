"""Rights end with the rule that gave them: over a reload, a restart with another configuration, a reconnect."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from assay.reference_broker.auth import hash_password, scram_credentials
from assay.reference_broker.auth_scram import METHOD
from assay.reference_broker.config import BrokerConfig, ConfigError, parse_config
from assay.reference_broker.mqtt.sessions import access_review
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.routing.message import memory_bytes
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

LASTING = p.Properties(session_expiry_interval=3_600)
HASHES = {name: hash_password(name.encode()) for name in ("ann", "bob", "other")}
SECRET = {"topic": "secret/#", "access": "read", "user": "ann"}
DENIED = SECRET | {"access": "deny"}
BOB = {"topic": "#", "access": "readwrite", "user": "bob"}
BOBS_QUEUES = BOB | {"topic": "$queue/#"}
QUEUES = {"topic": "$queue/#", "access": "readwrite"}


def configure(*rules: dict[str, str], users: tuple[str, ...] = ("ann", "bob"), **more: Any) -> BrokerConfig:
    data: dict[str, Any] = {
        "data_dir": "there",
        "auth": {"users": [{"username": name, "password_hash": HASHES[name]} for name in users]},
        "acl": {"rules": list(rules)},
        "queues": {"defaults": {"partitions": 1}} | more.pop("queues", {}),
    }
    return parse_config(data | more)


class Change:
    """Another configuration, by a reload of the running broker or by a restart."""

    def __init__(self, world: World, *, by_restart: bool) -> None:
        self.world = world
        self.by_restart = by_restart
        self.disk = MemoryDisk()

    def start(self, config: BrokerConfig) -> None:
        self.disk.unlock()
        self.world.node = BrokerNode(config, self.disk, random.Random(1), self.world.now)
        self.world.clients.clear()

    def to(self, config: BrokerConfig) -> None:
        if self.by_restart:
            self.world.node.close(self.world.now)
            self.start(config)
            return
        done: list[bool] = []
        assert self.world.node.reload(config, self.world.now, lambda: done.append(True)) == []
        self.world.turn()
        self.world.wait(1)
        assert done == [True]

    def log_in(self, name: str, client_id: str = "", version: int = V5, **fields: object) -> Client:
        lasting = {"properties": LASTING} if version == V5 else {}
        return self.world.connect(
            client_id or name,
            version,
            username=name,
            password=name.encode(),
            clean_start=False,
            **lasting,
            **fields,
        )


@pytest.fixture(params=["reload", "restart"])
def change(make_world: type[World], request: pytest.FixtureRequest) -> Change:
    return Change(make_world(), by_restart=request.param == "restart")


@pytest.fixture
def reloaded(make_world: type[World]) -> Change:
    return Change(make_world(), by_restart=False)


def subscribe(client: Client, *filters: str, qos: int = 1, user: tuple[tuple[str, str], ...] = ()) -> list[int]:
    requests = tuple(p.SubscriptionRequest(topic_filter=one, qos=qos) for one in filters)
    packet = p.Subscribe(packet_id=1, requests=requests, properties=p.Properties(user_property=user))
    (suback,) = [one for one in client.send(packet) if isinstance(one, p.Suback)]
    return list(suback.reasons)


def publish(client: Client, topic: str, payload: bytes, qos: int = 1) -> int:
    answers = client.send(p.Publish(topic=topic, payload=payload, qos=qos, packet_id=9))
    (answer,) = [one for one in answers if isinstance(one, p.Acknowledgement)]
    if answer.type is p.PacketType.PUBREC and answer.reason < 0x80:
        client.send(p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=9))
    return answer.reason


def payloads(client: Client) -> list[bytes]:
    return [packet.payload for packet in client.publishes()]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_comes_after_the_deny(change: Change, version: int, qos: int) -> None:
    """What was queued, what was sent and not acknowledged, and what is published later; what stays allowed goes on."""
    allowed = {"topic": "plain/#", "access": "read", "user": "ann"}
    change.start(configure(SECRET, allowed, BOB))
    ann = change.log_in("ann", version=version)
    assert subscribe(ann, "secret/#", "secret/a/+", "plain/#", "$share/g/secret/b", qos=qos) == [qos] * 4
    bob = change.log_in("bob")
    publish(bob, "secret/sent", b"sent", qos)
    publish(bob, "plain/sent", b"plain sent", qos)
    assert sorted(payloads(ann)) == [b"plain sent", b"sent"]
    ann.lose()
    publish(bob, "secret/queued", b"queued", qos)
    publish(bob, "plain/queued", b"plain queued", qos)
    change.to(configure(DENIED, allowed, BOB))
    bob = change.log_in("bob")
    publish(bob, "secret/offline", b"offline")
    publish(bob, "secret/b", b"shared")
    ann = change.log_in("ann", version=version)
    connack = ann.inbox[0]
    assert isinstance(connack, p.Connack)
    assert connack.session_present
    publish(bob, "secret/online", b"online")
    publish(bob, "plain/online", b"plain online")
    assert payloads(ann) == [b"plain sent", b"plain queued", b"plain online"]
    assert set(ann.connection.active_session.subscriptions) == {"plain/#"}
    session = change.world.node.state.sessions["ann"]
    assert session.queued_bytes == sum(memory_bytes(outgoing.message) for outgoing in session.queued)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_member_of_a_share_may_not_read_any_more_goes_to_another(reloaded: Change, qos: int) -> None:
    """All but what it was begun to be sent at QoS 2, which nobody else may get: that is dropped, and counted."""
    rules = (SECRET | {"user": "other"}, BOB)
    users = ("ann", "bob", "other")
    reloaded.start(configure(SECRET, *rules, users=users))
    ann = reloaded.world.connect(
        "ann",
        username="ann",
        password=b"ann",
        clean_start=False,
        properties=p.Properties(session_expiry_interval=3_600, receive_maximum=1),
    )
    assert subscribe(ann, "$share/g/secret/b", qos=qos) == [qos]
    bob = reloaded.log_in("bob")
    for number in range(3):
        publish(bob, "secret/b", b"%d" % number, qos)
    assert payloads(ann) == [b"0"]
    ann.lose()
    other = reloaded.log_in("other")
    assert subscribe(other, "$share/g/secret/b", qos=qos) == [qos]
    reloaded.to(configure(DENIED, *rules, users=users))
    assert sorted(payloads(other)) == [b"0", b"1", b"2"][qos - 1 :]
    session = reloaded.world.node.state.sessions["ann"]
    assert (session.dropped, session.queued_bytes, session.in_flight_bytes) == (qos - 1, 0, 0)


def test_a_connected_client_is_cut_off_from_what_is_denied_only(reloaded: Change) -> None:
    reloaded.start(configure(SECRET, QUEUES, BOB))
    ann, bob = reloaded.log_in("ann"), reloaded.log_in("bob")
    assert subscribe(ann, "secret/#", "$queue/jobs") == [1, 1]
    publish(bob, "$queue/jobs", b"job")
    publish(bob, "secret/x", b"known")
    assert payloads(ann) == [b"job", b"known"]
    ann.take()
    reloaded.to(configure(DENIED, BOB, BOBS_QUEUES))
    (ended,) = ann.publishes()
    assert (ended.topic, b"not_allowed" in ended.payload) == ("$queue/jobs/$ended", True)
    ann.take()
    assert publish(bob, "secret/x", b"unknown") == Reason.NO_MATCHING_SUBSCRIBERS
    assert publish(bob, "$queue/jobs", b"second") == 0
    assert not ann.publishes()
    assert subscribe(ann, "secret/#", "$queue/jobs") == [Reason.NOT_AUTHORIZED] * 2
    assert publish(ann, "$queue/jobs", b"mine") == Reason.NOT_AUTHORIZED
    assert subscribe(bob, "$queue/jobs", user=(("consumer-group", "ann"),)) == [1]
    assert payloads(bob) == [b"job", b"second"], "what the consumer held goes to others"
    # What had been sent already when the rule changed is acknowledged as ever.
    assert not ann.send(*(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=number) for number in (1, 2)))
    assert not ann.closed


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_before_the_rule_changed_is_not_sent_again(reloaded: Change, qos: int) -> None:
    """On the connection that it was sent on it may still be acknowledged; the next one gets what may be read."""
    allowed = {"topic": "plain/#", "access": "read", "user": "ann"}
    reloaded.start(configure(SECRET, allowed, BOB))
    ann, bob = reloaded.log_in("ann"), reloaded.log_in("bob")
    subscribe(ann, "secret/#", "plain/#", qos=qos)
    publish(bob, "secret/x", b"secret", qos)
    publish(bob, "plain/x", b"plain", qos)
    assert payloads(ann) == [b"secret", b"plain"]
    reloaded.to(configure(DENIED, allowed, BOB))
    assert len(ann.connection.active_session.in_flight) == 2, "the client may acknowledge both"
    ann.lose()
    ann = reloaded.log_in("ann")
    assert payloads(ann) == [b"plain"]
    session = ann.connection.active_session
    assert (len(session.in_flight), session.dropped) == (1, 1)


def test_the_plan_of_a_publisher_ends_with_its_right(reloaded: Change) -> None:
    """A run of like packets is forwarded by a plan that was made while it was allowed."""
    writer = {"topic": "in/#", "access": "write", "user": "ann"}
    reloaded.start(configure(writer, BOB))
    ann, bob = reloaded.log_in("ann"), reloaded.log_in("bob")
    subscribe(bob, "in/#", qos=0)
    packets = [p.Publish(topic="in/x", payload=b"x", qos=0)] * 8
    ann.send(*packets)
    assert len(bob.publishes()) == 8
    reloaded.to(configure(BOB))
    ann.send(*packets)
    assert len(bob.publishes()) == 8


@pytest.mark.parametrize("delay_s", [0, 60])
def test_a_will_is_asked_about_when_it_is_sent(change: Change, delay_s: int) -> None:
    writer = {"topic": "wills/#", "access": "write", "user": "ann"}
    change.start(configure(writer, BOB))

    def will() -> p.WillFields:
        properties = p.Properties(will_delay_interval=delay_s)
        return p.WillFields(topic="wills/ann", payload=b"gone", properties=properties)

    ann = change.log_in("ann", will=will())
    if delay_s:
        ann.lose()
    change.to(configure(BOB))
    bob = change.log_in("bob")
    subscribe(bob, "wills/#")
    if not delay_s and not ann.closed:
        ann.lose()
    change.world.wait(120)
    assert not bob.publishes()


@pytest.mark.parametrize("users", [("bob",), ("bob", "ann")])
def test_who_may_not_log_in_any_more_is_cut(reloaded: Change, users: tuple[str, ...]) -> None:
    """A user who is deleted, and one with another password; others stay."""
    reloaded.start(configure(SECRET, BOB))
    ann, bob = reloaded.log_in("ann"), reloaded.log_in("bob")
    entries = [{"username": name, "password_hash": HASHES[name if name != "ann" else "other"]} for name in users]
    reloaded.to(parse_config(_data(configure(SECRET, BOB), auth={"users": entries})))
    last = ann.inbox[-1]
    assert isinstance(last, p.Disconnect)
    assert (last.reason, ann.closed, bob.closed) == (Reason.NOT_AUTHORIZED, True, False)
    again = reloaded.world.open()
    (refused,) = again.send(p.Connect(version=V5, client_id="ann", username="ann", password=b"ann"))
    assert isinstance(refused, p.Connack)
    assert refused.reason == Reason.BAD_USER_NAME_OR_PASSWORD, "a password that was remembered is forgotten"


def test_the_session_of_who_was_cut_is_judged_like_others(reloaded: Change) -> None:
    """It queues nothing of what may not be read any more, though its user may never come back."""
    reloaded.start(configure(SECRET, BOB))
    ann, bob = reloaded.log_in("ann"), reloaded.log_in("bob")
    subscribe(ann, "secret/#")
    reloaded.to(configure(DENIED, BOB, users=("bob",)))
    assert ann.closed
    publish(bob, "secret/x", b"nobody's")
    session = reloaded.world.node.state.sessions["ann"]
    assert (dict(session.subscriptions), len(session.queued)) == ({}, 0)


def _data(config: BrokerConfig, **sections: Any) -> dict[str, Any]:
    acl = {"rules": [{"topic": r.topic, "access": r.access.value, "user": r.user} for r in config.acl.rules]}  # type: ignore[union-attr]
    return {"data_dir": "there", "acl": acl, "queues": {"defaults": {"partitions": 1}}} | sections


def test_anonymous_clients_are_cut_when_there_are_users(reloaded: Change) -> None:
    reloaded.start(parse_config({}))
    client = reloaded.world.connect("c", username="ann", password=b"whatever")
    assert reloaded.world.node.reload(configure(), reloaded.world.now) == ["data_dir", "queues"]
    reloaded.world.turn()
    assert client.closed


@pytest.mark.parametrize("method", ["password", "scram"])
def test_a_log_in_that_is_under_way_begins_anew(reloaded: Change, method: str) -> None:
    """Else it might be decided by a user list that holds no more."""
    secrets = {"username": "ann", "password_hash": HASHES["ann"], "scram_sha_256": scram_credentials("ann")}
    reloaded.start(parse_config({"data_dir": "there", "auth": {"users": [secrets]}}))
    world = reloaded.world
    client = world.open()
    properties = p.NO_PROPERTIES
    if method == "scram":
        properties = p.Properties(authentication_method=METHOD, authentication_data=b"n,,n=ann,r=rOprNGfwEbeRWgbNEkqO")
    connect = p.Connect(version=V5, client_id="c", username="ann", password=b"ann", properties=properties)
    world.node.receive(client.connection, p_bytes(connect), world.now)
    jobs = world.node.take_jobs(world.now)
    world.node.reload(
        parse_config({"data_dir": "there", "auth": {"users": [secrets | {"scram_sha_256": ""}]}}), world.now
    )
    for job in jobs:
        job.run()
        world.node.job_done(job, None, world.now)
    world.turn()
    last = client.inbox[-1]
    assert isinstance(last, p.Connack)
    assert (last.reason, client.closed) == (Reason.SERVER_BUSY, True)


def test_a_log_in_that_is_under_way_goes_on_when_the_users_stay(reloaded: Change) -> None:
    """Other rules are no reason to begin anew; they hold for it."""
    reloaded.start(configure(SECRET))
    world = reloaded.world
    client = world.open()
    connect = p.Connect(version=V5, client_id="c", username="ann", password=b"ann")
    world.node.receive(client.connection, p_bytes(connect), world.now)
    jobs = world.node.take_jobs(world.now)
    world.node.reload(configure(DENIED), world.now)
    for job in jobs:
        job.run()
        world.node.job_done(job, None, world.now)
    world.turn()
    (connack,) = client.inbox
    assert isinstance(connack, p.Connack)
    assert connack.reason == 0
    assert subscribe(client, "secret/#") == [Reason.NOT_AUTHORIZED]


def p_bytes(packet: p.Packet) -> bytes:
    from assay.reference_broker.mqtt.wire.codec import encode_packet

    return encode_packet(packet, V5)


def tenants(*members: str) -> dict[str, Any]:
    entries = [{"name": "acme", "clients": ["acme-*", *members]}, {"name": "bee", "clients": ["bee-*"]}]
    return {"queues": {"tenants": entries, "defaults": {"partitions": 1}}}


@pytest.mark.parametrize("joins", [True, False])
def test_who_changes_tenants_starts_anew(change: Change, joins: bool) -> None:
    """Names of queues meant others: no subscription, and no will to a queue, is carried from one tenant to another."""
    inside, outside = configure(BOB, QUEUES, **tenants("ann")), configure(BOB, QUEUES, **tenants())
    before, after = (outside, inside) if joins else (inside, outside)
    change.start(before)
    will = p.WillFields(topic="$queue/orders", payload=b"will", properties=p.Properties(will_delay_interval=30))
    ann = change.log_in("ann", will=will)
    assert subscribe(ann, "$queue/orders") == [1]
    stays = change.log_in("bob", "bee-1")
    assert subscribe(stays, "$queue/orders") == [1]
    change.to(after)
    assert "ann" not in change.world.node.state.sessions
    if not change.by_restart:
        last = ann.inbox[-1]
        assert isinstance(last, p.Disconnect)
        assert (last.reason, stays.closed) == (Reason.ADMINISTRATIVE_ACTION, False)
    change.world.wait(120)
    engine = change.world.node.engine
    assert sum(engine.stats(queue).depth for queue in engine.queues()) == 0, "the will is nobody's"
    again = change.log_in("ann")
    connack = again.inbox[0]
    assert isinstance(connack, p.Connack)
    assert not connack.session_present
    again = change.log_in("bob", "bee-1")
    connack = again.inbox[0]
    assert isinstance(connack, p.Connack)
    assert connack.session_present


def test_a_queue_that_became_a_tenants_is_closed_to_others(change: Change) -> None:
    change.start(configure(BOB, QUEUES))
    ann = change.log_in("ann")
    assert subscribe(ann, "$queue/acme.jobs") == [1]
    change.to(configure(BOB, QUEUES, **tenants()))
    if change.by_restart:
        ann = change.log_in("ann")
    assert "$queue/acme.jobs" not in ann.connection.active_session.subscriptions
    member = change.log_in("bob", "acme-1")
    assert publish(member, "$queue/jobs", b"x") == 0
    assert b"x" not in payloads(ann)


def test_quotas_hold_at_once_and_connections_stay_counted(reloaded: Change) -> None:
    reloaded.start(configure(BOB, QUEUES, **tenants()))
    member = reloaded.log_in("bob", "acme-1")
    assert publish(member, "$queue/q", b"x" * 100) == 0
    limited = tenants()
    limited["queues"]["tenants"][0]["quotas"] = {"max_message_bytes": 10, "max_connections": 1}
    reloaded.to(configure(BOB, QUEUES, **limited))
    assert publish(member, "$queue/q", b"x" * 100) == Reason.QUOTA_EXCEEDED
    another = reloaded.world.open()
    (connack,) = another.send(p.Connect(version=V5, client_id="acme-2", username="bob", password=b"bob"))
    assert isinstance(connack, p.Connack)
    assert connack.reason == Reason.QUOTA_EXCEEDED


@pytest.mark.parametrize("by", ["reload", "listener"])
def test_administration_is_asked_again(make_world: type[World], by: str) -> None:
    """By a rule that is gone, or by coming back through a listener that is not on loopback."""
    world = make_world(configure({"topic": "$admin/#", "access": "readwrite"}) if by == "reload" else BrokerConfig())
    fields = {"username": "ann", "password": b"ann"} if by == "reload" else {}
    client = world.connect("ann", properties=LASTING, **fields)
    assert subscribe(client, "$admin/queue/+/stats") == [1]
    if by == "reload":
        world.node.reload(configure(), world.now)
        world.turn()
    else:
        client.lose()
        client = world.open()
        client.connection.loopback = False
        client.connection.authenticator._anonymous = True
        client.send(p.Connect(version=V5, client_id="ann", clean_start=False, properties=LASTING))
    connack = client.inbox[0]
    assert isinstance(connack, p.Connack)
    assert client.connection.active_session.subscriptions == {}
    denied = client.send(p.Publish(topic="$admin/queue/list", payload=b"", qos=1, packet_id=3))
    assert isinstance(denied[-1], p.Acknowledgement)
    assert denied[-1].reason == Reason.NOT_AUTHORIZED


def test_a_configuration_that_is_wrong_changes_nothing(reloaded: Change) -> None:
    config = configure(SECRET, BOB)
    reloaded.start(config)
    ann = reloaded.log_in("ann")
    subscribe(ann, "secret/#")
    broken = parse_config({"auth": {"users": [{"username": "x", "password_hash": "nonsense"}]}})
    with pytest.raises(ConfigError):
        reloaded.world.node.reload(broken, reloaded.world.now)
    assert reloaded.world.node.config == config
    publish(reloaded.log_in("bob"), "secret/x", b"still")
    assert payloads(ann) == [b"still"]


def test_a_reload_looks_at_few_sessions_a_turn(reloaded: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are counted: no turn reviews more than a portion, and every session is reviewed in the end."""
    count = 20
    monkeypatch.setattr(access_review, "PORTION", 3)
    reloaded.start(configure(SECRET, BOB))
    clients = [reloaded.log_in("ann", f"c{number}") for number in range(count)]
    for client in clients:
        subscribe(client, "secret/#")
    world, state = reloaded.world, reloaded.world.node.state
    left: list[int] = []
    done: list[bool] = []
    world.node.reload(configure(BOB), world.now, lambda: done.append(True))
    while not done:
        left.append(sum(bool(session.subscriptions) for session in state.sessions.values()))
        deadline = world.node.next_deadline()
        assert deadline is not None
        world.now = deadline
        world.node.tick(world.now)
    assert left == sorted(left, reverse=True)
    assert max(before - after for before, after in zip([count, *left], left, strict=False)) <= 3
    assert not any(session.subscriptions for session in state.sessions.values())
