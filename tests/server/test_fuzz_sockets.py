"""Fuzzed bytes over TCP and WebSocket: the server keeps serving, closes what it must, and leaks nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.conformance.wire import (
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
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, ListenerConfig, MqttConfig, Transport
from assay.sim.fuzz.grammar import Grammar
from assay.sim.fuzz.mutation import chunks, mutate_frames

SEED = 20_261_128
WAIT_S = 20.0
ROUNDS = 20
CONNECTIONS = 24
PACKETS_OF_A_CONNECTION = 25
_UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
_OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture
def broker_config() -> BrokerConfig:
    return BrokerConfig(
        listeners=(ListenerConfig(port=0), ListenerConfig(port=0, transport=Transport.WEBSOCKET)),
        mqtt=MqttConfig(max_packet_bytes=65_536, max_queued_messages=100, max_queued_bytes=100_000),
    )


def masked(rng: random.Random, payload: bytes, first: int = 0x82) -> bytes:
    """A client's WebSocket frame (RFC 6455 section 5.2)."""
    length = len(payload)
    if length < 126:
        size = bytes((0x80 | length,))
    elif length < 65_536:
        size = bytes((0x80 | 126,)) + length.to_bytes(2, "big")
    else:
        size = bytes((0x80 | 127,)) + length.to_bytes(8, "big")
    key = rng.randbytes(4)
    repeated = key * (length // 4 + 1)
    mixed = int.from_bytes(payload, "big") ^ int.from_bytes(repeated[:length], "big")
    return bytes((first,)) + size + key + mixed.to_bytes(length, "big")


class Control:
    """A client that the server must go on serving."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = Decoder(5)
        self.inbox: list[Packet] = []

    @classmethod
    async def connect(cls, port: int) -> Control:
        control = cls(*await asyncio.open_connection("127.0.0.1", port))
        control.say(Connect(client_id="control-3f1c9d72a6", version=5, keep_alive_s=0))
        control.say(Subscribe(packet_id=1, subscriptions=(Subscription(filter="control/3f1c9d72a6", qos=1),)))
        await control.until(lambda packet: isinstance(packet, Suback))
        return control

    def say(self, packet: Packet) -> None:
        self.writer.write(encode(packet, 5))

    async def until(self, wanted: Callable[[Packet], bool]) -> Packet:
        while True:
            for packet in self.inbox:
                if wanted(packet):
                    self.inbox.clear()
                    return packet
            data = await asyncio.wait_for(self.reader.read(65_536), WAIT_S)
            assert data, "the control client was cut"
            self.inbox += self.decoder.feed(data)

    async def is_served(self, number: int) -> None:
        payload = b"probe %d" % number
        self.say(Publish(topic="control/3f1c9d72a6", payload=payload, qos=1, packet_id=number + 1))
        delivery = await self.until(lambda packet: isinstance(packet, Publish) and packet.payload == payload)
        assert isinstance(delivery, Publish)
        self.say(Puback(packet_id=delivery.packet_id))


class Fuzzed:
    """One connection of damaged sessions."""

    def __init__(self, seed: int, port: int, *, websocket: bool) -> None:
        self.rng = random.Random(seed)
        self.port = port
        self.websocket = websocket
        self.damage = self.rng.choice((0.0, 0.05, 0.3))
        self.packets = 0

    def stream(self) -> list[bytes]:
        """The chunks it sends."""
        rng = self.rng
        grammar = Grammar(rng)
        frames = grammar.first()
        while len(frames) < PACKETS_OF_A_CONNECTION:
            frames += grammar.frames()
        frames = mutate_frames(rng, frames, self.damage)
        self.packets = len(frames)
        pieces = chunks(rng, b"".join(frames))
        if not self.websocket:
            return list(pieces)
        wrapped = [_UPGRADE, *(masked(rng, piece) for piece in pieces)]
        return mutate_frames_of_websocket(rng, wrapped) if rng.random() < 0.3 else wrapped

    async def run(self) -> None:
        """Send everything, then end in one of three ways; the server must let go each time."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        ending = self.rng.choice(("reset", "half-close", "half-close", "close"))
        try:
            for piece in self.stream():
                writer.write(piece)
                await writer.drain()
            if ending == "reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            elif ending == "half-close":
                writer.write_eof()
                while await asyncio.wait_for(reader.read(65_536), WAIT_S):
                    pass
        except TimeoutError:
            raise
        except OSError:
            pass  # the server has cut it: what it must do for most of this
        finally:
            writer.close()


def mutate_frames_of_websocket(rng: random.Random, frames: list[bytes]) -> list[bytes]:
    """Damage below MQTT: the upgrade, opcodes, masks, lengths, control frames."""
    out = []
    for frame in frames:
        choice = rng.random()
        if choice < 0.7:
            out.append(frame)
        elif choice < 0.8:
            out.append(masked(rng, rng.randbytes(rng.choice((0, 5, 125, 126, 300))), rng.randrange(256)))
        else:
            damaged = bytearray(frame)
            damaged[rng.randrange(min(len(damaged), 14))] ^= 1 << rng.randrange(8)
            out.append(bytes(damaged))
    return out


def open_files() -> int:
    return len(os.listdir(_OPEN_FILES)) if _OPEN_FILES.exists() else 0


def connections_left(broker: Broker, wanted: int) -> int:
    """Connections of the broker, once they are as few as wanted; each look is a turn of the broker's loop."""
    deadline = time.monotonic() + WAIT_S
    while (count := broker.snapshot().connections) > wanted and time.monotonic() < deadline:
        pass
    return count


async def one_round(broker: Broker, number: int) -> int:
    """All connections at once; returns the packets sent."""
    tcp, websocket = (address.port for address in broker.addresses)
    clients = [
        Fuzzed(SEED + number * CONNECTIONS + index, websocket if index % 3 == 2 else tcp, websocket=index % 3 == 2)
        for index in range(CONNECTIONS)
    ]
    await asyncio.gather(*(asyncio.wait_for(client.run(), WAIT_S) for client in clients))
    return sum(client.packets for client in clients)


async def must_be_cut(port: int, data: bytes, *, websocket: bool) -> None:
    """The server closes the connection by itself."""
    rng = random.Random(SEED)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_UPGRADE + masked(rng, data) if websocket else data)
    received = b""
    while piece := await asyncio.wait_for(reader.read(65_536), WAIT_S):
        received += piece
        if websocket and b"\x88" in received.partition(b"\r\n\r\n")[2]:
            writer.write(masked(rng, b"\x03\xe8", 0x88))  # the answer that lets a WebSocket server close at once
    writer.close()


