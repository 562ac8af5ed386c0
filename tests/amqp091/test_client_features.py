"""What users of pika and aio-pika do beyond the tutorials: every adapter, TLS, returns, transactions, restarts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import aio_pika.abc
import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from assay import Broker
from assay.reference_broker.auth import hash_password
from assay.reference_broker.config import (
    AuthConfig,
    BrokerConfig,
    ListenerConfig,
    ListenerProtocol,
    QueuesConfig,
    TlsConfig,
    UserConfig,
)
from tests.server.secure import Pki

PATIENCE_S = 60.0
AMQP = (ListenerProtocol.AMQP091,)
LISTENER = ListenerConfig(port=0, protocols=AMQP)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(BrokerConfig(listeners=(LISTENER,))) as running:
        yield running


def parameters(broker: Broker, **more: Any) -> pika.ConnectionParameters:
    more.setdefault("socket_timeout", PATIENCE_S)
    return pika.ConnectionParameters(broker.host, broker.port, **more)


@pytest.fixture
def channel(broker: Broker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(parameters(broker))
    yield connection.channel()
    if connection.is_open:
        connection.close()


def temporary(channel: BlockingChannel, **arguments: Any) -> str:
    """A queue of its own."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return str(channel.queue_declare("", exclusive=True, arguments=named).method.queue)


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    """All that is there now."""
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def waited(channel: BlockingChannel, queue: str) -> tuple[Any, Any, bytes]:
    """The next message."""
    for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=PATIENCE_S):
        channel.cancel()
        assert method is not None, "nothing came"
        return method, properties, body
    raise AssertionError


def test_a_headers_exchange_matches_all_or_any(channel: BlockingChannel) -> None:
    wanted = {"format": "pdf", "pages": 3}
    queues = {match: temporary(channel) for match in ("all", "any")}
    for match, queue in queues.items():
        channel.queue_bind(queue, "amq.headers", arguments={"x-match": match, **wanted})
    for headers in (wanted, {"format": "pdf"}, {"format": "txt", "pages": 3}, {"format": "txt"}):
        channel.basic_publish("amq.headers", "", str(headers), pika.BasicProperties(headers=headers))
    assert len(bodies(channel, queues["all"])) == 1
    assert len(bodies(channel, queues["any"])) == 3


@pytest.mark.parametrize("why", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_dead_letters_tell_why(channel: BlockingChannel, why: str) -> None:
    letters = temporary(channel)
    more = {
        "rejected": {},
        "expired": {"message_ttl": 1},
        "maxlen": {"max_length": 1},
        "delivery_limit": {"delivery_limit": 1},
    }
    queue = temporary(channel, dead_letter_exchange="", dead_letter_routing_key=letters, **more[why])
    channel.basic_publish("", queue, b"first", pika.BasicProperties(headers={"colour": "red"}))
    if why == "maxlen":
        channel.basic_publish("", queue, b"second")
    elif why == "rejected":
        channel.basic_reject(channel.basic_get(queue)[0].delivery_tag, requeue=False)
    elif why == "delivery_limit":
        for _ in range(2):
            channel.basic_nack(waiting_get(channel, queue).delivery_tag, requeue=True)
    _, properties, body = waited(channel, letters)
    assert body == b"first"
    (death,) = properties.headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == (why, queue, 1)
    assert properties.headers["colour"] == "red"


def waiting_get(channel: BlockingChannel, queue: str) -> Any:
    """The delivery of a message that comes back."""
    for method, _, _ in channel.consume(queue, inactivity_timeout=PATIENCE_S):
        channel.cancel()
        return method
    raise AssertionError


def test_the_urgent_come_first(channel: BlockingChannel) -> None:
    queue = temporary(channel, max_priority=4)
    for priority in (0, 4, 2, 1, 3):
        channel.basic_publish("", queue, str(priority), pika.BasicProperties(priority=priority))
    assert bodies(channel, queue) == [b"4", b"3", b"2", b"1", b"0"]


def test_confirms_returns_and_refusals(channel: BlockingChannel) -> None:
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as returned:
        channel.basic_publish("amq.direct", "nobody", b"back", pika.BasicProperties(message_id="m"), mandatory=True)
    (message,) = returned.value.messages
    assert (message.method.reply_code, message.method.exchange, message.method.routing_key) == (
        312,
        "amq.direct",
        "nobody",
    )
    assert (message.properties.message_id, message.body) == ("m", b"back")
    queue = temporary(channel, max_length=1, overflow="reject-publish")
    channel.basic_publish("", queue, b"1")
    with pytest.raises(NackError):
        channel.basic_publish("", queue, b"2")
    assert bodies(channel, queue) == [b"1"]


def test_transactions(channel: BlockingChannel) -> None:
    other = channel.connection.channel()
    queues = [temporary(other), temporary(other)]
    other.basic_publish("", queues[0], b"task")
    channel.tx_select()
    taken = channel.basic_get(queues[0])[0]
    channel.basic_publish("", queues[1], b"result")
    channel.basic_ack(taken.delivery_tag)
    channel.tx_rollback()
    assert bodies(other, queues[1]) == []
    channel.basic_publish("", queues[1], b"result")
    channel.basic_ack(taken.delivery_tag)
    channel.tx_commit()
    assert bodies(other, queues[1]) == [b"result"]
    channel.close()
    assert bodies(other, queues[0]) == [], "it is acknowledged"


def test_consumers_are_told_of_deletions_and_keep_others_out(broker: Broker, channel: BlockingChannel) -> None:
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.queue_declare("leaving")
    tag = channel.basic_consume("leaving", lambda *_: None, exclusive=True)
    other = pika.BlockingConnection(parameters(broker))
    with pytest.raises(ChannelClosedByBroker) as refused:
        other.channel().basic_consume("leaving", lambda *_: None)
    assert refused.value.reply_code == 403
    other.channel().queue_delete("leaving")
    other.close()
    while not cancelled:
        channel.connection.process_data_events(PATIENCE_S)
    assert cancelled == [tag]


def test_a_consumer_with_a_prefetch_gets_back_what_it_gave_up(channel: BlockingChannel) -> None:
    queue = temporary(channel)
    for number in range(5):
        channel.basic_publish("", queue, str(number))
    channel.basic_qos(prefetch_count=2)
    seen: list[tuple[bytes, bool]] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=PATIENCE_S):
        seen.append((body, method.redelivered))
        if len(seen) == 2:
            channel.basic_nack(method.delivery_tag, multiple=True)
        elif len(seen) > 2:
            channel.basic_ack(method.delivery_tag)
        if len(seen) == 7:
            break
    channel.cancel()
    assert seen == [
        (b"0", False),
        (b"1", False),
        (b"0", True),
        (b"1", True),
        (b"2", False),
        (b"3", False),
        (b"4", False),
    ]


