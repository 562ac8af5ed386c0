"""A running broker in an event loop: node, listeners, trace, readiness."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

import msgspec

from assay.reference_broker.config import BrokerConfig, check_config, is_loopback
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.server.clock import Clock
from assay.reference_broker.server.listeners import ListenerAddress, start_listener
from assay.reference_broker.server.readiness import check_handshake
from assay.reference_broker.server.span_export import SpanExport, start_exports
from assay.reference_broker.server.tcp import NodeDriver
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.own_descriptors import exchange
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.files import TraceWriter
from assay.reference_broker.trace.schema import TraceEvent, TraceHeader, TraceKind, Tracer

log = logging.getLogger("assay.broker")
_running: WeakSet[RunningBroker] = WeakSet()
_inherited: list[RunningBroker] = []
"""In a forked child: the parent's. They are kept as they are, since taking them apart would reach what is shared."""


class RunningBroker:
    """Start with :meth:`start`, which returns only once an MQTT handshake over each listener has passed."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.addresses: list[ListenerAddress] = []
        self._driver: NodeDriver | None = None
        self._trace: TraceWriter | None = None
        self._exports: list[SpanExport] = []

    def forget_in_child(self) -> None:
        """In a forked child: its sockets and its trace are the parent's alone."""
        driver = self._driver
        descriptors = driver.descriptors() if driver is not None else []
        if self._trace is not None:
            descriptors.append(self._trace.descriptor)
        descriptors += [descriptor for export in self._exports for descriptor in export.target.descriptors]
        exchange(descriptors)
        _inherited.append(self)

    @property
    def is_running(self) -> bool:
        return self._driver is not None

    @property
    def driver(self) -> NodeDriver:
        if self._driver is None:
            raise RuntimeError("the broker is not running")
        return self._driver

    async def start(self) -> None:
        """Raises :class:`OSError` (address in use, data directory in use), ``ConfigError`` (a certificate),
        ``LogError``, ``NotReadyError``.
        """
        check_config(self.config)
        testing = self.config.testing
        clock = Clock(testing.clock_ahead_s)
        disk = RealDisk(Path(self.config.data_dir)) if self.config.data_dir else None
        try:
            now = clock.now()
            # Client ids the broker assigns must not be guessable, so its random numbers start from the system's.
            rng = random.Random(secrets.randbits(256))
            node = BrokerNode(self.config, disk, rng, now, self._tracer(clock))
            for note in node.recovery_notes:
                log.warning("queue %s: %s (%s)", note.queue, note.problem, note.place)
            self._warn_of_closed_listeners()
            self._driver = NodeDriver(node, clock)
            if node.tracing is not None:
                self._exports = start_exports(self.config.tracing, node.tracing, self.config.node)
            if testing.movable_clock:
                node.state.advance_clock = self._driver.advance_clock
            for index, listener in enumerate(self.config.listeners):
                self.addresses.append(await start_listener(self._driver, listener, f"listeners[{index}]"))
            for listener, address in zip(self.config.listeners, self.addresses, strict=True):
                required = listener.tls is not None and listener.tls.require_client_certificate
                await check_handshake(address, certificate_required=required)
            _running.add(self)
        except BaseException:
            if self._driver is None and disk is not None:
                disk.unlock()
            await self.stop()
            raise

    def _warn_of_closed_listeners(self) -> None:
        """A listener beyond loopback is of no use to anybody as long as nobody can log in."""
        auth = self.config.auth
        if auth.users or auth.anonymous is not None:
            return
        for index, listener in enumerate(self.config.listeners):
            named = listener.tls is not None and listener.tls.use_certificate_name_as_username
            if not named and not is_loopback(listener.host):
                log.warning(
                    "listeners[%d] (%s) refuses every client: there are no users, and anonymous clients are accepted "
                    "on loopback only. Add auth.users or auth.password_file, or set auth.anonymous: true",
                    index,
                    listener.host,
                )

    def reload(self, config: BrokerConfig, on_done: Callable[[], None] | None = None) -> list[str]:
        """See :meth:`BrokerNode.reload`, in the event loop. Raises ``ConfigError``, and then nothing has changed."""
        check_config(config)
        driver = self.driver
        ignored = driver.node.reload(config, driver.clock.now(), on_done)
        self.config = driver.node.config
        driver.schedule_turn()
        log.info("users, access rules and tenants are those of the configuration now")
        self._warn_of_closed_listeners()
        if ignored:
            log.warning("what else changed in the configuration needs a restart: %s", ", ".join(ignored))
        return ignored

    def _tracer(self, clock: Clock) -> Tracer | None:
        if not self.config.trace.path:
            return None
        node = self.config.node
        writer = self._trace = TraceWriter(Path(self.config.trace.path), TraceHeader(node=node))

        def trace(kind: TraceKind, fields: dict[str, str | int]) -> None:
            known = {"seq": writer.count, "time_ns": int(clock.now() * 1e9), "node": node, "kind": kind}
            event = msgspec.convert(known | fields, described(TraceEvent))
            writer.write(event)

        return trace

    async def stop(self) -> None:
        """Close everything; twice is fine."""
        driver, self._driver = self._driver, None
        _running.discard(self)
        try:
            if driver is not None:
                await driver.close()
        finally:
            if self._trace is not None:
                self._trace.close()
            for export in self._exports:
                await asyncio.to_thread(export.close)


def _in_child() -> None:
    for broker in list(_running):
        broker.forget_in_child()
    _running.clear()


os.register_at_fork(after_in_child=_in_child)
