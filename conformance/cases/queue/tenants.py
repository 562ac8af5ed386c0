"""Tenants: queues of their own that nobody else reaches, and quotas."""

from __future__ import annotations

from typing import Any

from assay.conformance.case import CaseContext, case
from assay.conformance.cases.queue.delays import delay_id
from assay.conformance.cases.queue.producing import Producer, must_fail, request
from assay.conformance.cases.queue.support import consume, deliveries, join, property_of, publish_with, settle
from assay.conformance.connection import Connection
from assay.conformance.wire import Connack, Connect, Properties, Puback, Publish, Suback, Subscribe, Subscription

_NOT_AUTHORIZED = 0x87


def _tenants(**quotas: float) -> dict[str, Any]:
    """A broker with the tenants acme, which has quotas, and bee; nobody administers queues over topics."""
    tenants = [
        {"name": "acme", "clients": ["acme-*"], "quotas": quotas},
        {"name": "bee", "clients": ["bee-*"]},
    ]
    return {"queues": {"admin_topics": "off", "defaults": {"partitions": 1}, "tenants": tenants}}


async def _client(ctx: CaseContext, client_id: str) -> Connection:
    return await ctx.connect(version=5, name=client_id, client_id=client_id)


async def _subscribe(client: Connection, topic_filter: str, *, group: str = "workers") -> int:
    """The code that SUBACK gives."""
    packet_id = client.next_packet_id()
    joining = Properties(user_property=(("consumer-group", group),))
    wanted = (Subscription(filter=topic_filter, qos=1),)
    client.send(Subscribe(packet_id=packet_id, subscriptions=wanted, properties=joining))
    suback = await client.expect(Suback, skipping=(Publish,))
    return suback.reason_codes[0]


async def _codes(client: Connection, count: int, payload: bytes = b"m", queue: str = "q") -> list[int]:
    """The reason codes of so many publishes."""
    return [(await publish_with(client, queue, payload)).reason_code for _ in range(count)]


@case(
    "queue/tenants/names-of-its-own",
    clauses=("Q-TENANT-01", "Q-TENANT-02", "Q-TENANT-05"),
    requires=("queues",),
    mutant="queue-tenant-name-shows",
    settings=_tenants(),
)
async def names(ctx: CaseContext) -> None:
    """A tenant's clients use plain names, which are others' names for other queues.

    acme, bee and a client without a tenant publish to $queue/q; each consumer gets its own message only, on $queue/q,
    with queue q and a message id that begins with q. Rejected, acme's message is in $dlq/q.
    """
    publishers = {name: await _client(ctx, name) for name in ("acme-1", "bee-1", "free-1")}
    for name, publisher in publishers.items():
        await publish_with(publisher, "q", name.encode())
    for name in publishers:
        consumer = await consume(ctx, "q", name=f"{name} consumer", client_id=f"{name}-consumer")
        delivery = await consumer.expect_publish("$queue/q", name.encode())
        queue, message_id = property_of(ctx, delivery, "queue"), property_of(ctx, delivery, "message-id")
        ctx.must(queue == "q", f"{name}: expected the queue q; seen {queue}")
        ctx.must(message_id.startswith("q:"), f"{name}: expected a message id of the queue q; seen {message_id}")
        await settle(ctx, consumer, "q", "reject", delivery)
        await consumer.expect_nothing()
        dead = await _client(ctx, f"{name}-dead")
        await _subscribe(dead, "$dlq/q")
        letter = await dead.expect_publish("$dlq/q", name.encode())
        origin = property_of(ctx, letter, "_dlq_original_queue")
        ctx.must(origin == "q", f"{name}: expected the original queue q; seen {origin}")


