"""Producers and transactions over MQTT: what is answered where, and who is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.auth import hash_password
from assay.reference_broker.config import parse_config
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import Properties

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World


def asked(client: Client, operation: str, qos: int = 1, **named: str) -> p.Acknowledgement:
    pairs = tuple((name.replace("_", "-"), value) for name, value in named.items())
    properties = Properties(user_property=pairs)
    client.take()
    found = client.send(p.Publish(topic=f"$txn/{operation}", payload=b"", qos=qos, packet_id=9, properties=properties))
    answer = found[-1]
    assert isinstance(answer, p.Acknowledgement)
    return answer


def told(answer: p.Acknowledgement) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in answer.properties.user_property}


@pytest.mark.parametrize("qos", [1, 2])
def test_the_acknowledgement_tells_the_answer(make_world: type[World], qos: int) -> None:
    world = make_world()
    client = world.connect("me")
    producer = told(asked(client, "init", qos, transactional_id="app"))
    assert producer.keys() == {"producer_id", "producer_epoch"}
    client.send(p.Acknowledgement(type=p.PacketType.PUBREL, packet_id=9))
    transaction = told(asked(client, "begin", **producer))
    assert told(asked(client, "add", **producer, **transaction, queue="q", partition="3")) == {"state": "open"}
    assert told(asked(client, "commit", **producer, **transaction)) == {"state": "committed"}


@pytest.mark.parametrize(
    ("operation", "named", "reason", "error"),
    [
        (
            "begin",
            {"producer_id": "7", "producer_epoch": "0"},
            Reason.IMPLEMENTATION_SPECIFIC_ERROR,
            "unknown_producer",
        ),
        ("begin", {"producer_id": "seven", "producer_epoch": "0"}, Reason.TOPIC_NAME_INVALID, None),
        ("begin", {}, Reason.IMPLEMENTATION_SPECIFIC_ERROR, None),
        ("nothing", {}, Reason.TOPIC_NAME_INVALID, None),
    ],
)
def test_a_refusal_has_a_reason_and_a_name(
    make_world: type[World], operation: str, named: dict[str, str], reason: Reason, error: str | None
) -> None:
    client = make_world().connect("me")
    answer = asked(client, operation, **named)
    assert answer.reason == reason
    assert told(answer).get("error") == error


def test_a_request_of_qos_0_is_answered_on_the_response_topic(make_world: type[World]) -> None:
    world = make_world()
    client = world.subscribed("answers/#", client_id="me")
    properties = Properties(response_topic="answers/1", correlation_data=b"c")
    (answer,) = client.send(p.Publish(topic="$txn/init", payload=b"", qos=0, properties=properties))
    assert isinstance(answer, p.Publish)
    assert answer.properties.correlation_data == b"c"
    assert json.loads(answer.payload).keys() == {"producer-id", "producer-epoch"}


def test_a_response_topic_must_be_ordinary(make_world: type[World]) -> None:
    client = make_world().connect("me")
    properties = Properties(response_topic="$queue/q")
    (answer,) = client.send(p.Publish(topic="$txn/init", payload=b"", qos=1, packet_id=9, properties=properties))
    assert isinstance(answer, p.Acknowledgement)
    assert answer.reason == Reason.NOT_AUTHORIZED


def test_tenants_do_not_reach_each_others_producers(make_world: type[World]) -> None:
    tenants = [{"name": name, "clients": [f"{name}-*"]} for name in ("red", "blue")]
    world = make_world(parse_config({"queues": {"tenants": tenants}}))
    red, blue = world.connect("red-1"), world.connect("blue-1")
    producers = [told(asked(client, "init", transactional_id="app")) for client in (red, blue)]
    assert producers[0]["producer_id"] != producers[1]["producer_id"]
    assert told(asked(blue, "begin", **producers[0])) == {"error": "unknown_producer"}
    assert asked(red, "list").reason == Reason.NOT_AUTHORIZED
    transaction = told(asked(red, "begin", **producers[0]))
    assert told(asked(red, "commit", **producers[0], **transaction)) == {"state": "committed"}


def numbered(client: Client, topic: str, qos: int = 1, **named: str) -> int:
    """The reason code of a publish that names a producer."""
    pairs = tuple((name.replace("_", "-"), value) for name, value in named.items())
    client.take()
    packet = p.Publish(
        topic=topic, payload=b"m", qos=qos, packet_id=9 if qos else 0, properties=Properties(user_property=pairs)
    )
    found = [answer for answer in client.send(packet) if isinstance(answer, p.Acknowledgement)]
    return int(found[0].reason) if found else -1


def test_a_tenant_has_transactions_of_its_own(make_world: type[World]) -> None:
    tenants = [{"name": name, "clients": [f"{name}-*"]} for name in ("red", "blue")]
    queues = {"admin_topics": "off", "defaults": {"partitions": 1}, "tenants": tenants}
    world = make_world(parse_config({"queues": queues}))
    red, blue, stranger = world.connect("red-1"), world.connect("blue-1"), world.connect("stranger")
    producer = told(asked(red, "init", transactional_id="app"))
    transaction = told(asked(red, "begin", **producer))
    assert numbered(red, "$queue/q", **producer, **transaction) == 0
    for other in (blue, stranger):
        assert numbered(other, "$queue/q", **producer, sequence="0") == Reason.NOT_AUTHORIZED
    assert asked(stranger, "init", transactional_id="red.app").reason == Reason.NOT_AUTHORIZED
    assert asked(stranger, "abort", **producer, **transaction).reason == Reason.NOT_AUTHORIZED
    assert told(asked(red, "commit", **producer, **transaction)) == {"state": "committed"}
    assert world.node.engine.stats("red.q").depth == 1
    world.node.engine.transactions.init_producer("program", world.now, lambda error, identity: None)
    assert numbered(red, "$queue/q", producer_id="3", producer_epoch="0", sequence="0") == Reason.NOT_AUTHORIZED
    alone = told(asked(red, "init"))
    assert numbered(red, "$queue/q", **alone, sequence="0") == 0


USERS = [{"username": name, "password_hash": hash_password(name.encode())} for name in ("ann", "bob")]


@pytest.fixture
def users(make_world: type[World]) -> dict[str, Client]:
    """ann, bob, and somebody without a name, at one broker; what ends in /captured goes to the queue c as well."""
    queues = {"defaults": {"partitions": 1}, "configured": [{"name": "c", "topics": ["+/captured"]}]}
    world = make_world(parse_config({"auth": {"users": USERS, "anonymous": True}, "queues": queues}))
    clients = {name: world.connect(name, username=name, password=name.encode()) for name in ("ann", "bob")}
    return clients | {"": world.connect("nobody")}


@pytest.mark.parametrize("other", ["bob", ""])
def test_a_transactional_id_is_its_users(users: dict[str, Client], other: str) -> None:
    ann, thief = users["ann"], users[other]
    producer = told(asked(ann, "init", transactional_id="app"))
    transaction = told(asked(ann, "begin", **producer))
    refused = asked(thief, "init", transactional_id="app")
    assert refused.reason == Reason.NOT_AUTHORIZED
    assert refused.properties.reason_string == "the transactional id 'app' belongs to another user"
    for operation in ("begin", "commit", "abort"):
        assert asked(thief, operation, **producer, **transaction).reason == Reason.NOT_AUTHORIZED
    assert asked(thief, "add", **producer, **transaction, queue="q", partition="0").reason == Reason.NOT_AUTHORIZED
    padded = producer | {"producer_id": producer["producer_id"].zfill(20)}
    assert numbered(thief, "$queue/q", **padded, sequence="0") == Reason.NOT_AUTHORIZED
    for named in ({"sequence": "0"}, transaction):
        assert numbered(thief, "$queue/q", **producer, **named) == Reason.NOT_AUTHORIZED
        assert numbered(thief, "$queue/q/$ack", **producer, **transaction) == Reason.NOT_AUTHORIZED
        numbered(thief, "x/captured", **producer, **named)
        numbered(thief, "$queue/q", 0, **producer, **named)
    assert numbered(ann, "$queue/q", **producer, **transaction, sequence="0") == 0
    assert told(asked(ann, "commit", **producer, **transaction)) == {"state": "committed"}
    engine = ann.world.node.engine
    assert (engine.stats("q").depth, engine.stats("c").depth) == (1, 0)
    numbered(ann, "x/captured", **producer, sequence="0")
    ann.world.wait(0.1)
    assert engine.stats("c").depth == 1


@pytest.mark.parametrize("other", ["bob", ""])
def test_a_producer_without_a_name_is_its_users_as_well(users: dict[str, Client], other: str) -> None:
    """Another user's message would take the number that hers has, which then would pass for a repetition."""
    ann, thief = users["ann"], users[other]
    producer, public = told(asked(ann, "init")), told(asked(users[""], "init"))
    assert numbered(thief, "$queue/q", **producer, sequence="0") == Reason.NOT_AUTHORIZED
    assert asked(thief, "begin", **producer).reason == Reason.NOT_AUTHORIZED
    numbered(thief, "x/captured", **producer, sequence="0")
    assert numbered(ann, "$queue/q", **producer, sequence="0") == 0
    # Nobody's ids are everybody's, and an id of one's own that was never given out takes no number from others.
    assert numbered(thief, "$queue/q", **public, sequence="0") == 0
    assert numbered(ann, "$queue/q", **public, sequence="0") == 0
    engine = ann.world.node.engine
    assert (engine.stats("q").depth, engine.stats("c").depth) == (2, 0)
    forged = producer | {"producer_id": str(int(producer["producer_id"]) + 2_000)}
    assert numbered(ann, "$queue/q", **forged, sequence="0") == Reason.IMPLEMENTATION_SPECIFIC_ERROR


