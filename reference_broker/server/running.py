"""A running broker in an event loop: node, listeners, trace, readiness."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from pathlib import Path

import msgspec

from reference_broker.config import BrokerConfig
from reference_broker.core.broker_state import Tracer
from reference_broker.mqtt.codec import encode_packet
from reference_broker.mqtt.packets import V5, Connect, Disconnect
from reference_broker.node import BrokerNode
from reference_broker.server.clock import Clock
from reference_broker.server.tcp import NodeDriver
from reference_broker.storage.disk import RealDisk
from reference_broker.trace.files import TraceWriter
from reference_broker.trace.schema import TraceEvent, TraceHeader, TraceKind

log = logging.getLogger("assay.broker")
READY_TIMEOUT_S = 10.0


class NotReadyError(RuntimeError):
    """The broker started, but a client's handshake with it did not pass."""


class RunningBroker:
    """Start with :meth:`start`, which returns only once an MQTT handshake over the socket has passed."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.addresses: list[tuple[str, int]] = []
        self._driver: NodeDriver | None = None
        self._trace: TraceWriter | None = None

    @property
    def driver(self) -> NodeDriver:
        if self._driver is None:
            message = "the broker is not running"
            raise RuntimeError(message)
        return self._driver

    async def start(self) -> None:
        """Raises :class:`OSError` (address in use, data directory in use), ``LogError``, :class:`NotReadyError`."""
        clock = Clock()
        disk = RealDisk(Path(self.config.data_dir)) if self.config.data_dir else None
        try:
            now = clock.now()
            # Client ids the broker assigns must not be guessable, so its random numbers start from the system's.
            rng = random.Random(secrets.randbits(256))
            node = BrokerNode(self.config, disk, rng, now, self._tracer(clock))
            for note in node.recovery_notes:
                log.warning("queue %s: %s (%s)", note.queue, note.problem, note.place)
            self._driver = NodeDriver(node, clock)
            for listener in self.config.listeners:
                self.addresses.append(await self._driver.listen(listener))
            for host, port in self.addresses:
                await check_handshake(host, port)
        except BaseException:
            await self.stop()
            raise

    def _tracer(self, clock: Clock) -> Tracer | None:
        if not self.config.trace.path:
            return None
        node = self.config.node
        writer = self._trace = TraceWriter(Path(self.config.trace.path), TraceHeader(node=node))

        def trace(kind: TraceKind, fields: dict[str, str | int]) -> None:
            known = {"seq": writer.count, "time_ns": int(clock.now() * 1e9), "node": node, "kind": kind}
            event = msgspec.convert(known | fields, TraceEvent)
            writer.write(event)

        return trace

    async def stop(self) -> None:
        """Close everything; twice is fine."""
        driver, self._driver = self._driver, None
        try:
            if driver is not None:
                await driver.close()
        finally:
            if self._trace is not None:
                self._trace.close()


async def check_handshake(host: str, port: int, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Connect as a client and see a CONNACK, whatever it says. Raises :class:`NotReadyError`."""
    target = "127.0.0.1" if host == "0.0.0.0" else "::1" if host == "::" else host  # noqa: S104 - compared, not bound
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(target, port)
            try:
                writer.write(encode_packet(Connect(version=V5, client_id=""), V5))
                answer = await reader.readexactly(2)
                if answer[0] != 0x20:
                    message = f"the listener {host}:{port} answered {answer.hex()} to CONNECT"
                    raise NotReadyError(message)
                writer.write(encode_packet(Disconnect(), V5))
                # The broker closes in answer: once it has, this client leaves no trace in its figures.
                await reader.read()
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError) as error:
        message = f"no MQTT handshake on {host}:{port}: {error or type(error).__name__}"
        raise NotReadyError(message) from error
