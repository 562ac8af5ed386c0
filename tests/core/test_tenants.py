"""Tenants: names go in and out, nobody gets at another's queues, and quotas hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.reference_broker.config import (
    BrokerConfig,
    ConfigError,
    QueuesConfig,
    TenantConfig,
    TenantQuotas,
    parse_config,
)
from assay.reference_broker.core.tenant import Tenant
from assay.reference_broker.core.tenants import Tenants
from assay.reference_broker.mqtt.queue_topics import tenant_names
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics, parse_topic
from assay.reference_broker.mqtt.queue_topics.publish_properties import parse_options
from assay.reference_broker.queues import (
    Delivery,
    Outcome,
    QueueAddress,
    QueueEngine,
    QueueError,
    QueueErrorCode,
    SettleRequest,
)
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.queue_store import LogQueueStore

START = 1_000.0


def make(**quotas: float) -> tuple[Tenants, Tenant, QueueEngine]:
    configs = (
        TenantConfig(name="acme", users=("ann",), clients=("acme-*", "a?"), quotas=TenantQuotas(**quotas)),  # type: ignore[arg-type]
        TenantConfig(name="acme2", users=("bob",)),
    )
    engine = QueueEngine(QueuesConfig(tenants=configs), LogQueueStore(None), random.Random(1), START)
    tenants = Tenants(configs, engine)
    tenant = tenants.of_client("ann", "any")
    assert tenant is not None
    return tenants, tenant, engine


def publish(
    tenant: Tenant, engine: QueueEngine, now: float = START, payload: bytes = b"m", *pairs: tuple[str, str]
) -> None:
    message = Message(topic=tenant_names.topic_in(tenant, "$queue/q"), payload=payload, user_properties=pairs)
    tenant.charge(1, tenant.check_publish((message,), parse_options(pairs), engine, now))
    QueueTopics(engine).publish(message, now)
    engine.dispatch(now)


def refused(
    tenant: Tenant, engine: QueueEngine, now: float = START, payload: bytes = b"m", *pairs: tuple[str, str]
) -> bool:
    try:
        publish(tenant, engine, now, payload, *pairs)
    except QueueError as error:
        assert error.code is QueueErrorCode.QUOTA
        return True
    return False


def test_clients_belong_by_user_then_by_id() -> None:
    tenants, tenant, _ = make()
    assert tenants.of_client("ann", "x") is tenant
    assert tenants.of_client(None, "acme-1") is tenant
    assert tenants.of_client(None, "ab") is tenant
    assert tenants.of_client(None, "abc") is None
    assert tenants.of_client("eve", "x") is None
    other = tenants.of_client("bob", "acme-1")
    assert other is not None
    assert other.name == "acme2", "the user counts more"


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        ("$queue/q", "$queue/acme.q"),
        ("$queue/q/a/b", "$queue/acme.q/a/b"),
        ("$queue/q/$ack", "$queue/acme.q/$ack"),
        ("$queue/acme2.q", "$queue/acme.acme2.q"),
        ("$queue/orders.dlq", "$queue/acme.orders.dlq"),
        ("$dlq/q", "$dlq/acme.q"),
        ("$queue/dlq/q", "$queue/dlq/acme.q"),
        ("ordinary/topic", "ordinary/topic"),
    ],
)
def test_topics_go_in_and_out(outside: str, inside: str) -> None:
    _, tenant, _ = make()
    assert tenant_names.topic_in(tenant, outside) == inside
    if not outside.startswith("$queue/dlq/"):
        assert tenant_names.topic_out(tenant, inside) == outside


@example("dlq", "$dlq/")  # once the way to dead letters without a tenant
@given(st.text(st.sampled_from("abc./$#+dlq2"), max_size=14), st.sampled_from(["$queue/", "$dlq/", "$queue/dlq/"]))
def test_no_topic_leads_out_of_the_tenant(path: str, start: str) -> None:
    tenants, tenant, _ = make()
    try:
        found = parse_topic(
            tenant_names.topic_in(tenant, start + path), lambda name: name.startswith(("acme2.", "acme."))
        )
    except QueueError:
        return
    assert tenant.owns(found.address.queue)
    assert tenants.of_queue(found.address.queue) is tenant


def test_ids_go_in_and_out() -> None:
    _, tenant, _ = make()
    for outside, inside in (
        ("q:0:1", "acme.q:0:1"),
        ("$dlq/q:0:1", "$dlq/acme.q:0:1"),
        ("q:delay:7", "acme.q:delay:7"),
    ):
        assert tenant.name_in(outside) == inside
        assert tenant.name_out(inside) == outside


def test_messages_are_published_within_the_rate_and_the_burst() -> None:
    """P7: no more than rate times time and one burst, and no less."""
    _, tenant, engine = make(publish_messages_per_s=100.0, burst_s=0.5)
    admitted = sum(not refused(tenant, engine, START + step / 1000) for step in range(10_000))
    assert 100 * 10 - 1 <= admitted <= 100 * 10 + 50


def test_bytes_are_published_within_the_rate_and_the_burst() -> None:
    _, tenant, engine = make(publish_bytes_per_s=10_000.0)
    rng = random.Random(1)
    sizes = [rng.randrange(1, 400) for _ in range(5_000)]
    admitted = sum(
        size for step, size in enumerate(sizes) if not refused(tenant, engine, START + step / 500, bytes(size))
    )
    assert 10_000 * 10 - 400 <= admitted <= 10_000 * 10 + 10_000
    assert not refused(tenant, engine, START + 100, bytes(50_000)), "one larger than the burst passes a full bucket"
    assert refused(tenant, engine, START + 101)
    assert not refused(tenant, engine, START + 106)


def test_deliveries_wait_for_the_rate() -> None:
    _, tenant, _ = make(consume_messages_per_s=10.0, consume_bytes_per_s=1_000.0)
    now, given_at = START, []
    while now < START + 20:
        wait_s = tenant.delivery_wait_s(10, now)
        if not wait_s:
            given_at.append(now)
        now += wait_s or 1e-6
    assert 200 <= len(given_at) <= 211


def test_storage_messages_and_delays_are_bounded() -> None:
    _, tenant, engine = make(max_storage_bytes=20_000, max_message_bytes=1_000, max_delay_hours=1.0)
    assert refused(tenant, engine, START, bytes(1_001))
    assert refused(tenant, engine, START, b"m", ("delay", "61m"))
    assert not refused(tenant, engine, START, b"m", ("delay", "1h"))
    admitted = sum(not refused(tenant, engine, START + step, bytes(900)) for step in range(40))
    assert 15 <= admitted <= 22
    assert engine.usage(tenant.owns).stored_bytes <= 22_000


def test_a_tenant_that_consumes_all_it_stores_may_publish_again() -> None:
    """Its queues are smaller than a segment each, and nothing more is written to them."""
    _, tenant, engine = make(max_storage_bytes=20_000)
    now = START
    while not refused(tenant, engine, now, bytes(900)):
        now += 1
    taken: list[Delivery] = []
    engine.subscribe(
        "acme.q", pattern="", group="g", consumer_id="c", deliver=lambda one: taken.append(one) or True, now=now
    )
    engine.dispatch(now)
    for delivery in taken:
        engine.settle(
            "acme.q",
            SettleRequest(outcome=Outcome.ACCEPT, message_ids=(delivery.message_id,), group="g"),
            consumer_id="c",
            now=now,
        )
    assert len(taken) >= 15
    refusals = 0
    for _ in range(10):
        now += 2
        engine.tick(now)
        engine.dispatch(now)
        refusals += refused(tenant, engine, now, bytes(900))
    assert refusals <= 3
    assert engine.stats("acme.q").depth == 10 - refusals


def test_queues_and_partitions_are_bounded() -> None:
    _, tenant, engine = make(max_queues=3, max_partitions_per_queue=4, max_partitions=10)
    for name in "abc":
        engine.publish(
            QueueAddress(queue=f"acme.{name}"), Message(topic="", payload=b""), START
        ) if name != "c" else None
    assert engine.stats("acme.a").partitions == 4
    with pytest.raises(QueueError, match="10 partitions") as error:
        engine.publish(QueueAddress(queue="acme.c"), Message(topic="", payload=b""), START)
    assert error.value.code is QueueErrorCode.QUOTA
    with pytest.raises(QueueError, match="4 partitions"):
        engine.create_queue("acme.c", {"partitions": 5}, START)
    engine.create_queue("acme.c", {"partitions": 2}, START)
    with pytest.raises(QueueError, match="3 queues"):
        engine.create_queue("acme.d", {"partitions": 1}, START)
    engine.create_queue("acme2.d", {"partitions": 9}, START)
    engine.create_queue("free", {"partitions": 9}, START)
    assert engine.usage(tenant.owns).queues == 3


def test_groups_and_consumers_are_bounded() -> None:
    _, tenant, engine = make(max_groups=2, max_consumers_per_group=2)

    def join(group: str, client: str) -> None:
        tenant.check_new_group(engine, "acme.q", group, client)
        engine.subscribe("acme.q", pattern="", group=group, consumer_id=client, deliver=lambda _: False, now=START)

    for client in "ab":
        join("one", client)
    join("one", "a")
    with pytest.raises(QueueError, match="2 consumers"):
        join("one", "c")
    join("two", "a")
    with pytest.raises(QueueError, match="2 consumer groups"):
        join("three", "a")


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [
        ([{"name": "a.b", "users": ["x"]}], "letters"),
        ([{"name": "dlq", "users": ["x"]}], "letters"),
        ([{"name": "", "users": ["x"]}], "letters"),
        ([{"name": "__system", "users": ["x"]}], "letters"),
        ([{"name": "a", "users": ["x"]}, {"name": "a", "users": ["y"]}], "twice"),
        ([{"name": "a", "users": ["x"]}, {"name": "b", "users": ["x"]}], "already"),
        ([{"name": "a"}], "nobody"),
        ([{"name": "a", "users": ["x"], "quotas": {"max_queues": -1}}], "max_queues"),
        ([{"name": "a", "users": ["x"], "quotas": {"burst_s": 0}}], "burst_s"),
    ],
)
def test_bad_tenants_are_refused(tenants: list[dict[str, object]], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config({"queues": {"tenants": tenants}})
    assert BrokerConfig().queues.tenants == ()


_QUOTAS: dict[str, float] = {
    "publish_messages_per_s": 2,
    "publish_bytes_per_s": 50,
    "max_storage_bytes": 300,
    "max_queues": 2,
    "max_partitions_per_queue": 3,
    "max_partitions": 5,
    "max_message_bytes": 40,
    "max_delay_hours": 1,
    "max_groups": 1,
    "max_consumers_per_group": 1,
}
"""Each is exceeded by one of the deeds below, and by no other, or by those that name it."""


def _deeds(tenant: Tenant, engine: QueueEngine) -> dict[str, set[str]]:
    """What a tenant does, more than any of these quotas allows: the deeds that were refused, and why."""
    seen: dict[str, set[str]] = {}

    def do(deed: str, act: Callable[[], object]) -> None:
        try:
            act()
        except QueueError as error:
            assert error.code is QueueErrorCode.QUOTA
            seen.setdefault(deed, set()).add(str(error).rpartition(": ")[2])

    for name in "abc":
        do("queues", partial(engine.create_queue, f"acme.{name}", {"partitions": 2}, START))
    do("wide", partial(engine.create_queue, "acme.w", {"partitions": 4}, START))
    for number in range(4):
        publishing = partial(publish, tenant, engine, START + 3 * number, bytes(60))
        do("publish", publishing)
    do("delay", partial(publish, tenant, engine, START + 30, b"", ("delay", "2h")))
    for _ in range(4):
        do("flood", partial(publish, tenant, engine, START + 40, bytes(16)))

    def join(group: str, client: str) -> None:
        tenant.check_new_group(engine, "acme.a", group, client)
        engine.subscribe("acme.a", pattern="", group=group, consumer_id=client, deliver=lambda _: False, now=START + 50)

    if engine.members("acme.a", "g") is None:
        for group, client in (("one", "a"), ("one", "b"), ("two", "a")):
            do("join", partial(join, group, client))
    return seen


def _refusals(**quotas: float) -> set[str]:
    _, tenant, engine = make(**quotas)
    return set().union(*_deeds(tenant, engine).values())


def test_a_quota_that_is_not_set_limits_nothing_whatever_others_are() -> None:
    """Alone each refuses what it is about and nothing else; where one is missing, only the others refuse."""
    assert not _refusals()
    alone = {name: _refusals(**{name: value}) for name, value in _QUOTAS.items()}
    assert all(len(texts) == 1 for texts in alone.values()), alone
    for name in _QUOTAS:
        others = {each: value for each, value in _QUOTAS.items() if each != name}
        assert _refusals(**others) <= set().union(*(alone[each] for each in others))
        for each in others:
            assert _refusals(**{name: _QUOTAS[name], each: _QUOTAS[each]}) <= alone[name] | alone[each]
