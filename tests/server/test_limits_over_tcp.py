"""Limits at real sockets: the driver reads on when a paused client is within its rate again; addresses are counted."""

from __future__ import annotations

import socket
import struct
import time

from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, LimitsConfig, ListenerConfig
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import encode_packet
from assay.reference_broker.mqtt.wire.errors import Reason
from assay.reference_broker.mqtt.wire.packets import V5, V311

WAIT_S = 20.0


def _read(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        assert part, f"closed after {data.hex()}"
        data += part
    return data


def _connect(port: int, version: int = V311) -> tuple[socket.socket, bytes]:
    """(client, CONNACK without its length)."""
    client = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    client.sendall(encode_packet(p.Connect(version=version, client_id=""), version))
    head = _read(client, 2)
    return client, head[:1] + _read(client, head[1])


def _broker(limits: LimitsConfig) -> Broker:
    return Broker(BrokerConfig(listeners=(ListenerConfig(port=0),), limits=limits))


def test_a_client_over_its_rate_is_read_more_slowly_and_loses_nothing() -> None:
    count, size = 3_000, 20_000
    packet = encode_packet(p.Publish(topic="t", payload=b"n" * size), V311)
    limits = LimitsConfig(publish_bytes_per_s=150_000_000, publish_burst_s=0.1)
    with _broker(limits) as broker:
        subscriber, _ = _connect(broker.port)
        publisher, _ = _connect(broker.port)
        with subscriber, publisher:
            request = p.SubscriptionRequest(topic_filter="t", qos=0)
            subscriber.sendall(encode_packet(p.Subscribe(packet_id=1, requests=(request,)), V311))
            assert _read(subscriber, 5)[0] == 0x90
            started = time.monotonic()
            # More than the sockets' buffers hold: what the broker does not read stays with the publisher.
            for number in range(count):
                publisher.sendall(packet[:-4] + struct.pack(">I", number))
                got = _read(subscriber, len(packet)) if number % 2 else b""
                assert not got or got[-4:] == struct.pack(">I", number // 2)
            for number in range(count // 2, count):
                assert _read(subscriber, len(packet))[-4:] == struct.pack(">I", number)
            assert time.monotonic() - started > 0.25, "60 MB take that long, but for the burst"


def test_a_burst_over_the_message_rate_arrives_whole_after_the_pauses() -> None:
    packet = encode_packet(p.Publish(topic="t", payload=b"x"), V311)
    with _broker(LimitsConfig(publish_messages_per_s=500, publish_burst_s=0.1)) as broker:
        subscriber, _ = _connect(broker.port)
        publisher, _ = _connect(broker.port)
        with subscriber, publisher:
            request = p.SubscriptionRequest(topic_filter="t", qos=0)
            subscriber.sendall(encode_packet(p.Subscribe(packet_id=1, requests=(request,)), V311))
            assert _read(subscriber, 5)[0] == 0x90
            started = time.monotonic()
            publisher.sendall(packet * 200 + encode_packet(p.Pingreq(), V311))
            assert _read(subscriber, 200 * len(packet)) == packet * 200
            assert time.monotonic() - started > 0.25, "150 of them at 500 a second"
            assert _read(publisher, 2) == b"\xd0\0"
            publisher.sendall(packet)
            assert _read(subscriber, len(packet)) == packet, "and the publisher is heard again"


def test_an_address_that_connects_too_often_is_told_so() -> None:
    # The broker's own check that it is ready takes the first connection.
    with _broker(LimitsConfig(connects_per_s=0.001, connect_burst=2)) as broker:
        accepted, connack = _connect(broker.port)
        with accepted:
            assert connack == b"\x20\0\0"
            for version, code in ((V5, Reason.CONNECTION_RATE_EXCEEDED), (V311, 3)):
                refused, connack = _connect(broker.port, version)
                with refused:
                    assert connack[:3] == bytes((0x20, 0, code))
                    assert not refused.recv(1), "closed"
