"""Transactions, requests and the management of queues, from an embedding program."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from assay.reference_broker.broker import Broker
from assay.reference_broker.embedded import (
    FencedError,
    NewMessage,
    QueueExistsError,
    QueueFullError,
    TransactionStateError,
)
from assay.reference_broker.embedded.blocking import Received
from tests.embedded.conftest import TIMEOUT_S, next_of

# -- transactions


def test_a_transaction_shows_as_a_whole_or_not_at_all(broker: Broker) -> None:
    queues = broker.queues
    queues.publish("in", b"order")
    with queues.subscribe("in", group="g") as source, queues.subscribe("out", group="g") as out:
        received = next_of(source)
        with queues.transaction() as transaction:
            transaction.publish("out", b"1")
            transaction.publish("audit", b"1", key="k")
            transaction.ack(received)
            with pytest.raises(TimeoutError):
                out.get(0.05)
        assert next_of(out).payload == b"1"
        assert queues.stats("audit").depth == 1
        assert queues.stats("in").depth == 0


def test_a_transaction_that_raises_leaves_nothing(broker: Broker) -> None:
    queues = broker.queues
    queues.publish("in", b"order")
    with queues.subscribe("in", group="g") as source, queues.subscribe("out", group="g") as out:
        received = next_of(source)

        def fail() -> None:
            with queues.transaction() as failing:
                failing.publish("out", b"never")
                failing.ack(received)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with queues.transaction() as transaction:
            transaction.publish("out", b"later")
        assert next_of(out).payload == b"later"
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
        assert next_of(out).payload == b"committed"
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
        assert next_of(out).payload == b"mine"


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
        assert len({next_of(out).payload for _ in range(20)}) == 20


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
        late = next_of(servers)
        late.reply(b"too late")
        late.ack()
    broker.queues.publish("plain", b"x")
    with broker.queues.subscribe("plain") as subscription, pytest.raises(ValueError, match="no response topic"):
        next_of(subscription).reply(b"x")


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
        next_of(subscription).reply(b"answer")
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