@case(
    "queue/tenants/refusals-in-its-names",
    clauses=("Q-TENANT-01", "Q-TENANT-05"),
    requires=("queues",),
    mutant="queue-tenant-name-in-refusals",
    settings=_tenants(),
)
async def refusals(ctx: CaseContext) -> None:
    """What a tenant's client is refused for is told in its own names, too.

    acme's client acknowledges a delivery, and one that there never was beside it: what is not pending is q's, and the
    tenant's name is neither in the user properties of the answer nor in its reason.
    """
    client = await _client(ctx, "acme-1")
    await publish_with(client, "q", b"m")
    consumer = await consume(ctx, "q", client_id="acme-consumer")
    delivery = await consumer.expect_publish("$queue/q", b"m")
    mine = property_of(ctx, delivery, "message-id")
    other = f"{mine.rpartition(':')[0]}:7"
    packet_id = consumer.next_packet_id()
    named = (("message-id", mine), ("message-id", other), ("group-id", property_of(ctx, delivery, "group-id")))
    consumer.send(
        Publish(topic="$queue/q/$ack", qos=1, packet_id=packet_id, properties=Properties(user_property=named))
    )
    puback = await consumer.expect(Puback, skipping=(Publish,))
    ctx.must(puback.reason_code >= 0x80, f"consumer: expected the settlement to fail; seen {puback}")
    gone = [value for name, value in puback.properties.user_property if name == "not-pending"]
    ctx.must(gone == [other], f"consumer: expected {other} to be told as not pending; seen {gone}")
    told = [*(value for _, value in puback.properties.user_property), puback.properties.reason_string or ""]
    ctx.must(not any("acme" in text for text in told), f"consumer: expected names without the tenant's; seen {told}")


@case(
    "queue/tenants/no-way-out",
    clauses=("Q-TENANT-03",),
    requires=("queues",),
    mutant="queue-tenant-dotted-names-pass",
    settings=_tenants(),
)
async def no_way_out(ctx: CaseContext) -> None:
    """Nothing that a tenant's client writes leads to another tenant's queue.

    acme's queue q holds a message, its dead letters another one. bee tries $queue/acme.q and its dead letters by both
    their names, to consume and to publish. It gets nothing, and acme gets its own message only.
    """
    acme, bee = await _client(ctx, "acme-1"), await _client(ctx, "bee-1")
    await publish_with(acme, "q", b"dead")
    first = await consume(ctx, "q", name="first", client_id="acme-first")
    await settle(ctx, first, "q", "reject", await first.expect_publish(payload=b"dead"))
    await publish_with(acme, "q", b"secret")
    await first.disconnect()
    for topic in ("$queue/acme.q", "$dlq/acme.q", "$queue/dlq/acme.q", "$queue/../acme.q"):
        await _subscribe(bee, topic)
    for queue in ("acme.q", "dlq/acme.q"):
        await publish_with(bee, queue, b"planted")
    seen = [delivery.payload for delivery in await deliveries(bee)]
    ctx.must(set(seen) <= {b"planted"}, f"bee: expected at most its own messages; seen {seen}")
    consumer = await consume(ctx, "q", name="consumer", client_id="acme-consumer")
    await consumer.expect_publish(payload=b"secret")
    await consumer.expect_nothing()


@case(
    "queue/tenants/strangers-stay-out",
    clauses=("Q-TENANT-04",),
    requires=("queues", "clock"),
    mutant="queue-strangers-reach-tenants",
    kills=("queue-strangers-use-verbs",),
    settings=_tenants(),
)
async def strangers(ctx: CaseContext) -> None:
    """A client without a tenant is refused at the queues of tenants.

    It publishes to $queue/acme.q, subscribes to that and its dead letters, settles there, and would take back what acme
    delays: all refused. What was delayed still comes. $queue/free is open to it.
    """
    acme, stranger = await _client(ctx, "acme-1"), await _client(ctx, "stranger")
    await publish_with(acme, "q", b"secret")
    delayed = delay_id(ctx, await publish_with(acme, "q", b"later", delay="10s"))
    for path in ("", "$ack", "$cancel"):
        puback = await publish_with(stranger, "acme.q", b"", path, message_id="acme.q:0:0", delay_id=f"acme.{delayed}")
        ctx.must(puback.reason_code >= 0x80, f"stranger: expected a refusal at acme.q/{path}; seen {puback}")
    for topic in ("$queue/acme.q", "$dlq/acme.q", "$queue/dlq/acme.q"):
        code = await _subscribe(stranger, topic)
        ctx.must(code >= 0x80, f"stranger: expected the subscription to {topic} to be refused; seen {code:#x}")
    puback = await publish_with(stranger, "free", b"m")
    ctx.must(puback.reason_code < 0x80, f"stranger: expected a queue of nobody to be open; seen {puback}")
    consumer = await consume(ctx, "q", name="consumer", client_id="acme-consumer")
    await settle(ctx, consumer, "q", "ack", await consumer.expect_publish(payload=b"secret"))
    await ctx.advance(10.01)
    await consumer.expect_publish(payload=b"later")


