"""pika and aio-pika over real sockets: what their users do."""

from __future__ import annotations

import asyncio
import datetime
import socket
from collections.abc import Iterator
from typing import Any

import aio_pika
import paho.mqtt.client as paho
import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ProbableAuthenticationError, UnroutableError

from assay import Broker
from assay.reference_broker.amqp091.wire.content import NONE, encode_header
from assay.reference_broker.amqp091.wire.frames import PROTOCOL_HEADER, FrameType, content_frames, frame
from assay.reference_broker.amqp091.wire.methods import BY_NAME, encode_method
from assay.reference_broker.auth import hash_password
from assay.reference_broker.config import AuthConfig, BrokerConfig, ListenerConfig, ListenerProtocol, UserConfig

PATIENCE_S = 60.0
BOTH = ListenerConfig(port=0, protocols=(ListenerProtocol.AMQP091, ListenerProtocol.MQTT))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(BrokerConfig(listeners=(BOTH,))) as running:
        yield running


def parameters(broker: Broker, **more: Any) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(broker.host, broker.port, socket_timeout=PATIENCE_S, **more)


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(parameters(broker))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def test_a_task_queue_of_pikas_tutorial(channel: BlockingChannel) -> None:
    channel.queue_declare("task_queue", durable=True)
    channel.confirm_delivery()
    for number in range(20):
        body = b"x" * number * 10_000
        channel.basic_publish("", "task_queue", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    channel.basic_qos(prefetch_count=3)
    seen: list[int] = []
    for method, properties, body in channel.consume("task_queue", inactivity_timeout=PATIENCE_S):
        assert properties.delivery_mode == 2
        seen.append(len(body) // 10_000)
        channel.basic_ack(method.delivery_tag)
        if len(seen) == 20:
            break
    channel.cancel()
    assert seen == list(range(20))


def test_publish_subscribe_routing_and_topics(channel: BlockingChannel) -> None:
    for kind, key, sent in (
        ("fanout", "", "any"),
        ("direct", "error", "error"),
        ("topic", "*.critical", "disk.critical"),
    ):
        channel.exchange_declare(f"logs-{kind}", exchange_type=kind)
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, f"logs-{kind}", key)
        channel.basic_publish(f"logs-{kind}", sent, b"hit")
        channel.basic_publish(f"logs-{kind}", "elsewhere", b"miss")
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert (method.exchange, method.routing_key, body) == (f"logs-{kind}", sent, b"hit")
        assert channel.basic_get(queue)[2] == (b"miss" if kind == "fanout" else None)


def test_a_remote_procedure_call(broker: Broker, channel: BlockingChannel) -> None:
    server = pika.BlockingConnection(parameters(broker)).channel()
    server.queue_declare("rpc")

    def answer(at: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        at.basic_publish(
            "", properties.reply_to, body * 2, pika.BasicProperties(correlation_id=properties.correlation_id)
        )
        at.basic_ack(method.delivery_tag)

    server.basic_consume("rpc", answer)
    reply_to = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", "rpc", b"21", pika.BasicProperties(reply_to=reply_to, correlation_id="7"))
    server.connection.process_data_events(PATIENCE_S)
    for _, properties, body in channel.consume(reply_to, auto_ack=True, inactivity_timeout=PATIENCE_S):
        assert (properties.correlation_id, body) == ("7", b"2121")
        break
    server.connection.close()


def test_direct_replies_of_pikas_example(broker: Broker, channel: BlockingChannel) -> None:
    server = pika.BlockingConnection(parameters(broker)).channel()
    server.queue_declare("rpc")

    def answer(at: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        at.basic_publish("", properties.reply_to, b"Polo")
        at.basic_ack(method.delivery_tag)

    server.basic_consume("rpc", answer)
    replies: list[bytes] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *heard: replies.append(heard[3]), auto_ack=True)
    channel.basic_publish("", "rpc", b"Marco", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    server.connection.process_data_events(PATIENCE_S)
    channel.connection.process_data_events(PATIENCE_S)
    assert replies == [b"Polo"]
    server.connection.close()


def test_priorities_of_consumers(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("q")
    heard: list[tuple[str, bytes]] = []

    def consume(tag: str, priority: int) -> None:
        channel.basic_consume(
            "q",
            lambda _, method, __, body: heard.append((method.consumer_tag, body)),
            consumer_tag=tag,
            arguments={"x-priority": priority},
        )

    channel.basic_qos(prefetch_count=2)
    consume("low", 0)
    consume("high", 5)
    for number in range(4):
        channel.basic_publish("", "q", b"%d" % number)
    while len(heard) < 4:
        channel.connection.process_data_events(PATIENCE_S)
    assert sorted(heard) == [("high", b"0"), ("high", b"1"), ("low", b"2"), ("low", b"3")]


def test_a_stream_is_read_from_any_place(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream", "x-max-age": "7D"})
    channel.confirm_delivery()
    for number in range(10):
        channel.basic_publish("", "events", b"%d" % number)

    def read(offset: Any, count: int) -> list[tuple[int, bytes]]:
        reader = channel.connection.channel()
        reader.basic_qos(prefetch_count=3)
        seen: list[tuple[int, bytes]] = []
        arguments = {} if offset is None else {"x-stream-offset": offset}
        for method, properties, body in reader.consume("events", arguments=arguments, inactivity_timeout=PATIENCE_S):
            seen.append((properties.headers["x-stream-offset"], body))
            reader.basic_ack(method.delivery_tag)
            if len(seen) == count:
                break
        reader.cancel()
        reader.close()
        return seen

    assert read("first", 10) == [(number, b"%d" % number) for number in range(10)]
    assert read(7, 3) == [(7, b"7"), (8, b"8"), (9, b"9")]
    assert read("last", 1) == [(9, b"9")]
    assert read(datetime.datetime.now(tz=datetime.UTC) - datetime.timedelta(hours=1), 2) == [(0, b"0"), (1, b"1")]


def test_errors_reach_the_client(channel: BlockingChannel) -> None:
    connection = channel.connection
    channel.confirm_delivery()
    with pytest.raises(UnroutableError):
        channel.basic_publish("", "nowhere", b"x", mandatory=True)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.queue_declare("nowhere", passive=True)
    assert caught.value.reply_code == 404
    assert connection.channel().is_open


def test_a_wrong_password_is_told_as_such() -> None:
    users = (UserConfig(username="u", password_hash=hash_password(b"right")),)
    with Broker(BrokerConfig(listeners=(BOTH,), auth=AuthConfig(users=users))) as broker:
        right = pika.PlainCredentials("u", "right")
        pika.BlockingConnection(parameters(broker, credentials=right)).close()
        with pytest.raises(ProbableAuthenticationError):
            pika.BlockingConnection(parameters(broker, credentials=pika.PlainCredentials("u", "wrong")))


def test_heartbeats_keep_an_idle_connection(broker: Broker) -> None:
    connection = pika.BlockingConnection(parameters(broker, heartbeat=1))
    connection.process_data_events(4)
    assert connection.channel().is_open
    connection.close()


def test_pika_in_an_event_loop(broker: Broker) -> None:
    async def use() -> bytes:
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_channel(channel: Any) -> None:
            def on_message(_channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
                got.set_result(body)

            def on_queue(frame: Any) -> None:
                channel.basic_consume(frame.method.queue, on_message, auto_ack=True)
                channel.basic_publish("", frame.method.queue, b"hello")

            channel.queue_declare("", exclusive=True, callback=on_queue)

        connection = AsyncioConnection(
            parameters(broker), on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel)
        )
        body = await asyncio.wait_for(got, PATIENCE_S)
        connection.close()
        return body

    assert asyncio.run(use()) == b"hello"


def test_aio_pika(broker: Broker) -> None:
    async def use() -> None:
        connection = await aio_pika.connect_robust(host=broker.host, port=broker.port, timeout=PATIENCE_S)
        async with connection:
            channel = await connection.channel(publisher_confirms=True)
            await channel.set_qos(prefetch_count=10)
            exchange = await channel.declare_exchange("e", aio_pika.ExchangeType.HEADERS)
            queue = await channel.declare_queue("q", arguments={"x-max-length": 10})
            await queue.bind(exchange, arguments={"x-match": "any", "colour": "red"})
            sent = aio_pika.Message(b"x", headers={"colour": "red"}, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await exchange.publish(sent, routing_key="")
            message = await queue.get(timeout=PATIENCE_S)
            assert (message.body, dict(message.headers)) == (b"x", {"colour": "red"})
            await message.reject(requeue=True)
            async with queue.iterator(timeout=PATIENCE_S) as messages:
                async for message in messages:
                    assert message.redelivered
                    await message.ack()
                    break
            plain = await connection.channel(publisher_confirms=False)
            async with plain.transaction():
                await plain.default_exchange.publish(aio_pika.Message(b"tx"), "q")
            assert (await queue.get(timeout=PATIENCE_S)).body == b"tx"

    asyncio.run(use())


def test_messages_cross_between_mqtt_and_amqp(broker: Broker, channel: BlockingChannel) -> None:
    channel.queue_declare("orders", durable=True)
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.connect(broker.host, broker.port)
    client.loop_start()
    try:
        properties = paho.Properties(paho.PacketTypes.PUBLISH)
        properties.UserProperty = [("colour", "red")]
        properties.ContentType = "text/plain"
        client.publish("$queue/orders/eu", b"from mqtt", qos=1, properties=properties).wait_for_publish(PATIENCE_S)
        for method, told, body in channel.consume("orders", inactivity_timeout=PATIENCE_S):
            assert (method.exchange, method.routing_key, body) == ("$queue", "orders/eu", b"from mqtt")
            assert (told.content_type, told.headers) == ("text/plain", {"colour": "red"})
            channel.basic_ack(method.delivery_tag)
            break
        channel.cancel()
    finally:
        client.disconnect()
        client.loop_stop()


def test_a_listener_of_amqp_alone_is_ready_and_knows_nothing_of_mqtt() -> None:
    listener = ListenerConfig(port=0, protocols=(ListenerProtocol.AMQP091,))
    with Broker(BrokerConfig(listeners=(listener,))) as broker:
        pika.BlockingConnection(parameters(broker)).close()
        with socket.create_connection((broker.host, broker.port), PATIENCE_S) as raw:
            raw.sendall(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00")
            assert raw.recv(100) == b"AMQP\x00\x00\x09\x01"
            assert raw.recv(100) == b""


def test_what_comes_behind_a_close_costs_the_client_no_answer(broker: Broker) -> None:
    """amqplib writes the close of the connection before what its channels have still to write."""
    plain = encode_method(BY_NAME["connection.start-ok"], (), "PLAIN", b"\0guest\0guest", "en_US")
    said = [
        (0, plain),
        (0, encode_method(BY_NAME["connection.tune-ok"], 2_047, 131_072, 0)),
        (0, encode_method(BY_NAME["connection.open"], "/")),
        (1, encode_method(BY_NAME["channel.open"])),
        (0, encode_method(BY_NAME["connection.close"], 200, "", 0, 0)),
    ]
    publish = frame(FrameType.METHOD, 1, encode_method(BY_NAME["basic.publish"], "", "q", False, False))
    body = b"x" * 60_000
    publish += content_frames(1, encode_header(len(body), NONE), body, 131_072)
    with socket.create_connection((broker.host, broker.port), PATIENCE_S) as raw:
        raw.sendall(PROTOCOL_HEADER + b"".join([frame(FrameType.METHOD, number, method) for number, method in said]))
        for _ in range(200):
            raw.sendall(publish)
        heard = b"".join(iter(lambda: raw.recv(1 << 16), b""))
    assert heard.endswith(frame(FrameType.METHOD, 0, encode_method(BY_NAME["connection.close-ok"])))
