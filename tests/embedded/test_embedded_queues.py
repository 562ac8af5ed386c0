"""The queues of an embedded broker, from threads and from its event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from reference_broker.broker import Broker
from reference_broker.config import BrokerConfig, ListenerConfig, QueueConfig, QueuesConfig, RetryConfig
from reference_broker.core.queues import QueueError, QueueErrorCode
from reference_broker.embedded import (
    AckPolicy,
    AsyncSubscription,
    BrokerClosedError,
    FencedError,
    HealthStatus,
    InvalidAddressError,
    InvalidOptionError,
    LimitReachedError,
    MessageTooLargeError,
    NewMessage,
    NotPendingError,
    Priority,
    QueueExistsError,
    QueueFullError,
    Subscription,
    TransactionStateError,
    UnknownQueueError,
)
from reference_broker.embedded.blocking import Received
from reference_broker.embedded.errors import NAMES, named
from reference_broker.embedded.received import AsyncReceived

TIMEOUT_S = 10.0


def _config(data_dir: Path | None = None, **defaults: object) -> BrokerConfig:
    one = {"partitions": 1, "delivery_timeout_s": 30.0, **defaults}
    return BrokerConfig(
        listeners=(ListenerConfig(port=0),),
        data_dir="" if data_dir is None else str(data_dir),
        queues=QueuesConfig(defaults=one),
    )


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(_config()) as running:
        yield running


def _next(subscription: Subscription) -> Received:
    received = subscription.get(TIMEOUT_S)
    assert received is not None
    return received


# -- publish and consume


def test_what_is_published_is_received_and_acknowledged(broker: Broker) -> None:
    published = broker.queues.publish("orders/eu", b"one", key="user", content_type="text/plain")
    assert published is not None
    assert (published.kind, published.id) == ("message-id", "orders:0:0")
    with broker.queues.subscribe("orders", group="workers") as subscription:
        received = _next(subscription)
        assert (received.payload, received.topic, received.delivery_count) == (b"one", "$queue/orders/eu", 1)
        assert received.message_id == published.id
        before = received.settled
        received.ack()
        assert (before, received.settled) == (False, True)
    assert broker.queues.stats("orders").depth == 0


def test_given_back_and_rejected_messages(broker: Broker) -> None:
    broker.queues.publish("orders", b"bad")
    with broker.queues.subscribe("orders") as subscription:
        _next(subscription).nack()
        again = _next(subscription)
        assert again.delivery_count == 2
        again.reject("unreadable")
    with broker.queues.subscribe("$dlq/orders") as burial:
        letter = _next(burial)
        assert ("_dlq_reason", "unreadable") in letter.user_properties
        stats = broker.queues.dead_letter_stats("orders")
        assert (stats.total, stats.current, stats.enabled) == (1, 1, True)
        letter.ack()
    assert broker.queues.dead_letter_stats("orders").current == 0


def test_a_message_can_be_put_among_the_dead_letters(broker: Broker) -> None:
    broker.queues.publish("orders", b"first")
    broker.queues.dead_letter("orders", b"no use", "validation error")
    with broker.queues.subscribe("$dlq/orders") as burial:
        letter = _next(burial)
    assert (letter.payload, dict(letter.user_properties)["_dlq_reason"]) == (b"no use", "validation error")
    assert broker.queues.dead_letter_stats("other").total == 0


def test_the_most_urgent_message_is_first(broker: Broker) -> None:
    for priority in (Priority.BACKGROUND, Priority.NORMAL, Priority.CRITICAL):
        broker.queues.publish("jobs", priority.name.encode(), priority=priority)
    with broker.queues.subscribe("jobs", buffer_size=1) as subscription:
        first = _next(subscription)
        assert first.payload == b"CRITICAL"


def test_a_delayed_message_is_named_by_its_delay(broker: Broker) -> None:
    published = broker.queues.publish("later", b"x", delay_s=3_600)
    at = broker.queues.publish("later", b"y", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    assert published is not None
    assert at is not None
    assert {published.kind, at.kind} == {"delay-id"}
    assert broker.queues.health().delayed == 2


def test_a_batch_is_confirmed_as_a_whole(broker: Broker) -> None:
    messages: list[bytes | NewMessage] = [b"%d" % number for number in range(500)]
    assert broker.queues.publish_batch("bulk", messages) == 500
    assert broker.queues.publish_batch("bulk", [NewMessage(payload=b"last", key="k")]) == 1
    with broker.queues.subscribe("bulk", buffer_size=600) as subscription:
        assert {_next(subscription).payload for _ in range(501)} == {*messages, b"last"}


def test_without_waiting_nothing_is_told(broker: Broker) -> None:
    assert broker.queues.publish("orders", b"x", wait=False) is None
    with broker.queues.subscribe("orders") as subscription:
        assert _next(subscription).payload == b"x"


def test_a_filter_on_the_routing_key(broker: Broker) -> None:
    with broker.queues.subscribe("orders", pattern="eu/#") as subscription:
        broker.queues.publish("orders/us/1", b"us")
        broker.queues.publish("orders/eu/1", b"eu")
        assert _next(subscription).payload == b"eu"
    with broker.queues.subscribe("orders/us/#") as subscription:
        assert _next(subscription).payload == b"us"
    with pytest.raises(InvalidAddressError, match="once"):
        broker.queues.subscribe("orders/us/#", pattern="us/#").start()


# -- ack policies


def test_a_message_that_needs_no_ack_is_settled_when_it_is_taken(broker: Broker) -> None:
    broker.queues.publish("events", b"x", ack=AckPolicy.NONE)
    with broker.queues.subscribe("events", group="g") as subscription:
        assert _next(subscription).settled
    stats = broker.queues.stats("events")
    assert (stats.depth, stats.groups[0].acked) == (0, 1)


def test_a_message_with_a_time_of_its_own_comes_again_after_it() -> None:
    with Broker(_config(delivery_timeout_s=3_600.0, retry={"initial_backoff_s": 0.0})) as broker:
        broker.queues.publish("events", b"x", ack=AckPolicy.TIMEOUT, ack_timeout_s=0.2)
        with broker.queues.subscribe("events", group="g") as subscription:
            assert _next(subscription).delivery_count == 1
            again = _next(subscription)
            assert again.delivery_count == 2
            with pytest.raises(NotPendingError):
                _settle_as_somebody_else(broker, again)


def _settle_as_somebody_else(broker: Broker, received: Received) -> None:
    Received(AsyncReceived(broker.queues_async, received.delivery, "somebody-else"), broker.queues._caller).ack()


def test_more_time_can_be_asked_for(broker: Broker) -> None:
    broker.queues.publish("events", b"x")
    with broker.queues.subscribe("events") as subscription:
        received = _next(subscription)
        received.extend(120.0)
        assert not received.settled
        received.ack()
        with pytest.raises(NotPendingError):
            received.extend()


# -- callbacks and iteration


def test_a_callback_acknowledges_by_returning_and_gives_back_by_raising(broker: Broker) -> None:
    seen: list[tuple[bytes, int]] = []
    done = threading.Event()

    def callback(received: Received) -> None:
        seen.append((received.payload, received.delivery_count))
        if received.payload == b"fails once" and received.delivery_count == 1:
            raise ValueError("planted")
        if len(seen) == 3:
            done.set()

    with broker.queues.subscribe("jobs", group="g", callback=callback):
        broker.queues.publish("jobs", b"fails once")
        broker.queues.publish("jobs", b"works")
        assert done.wait(TIMEOUT_S)
    assert sorted(seen) == [(b"fails once", 1), (b"fails once", 2), (b"works", 1)]


def test_iterating_ends_with_the_subscription(broker: Broker) -> None:
    broker.queues.publish_batch("jobs", [b"x"] * 5)
    subscription = broker.queues.subscribe("jobs", group="g").start()
    taken = []
    for received in subscription:
        taken.append(received)
        received.ack()
        if len(taken) == 5:
            subscription.cancel()
    subscription.cancel()
    assert len(taken) == 5
    assert subscription.get(0.1) is None


def test_cancelling_in_the_callback(broker: Broker) -> None:
    cancelled = threading.Event()
    held: list[Subscription] = []

    def callback(_: Received) -> None:
        held[0].cancel()
        cancelled.set()

    held.append(broker.queues.subscribe("jobs", callback=callback))
    with held[0]:
        broker.queues.publish("jobs", b"x")
        assert cancelled.wait(TIMEOUT_S)


def test_what_is_not_settled_goes_to_the_next_subscriber(broker: Broker) -> None:
    broker.queues.publish("jobs", b"x")
    with broker.queues.subscribe("jobs", group="g") as first:
        _next(first)
    with broker.queues.subscribe("jobs", group="g") as second:
        assert _next(second).delivery_count == 2


def test_nothing_comes_in_time(broker: Broker) -> None:
    with broker.queues.subscribe("jobs") as subscription:
        with pytest.raises(TimeoutError):
            subscription.get(0.05)
        broker.queues.publish("jobs", b"x")
        assert _next(subscription).payload == b"x"


def test_the_buffer_bounds_what_waits(broker: Broker) -> None:
    broker.queues.publish_batch("jobs", [b"x"] * 100)
    with broker.queues.subscribe("jobs", group="g", buffer_size=4) as subscription:
        assert broker.queues.stats("jobs").in_flight == 4
        for _ in range(100):
            _next(subscription).ack()
        assert broker.queues.stats("jobs").depth == 0
    for size in (0, 65_537):
        with pytest.raises(ValueError, match="buffer_size"):
            broker.queues.subscribe("jobs", buffer_size=size)


# -- transactions


def test_a_transaction_shows_as_a_whole_or_not_at_all(broker: Broker) -> None:
    queues = broker.queues
    queues.publish("in", b"order")
    with queues.subscribe("in", group="g") as source, queues.subscribe("out", group="g") as out:
        received = _next(source)
        with queues.transaction() as transaction:
            transaction.publish("out", b"1")
            transaction.publish("audit", b"1", key="k")
            transaction.ack(received)
            with pytest.raises(TimeoutError):
                out.get(0.05)
        assert _next(out).payload == b"1"
        assert queues.stats("audit").depth == 1
        assert queues.stats("in").depth == 0


def test_a_transaction_that_raises_leaves_nothing(broker: Broker) -> None:
    queues = broker.queues
    queues.publish("in", b"order")
    with queues.subscribe("in", group="g") as source, queues.subscribe("out", group="g") as out:
        received = _next(source)

        def fail() -> None:
            with queues.transaction() as failing:
                failing.publish("out", b"never")
                failing.ack(received)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with queues.transaction() as transaction:
            transaction.publish("out", b"later")
        assert _next(out).payload == b"later"
        assert queues.stats("in").depth == 1


def test_commit_and_abort_within_the_block(broker: Broker) -> None:
    queues = broker.queues
    with queues.transaction("worker") as transaction:
        transaction.publish("out", b"committed")
        transaction.commit()
        transaction.commit()
        with pytest.raises(TransactionStateError):
            transaction.publish("out", b"too late")
    with queues.transaction("worker") as transaction:
        transaction.publish("out", b"aborted")
        transaction.abort()
    with queues.subscribe("out") as out:
        assert _next(out).payload == b"committed"
        with pytest.raises(TimeoutError):
            out.get(0.05)
    with pytest.raises(RuntimeError, match="context manager"):
        transaction.publish("out", b"x")


def test_a_second_holder_of_a_name_fences_the_first(broker: Broker) -> None:
    def overlap() -> None:
        with broker.queues.transaction("worker") as zombie:
            zombie.publish("out", b"never")
            with broker.queues.transaction("worker") as successor:
                successor.publish("out", b"mine")
            zombie.publish("out", b"never")

    with pytest.raises(FencedError):
        overlap()
    with broker.queues.subscribe("out") as out:
        assert _next(out).payload == b"mine"


def test_transactions_of_many_threads(broker: Broker) -> None:
    def work(number: int) -> None:
        for turn in range(5):
            with broker.queues.transaction() as transaction:
                transaction.publish("a", b"%d-%d" % (number, turn))
                transaction.publish("b", b"%d-%d" % (number, turn))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert (broker.queues.stats("a").enqueued, broker.queues.stats("b").enqueued) >= (20, 20)
    with broker.queues.subscribe("a", buffer_size=32) as out:
        assert len({_next(out).payload for _ in range(20)}) == 20


# -- request and response, managing queues


def test_a_request_gets_its_reply(broker: Broker) -> None:
    def answer(received: Received) -> None:
        received.reply(NewMessage(payload=received.payload.upper(), content_type="text/plain"))

    with broker.queues.subscribe("service", group="servers", callback=answer), ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: broker.queues.request("service", text).payload, [b"a", b"b", b"c", b"d"]))
    assert found == [b"A", b"B", b"C", b"D"]


def test_a_request_that_nobody_answers(broker: Broker) -> None:
    with pytest.raises(TimeoutError):
        broker.queues.request("service", b"x", timeout_s=0.1)
    with broker.queues.subscribe("service", group="servers") as servers:
        late = _next(servers)
        late.reply(b"too late")
        late.ack()
    broker.queues.publish("plain", b"x")
    with broker.queues.subscribe("plain") as subscription, pytest.raises(ValueError, match="no response topic"):
        _next(subscription).reply(b"x")


def test_a_reply_to_an_ordinary_topic_reaches_its_subscribers(broker: Broker) -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    got: Queue[tuple[bytes, bytes]] = Queue()
    subscribed = threading.Event()

    def on_message(_client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        assert message.properties is not None
        got.put((bytes(message.payload), getattr(message.properties, "CorrelationData", b"")))

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect(broker.host, broker.port)
    client.loop_start()
    client.subscribe("replies/1", qos=1)
    assert subscribed.wait(TIMEOUT_S)
    broker.queues.publish("service", b"x", response_topic="replies/1", correlation_data=b"\0\xff")
    with broker.queues.subscribe("service") as subscription:
        _next(subscription).reply(b"answer")
    assert got.get(timeout=TIMEOUT_S) == (b"answer", b"\0\xff")
    client.disconnect()
    client.loop_stop()


def test_queues_are_created_and_changed(broker: Broker) -> None:
    created = broker.queues.create("jobs", partitions=3, max_depth=2)
    assert (created.partitions, created.max_depth) == (3, 2)
    with pytest.raises(QueueExistsError):
        broker.queues.create("jobs")
    broker.queues.publish_batch("jobs", [b"x"] * 2)
    with pytest.raises(QueueFullError):
        broker.queues.publish("jobs", b"x")
    assert broker.queues.update("jobs", max_depth=3).max_depth == 3
    broker.queues.publish("jobs", b"x")


# -- stored messages and health


def test_messages_are_recovered_after_a_restart(tmp_path: Path) -> None:
    with Broker(_config(tmp_path)) as broker:
        broker.queues.publish_batch("orders", [b"%d" % number for number in range(20)])
        with broker.queues.subscribe("orders", group="g") as subscription:
            for _ in range(5):
                _next(subscription).ack()
    with Broker(_config(tmp_path)) as broker:
        found = broker.queues.recover("orders", 10)
        assert [copy.payload for copy in found] == [b"%d" % number for number in range(5, 15)]
        assert found[0].message_id == "orders:0:5"
        assert broker.queues.stats("orders").depth == 15
        with pytest.raises(LimitReachedError):
            broker.queues.recover("orders", 10_001)
        with pytest.raises(UnknownQueueError):
            broker.queues.recover("unknown")


def test_health(broker: Broker) -> None:
    broker.queues.publish_batch("a", [b"x"] * 3)
    with broker.queues.subscribe("a", group="g", buffer_size=2) as subscription:
        _next(subscription).ack()
        health = broker.queues.health()
    assert health.status is HealthStatus.HEALTHY
    assert (health.queues, health.consumers, health.published, health.acked, health.refused) == (1, 1, 3, 1, 0)
    assert health.uptime_s >= 0
    assert health.failed_queues == ()


# -- errors


def test_errors_have_names() -> None:
    queue = QueueConfig(name="small", partitions=1, max_depth=1, max_message_bytes=100, retry=RetryConfig())
    config = BrokerConfig(
        listeners=(ListenerConfig(port=0),), queues=QueuesConfig(auto_create=False, configured=(queue,))
    )
    with Broker(config) as broker:
        queues = broker.queues
        with pytest.raises(MessageTooLargeError):
            queues.publish("small", bytes(101))
        queues.publish("small", b"x")
        with pytest.raises(QueueFullError):
            queues.publish("small", b"y")
        with pytest.raises(QueueFullError):
            queues.publish_batch("small", [b"y"])
        with pytest.raises(UnknownQueueError):
            queues.publish("other", b"x")
        with pytest.raises(InvalidAddressError):
            queues.publish("small/$ack", b"x")
        with pytest.raises(InvalidOptionError):
            queues.publish("small", b"x", delay_s=10_000_000)
        with pytest.raises(ValueError, match="time zone"):
            queues.publish("small", b"x", deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(ValueError, match="ack_timeout_s"):
            queues.publish("small", b"x", ack=AckPolicy.TIMEOUT)
        with pytest.raises(ValueError, match="negative"):
            queues.publish("small", b"x", ttl_s=-1)


@pytest.mark.parametrize("code", QueueErrorCode)
def test_every_code_has_a_name(code: QueueErrorCode) -> None:
    error = named(QueueError(code, "text"))
    if code is QueueErrorCode.CLOSED:
        assert isinstance(error, BrokerClosedError)
    else:
        assert type(error) is NAMES[code]
        assert isinstance(error, QueueError)
        assert (error.code, error.text) == (code, "text")


# -- closing


def test_closing_twice_and_using_a_closed_broker() -> None:
    broker = Broker(_config())
    with pytest.raises(BrokerClosedError):
        broker.queues.publish("q", b"x")
    broker.start()
    subscription = broker.queues.subscribe("q").start()
    broker.stop()
    broker.stop()
    assert subscription.get(TIMEOUT_S) is None
    subscription.cancel()
    with pytest.raises(BrokerClosedError):
        broker.queues.publish("q", b"x")
    with pytest.raises(BrokerClosedError):
        broker.queues.health()


def test_many_threads_publish_and_consume_while_the_broker_closes() -> None:
    broker = Broker(_config(max_in_flight=100)).start()
    published, received = [0] * 4, [0] * 4
    started = threading.Barrier(9)

    def publisher(number: int) -> None:
        started.wait(TIMEOUT_S)
        while True:
            try:
                broker.queues.publish("q", b"x")
            except BrokerClosedError:
                return
            published[number] += 1

    def consumer(number: int) -> None:
        with broker.queues.subscribe("q", group="g") as subscription:
            started.wait(TIMEOUT_S)
            for one in subscription:
                try:
                    one.ack()
                except (BrokerClosedError, NotPendingError):
                    return
                received[number] += 1

    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(publisher, number) for number in range(4)]
        work += [pool.submit(consumer, number) for number in range(4)]
        started.wait(TIMEOUT_S)
        while sum(received) < 200:
            broker.queues.stats("q")
        broker.stop()
        for one in work:
            one.result(TIMEOUT_S)
    assert sum(published) >= 200
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("assay-")]


def test_a_blocking_call_in_the_brokers_loop_is_refused() -> None:
    async def main() -> None:
        async with Broker(_config()) as broker:
            with pytest.raises(RuntimeError, match="queues_async"):
                broker.queues.publish("q", b"x")

    asyncio.run(main())


# -- in the event loop


def test_publish_and_consume_in_the_event_loop() -> None:
    async def main() -> list[bytes]:
        taken: list[bytes] = []
        async with Broker(_config()) as broker:
            queues = broker.queues_async
            await queues.publish_batch("q", [b"1", b"2"])
            await queues.publish("q", b"3", key="k")
            async with queues.subscribe("q", group="g") as subscription:
                async for received in subscription:
                    taken.append(received.payload)
                    await received.ack()
                    if len(taken) == 3:
                        await subscription.cancel()
            assert (await queues.stats("q")).depth == 0
            assert (await queues.health()).acked == 3
        return taken

    assert sorted(asyncio.run(main())) == [b"1", b"2", b"3"]


def test_callbacks_and_threads_with_a_broker_in_the_event_loop() -> None:
    async def main() -> None:
        seen: asyncio.Queue[bytes] = asyncio.Queue()

        async def callback(received: AsyncReceived) -> None:
            if received.delivery_count == 1:
                raise ValueError("planted")
            seen.put_nowait(received.payload)

        async with Broker(_config()) as broker, broker.queues_async.subscribe("q", callback=callback):
            await asyncio.to_thread(broker.queues.publish, "q", b"from a thread")
            assert await asyncio.wait_for(seen.get(), TIMEOUT_S) == b"from a thread"

    asyncio.run(main())


def test_subscriptions_end_with_a_broker_in_the_event_loop() -> None:
    async def consume(subscription: AsyncSubscription, ready: asyncio.Event) -> int:
        async with subscription:
            ready.set()
            return len([received async for received in subscription])

    async def main() -> int:
        ready = asyncio.Event()
        async with Broker(_config()) as broker:
            task = asyncio.create_task(consume(broker.queues_async.subscribe("q"), ready))
            await ready.wait()
        return await asyncio.wait_for(task, TIMEOUT_S)

    assert asyncio.run(main()) == 0