def test_fuzzed_connections_harm_nobody_and_leave_nothing(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    async def main() -> int:
        control = await Control.connect(broker.port)
        before = open_files()
        sent = 0
        for number in range(ROUNDS):
            sent += await one_round(broker, number)
            await control.is_served(number)
        left = await asyncio.to_thread(connections_left, broker, 1)
        assert left == 1, f"seed {SEED}: {left - 1} connections were not let go"
        await asyncio.sleep(0)  # our own transports close in the loop's next turn
        assert open_files() <= before + 1, f"seed {SEED}: {before} files were open, now {open_files()}"
        control.writer.close()
        return sent

    assert asyncio.run(main()) >= ROUNDS * CONNECTIONS * PACKETS_OF_A_CONNECTION // 2
    assert not caplog.records, f"seed {SEED}: {[record.getMessage() for record in caplog.records]}"


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00",
        b"\xff\xff\xff\xff\xff",
        encode(Connect(version=5), 5) + b"\x30\xff\xff\xff\xff\x01",
        encode(Connect(version=4), 4) + b"\xd1\x00",
        encode(Connect(version=5), 5) + encode(Connect(version=5), 5),
        encode(Connect(version=5), 5) + b"\x30\xff\xff\x7f",
    ],
    ids=["type 0", "length of five bytes", "length within", "pingresp", "connect twice", "over the limit"],
)
def test_what_breaks_the_protocol_is_cut(broker: Broker, data: bytes) -> None:
    asyncio.run(must_be_cut(broker.addresses[0].port, data, websocket=False))
    asyncio.run(must_be_cut(broker.addresses[1].port, data, websocket=True))