@case(
    "queue/tenants/dlq-is-no-suffix",
    clauses=("Q-TENANT-06",),
    requires=("queues",),
    mutant="queue-tenant-dlq-suffix",
    settings=_tenants(),
)
async def suffix(ctx: CaseContext) -> None:
    """A queue called orders.dlq is not where the dead letters of orders are (4.5).

    A message of orders is rejected. A consumer of orders.dlq gets what was published there, and not the dead letter.
    """
    acme = await _client(ctx, "acme-1")
    await publish_with(acme, "orders", b"dead")
    await publish_with(acme, "orders.dlq", b"plain")
    consumer = await consume(ctx, "orders", client_id="acme-consumer")
    await settle(ctx, consumer, "orders", "reject", await consumer.expect_publish(payload=b"dead"))
    other = await consume(ctx, "orders.dlq", name="other", client_id="acme-other")
    await other.expect_publish(payload=b"plain")
    await other.expect_nothing()


@case(
    "queue/tenants/administer-nothing",
    clauses=("Q-TENANT-07",),
    requires=("queues",),
    mutant="queue-tenants-administer",
    settings={"queues": {"tenants": [{"name": "acme", "clients": ["acme-*"]}]}},
)
async def administration(ctx: CaseContext) -> None:
    """A tenant's client is refused at the administration of queues, where others are not.

    A client without a tenant may list the queues; acme's may neither list, nor delete, nor see figures.
    """
    acme, operator = await _client(ctx, "acme-1"), await _client(ctx, "operator")
    await publish_with(operator, "q", b"m")
    # A PUBACK with a failure code would fail the case.
    await operator.publish("$admin/queue/list", b"", qos=1)
    for operation in ("list", "q/delete", "q/stats"):
        packet_id = acme.next_packet_id()
        acme.send(Publish(topic=f"$admin/queue/{operation}", qos=1, packet_id=packet_id))
        puback = await acme.expect(Puback)
        ctx.must(puback.reason_code >= 0x80, f"acme: expected {operation} to be refused; seen {puback}")
    code = await _subscribe(acme, "$admin/queue/+/stats")
    ctx.must(code >= 0x80, f"acme: expected the figures to be refused; seen {code:#x}")


@case(
    "queue/tenants/publish-rate",
    clauses=("Q-TENANT-08", "Q-TENANT-16"),
    requires=("queues", "clock"),
    mutant="queue-tenant-pays-twice",
    settings=_tenants(publish_messages_per_s=0.1, burst_s=100),
)
async def publish_rate(ctx: CaseContext) -> None:
    """A tenant publishes its burst at once and its rate over time, no more and no less, by whichever client (P7).

    One message in 10 s, ten at once. Two clients publish 12 together: ten pass, the others get 0x97. After 50 s five
    more pass. bee is not concerned.
    """
    first, second, bee = [await _client(ctx, name) for name in ("acme-1", "acme-2", "bee-1")]
    codes = [code for client in (first, second) * 6 for code in await _codes(client, 1)]
    ctx.must(codes == [0] * 10 + [0x97] * 2, f"acme: expected ten publishes to pass; seen {codes}")
    codes = await _codes(bee, 12)
    ctx.must(codes == [0] * 12, f"bee: expected no quota; seen {codes}")
    await ctx.advance(50)
    codes = await _codes(first, 7)
    ctx.must(codes == [0] * 5 + [0x97] * 2, f"acme: expected five more after 50 s; seen {codes}")


