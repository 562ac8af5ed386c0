"""Events: who is told of what, how often, and by which signature."""

from __future__ import annotations

import hashlib
import hmac
import random
import re
from typing import Any

import msgspec
import pytest

from assay.reference_broker.config import (
    BrokerConfig,
    ConfigError,
    EventKind,
    QueuesConfig,
    TenantConfig,
    TenantQuotas,
    WebhookConfig,
    WebhooksConfig,
    parse_config,
)
from assay.reference_broker.core import webhooks as core_webhooks
from assay.reference_broker.core.webhooks import MAX_TEXT, SIGNATURE, Webhooks
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import Outcome, QueueAddress, QueueEngine, QueueError, SettleRequest
from assay.reference_broker.queues.jobs.outbox import Outbox
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.queue_store import LogQueueStore

START = 1_700_000_000.0
URL = "https://example.org/hook"
CONNECT = bytes.fromhex("100d00044d5154540402003c000174")  # 3.1.1, client id "t"
SUBSCRIBE, UNSUBSCRIBE = bytes.fromhex("8206000100016100"), bytes.fromhex("a2050002000161")
DISCONNECT = bytes.fromhex("e000")


def make(*endpoints: WebhookConfig, **settings: Any) -> tuple[Webhooks, list[float]]:
    """Webhooks of an engine in memory, and the time."""
    now = [START]
    engine = QueueEngine(QueuesConfig(), LogQueueStore(None), random.Random(1), START)
    config = WebhooksConfig(endpoints=endpoints or (WebhookConfig(url=URL),), **settings)
    made = Webhooks(config, "node-1", random.Random(1), lambda: now[0], engine)
    engine.agenda.notify = made.notify
    return made, now


def told(outbox: Outbox, now: float = START) -> list[dict[str, Any]]:
    """Everything that an outbox sends."""
    found: list[dict[str, Any]] = []
    while requests := outbox.take(now):
        for request in requests:
            found.append(msgspec.json.decode(request.body))
            outbox.done(request, accepted=True, now=now)
    return found


def test_an_event_says_what_happened_where_and_when() -> None:
    made, _ = make(WebhookConfig(url=URL, secret="s3cret", attempts=7, timeout_s=2.5))
    made.notify(EventKind.QUEUE_CREATED, "orders", {"queue": "orders"})
    (outbox,) = made.outboxes
    (request,) = outbox.take(START)
    event = msgspec.json.decode(request.body)
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", event.pop("event_id"))
    assert event == {
        "event_type": "queue.created",
        "timestamp": "2023-11-14T22:13:20Z",
        "broker_id": "node-1",
        "data": {"queue": "orders"},
    }
    digest = hmac.new(b"s3cret", request.body, hashlib.sha256).hexdigest()
    assert request.headers == ((SIGNATURE, f"sha256={digest}"),)
    assert (request.url, request.timeout_s, request.allow_private) == (URL, 2.5, False)


def test_an_endpoint_is_told_of_what_it_asks_for() -> None:
    endpoints = (
        WebhookConfig(url=f"{URL}/all"),
        WebhookConfig(url=f"{URL}/kinds", events=(EventKind.QUEUE_DELETED,)),
        WebhookConfig(url=f"{URL}/subjects", subjects=("shop/#", "audit")),
    )
    made, _ = make(*endpoints)
    for kind in (EventKind.QUEUE_CREATED, EventKind.QUEUE_DELETED):
        for name in ("shop/orders", "audit", "other"):
            made.notify(kind, name, {"queue": name})
    counts = [len(told(each)) for each in made.outboxes]
    assert counts == [6, 3, 4]


def test_what_goes_on_is_told_of_now_and_then() -> None:
    made, now = make(quiet_s=60.0)
    (outbox,) = made.outboxes

    def count(kind: EventKind, subject: str, **data: str) -> int:
        made.notify(kind, subject, dict(data))
        return len(told(outbox, now[0]))

    assert [count(EventKind.QUEUE_FULL, "a") for _ in range(3)] == [1, 0, 0]
    assert count(EventKind.QUEUE_FULL, "b") == 1
    assert [count(EventKind.GROUP_EMPTY, "a", group=group) for group in ("g", "h", "g")] == [1, 1, 0]
    assert [count(EventKind.CONNECTED, "a") for _ in range(2)] == [1, 1]
    now[0] += 60.0
    assert count(EventKind.QUEUE_FULL, "a") == 1


def test_what_was_told_is_remembered_of_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_webhooks, "MAX_QUIET", 2)
    made, _ = make()
    for name in ("x", "y", "y", "z", "y", "x"):
        made.notify(EventKind.QUEUE_FULL, name, {"queue": name})
    assert [each["data"]["queue"] for each in told(made.outboxes[0])] == ["x", "y", "z", "x"]
    assert len(made._told) == 2


def _consumer(engine: QueueEngine) -> tuple[Any, list[Any]]:
    got: list[Any] = []

    def deliver(delivery: Any) -> bool:
        got.append(delivery)
        return True

    made = engine.subscribe("q", pattern="", group="g", consumer_id="c", deliver=deliver, now=START)
    return made, got