Opened = Callable[[Any], None]


def in_ioloop(broker: Broker, on_channel: Callable[[Any, Callable[[], None]], None]) -> None:
    """Run something on a channel of :class:`pika.SelectConnection` until it says that it is done."""
    problems: list[object] = []

    def opened(connection: Any) -> None:
        connection.channel(on_open_callback=lambda channel: on_channel(channel, connection.close))

    def closed(connection: Any, reason: object) -> None:
        if getattr(reason, "reply_code", 0) != 200:
            problems.append(reason)
        connection.ioloop.stop()

    connection = pika.SelectConnection(
        parameters(broker), on_open_callback=opened, on_close_callback=closed, on_open_error_callback=closed
    )
    thread = threading.Thread(target=connection.ioloop.start, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it is never done"
    assert problems == []


def test_pikas_own_event_loop(broker: Broker) -> None:
    seen: list[tuple[str, object]] = []

    def on_channel(channel: Any, done: Callable[[], None]) -> None:
        def on_message(at: Any, method: Any, _properties: Any, body: bytes) -> None:
            seen.append(("message", body))
            at.basic_ack(method.delivery_tag)
            at.basic_publish("", "nowhere", b"lost", mandatory=True)

        def on_confirm(frame: Any) -> None:
            seen.append(("confirm", frame.method.delivery_tag))
            if frame.method.delivery_tag == 2:
                done()

        def on_queue(frame: Any) -> None:
            channel.basic_consume(frame.method.queue, on_message)
            channel.basic_publish("", frame.method.queue, b"hello")

        channel.add_on_return_callback(lambda *parts: seen.append(("return", parts[-1])))
        channel.confirm_delivery(
            on_confirm, callback=lambda _: channel.queue_declare("", exclusive=True, callback=on_queue)
        )

    in_ioloop(broker, on_channel)
    assert sorted(seen[:2], key=str) == [("confirm", 1), ("message", b"hello")]
    assert seen[2:] == [("return", b"lost"), ("confirm", 2)]


def test_pika_in_asyncio_is_told_why_its_channel_closed(broker: Broker) -> None:
    async def use() -> tuple[int, str]:
        told: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

        def on_channel(channel: Any) -> None:
            channel.add_on_close_callback(lambda _, why: told.set_result((why.reply_code, why.reply_text)))
            channel.queue_declare("nowhere", passive=True)

        connection = AsyncioConnection(
            parameters(broker), on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel)
        )
        found = await asyncio.wait_for(told, PATIENCE_S)
        connection.close()
        return found

    assert asyncio.run(use()) == (404, "NOT_FOUND - no queue 'nowhere' in vhost '/'")