@case(
    "queue/tenants/publish-bytes",
    clauses=("Q-TENANT-09",),
    requires=("queues", "clock"),
    mutant="queue-tenant-bytes-free",
    settings=_tenants(publish_bytes_per_s=10, burst_s=100),
)
async def publish_bytes(ctx: CaseContext) -> None:
    """Bytes are bounded like messages.

    10 bytes a second, 1000 at once: three messages of 300 bytes pass, the fourth does not. After 40 s one more does.
    """
    acme = await _client(ctx, "acme-1")
    codes = await _codes(acme, 5, bytes(300))
    ctx.must(codes == [0, 0, 0, 0x97, 0x97], f"acme: expected 900 bytes to pass; seen {codes}")
    await ctx.advance(40)
    codes = await _codes(acme, 2, bytes(300))
    ctx.must(codes == [0, 0x97], f"acme: expected 300 bytes more after 40 s; seen {codes}")


@case(
    "queue/tenants/deliveries-wait",
    clauses=("Q-TENANT-10",),
    requires=("queues", "clock"),
    mutant="queue-tenant-deliveries-dropped",
    settings=_tenants(consume_messages_per_s=0.1, burst_s=30),
)
async def deliveries_wait(ctx: CaseContext) -> None:
    """Deliveries over the rate wait and are not lost.

    One in 10 s, three at once. Of six messages three come; two more when 20 s have passed, the last after 15 s more.
    """
    acme = await _client(ctx, "acme-1")
    wanted = [b"%d" % number for number in range(6)]
    for payload in wanted:
        await publish_with(acme, "q", payload)
    consumer = await consume(ctx, "q", client_id="acme-consumer")
    seen: list[bytes] = []
    for pause_s, count in ((0.1, 3), (20.5, 5), (15, 6)):
        await ctx.advance(pause_s)
        for delivery in await deliveries(consumer, at_least=count - len(seen)):
            seen.append(delivery.payload)
            await settle(ctx, consumer, "q", "ack", delivery)
        ctx.must(seen == wanted[:count], f"acme: expected {wanted[:count]} after {pause_s} s; seen {seen}")


@case(
    "queue/tenants/queues-and-partitions",
    clauses=("Q-TENANT-11",),
    requires=("queues",),
    mutant="queue-tenant-queues-uncounted",
    settings={
        "queues": {
            "defaults": {"partitions": 8},
            "tenants": [
                {
                    "name": "acme",
                    "clients": ["acme-*"],
                    "quotas": {"max_queues": 2, "max_partitions_per_queue": 3, "max_partitions": 6},
                }
            ],
        }
    },
)
async def queues(ctx: CaseContext) -> None:
    """A tenant has so many queues and partitions.

    Two queues of three partitions: an explicit partition 3 is refused, the third queue is refused with 0x97, by publish
    and by subscription. Others are not concerned.
    """
    acme, free = await _client(ctx, "acme-1"), await _client(ctx, "free")
    for queue in ("a", "b"):
        puback = await publish_with(acme, queue, b"m", partition="2")
        ctx.must(puback.reason_code == 0, f"acme: expected the queue {queue}; seen {puback}")
        puback = await publish_with(acme, queue, b"m", partition="3")
        ctx.must(puback.reason_code >= 0x80, f"acme: expected three partitions only; seen {puback}")
    puback = await publish_with(acme, "c", b"m")
    ctx.must(puback.reason_code == 0x97, f"acme: expected 0x97 for a third queue; seen {puback}")
    code = await _subscribe(acme, "$queue/d")
    ctx.must(code == 0x97, f"acme: expected 0x97 for a subscription to a third queue; seen {code:#x}")
    puback = await publish_with(free, "c", b"m", partition="7")
    ctx.must(puback.reason_code == 0, f"free: expected eight partitions; seen {puback}")