def test_what_nobody_owns_becomes_the_first_users(users: dict[str, Client]) -> None:
    """As after users were configured for a broker that had none."""
    nobody, ann, bob = users[""], users["ann"], users["bob"]
    before = told(asked(nobody, "init", transactional_id="app"))
    after = told(asked(ann, "init", transactional_id="app"))
    assert before["producer_id"] == after["producer_id"]
    assert asked(nobody, "init", transactional_id="app").reason == Reason.NOT_AUTHORIZED
    assert asked(bob, "begin", **after).reason == Reason.NOT_AUTHORIZED
    assert "transaction_id" in told(asked(ann, "begin", **after))


def _begins(client: Client, name: str) -> tuple[int, dict[str, str]]:
    producer = told(asked(client, "init", transactional_id=name))
    answer = asked(client, "begin", **producer)
    return answer.reason, {**producer, **told(answer)}


@pytest.mark.parametrize("has_users", [True, False])
def test_one_user_has_only_some_of_the_transactions_that_may_be_open(make_world: type[World], has_users: bool) -> None:
    transactions = {"max_open": 5, "max_open_per_user": 2}
    config = {"auth": {"users": USERS if has_users else []}, "queues": {"transactions": transactions}}
    world = make_world(parse_config(config))

    def client(name: str, user: str) -> Client:
        login = {"username": user, "password": user.encode()} if has_users else {}
        return world.connect(name, **login)

    first, other = client("one", "ann"), client("two", "bob")
    again = client("three", "ann") if has_users else first
    assert _begins(first, "a")[0] == 0
    code, second = _begins(again, "b")
    assert code == 0
    for whoever in {first.connection: first, again.connection: again}.values():
        code, refused = _begins(whoever, "c")
        assert code == Reason.QUOTA_EXCEEDED
        assert "transaction_id" not in refused
    assert [_begins(other, name)[0] for name in ("d", "e", "f")] == [0, 0, Reason.QUOTA_EXCEEDED]
    asked(again, "abort", **second)
    world.turn()
    assert _begins(first, "c")[0] == 0
    world.wait(120)
    assert not world.node.engine.transactions.list()
    assert not world.node.engine.transactions._phases.open_of