def test_a_certificate_says_who_a_client_is(tmp_path: Path) -> None:
    """SASL EXTERNAL."""
    pki = Pki(tmp_path)
    certificate, key = pki.issue("127.0.0.1")
    tls = TlsConfig(
        certificate=certificate,
        key=key,
        client_certificate_authority=pki.client_authority,
        require_client_certificate=True,
        use_certificate_name_as_username=True,
    )
    listener = ListenerConfig(port=0, protocols=AMQP, tls=tls)
    users = (UserConfig(username="ann", password_hash=hash_password(b"never used")),)
    with Broker(BrokerConfig(listeners=(listener,), auth=AuthConfig(users=users))) as broker:
        options = pika.SSLOptions(pki.client_context("ann"), "127.0.0.1")
        external = pika.credentials.ExternalCredentials()
        connection = pika.BlockingConnection(parameters(broker, ssl_options=options, credentials=external))
        channel = connection.channel()
        queue = temporary(channel)
        channel.basic_publish("", queue, b"x" * 300_000, pika.BasicProperties(user_id="ann"))
        assert waited(channel, queue)[1].user_id == "ann"
        connection.close()


def test_a_secret_is_renewed(channel: BlockingChannel) -> None:
    channel.connection.update_secret("guest", "it was about to expire")
    assert channel.is_open


def test_publishers_are_told_when_queues_in_memory_hold_too_much() -> None:
    config = BrokerConfig(listeners=(LISTENER,), queues=QueuesConfig(max_memory_bytes=1_000_000))
    with Broker(config) as broker:
        told: list[str] = []
        publisher = pika.BlockingConnection(parameters(broker, blocked_connection_timeout=PATIENCE_S))
        publisher.add_on_connection_blocked_callback(lambda *_: told.append("blocked"))
        publisher.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        channel = publisher.channel()
        channel.queue_declare("q")
        while not told:
            channel.basic_publish("", "q", b"x" * 100_000)
            publisher.process_data_events(0.01)
        consumer = pika.BlockingConnection(parameters(broker)).channel()
        consumer.queue_purge("q")
        while told[-1] != "unblocked":
            publisher.process_data_events(PATIENCE_S)
        assert told == ["blocked", "unblocked"]
        consumer.connection.close()
        publisher.close()


def test_aio_pika_goes_on_behind_a_restart(tmp_path: Path) -> None:
    def config(port: int) -> BrokerConfig:
        return BrokerConfig(data_dir=str(tmp_path), listeners=(ListenerConfig(port=port, protocols=AMQP),))

    async def use() -> list[bytes]:
        broker = await asyncio.to_thread(started, config(0))
        port = broker.port
        seen: asyncio.Queue[bytes] = asyncio.Queue()

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                await seen.put(message.body)

        connection = await aio_pika.connect_robust(
            host=broker.host, port=port, timeout=PATIENCE_S, reconnect_interval=0.1
        )
        async with connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue("work", durable=True)
            await queue.bind(exchange, "order.*")
            kept = await channel.declare_queue("kept", durable=True)
            persistent = aio_pika.DeliveryMode.PERSISTENT
            await channel.default_exchange.publish(aio_pika.Message(b"kept", delivery_mode=persistent), "kept")
            await queue.consume(take)
            await exchange.publish(aio_pika.Message(b"before"), "order.1")
            found = [await asyncio.wait_for(seen.get(), PATIENCE_S)]
            back = asyncio.Event()
            connection.reconnect_callbacks.add(lambda *_: back.set())
            await asyncio.to_thread(broker.stop)
            broker = await asyncio.to_thread(started, config(port))
            try:
                await asyncio.wait_for(back.wait(), PATIENCE_S)
                await asyncio.wait_for(channel.ready(), PATIENCE_S)
                await exchange.publish(aio_pika.Message(b"after"), "order.2")
                found.append(await asyncio.wait_for(seen.get(), PATIENCE_S))
                found.append((await kept.get(timeout=PATIENCE_S, no_ack=True)).body)
            finally:
                await connection.close()
                await asyncio.to_thread(broker.stop)
        return found

    assert asyncio.run(use()) == [b"before", b"after", b"kept"]


def started(config: BrokerConfig) -> Broker:
    broker = Broker(config)
    broker.start()
    return broker