@case(
    "queue/tenants/size-and-delay",
    clauses=("Q-TENANT-12",),
    requires=("queues",),
    mutant="queue-tenant-messages-unchecked",
    settings=_tenants(max_message_bytes=100, max_delay_hours=1),
)
async def size_and_delay(ctx: CaseContext) -> None:
    """A tenant's messages have a largest size and a longest delay.

    100 bytes and an hour pass; 101 bytes, and an hour and a minute, get 0x97. bee's larger and later ones pass.
    """
    acme, bee = await _client(ctx, "acme-1"), await _client(ctx, "bee-1")
    for client, code in ((acme, 0x97), (bee, 0)):
        ctx.must(await _codes(client, 1, bytes(100)) == [0], f"{client.name}: expected 100 bytes to pass")
        seen = await _codes(client, 1, bytes(101))
        ctx.must(seen == [code], f"{client.name}: expected {code:#x} for 101 bytes; seen {seen}")
        within = (await publish_with(client, "q", b"m", delay="1h")).reason_code
        ctx.must(within == 0, f"{client.name}: expected an hour to pass; seen {within:#x}")
        later = (await publish_with(client, "q", b"m", delay="61m")).reason_code
        ctx.must(later == code, f"{client.name}: expected {code:#x} for 61 minutes; seen {later:#x}")


@case(
    "queue/tenants/connections",
    clauses=("Q-TENANT-13",),
    requires=("queues",),
    mutant="queue-tenant-connections-leak",
    settings=_tenants(max_connections=2),
)
async def connections(ctx: CaseContext) -> None:
    """A tenant has so many connections; those that ended do not count.

    Two connect; a third gets 0x97; the second connects again and takes itself over. One leaves, and there is room.
    """
    with ctx.own_point():
        first = await _client(ctx, "acme-1")
        await _client(ctx, "acme-2")
    third = await ctx.open(version=5, name="third")
    third.send(Connect(client_id="acme-3", version=5))
    connack = await third.expect(Connack)
    ctx.must(connack.reason_code == 0x97, f"third: expected 0x97; seen {connack}")
    with ctx.own_point():
        await _client(ctx, "acme-2")
        await first.disconnect()
        for _ in range(3):
            again = await _client(ctx, "acme-4")
            await again.disconnect()


@case(
    "queue/tenants/groups-and-consumers",
    clauses=("Q-TENANT-14",),
    requires=("queues",),
    mutant="queue-tenant-groups-uncounted",
    settings=_tenants(max_groups=2, max_consumers_per_group=2),
)
async def groups(ctx: CaseContext) -> None:
    """A tenant has so many consumer groups, and so many consumers in each.

    Two consumers join the first group; a third gets 0x97. A second group is there, a third one is refused with 0x97.
    """
    clients = [await _client(ctx, f"acme-{number}") for number in range(3)]
    for client in clients[:2]:
        await join(client, "q", group="one")
    code = await _subscribe(clients[2], "$queue/q", group="one")
    ctx.must(code == 0x97, f"acme: expected 0x97 for a third consumer; seen {code:#x}")
    await join(clients[2], "q", group="two")
    code = await _subscribe(clients[2], "$queue/other", group="three")
    ctx.must(code == 0x97, f"acme: expected 0x97 for a third group; seen {code:#x}")


@case(
    "queue/tenants/storage",
    clauses=("Q-TENANT-15", "Q-TENANT-16"),
    requires=("queues", "clock"),
    mutant="queue-tenant-storage-unbounded",
    settings=_tenants(max_storage_bytes=20_000),
)
async def storage(ctx: CaseContext) -> None:
    """A tenant stores so much.

    20 000 bytes: of forty messages of 1 000 bytes, over some seconds, at least fifteen and at most 22 pass, then 0x97
    follows. bee is not concerned.
    """
    acme, bee = await _client(ctx, "acme-1"), await _client(ctx, "bee-1")
    codes: list[int] = []
    for _ in range(4):
        codes += await _codes(acme, 10, bytes(1_000))
        await ctx.advance(2)
    passed = codes.count(0)
    ctx.must(15 <= passed <= 22, f"acme: expected 15 to 22 messages to pass; seen {passed}")
    ctx.must(set(codes[passed:]) == {0x97}, f"acme: expected 0x97 from then on; seen {codes}")
    ctx.must(await _codes(bee, 30, bytes(1_000)) == [0] * 30, "bee: expected no quota")


