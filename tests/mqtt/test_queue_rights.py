"""The table of rights, walked: each operation by each kind of client is allowed or refused as its row says.

After a refusal nothing exists that was not there, and nothing has changed: files, figures, groups, transactions,
subscriptions and retained messages are compared as a whole.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from assay.reference_broker.config import BrokerConfig, parse_config
from assay.reference_broker.core.queue_rights import RULES, Right
from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.transaction_topics import OPERATIONS as TRANSACTION_OPERATIONS
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues.admin import admin as admin_operations
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.mqtt.conftest import Client, World

Pairs = tuple[tuple[str, str], ...]
RIGHTS: dict[str, list[tuple[str, str]]] = {
    "nothing": [],
    "read": [("$queue/q", "read"), ("$dlq/q", "read"), ("answers", "write")],
    "write": [("$queue/q", "write"), ("$queue/q/#", "write"), ("$txn/+", "write"), ("answers", "write")],
    "requests": [("$txn/+", "write"), ("answers", "write")],
    "elsewhere": [("$queue/other/#", "readwrite"), ("$queue/other", "readwrite"), ("#", "readwrite")],
    "admin": [("$admin/#", "readwrite"), ("answers", "write")],
    "denied": [("$queue/#", "readwrite"), ("$txn/#", "readwrite"), ("$queue/q/#", "deny"), ("$queue/q", "deny")],
    "read of a key": [("$queue/q/key", "read")],
}
"""What the access rules grant to the user of that name."""


class Prepared(msgspec.Struct):
    """What a client needs to have before it asks, so that nothing but its rights can be in the way."""

    message_id: str
    group: str
    delay_id: str
    producer: Pairs
    transaction: Pairs


def operations() -> set[str]:
    """All there are, as the code that serves them knows them."""
    found = {"publish", "will", "subscribe", "$admin/subscribe"} | {f"${verb.value}" for verb in Verb}
    found |= {f"$txn/{name}" for name in TRANSACTION_OPERATIONS}
    return found | {f"$admin/{name}" for name in (*admin_operations.OPERATIONS, *admin_operations.GENERAL_OPERATIONS)}


def log_in(world: World, user: str | None, client_id: str, **fields: Any) -> tuple[Client, int]:
    """A client whose certificate names the user, and the reason of its CONNACK."""
    client = world.open()
    client.connection.certificate_name = user
    connack = client.send(p.Connect(version=p.V5, client_id=client_id, **fields))[-1]
    assert isinstance(connack, p.Connack)
    return client, connack.reason


def publish(
    client: Client, topic: str, *pairs: tuple[str, str], payload: bytes = b"", **fields: Any
) -> p.Acknowledgement:
    properties = p.Properties(user_property=pairs, **fields)
    packet = p.Publish(topic=topic, payload=payload, qos=1, packet_id=77, properties=properties)
    already = len(client.inbox)
    client.send(packet)
    if not client.inbox[already:]:
        client.world.wait(2)  # a replay is answered when every letter is decided
    found = [one for one in client.inbox[already:] if isinstance(one, p.Acknowledgement) and one.packet_id == 77]
    (answer,) = found
    return answer


def subscribe(client: Client, topic_filter: str, **named: str) -> int:
    pairs = tuple((name.replace("_", "-"), value) for name, value in named.items())
    request = p.SubscriptionRequest(topic_filter=topic_filter, qos=1)
    packet = p.Subscribe(packet_id=78, requests=(request,), properties=p.Properties(user_property=pairs))
    (suback,) = [one for one in client.send(packet) if isinstance(one, p.Suback)]
    return suback.reasons[0]


def told(answer: p.Acknowledgement) -> Pairs:
    assert answer.reason == 0, answer
    return answer.properties.user_property


ADMIN_PAYLOADS: dict[str, dict[str, object]] = {
    "config": {"max_depth": 5},
    "partitions": {"count": 3},
    "reset": {"group": "w", "to": "earliest"},
}


def ask(operation: str, world: World, client: Client, queue: str, has: Prepared) -> int:
    """The reason code that the operation is answered with. ``queue``: as the client writes it."""
    if operation == "publish":
        return publish(client, f"$queue/{queue}", payload=b"new").reason
    if operation == "subscribe":
        return subscribe(client, f"$queue/{queue}", consumer_group="asked")
    if operation == "$admin/subscribe":
        return subscribe(client, "$admin/queue/+/stats")
    if operation == "will":
        return _ask_for_will(world, client, queue)
    if operation.startswith("$txn/"):
        pairs = {
            "init": (("transactional-id", "another"),),
            "begin": has.producer,
            "add": (*has.transaction, ("queue", queue), ("partition", "0")),
            "describe": has.transaction[-1:],
            "list": (),
        }
        name = operation.removeprefix("$txn/")
        return publish(client, operation, *pairs.get(name, has.transaction)).reason
    if operation.startswith("$admin/"):
        name = operation.removeprefix("$admin/")
        general = name in admin_operations.GENERAL_OPERATIONS
        payload: dict[str, object] = ADMIN_PAYLOADS.get(name, {"name": "made"} if name == "create" else {})
        topic = f"$admin/queue/{name}" if general else f"$admin/queue/{queue}/{name}"
        return publish(client, topic, payload=json.dumps(payload).encode()).reason
    place = (("group-id", has.group), ("partition", "0"))
    named = {
        "$cancel": (("delay-id", has.delay_id),),
        "$commit": (*place, ("offset", "1")),
        "$claim": (("group-id", has.group), ("count", "1")),
    }
    pairs_of_verb: Pairs = named.get(operation, (("message-id", has.message_id), ("group-id", has.group)))
    return publish(client, f"$queue/{queue}/{operation}", *pairs_of_verb).reason


def _ask_for_will(world: World, client: Client, queue: str) -> int:
    session = client.connection.active_session
    will = p.WillFields(topic=f"$queue/{queue}", payload=b"will", properties=p.NO_PROPERTIES)
    again, reason = log_in(world, session.username, f"{session.client_id}-will", will=will)
    if reason:
        return reason
    before = _depths(world)
    again.lose()
    # What the broker took at CONNECT it may still refuse when the will is sent: nobody is there to be told.
    return 0 if _depths(world) != before else Reason.NOT_AUTHORIZED


def _depths(world: World) -> dict[str, int]:
    engine = world.node.engine
    return {queue: engine.stats(queue).depth for queue in engine.queues()}


def state_of(world: World, disk: MemoryDisk) -> dict[str, object]:
    """All that a refused request might have changed."""
    engine, state = world.node.engine, world.node.state
    return {
        "files": {path: bytes(content) for path, content in disk._files.items()},
        "stats": [engine.stats(queue) for queue in engine.queues()],
        "config": [engine.queue_config(queue) for queue in engine.queues()],
        "groups": [engine.groups.all_details(queue) for queue in engine.queues()],
        "delayed": [engine.delayed(queue) for queue in engine.queues()],
        "transactions": engine.transactions.list(),
        "subscriptions": {name: dict(session.subscriptions) for name, session in state.sessions.items()},
        "retained": len(state.retained),
    }


@pytest.fixture
def start(make_world: type[World]) -> Callable[[BrokerConfig], tuple[World, MemoryDisk]]:
    def run(config: BrokerConfig) -> tuple[World, MemoryDisk]:
        world, disk = make_world(), MemoryDisk()
        world.node = BrokerNode(config, disk, random.Random(1), world.now)
        return world, disk

    return run


Start = Callable[[BrokerConfig], "tuple[World, MemoryDisk]"]


def prepare(client: Client, queue: str, name: str, *, begin: bool = True) -> Prepared:
    """Whatever its rights are, the client has a delivery, a delayed message and an open transaction of its own, and
    the queue a dead letter."""
    grants, client.connection.grants = client.connection.grants, None
    for _ in range(2):
        told(publish(client, f"$queue/{queue}"))
    assert subscribe(client, f"$queue/{queue}", consumer_group="w") == 1
    found, dead = (dict(delivery.properties.user_property) for delivery in client.publishes()[:2])
    told(publish(client, f"$queue/{queue}/$reject", ("message-id", dead["message-id"]), ("group-id", dead["group-id"])))
    delay_id = dict(told(publish(client, f"$queue/{queue}", ("delay", "1h"))))["delay-id"]
    producer = told(publish(client, "$txn/init", ("transactional-id", f"app-{name}")))
    transaction = told(publish(client, "$txn/begin", *producer)) if begin else ()
    client.connection.grants = grants
    client.take()
    return Prepared(
        message_id=found["message-id"],
        group=found["group-id"],
        delay_id=delay_id,
        producer=producer,
        transaction=(*producer, *transaction),
    )


def test_the_table_has_a_row_for_every_operation() -> None:
    assert operations() == RULES.keys()


def with_rules() -> BrokerConfig:
    rules = [
        {"topic": topic, "access": access, "user": user}
        for user, granted in RIGHTS.items()
        for topic, access in granted
    ]
    return parse_config({"data_dir": "x", "acl": {"rules": rules}, "queues": {"defaults": {"partitions": 1}}})


def allowed_by_rules(operation: str, user: str) -> bool:
    """What the row of an operation says about a client to which :data:`RIGHTS` grants this."""
    rule = RULES[operation]
    if rule.right is Right.ADMINISTER:
        return user == "admin"
    if operation.startswith("$txn/"):
        # The right is one on the request's own topic, and perhaps one on the queue that it names.
        asks = user in ("write", "requests", "denied")
        return asks and (rule.named_queue is None or user == "write")
    return user == rule.right.value


@pytest.mark.parametrize("operation", sorted(RULES))
@pytest.mark.parametrize("user", sorted(RIGHTS))
def test_access_rules(start: Start, user: str, operation: str) -> None:
    world, disk = start(with_rules())
    client, _ = log_in(world, user, "c")
    has = prepare(client, "q", user, begin=operation != "$txn/begin")
    before = state_of(world, disk)
    reason = ask(operation, world, client, "q", has)
    if allowed_by_rules(operation, user):
        assert reason < 0x80
    else:
        assert reason == Reason.NOT_AUTHORIZED
        assert state_of(world, disk) == before


def with_tenants(*, operators: bool) -> BrokerConfig:
    tenants = [{"name": "acme", "clients": ["acme-*"]}, {"name": "bee", "clients": ["bee-*"]}]
    admin_topics = "auto" if operators else "off"
    queues = {"tenants": tenants, "admin_topics": admin_topics, "defaults": {"partitions": 1}}
    return parse_config({"data_dir": "x", "queues": queues})


@pytest.mark.parametrize("operation", sorted(RULES))
def test_a_tenants_client_has_what_the_table_says(start: Start, operation: str) -> None:
    """Also where whoever comes over loopback may administer: it never does."""
    world, disk = start(with_tenants(operators=True))
    member = world.connect("acme-1")
    has = prepare(member, "q", "acme", begin=operation != "$txn/begin")
    before = state_of(world, disk)
    reason = ask(operation, world, member, "q", has)
    if RULES[operation].tenants:
        assert reason < 0x80
    else:
        assert reason == Reason.NOT_AUTHORIZED
        assert state_of(world, disk) == before


@pytest.mark.parametrize("operation", sorted(RULES))
@pytest.mark.parametrize("kind", ["another tenant", "no tenant", "operator"])
def test_others_reach_the_queue_of_a_tenant_only_as_operators(start: Start, kind: str, operation: str) -> None:
    world, disk = start(with_tenants(operators=kind == "operator"))
    owner_has = prepare(world.connect("acme-1"), "q", "acme", begin=operation != "$txn/begin")
    client = world.connect("bee-1" if kind == "another tenant" else "plain")
    has = msgspec.structs.replace(owner_has, message_id="acme.q:0:0", delay_id=f"acme.{owner_has.delay_id}")
    if operation == "$txn/add":
        # A transaction of its own, so that the queue alone can be in the way.
        own = prepare(client, "own", kind)
        has = msgspec.structs.replace(has, producer=own.producer, transaction=own.transaction)
    before = state_of(world, disk)
    reason = ask(operation, world, client, "acme.q", has)
    after = state_of(world, disk)
    if kind == "operator":
        assert (reason < 0x80) is (operation not in _BOUND_TO_HOLDERS)
    elif kind == "another tenant":
        # Whatever it writes names what is its own.
        assert (reason < 0x80) is (operation in _IN_ITS_OWN_NAMES)
        assert _of_acme(after) == _of_acme(before)
    elif operation in ("$txn/init", "$txn/list"):
        assert reason == 0, "it names nothing of others"
    else:
        assert reason == Reason.NOT_AUTHORIZED
        assert after == before


_IN_ITS_OWN_NAMES = frozenset(("publish", "subscribe", "will", "$txn/init", "$txn/add"))
"""Another tenant's client succeeds with them, in a queue of its own that is called ``acme.q``."""
_BOUND_TO_HOLDERS = frozenset(
    ("$ack", "$nack", "$reject", "$extend", "$commit", "$claim", "$txn/begin", "$txn/commit", "$txn/abort")
)


