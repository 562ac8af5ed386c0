"""CoAP of a real broker, over real sockets, by aiocoap's client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiocoap
import msgspec
import paho.mqtt.client as paho
import pytest

from assay.reference_broker.auth import hash_password
from assay.reference_broker.broker import Broker
from assay.reference_broker.coap import bridge
from assay.reference_broker.config import (
    AuthConfig,
    BrokerConfig,
    ConfigError,
    HttpConfig,
    ListenerConfig,
    ListenerProtocol,
    QueueConfig,
    QueuesConfig,
    TlsConfig,
    UserConfig,
    check_config,
)
from tests.http.conftest import HTTP

COAP = (ListenerProtocol.COAP,)
WAIT_S = 20.0


def serve(config: BrokerConfig | None = None, **http: Any) -> Broker:
    listeners = (
        ListenerConfig(port=0),
        ListenerConfig(port=0, protocols=COAP),
        ListenerConfig(host="0.0.0.0", port=0, protocols=COAP),
        ListenerConfig(port=0, protocols=HTTP),
    )
    config = config or BrokerConfig(queues=QueuesConfig(configured=(QueueConfig(name="orders", partitions=1),)))
    return Broker(msgspec.structs.replace(config, listeners=listeners, http=HttpConfig(**http)))


@pytest.fixture(scope="module")
def served() -> Iterator[Broker]:
    with serve() as broker:
        yield broker


def ask(broker: Broker, path: str, payload: bytes = b"", code: Any = aiocoap.POST, listener: int = 0) -> Any:
    """One request by a client of its own; ``path`` may have a query."""
    port = [each.port for each in broker.addresses if each.scheme == "coap"][listener]

    async def asked() -> Any:
        context = await aiocoap.Context.create_client_context()
        try:
            uri = f"coap://127.0.0.1:{port}/{path}"
            async with asyncio.timeout(WAIT_S):
                return await context.request(aiocoap.Message(code=code, uri=uri, payload=payload)).response
        finally:
            await context.shutdown()

    return asyncio.run(asked())


def subscriber(broker: Broker, topic_filter: str, found: list[Any]) -> paho.Client:
    (address,) = (each for each in broker.addresses if each.scheme == "mqtt")
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.on_message = lambda _client, _data, message: found.append(message)
    ready: list[int] = []
    client.on_subscribe = lambda *_: ready.append(1)
    client.connect(address.host, address.port)
    client.subscribe(topic_filter, qos=1)
    while not ready:
        client.loop(WAIT_S)
    return client


def test_a_device_publishes_and_a_subscriber_gets_it(served: Broker) -> None:
    found: list[Any] = []
    client = subscriber(served, "m/#", found)
    assert str(ask(served, "m/a/b?client_id=sensor", b"21.5").code) == "2.04 Changed"
    assert str(ask(served, "mqtt/publish/m/c?qos=1&retain=true", b"x", aiocoap.PUT).code) == "2.04 Changed"
    while len(found) < 2:
        client.loop(WAIT_S)
    assert [(each.topic, each.payload, each.qos) for each in found] == [("m/a/b", b"21.5", 0), ("m/c", b"x", 1)]
    client.disconnect()
    late: list[Any] = []
    client = subscriber(served, "m/#", late)
    while not late:
        client.loop(WAIT_S)
    assert [(each.topic, each.retain) for each in late] == [("m/c", True)]
    client.disconnect()


def test_a_message_for_a_queue_has_an_id(served: Broker) -> None:
    answer = ask(served, "$queue/orders/eu", b"order 1")
    assert str(answer.code) == "2.04 Changed"
    assert answer.payload.startswith(b"orders:0:")


def test_a_large_body_comes_in_blocks(served: Broker) -> None:
    found: list[Any] = []
    client = subscriber(served, "large", found)
    body = bytes(range(256)) * 40
    assert str(ask(served, "large", body).code) == "2.04 Changed"
    while not found:
        client.loop(WAIT_S)
    assert found[0].payload == body
    client.disconnect()


@pytest.mark.parametrize(
    ("path", "method", "code"),
    [
        ("health", aiocoap.GET, "2.05"),
        (".well-known/core", aiocoap.GET, "2.05"),
        ("health", aiocoap.POST, "4.05"),
        ("", aiocoap.POST, "4.04"),
        ("mqtt", aiocoap.POST, "4.04"),
        ("mqtt/other/a", aiocoap.POST, "4.04"),
        ("mqtt/publish", aiocoap.POST, "4.04"),
        ("a", aiocoap.GET, "4.05"),
        ("a", aiocoap.DELETE, "4.05"),
        ("a/+", aiocoap.POST, "4.00"),
        ("$SYS/a", aiocoap.POST, "4.03"),
        ("a?qos=3", aiocoap.POST, "4.00"),
        ("a?retain=maybe", aiocoap.POST, "4.00"),
        ("a?reatin=1", aiocoap.POST, "4.00"),
        ("a?qos=1&qos=1", aiocoap.POST, "4.00"),
        ("$queue/absent/+", aiocoap.POST, "4.00"),
        ("$queue/orders/$ack", aiocoap.POST, "4.03"),
    ],
)
def test_what_is_answered(served: Broker, path: str, method: Any, code: str) -> None:
    assert str(ask(served, path, code=method).code)[:4] == code


def test_who_asks() -> None:
    users = (UserConfig(username="ann", password_hash=hash_password(b"secret")),)
    with serve(BrokerConfig(auth=AuthConfig(users=users))) as broker:
        assert str(ask(broker, "a").code)[:4] == "4.01"
        assert str(ask(broker, "a?username=ann&password=wrong").code)[:4] == "4.01"
        assert str(ask(broker, "a?username=ann&password=secret").code)[:4] == "2.04"
        assert str(ask(broker, "a?username=ann&authorization=secret", listener=1).code)[:4] == "2.04"
        assert str(ask(broker, "a?authorization=Basic%20YW5uOnNlY3JldA==").code)[:4] == "2.04"
        assert str(ask(broker, "health", code=aiocoap.GET).code)[:4] == "2.05", "anybody may ask"


def test_who_has_no_name_beyond_loopback_publishes_nothing() -> None:
    with serve(BrokerConfig(auth=AuthConfig(anonymous=True))) as broker:
        assert str(ask(broker, "a", listener=1).code)[:4] == "4.03"
        assert str(ask(broker, "a", listener=0).code)[:4] == "2.04"


def test_who_asks_too_often_is_told_to_wait() -> None:
    with serve(requests_per_s=0.01, request_burst=1) as broker:
        assert str(ask(broker, "a").code)[:4] == "2.04"
        refused = ask(broker, "a")
        assert (str(refused.code)[:4], refused.opt.max_age) == ("4.29", 1)


def test_a_request_that_comes_again_is_done_once(served: Broker) -> None:
    (port, _) = (each.port for each in served.addresses if each.scheme == "coap")
    found: list[Any] = []
    client = subscriber(served, "once/#", found)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(WAIT_S)
        sender.connect(("127.0.0.1", port))
        answers = []
        for path in (b"\xb4once\x01a", b"\xb4once\x01a", b"\xb4once\x01b"):
            sender.send(b"\x40\2\0" + path[-1:] + path)
            answers.append(sender.recv(2_000))
    assert answers[0] == answers[1] == b"\x60\x44\0a"
    while not any(each.topic == "once/b" for each in found):
        client.loop(WAIT_S)
    assert [each.topic for each in found] == ["once/a", "once/b"]
    client.disconnect()


def test_a_bug_of_the_broker_is_told(
    served: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bridge, "publish_to_topic", fail)
    assert str(ask(served, "a").code)[:4] == "5.00"
    assert "by a bug of the broker" in caplog.text
    monkeypatch.undo()
    assert str(ask(served, "a").code)[:4] == "2.04", "and it goes on"


def test_a_listener_is_alone_and_has_no_tls(tmp_path: Path) -> None:
    both = ListenerConfig(protocols=(ListenerProtocol.COAP, ListenerProtocol.MQTT))
    with pytest.raises(ConfigError, match="port of its own"):
        check_config(BrokerConfig(listeners=(both,)))
    secure = ListenerConfig(protocols=COAP, tls=TlsConfig(certificate=str(tmp_path / "a"), key=str(tmp_path / "b")))
    with pytest.raises(ConfigError, match="DTLS"):
        check_config(BrokerConfig(listeners=(secure,)))
    assert ListenerConfig(protocols=COAP).port == 5_683


def test_an_address_in_use_is_told() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        listener = ListenerConfig(port=taken.getsockname()[1], protocols=COAP)
        with pytest.raises(OSError, match="in use"), Broker(BrokerConfig(listeners=(listener,))):
            pass
