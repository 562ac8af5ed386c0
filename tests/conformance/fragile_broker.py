"""A small MQTT 3.1.1 broker that dies of one kind of packet: ``python fragile_broker.py PORT HOW``.

``HOW`` is the name of the packet that kills it (``pingreq``), ``unconnected`` (any packet before CONNECT), or either
with ``-hang`` (it lives on and answers nobody any more), ``-flicker`` (it is there again before anybody looks: all
connections end), ``-late`` (it dies with the fourth such packet) or ``-leave`` (before, it starts a process that
outlives it).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from assay.conformance.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    MalformedPacketError,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    encode,
)

DEADLY_PACKETS = 4
"""That many kill it with ``-late``."""


class FragileBroker:
    def __init__(self, how: str) -> None:
        self.deadly, *ways = how.split("-")
        self.ways = set(ways)
        self.seen = 0
        self.hangs = False
        self.subscribers: dict[str, set[asyncio.StreamWriter]] = {}
        self.writers: set[asyncio.StreamWriter] = set()

    def die(self) -> None:
        self.seen += 1
        if "late" in self.ways and self.seen < DEADLY_PACKETS:
            return
        if "hang" in self.ways:
            self.hangs = True
            return
        if "flicker" in self.ways:
            for writer in self.writers:
                writer.transport.abort()
            return
        print("a line before it", file=sys.stderr)
        print(f"panic: runtime error: {self.deadly} is out of range", file=sys.stderr)
        print("goroutine 1 [running]", file=sys.stderr, flush=True)
        os._exit(3)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = Decoder(4)
        connected = False
        self.writers.add(writer)
        try:
            while data := await reader.read(65_536):
                for packet in decoder.feed(data):
                    if self.deadly == "unconnected" and not connected and not isinstance(packet, Connect):
                        self.die()
                    if self.deadly == packet.type.name.lower():
                        self.die()
                    if self.hangs:
                        await asyncio.Event().wait()
                    if isinstance(packet, Disconnect) or (not connected and not isinstance(packet, Connect)):
                        return
                    connected = True
                    self.answer(packet, writer)
        except (MalformedPacketError, ConnectionError):
            return
        finally:
            for writers in self.subscribers.values():
                writers.discard(writer)
            self.writers.discard(writer)
            writer.close()

    def answer(self, packet: Packet, writer: asyncio.StreamWriter) -> None:
        if isinstance(packet, Connect):
            code = 0 if packet.version == 4 else 1
            writer.write(encode(Connack(reason_code=code), 4))
        elif isinstance(packet, Pingreq):
            writer.write(encode(Pingresp(), 4))
        elif isinstance(packet, Subscribe):
            for entry in packet.subscriptions:
                self.subscribers.setdefault(entry.filter, set()).add(writer)
            codes = tuple(0 for _ in packet.subscriptions)
            writer.write(encode(Suback(packet_id=packet.packet_id, reason_codes=codes), 4))
        elif isinstance(packet, Publish):
            for other in self.subscribers.get(packet.topic, ()):
                other.write(encode(Publish(topic=packet.topic, payload=packet.payload), 4))


async def main(port: int, how: str) -> None:
    broker = FragileBroker(how)
    async with await asyncio.start_server(broker.serve, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    if "leave" in sys.argv[2].split("-"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
