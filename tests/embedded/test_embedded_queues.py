"""The queues of an embedded broker, from threads and from its event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, ListenerConfig, Profile, QueueConfig, QueuesConfig, RetryConfig
from assay.reference_broker.embedded import (
    AckPolicy,
    AsyncSubscription,
    BrokerClosedError,
    HealthStatus,
    InvalidAddressError,
    InvalidOptionError,
    LimitReachedError,
    MessageTooLargeError,
    NewMessage,
    NotPendingError,
    Priority,
    QueueFullError,
    Subscription,
    UnknownQueueError,
)
from assay.reference_broker.embedded.blocking import Received
from assay.reference_broker.embedded.errors import NAMES, named
from assay.reference_broker.embedded.received import AsyncReceived
from assay.reference_broker.queues import QueueError, QueueErrorCode
from tests.embedded.conftest import TIMEOUT_S, embedded_config, next_of

# -- publish and consume


def test_what_is_published_is_received_and_acknowledged(broker: Broker) -> None:
    published = broker.queues.publish("orders/eu", b"one", key="user", content_type="text/plain")
    assert published is not None
    assert (published.kind, published.id) == ("message-id", "orders:0:0")
    with broker.queues.subscribe("orders", group="workers") as subscription:
        received = next_of(subscription)
        assert (received.payload, received.topic, received.delivery_count) == (b"one", "$queue/orders/eu", 1)
        assert received.message_id == published.id
        before = received.settled
        received.ack()
        assert (before, received.settled) == (False, True)
    assert broker.queues.stats("orders").depth == 0


def test_given_back_and_rejected_messages(broker: Broker) -> None:
    broker.queues.publish("orders", b"bad")
    with broker.queues.subscribe("orders") as subscription:
        next_of(subscription).nack()
        again = next_of(subscription)
        assert again.delivery_count == 2
        again.reject("unreadable")
    with broker.queues.subscribe("$dlq/orders") as burial:
        letter = next_of(burial)
        assert ("_dlq_reason", "unreadable") in letter.user_properties
        stats = broker.queues.dead_letter_stats("orders")
        assert (stats.total, stats.current, stats.enabled) == (1, 1, True)
        letter.ack()
    assert broker.queues.dead_letter_stats("orders").current == 0


def test_a_message_can_be_put_among_the_dead_letters(broker: Broker) -> None:
    broker.queues.publish("orders", b"first")
    broker.queues.dead_letter("orders", b"no use", "validation error")
    with broker.queues.subscribe("$dlq/orders") as burial:
        letter = next_of(burial)
    assert (letter.payload, dict(letter.user_properties)["_dlq_reason"]) == (b"no use", "validation error")
    assert broker.queues.dead_letter_stats("other").total == 0


def test_the_most_urgent_message_is_first(broker: Broker) -> None:
    for priority in (Priority.BACKGROUND, Priority.NORMAL, Priority.CRITICAL):
        broker.queues.publish("jobs", priority.name.encode(), priority=priority)
    with broker.queues.subscribe("jobs", buffer_size=1) as subscription:
        first = next_of(subscription)
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
        assert {next_of(subscription).payload for _ in range(501)} == {*messages, b"last"}


def test_without_waiting_nothing_is_told(broker: Broker) -> None:
    assert broker.queues.publish("orders", b"x", wait=False) is None
    with broker.queues.subscribe("orders") as subscription:
        assert next_of(subscription).payload == b"x"


def test_a_filter_on_the_routing_key(broker: Broker) -> None:
    with broker.queues.subscribe("orders", pattern="eu/#") as subscription:
        broker.queues.publish("orders/us/1", b"us")
        broker.queues.publish("orders/eu/1", b"eu")
        assert next_of(subscription).payload == b"eu"
    with broker.queues.subscribe("orders/us/#") as subscription:
        assert next_of(subscription).payload == b"us"
    with pytest.raises(InvalidAddressError, match="once"):
        broker.queues.subscribe("orders/us/#", pattern="us/#").start()


# -- ack policies


def test_a_message_that_needs_no_ack_is_settled_when_it_is_taken(broker: Broker) -> None:
    broker.queues.publish("events", b"x", ack=AckPolicy.NONE)
    with broker.queues.subscribe("events", group="g") as subscription:
        assert next_of(subscription).settled
    stats = broker.queues.stats("events")
    assert (stats.depth, stats.groups[0].acked) == (0, 1)


def test_a_message_with_a_time_of_its_own_comes_again_after_it() -> None:
    with Broker(embedded_config(delivery_timeout_s=3_600.0, retry={"initial_backoff_s": 0.0})) as broker:
        broker.queues.publish("events", b"x", ack=AckPolicy.TIMEOUT, ack_timeout_s=0.2)
        with broker.queues.subscribe("events", group="g") as subscription:
            assert next_of(subscription).delivery_count == 1
            again = next_of(subscription)
            assert again.delivery_count == 2
            with pytest.raises(NotPendingError):
                _settle_as_somebody_else(broker, again)


def _settle_as_somebody_else(broker: Broker, received: Received) -> None:
    Received(AsyncReceived(broker.queues_async, received.delivery, "somebody-else"), broker.queues._caller).ack()


def test_more_time_can_be_asked_for(broker: Broker) -> None:
    broker.queues.publish("events", b"x")
    with broker.queues.subscribe("events") as subscription:
        received = next_of(subscription)
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
        next_of(first)
    with broker.queues.subscribe("jobs", group="g") as second:
        assert next_of(second).delivery_count == 2


def test_nothing_comes_in_time(broker: Broker) -> None:
    with broker.queues.subscribe("jobs") as subscription:
        with pytest.raises(TimeoutError):
            subscription.get(0.05)
        broker.queues.publish("jobs", b"x")
        assert next_of(subscription).payload == b"x"


def test_the_buffer_bounds_what_waits(broker: Broker) -> None:
    broker.queues.publish_batch("jobs", [b"x"] * 100)
    with broker.queues.subscribe("jobs", group="g", buffer_size=4) as subscription:
        assert broker.queues.stats("jobs").in_flight == 4
        for _ in range(100):
            next_of(subscription).ack()
        assert broker.queues.stats("jobs").depth == 0
    for size in (0, 65_537):
        with pytest.raises(ValueError, match="buffer_size"):
            broker.queues.subscribe("jobs", buffer_size=size)


# -- stored messages and health


def test_messages_are_recovered_after_a_restart(tmp_path: Path) -> None:
    with Broker(embedded_config(tmp_path)) as broker:
        broker.queues.publish_batch("orders", [b"%d" % number for number in range(20)])
        with broker.queues.subscribe("orders", group="g") as subscription:
            for _ in range(5):
                next_of(subscription).ack()
    with Broker(embedded_config(tmp_path)) as broker:
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
        next_of(subscription).ack()
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
    broker = Broker(embedded_config())
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
    broker = Broker(embedded_config(max_in_flight=100)).start()
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
        async with Broker(embedded_config()) as broker:
            with pytest.raises(RuntimeError, match="queues_async"):
                broker.queues.publish("q", b"x")

    asyncio.run(main())


# -- in the event loop


def test_publish_and_consume_in_the_event_loop() -> None:
    async def main() -> list[bytes]:
        taken: list[bytes] = []
        async with Broker(embedded_config()) as broker:
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

        async with Broker(embedded_config()) as broker, broker.queues_async.subscribe("q", callback=callback):
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
        async with Broker(embedded_config()) as broker:
            task = asyncio.create_task(consume(broker.queues_async.subscribe("q"), ready))
            await ready.wait()
        return await asyncio.wait_for(task, TIMEOUT_S)

    assert asyncio.run(main()) == 0


def test_the_in_process_profile_gives_up_after_three_retries_and_counts_it() -> None:
    config = BrokerConfig(listeners=(ListenerConfig(port=0),), queues=QueuesConfig(profile=Profile.INPROC))
    with Broker(config) as broker:
        broker.queues.publish("jobs", b"x")
        with broker.queues.subscribe("jobs", group="g") as subscription:
            for count in (1, 2, 3, 4):
                received = next_of(subscription)
                assert received.delivery_count == count
                received.nack()
            with pytest.raises(TimeoutError):
                subscription.get(0.05)
        [group] = broker.queues.stats("jobs").groups
        assert (group.discarded, broker.queues.dead_letter_stats("jobs").total) == (1, 0)