@case(
    "queue/tenants/storage-comes-back",
    clauses=("Q-TENANT-19",),
    requires=("queues", "clock"),
    mutant="queue-tenant-storage-kept",
    settings=_tenants(max_storage_bytes=20_000),
)
async def storage_comes_back(ctx: CaseContext) -> None:
    """A tenant that consumes what it stores may publish again.

    acme publishes 1 000 bytes at a time until it gets 0x97. Its only group acknowledges every message. Then it
    publishes once every two seconds: within a minute one passes.
    """
    acme = await _client(ctx, "acme-1")
    taken = 0
    for _ in range(10):
        codes = await _codes(acme, 10, bytes(1_000))
        taken += codes.count(0)
        if 0x97 in codes:
            break
        await ctx.advance(2)
    consumer = await consume(ctx, "q", name="consumer", client_id="acme-consumer")
    for delivery in await deliveries(consumer, at_least=taken):
        await settle(ctx, consumer, "q", "ack", delivery)
    codes = []
    while len(codes) < 30 and 0 not in codes:
        await ctx.advance(2)
        codes += await _codes(acme, 1, bytes(1_000))
    ctx.must(0 in codes, f"acme: expected a publish to pass, as nothing is stored that anybody needs; seen {codes}")


@case(
    "queue/tenants/no-queue-by-a-transaction",
    clauses=("Q-TENANT-18",),
    requires=("queues",),
    mutant="queue-transactions-name-any-queue",
    settings=_tenants(max_queues=2),
)
async def no_queue_by_a_transaction(ctx: CaseContext) -> None:
    """What a client may not publish to it cannot name in a transaction, either: nothing is created, no quota used up.

    acme may have two queues and has one. A client without a tenant adds acme's queue and a new one of that tenant to
    its own transaction: both are refused with 0x87, and acme still gets its second queue. A queue of nobody's is
    added.
    """
    acme, stranger = await _client(ctx, "acme-1"), await _client(ctx, "stranger")
    await publish_with(acme, "q", b"m")
    producer = await Producer.make(ctx, "app", stranger)
    transaction = {**producer.identity, "transaction-id": await producer.begin()}
    for queue in ("acme.q", "acme.new", "$dlq/acme.q"):
        puback = await request(stranger, "add", **transaction, queue=queue, partition="0")
        code = puback.reason_code
        ctx.must(code == _NOT_AUTHORIZED, f"stranger: expected 0x87 for {queue}; seen 0x{code:02x}")
    free = await request(stranger, "add", **transaction, queue="free", partition="0")
    ctx.must(free.reason_code == 0, f"stranger: expected its own queue to be added; seen 0x{free.reason_code:02x}")
    second = await publish_with(acme, "second", b"m")
    ctx.must(second.reason_code == 0, f"acme: expected its second queue; seen 0x{second.reason_code:02x}")


@case(
    "queue/tenants/transactions",
    clauses=("Q-TENANT-17",),
    requires=("queues",),
    mutant="queue-tenant-transactions-unknown",
    settings=_tenants(),
)
async def transactions(ctx: CaseContext) -> None:
    """acme commits and aborts transactions; the transactional id of the same name is another one for bee.

    bee, and a client without a tenant, neither end acme's transaction nor publish as its producer, and the full name of
    its transactional id is refused to the client without a tenant.
    """
    acme, bee, stranger = [await _client(ctx, f"{name}-1") for name in ("acme", "bee", "free")]
    producer = await Producer.make(ctx, "app", acme)
    transaction = await producer.begin()
    await producer.put("q", b"in", transaction)
    for client in (bee, stranger):
        thief = Producer(ctx, client, "app")
        thief.id, thief.epoch = producer.id, producer.epoch
        must_fail(ctx, await thief.end("commit", transaction))
        must_fail(ctx, await thief.publish("q", b"stolen", transaction))
        must_fail(ctx, await thief.publish("q", b"stolen", sequence=0))
    must_fail(ctx, await request(stranger, "init", **{"transactional-id": "acme.app"}))
    await Producer.make(ctx, "app", bee)
    consumer = await consume(ctx, "q", name="acme", client_id="acme-consumer")
    await consumer.expect_nothing()
    await producer.commit(transaction)
    await consumer.expect_publish("$queue/q", b"in")
    second = await producer.begin()
    await producer.put("q", b"aborted", second)
    await producer.abort(second)
    await consumer.expect_nothing()