def test_what_happens_to_queues() -> None:
    made, now = make()
    engine = made._engine
    (outbox,) = made.outboxes
    engine.create_queue("q", {"partitions": 1, "max_depth": 1}, START)
    engine.publish(QueueAddress(queue="q"), Message(topic="", payload=b"m"), START)
    with pytest.raises(QueueError):
        engine.publish(QueueAddress(queue="q"), Message(topic="", payload=b"m"), START)
    consumer, got = _consumer(engine)
    engine.dispatch(START)
    request = SettleRequest(outcome=Outcome.REJECT, message_ids=(got[0].message_id,), group="g", reason="no good")
    engine.settle("q", request, consumer_id="c", now=START, on_done=lambda _: None)
    for _ in range(4):
        engine.dispatch(now[0])
    engine.unsubscribe(consumer, START)
    engine.delete_queue("q", START, lambda _: None)
    found = [(each["event_type"], each["data"].get("queue")) for each in told(outbox)]
    assert found == [
        ("queue.created", "q"),
        ("queue.full", "q"),
        ("queue.created", "$dlq/q"),
        ("message.dead_lettered", "q"),
        ("group.empty", "q"),
        ("queue.deleted", "q"),
    ]


def test_a_group_that_is_behind_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some queues a second, all of them in turn."""
    monkeypatch.setattr(core_webhooks, "LOOKED_AT", 2)
    made, now = make(WebhookConfig(url=URL, events=(EventKind.GROUP_LAGS,)), group_lag=2)
    engine = made._engine
    for name in ("a", "b", "c"):
        engine.create_queue(name, {"partitions": 1}, START)
        engine.create_group(name, "g", START)
        for _ in range(2 if name == "b" else 3):
            engine.publish(QueueAddress(queue=name), Message(topic="", payload=b"m"), START)
    engine.dispatch(START)
    (outbox,) = made.outboxes
    seen = []
    for _ in range(3):
        assert made.next_deadline is not None
        now[0] = max(now[0], made.next_deadline)
        made.look(now[0])
        seen.append([(each["data"]["queue"], each["data"]["lag"]) for each in told(outbox, now[0])])
    assert seen == [[("a", 3)], [("c", 3)], []]


def test_nobody_looks_at_queues_unless_asked_to() -> None:
    made, _ = make()
    assert made.next_deadline is None


def _node(**more: Any) -> BrokerNode:
    config = BrokerConfig(webhooks=WebhooksConfig(endpoints=(WebhookConfig(url=URL),)), **more)
    return BrokerNode(config, None, random.Random(1), START)


def test_what_happens_to_clients() -> None:
    node = _node()
    assert node.webhooks is not None
    (outbox,) = node.webhooks.outboxes
    first, second = (node.accept(f"peer-{number}", START, protocol="mqtt") for number in (1, 2))
    node.receive(first, CONNECT + SUBSCRIBE + UNSUBSCRIBE, START)
    node.receive(second, CONNECT, START)
    node.receive(second, DISCONNECT, START)
    found = [(each["event_type"], each["data"]["client_id"], each["data"]["protocol"]) for each in told(outbox)]
    assert [kind for kind, *_ in found] == [
        "client.connected",
        "subscription.created",
        "subscription.removed",
        "client.session_takeover",
        "client.disconnected",
        "client.connected",
        "client.disconnected",
    ]
    assert {(client, protocol) for _, client, protocol in found} == {("t", "mqtt")}


def test_a_quota_that_is_used_up() -> None:
    tenant = TenantConfig(name="acme", clients=("*",), quotas=TenantQuotas(max_message_bytes=1))
    node = _node(queues=QueuesConfig(tenants=(tenant,)))
    assert node.webhooks is not None
    assert node.state.tenants is not None
    found = node.state.tenants.named("acme")
    assert found is not None
    with pytest.raises(QueueError):
        found.check_publish((Message(topic="", payload=b"mm"),), None, node.engine, START)
    (event,) = told(node.webhooks.outboxes[0])
    assert (event["event_type"], event["data"]["tenant"]) == ("tenant.over_quota", "acme")


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"endpoints": [{"url": "ftp://x"}]}, "webhooks.endpoints[0].url"),
        ({"endpoints": [{"url": URL, "attempts": 0}]}, "webhooks.endpoints[0].attempts"),
        ({"endpoints": [{"url": URL, "timeout_s": 61}]}, "webhooks.endpoints[0].timeout_s"),
        ({"endpoints": [{"url": URL, "events": ["no.such"]}]}, "webhooks.endpoints[0].events"),
        ({"max_waiting": 0}, "webhooks.max_waiting"),
        ({"quiet_s": 0}, "webhooks.quiet_s"),
        ({"group_lag": -1}, "webhooks.group_lag"),
    ],
)
def test_a_configuration_that_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"webhooks": settings})
    assert key in str(caught.value)


def test_what_is_told_is_bounded_and_counted_as_work() -> None:
    """Who subscribes to much at once, under a long name, has as much told of it as a turn has room for."""
    made, _ = make(WebhookConfig(url=URL), WebhookConfig(url=f"{URL}/two"), max_waiting=2)
    agenda = made._engine.agenda
    work, cost = agenda.work, agenda.cost
    long = "x" * 65_535
    for _ in range(3):
        assert agenda.tell(EventKind.CONNECTED, long, {"client_id": long, "username": None}) == 2
    assert (agenda.work - work, agenda.cost - cost) == (6, 6)
    first, second = made.outboxes
    assert [first.dropped, second.dropped] == [1, 1]
    assert [len(each["data"]["client_id"]) for each in told(first)] == [MAX_TEXT] * 2
