"""The embedded broker and the pytest fixtures, with a real client (paho) on real sockets."""

from __future__ import annotations

import asyncio
import queue
import socket
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from assay.reference_broker.broker import Broker, BrokerClosedError
from assay.reference_broker.config import BrokerConfig, ListenerConfig, QueueConfig, QueuesConfig
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.routing.topics import TopicError
from assay.reference_broker.storage.disk import DirectoryInUseError

WAIT_S = 10.0


class PahoClient:
    """A connected paho client whose messages and subscriptions can be waited for."""

    def __init__(self, broker: Broker, client_id: str = "", version: int = paho.MQTTv5) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._subscribed: queue.Queue[object] = queue.Queue()
        connected: queue.Queue[object] = queue.Queue()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version)
        self.client.on_connect = lambda *arguments: connected.put(arguments[3])
        self.client.on_subscribe = lambda *arguments: self._subscribed.put(arguments[3])
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        self.client.connect(broker.host, broker.port)
        self.client.loop_start()
        connected.get(timeout=WAIT_S)

    def __enter__(self) -> PahoClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def subscribe(self, topic: str, qos: int) -> None:
        self.client.subscribe(topic, qos)
        self._subscribed.get(timeout=WAIT_S)

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False, **user: str) -> None:
        properties = None
        if user:
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = [(key.replace("_", "-"), value) for key, value in user.items()]
        info = self.client.publish(topic, payload, qos, retain, properties)
        info.wait_for_publish(WAIT_S)
        assert info.is_published()

    def next(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=WAIT_S)


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_receives_at_every_qos(broker: Broker, version: int, qos: int) -> None:
    with PahoClient(broker, version=version) as subscriber, PahoClient(broker, version=version) as publisher:
        subscriber.subscribe("a/+", qos)
        for number in range(50):
            publisher.publish("a/b", b"%d" % number, qos)
        received = [subscriber.next() for _ in range(50)]
        assert [message.payload for message in received] == [b"%d" % number for number in range(50)]
        assert {message.qos for message in received} == {qos}


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
def test_paho_gets_retained_messages(broker: Broker, version: int) -> None:
    with PahoClient(broker, version=version) as client:
        client.publish("r/1", b"kept", 1, retain=True)
        client.subscribe("r/#", 1)
        message = client.next()
        assert (message.topic, message.payload, message.retain) == ("r/1", b"kept", True)


@pytest.fixture
def durable(tmp_path: Path) -> BrokerConfig:
    queues = QueuesConfig(configured=(QueueConfig(name="orders", partitions=2),))
    return BrokerConfig(listeners=(ListenerConfig(port=0),), data_dir=str(tmp_path / "data"), queues=queues)


def test_a_queue_survives_a_restart_and_settled_messages_stay_settled(durable: BrokerConfig) -> None:
    with Broker(durable) as broker, PahoClient(broker, "worker-1") as client:
        client.publish("$queue/orders", b"first", 1, partition_key="k")
        client.publish("$queue/orders", b"second", 1, partition_key="k")
        client.subscribe("$queue/orders", 1)
        first, second = client.next(), client.next()
        assert (first.payload, second.payload) == (b"first", b"second")
        given = dict(first.properties.UserProperty)
        client.publish("$queue/orders/$ack", b"", 1, message_id=given["message-id"], group_id=given["group-id"])
    with Broker(durable) as broker, PahoClient(broker, "worker-2") as client:
        client.subscribe("$queue/orders", 1)
        again = client.next()
        assert again.payload == b"second"
        assert dict(again.properties.UserProperty)["delivery-count"] == "2"
        (stats,) = broker.snapshot().queues
        assert stats.depth == 1


def test_a_stale_settlement_is_refused_with_a_reason(durable: BrokerConfig) -> None:
    with Broker(durable) as broker, PahoClient(broker) as client:
        answers: queue.Queue[object] = queue.Queue()
        client.client.on_publish = lambda *arguments: answers.put(arguments[3])
        client.publish("$queue/orders/$ack", b"", 1, message_id="orders:0:0", group_id="g")
        assert answers.get(timeout=WAIT_S).is_failure  # type: ignore[attr-defined]


def test_a_3_1_1_consumer_settles_by_acknowledging(durable: BrokerConfig) -> None:
    with Broker(durable) as broker:
        broker.publish("$queue/orders", b"x", qos=1)
        with PahoClient(broker, "old-1", paho.MQTTv311) as client:
            client.subscribe("$queue/orders", 1)
            assert client.next().payload == b"x"
            client.publish("a", b"", 1)  # its PUBACK comes after the broker has seen ours
        (stats,) = broker.snapshot().queues
        assert stats.groups[0].acked == 1
        assert stats.depth == 0


def test_the_broker_publishes_itself_and_tells_errors(broker: Broker) -> None:
    with PahoClient(broker) as client:
        client.subscribe("t", 1)
        broker.publish("t", b"hello", qos=1, user_properties=[("k", "v")])
        message = client.next()
        assert message.payload == b"hello"
        assert message.properties.UserProperty == [("k", "v")]
    with pytest.raises(TopicError):
        broker.publish("a/#", b"")
    with pytest.raises(QueueError) as caught:
        broker.publish("$queue/q/$ack/late", b"", qos=1)
    assert caught.value.code is QueueErrorCode.BAD_ADDRESS


def test_one_data_directory_has_one_owner(durable: BrokerConfig) -> None:
    with Broker(durable), pytest.raises(DirectoryInUseError), Broker(durable):
        pass


def test_an_address_in_use_is_an_error_and_leaves_nothing_behind(broker: Broker) -> None:
    config = BrokerConfig(listeners=(ListenerConfig(port=broker.port),))
    with pytest.raises(OSError, match=r"in use"), Broker(config):
        pass


def test_ready_means_that_a_client_was_answered(broker: Broker) -> None:
    """No retry, no sleep: the first connection after start is accepted."""
    with socket.create_connection((broker.host, broker.port), timeout=WAIT_S) as client:
        client.sendall(bytes.fromhex("100d00044d51545404020000000174"))
        assert client.recv(4) == bytes.fromhex("20020000")
    assert broker.url == f"mqtt://127.0.0.1:{broker.port}"


def test_a_stopped_broker_says_so_and_stops_twice() -> None:
    broker = Broker()
    with pytest.raises(BrokerClosedError):
        broker.snapshot()
    broker.start()
    port = broker.port
    broker.stop()
    broker.stop()
    with pytest.raises(BrokerClosedError):
        _ = broker.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def test_in_an_event_loop_of_ones_own() -> None:
    async def main() -> None:
        async with Broker() as broker:
            reader, writer = await asyncio.open_connection(broker.host, broker.port)
            writer.write(bytes.fromhex("100d00044d51545404020000000174"))
            assert await reader.readexactly(4) == bytes.fromhex("20020000")
            await broker.publish_async("$queue/q", b"x", qos=1)
            assert broker.snapshot_now().queues[0].depth == 1
            assert broker.snapshot_now().sessions == ("t",)
            writer.close()

    asyncio.run(main())


def test_many_threads_may_publish(broker: Broker) -> None:
    with PahoClient(broker) as client:
        client.subscribe("t/#", 0)

        async def publish_all() -> None:
            calls = [asyncio.to_thread(broker.publish, f"t/{n}", b"%d" % n, qos=1) for n in range(40)]
            await asyncio.gather(*calls)

        asyncio.run(publish_all())
        assert sorted(int(client.next().payload) for _ in range(40)) == list(range(40))
