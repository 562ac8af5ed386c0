"""The configurations in ``docs/examples`` serve clients as they say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    encode,
)
from assay.reference_broker.auth import hash_password
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, load_config
from assay.reference_broker.queues import QueueError
from tests.server.secure import Pki, connected

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def example(name: str, folder: Path) -> BrokerConfig:
    """With free ports, and its files in a folder of the test."""
    config = load_config(EXAMPLES / f"{name}.yaml")
    listeners = tuple(msgspec.structs.replace(listener, port=0) for listener in config.listeners)
    return msgspec.structs.replace(config, listeners=listeners, data_dir=str(folder) if config.data_dir else "")


def test_a_local_broker(tmp_path: Path) -> None:
    with Broker(example("local", tmp_path)) as broker:
        assert [address.url.partition(":")[0] for address in broker.addresses] == ["mqtt", "ws"]
        broker.queues.publish("orders", b"one", key="a")
        assert broker.queues.stats("orders").depth == 1


def test_a_durable_broker(tmp_path: Path) -> None:
    config = example("durable", tmp_path)
    with Broker(config) as broker:
        for queue in ("orders", "audit"):
            broker.queues.publish(queue, b"kept")
    with Broker(config) as broker:
        assert [broker.queues.stats(queue).depth for queue in ("orders", "audit")] == [1, 1]
        with pytest.raises(QueueError, match="unknown"):
            broker.queues.publish("unknown", b"x")


@pytest.mark.parametrize(("password", "code"), [(b"correct horse", 0), (b"wrong", 0x86)])
def test_a_secured_broker(
    tmp_path: Path, pki: Pki, password: bytes, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = (Path(path) for path in pki.issue("127.0.0.1"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.pem").write_bytes(certificate.read_bytes())
    (tmp_path / "server.key").write_bytes(key.read_bytes())
    (tmp_path / "users").write_text(f"alice:{hash_password(b'correct horse')}\n", encoding="utf-8")
    with Broker(example("secured", tmp_path / "data")) as broker, connected(broker, pki.client_context()) as client:
        decoder = Decoder(5)
        waiting: list[Packet] = []

        def answer() -> Packet:
            while not waiting:
                waiting.extend(decoder.feed(client.recv(4_096)))
            return waiting.pop(0)

        client.sendall(encode(Connect(version=5, client_id="sensor", username="alice", password=password), 5))
        connack = answer()
        assert isinstance(connack, Connack)
        assert connack.reason_code == code
        if code:
            return
        filters = ("devices/sensor/#", "devices/other/#", "announcements/#")
        subscriptions = tuple(Subscription(filter=filter_, qos=1) for filter_ in filters)
        client.sendall(encode(Subscribe(packet_id=1, subscriptions=subscriptions), 5))
        suback = answer()
        assert isinstance(suback, Suback)
        assert suback.reason_codes == (1, 0x87, 1)
        for packet_id, (topic, code) in enumerate([("$queue/orders", 0), ("announcements/x", 0x87)], start=2):
            client.sendall(encode(Publish(topic=topic, payload=b"x", qos=1, packet_id=packet_id), 5))
            puback = answer()
            assert isinstance(puback, Puback)
            assert puback.reason_code == code