def _of_acme(state: dict[str, object]) -> dict[str, object]:
    files = state["files"]
    assert isinstance(files, dict)
    kept: dict[str, object] = {path: content for path, content in files.items() if "/acme.q" in path}
    for name in ("stats", "config", "groups", "delayed"):
        values = state[name]
        assert isinstance(values, list)
        kept[name] = values[0]
    return kept


def test_a_producer_is_its_users(start: Start) -> None:
    """By whatever operation another user names it, and whatever it may do to the queue; list shows it to its own."""
    world, disk = start(with_rules())
    owner, other = log_in(world, "write", "owner")[0], log_in(world, "other", "other")[0]
    other.connection.grants = owner.connection.grants = None
    has = prepare(owner, "q", "owner")
    before = state_of(world, disk)
    for operation in ("begin", "add", "commit", "abort", "describe"):
        pairs = (*has.transaction, ("queue", "q"), ("partition", "0"))
        assert publish(other, f"$txn/{operation}", *pairs).reason == Reason.NOT_AUTHORIZED, operation
    assert publish(other, "$txn/init", ("transactional-id", "app-owner")).reason == Reason.NOT_AUTHORIZED
    assert publish(other, "$queue/q", *has.transaction).reason == Reason.NOT_AUTHORIZED
    settled = publish(other, "$queue/q/$ack", ("message-id", has.message_id), *has.transaction)
    assert settled.reason == Reason.NOT_AUTHORIZED
    assert state_of(world, disk) == before
    reader, _ = log_in(world, None, "reader")
    reader.connection.grants = None
    subscribe(reader, "answers/+")
    for name, client in (("owner", owner), ("other", other)):
        publish(client, "$txn/list", response_topic=f"answers/{name}")
    operator, _ = log_in(world, "admin", "operator")
    operator.connection.grants = None
    publish(operator, "$txn/list", response_topic="answers/operator")
    seen = {packet.topic: len(json.loads(packet.payload)["transactions"]) for packet in reader.publishes()}
    assert seen == {"answers/owner": 1, "answers/other": 0, "answers/operator": 1}


@pytest.mark.parametrize("partition", ["1", "x"])
def test_a_request_that_cannot_be_served_creates_no_queue(start: Start, partition: str) -> None:
    """A partition that the queue would not have, and a transaction that has ended."""
    world, disk = start(parse_config({"data_dir": "x", "queues": {"defaults": {"partitions": 1}}}))
    client = world.connect("c")
    has = prepare(client, "q", "c")
    before = state_of(world, disk)
    add = (("queue", "new"), ("partition", partition))
    assert publish(client, "$txn/add", *has.transaction, *add).reason >= 0x80
    assert publish(client, "$txn/add", *has.transaction, ("queue", "new/key"), ("partition", "0")).reason >= 0x80
    assert state_of(world, disk) == before
    publish(client, "$txn/abort", *has.transaction)
    assert publish(client, "$txn/add", *has.transaction, ("queue", "new"), ("partition", "0")).reason >= 0x80
    assert "new" not in world.node.engine.queues()
