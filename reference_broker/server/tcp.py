"""The TCP edge: bytes between sockets and the node, timers, and disk syncs in a thread.

Input of one loop turn is handled as it comes; output leaves once per connection at the end of the turn.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from assay.reference_broker.core.connection import Connection
from assay.reference_broker.core.protocols import MQTT, detect
from assay.reference_broker.core.rates import arrival_key
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import BackgroundJob
from assay.reference_broker.server.accepting import Acceptor, bind
from assay.reference_broker.server.clock import Clock, seconds_of
from assay.reference_broker.server.file_limit import connection_descriptors
from assay.reference_broker.server.log_lines import LogLimit
from assay.reference_broker.server.sync_threads import SyncThreads
from assay.reference_broker.server.tls import certificate_common_name, unsent_bytes
from assay.reference_broker.server.webhooks import WebhookSender

if TYPE_CHECKING:
    from assay.reference_broker.api.service import Service
    from assay.reference_broker.coap.server import CoapServer
    from assay.reference_broker.grpc_api.server import GrpcServer
    from assay.reference_broker.http.server import HttpServer

log = logging.getLogger("assay.broker")
LINGER_S = 5.0
"""Time for a closing connection to take what it was sent; then it is cut."""
_AFTER_BUG_S = 1.0
"""What a bug left undone in a turn is tried again then, or with the next input."""


class SocketProtocol(asyncio.Protocol):
    """One client connection."""

    def __init__(
        self,
        driver: NodeDriver,
        *,
        loopback: bool,
        limit: int,
        name_from_certificate: bool = False,
        protocols: tuple[str, ...] = (MQTT,),
    ) -> None:
        """``name_from_certificate``: the client's certificate says who it is (only over TLS that requires one).

        ``protocols``: what the listener speaks; among several the client's first bytes decide.
        """
        self._protocols = protocols
        self._opening: bytearray | None = None
        """What has come while it is not known yet what the client speaks."""
        self._driver = driver
        self._name_from_certificate = name_from_certificate
        self._loopback = loopback
        self._limit = limit
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._reading_paused = False
        self._is_new = True
        self._certificate_name: str | None = None
        self._has_tls = False

    @property
    def transport(self) -> asyncio.Transport | None:
        """None until there is a connection."""
        return self._transport

    def connection_made(self, base: asyncio.BaseTransport) -> None:
        # uvloop's transports are Transports by shape only.
        transport = self._transport = cast(asyncio.Transport, base)
        node, now = self._driver.node, self._driver.clock.now()
        if node.connection_count >= self._limit and not node.state.connecting.make_room(now):
            self._driver.warn("limit", f"connection refused: the limit of {self._limit} connections is reached")
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self._has_tls = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=node.config.mqtt.unread_high_water_bytes)
        if self._name_from_certificate:
            self._certificate_name = certificate_common_name(transport.get_extra_info("peercert"))
            if self._certificate_name is None:
                problem = f"the certificate of {peer} has no common name, or several"
                self._driver.warn("certificate", f"connection refused: {problem}")
                transport.abort()
                return
        if len(self._protocols) == 1:
            self._accept(transport, self._protocols[0], now)
            return
        self._opening = bytearray()
        source = _source(transport)
        node.state.connecting.add(self, str(peer) if source is None else arrival_key(*source), now)
        self._linger = self._driver.loop.call_later(node.config.mqtt.connect_timeout_s, transport.abort)

    def give_way(self, now: float) -> None:
        """As :class:`assay.reference_broker.core.newcomers.Newcomer`, while it is not known what the client speaks."""
        self.abort()

    def _accept(self, transport: asyncio.Transport, protocol: str, now: float) -> None:
        self._connection = self._driver.node.accept(
            str(transport.get_extra_info("peername")),
            now,
            protocol=protocol,
            loopback=self._loopback,
            certificate_name=self._certificate_name,
            source=_source(transport),
        )
        self._driver.protocols[self._connection] = self
        self._driver.arm_timer()

    def _find_out(self, data: bytes) -> bytes:
        """What a client speaks whose first bytes come; returns those once that is known, nothing before."""
        node, transport = self._driver.node, self._transport
        assert self._opening is not None
        self._opening += data
        opening = bytes(self._opening)
        protocol = detect(opening, self._protocols, node.protocols)
        if protocol is None or transport is None:
            return b""
        self._stop_finding_out()
        self._accept(transport, protocol, self._driver.clock.now())
        return opening

    def _stop_finding_out(self) -> None:
        if self._opening is not None:
            self._opening = None
            self._driver.node.state.connecting.remove(self)
            if self._linger is not None:
                self._linger.cancel()
                self._linger = None

    def data_received(self, data: bytes) -> None:
        if self._opening is not None:
            data = self._find_out(data)
        connection = self._connection
        if connection is not None and data:
            driver = self._driver
            driver.node.receive(connection, data, driver.clock.now())
            driver.schedule_turn()
            if connection.wants_pause and not self._reading_paused and self._transport is not None:
                self._reading_paused = True
                self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_finding_out()
        connection, self._connection = self._connection, None
        # Over WebSocket it holds this protocol.
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
        if connection is not None:
            log.debug("%s (%s) has gone", connection.peer, connection.client_id or "no client id")
            self._driver.protocols.pop(connection, None)
            self._driver.node.connection_lost(connection, self._driver.clock.now())
            self._driver.schedule_turn()

    def abort(self) -> None:
        """Cut it; the loop calls :meth:`connection_lost` then."""
        if self._transport is not None:
            self._transport.abort()

    def resume_writing(self) -> None:
        if self._connection is not None:
            # The turn looks at it, and goes on.
            self._connection.rouse()
            self._driver.schedule_turn()

    def flush(self) -> None:
        """End of a turn: send what the connection has, close it if it asks."""
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            return
        data = connection.take_output()
        if data:
            if self._is_new and connection.client_id:
                self._is_new = False
                log.debug("%s is client %s", connection.peer, connection.client_id)
            transport.write(data)
        backlog = unsent_bytes(transport) if self._has_tls else transport.get_write_buffer_size()
        if backlog or connection.noted_unread_bytes:
            connection.note_backlog(backlog, len(data), self._driver.clock.now())
            if connection.closing and (last := connection.take_output()):
                transport.write(last)
        if connection.may_close and self._linger is None:
            if connection.error is not None:
                self._driver.tell_of_client(connection.peer, connection.error, connection.client_id)
            if connection.cut:
                transport.abort()
                return
            if connection.waits_for_peer and transport.can_write_eof():
                # To close with something unread would take from the peer what it has not read yet.
                transport.write_eof()
                if self._reading_paused:
                    self._reading_paused = False
                    transport.resume_reading()
            else:
                transport.close()
            self._linger = self._driver.loop.call_later(LINGER_S, transport.abort)
        elif connection.cut:
            transport.abort()
        elif self._reading_paused and not connection.wants_pause:
            self._reading_paused = False
            transport.resume_reading()


class NodeDriver:
    """Drives a node in an event loop."""

    def __init__(self, node: BrokerNode, clock: Clock) -> None:
        self.node = node
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.protocols: dict[Connection, SocketProtocol] = {}
        self._turn_scheduled = False
        self._clock_moved = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_deadline: float | None = None
        self._syncs = SyncThreads(self.loop, self._sync_done)
        self._lines = LogLimit(log)
        self._webhooks = WebhookSender(node.outboxes, clock.now, self.warn, self._begin_turn)
        self._acceptors: list[Acceptor] = []
        self.http: HttpServer | None = None
        """Of the listeners that speak HTTP."""
        self.grpc: GrpcServer | None = None
        """Likewise, gRPC."""
        self.coap: CoapServer | None = None
        self.service: Service | None = None
        """What they all ask."""
        self.read_again: Callable[[Callable[[], None]], list[str]] | None = None
        """See :class:`assay.reference_broker.api.turns.Driver`."""
        most = connection_descriptors()
        if most is not None:
            # Those who say nothing leave descriptors to the others.
            for newcomers in (node.state.connecting, node.state.handshakes):
                newcomers.limit = min(newcomers.limit, max(1, most // 3))
        self._closed = False

    @property
    def syncs(self) -> SyncThreads:
        """See :class:`assay.reference_broker.api.turns.Driver`."""
        return self._syncs

    def descriptors(self) -> list[int]:
        """Of its sockets."""
        transports = (protocol.transport for protocol in self.protocols.values())
        sockets = [each.get_extra_info("socket") for each in transports if each is not None and not each.is_closing()]
        found = [acceptor.descriptor for acceptor in self._acceptors]
        for server in (self.http, self.coap):
            found += server.descriptors() if server is not None else []
        found += [each.fileno() for each in sockets if each is not None]
        return [descriptor for descriptor in found if descriptor >= 0]

    async def listen(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        context: ssl.SSLContext | None = None,
        handshake_timeout_s: float | None = None,
    ) -> tuple[str, int]:
        """Start a listener, with TLS if there is a context; returns its address. Raises :class:`OSError`."""
        acceptors = [
            Acceptor(
                self.loop,
                listening,
                make_protocol,
                self.warn,
                context=context,
                handshakes=self.node.state.handshakes,
                handshake_timeout_s=handshake_timeout_s,
            )
            for listening in await bind(host, port)
        ]
        self._acceptors += acceptors
        return acceptors[0].address

    def warn(self, kind: str, text: str) -> None:
        """A line for the log that a client may cause any number of."""
        self._lines.tell(kind, text, self.clock.now())

    def tell_of_client(self, peer: object, problem: object, client_id: str = "") -> None:
        """Who was refused or cut, and why."""
        text = f"{peer} ({client_id or 'no client id'}): {problem}"
        self._lines.tell("clients", text, self.clock.now(), logging.INFO)

    def _begin_turn(self, now: float) -> None:
        self.node.state.now = now
        self.schedule_turn()

    def schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self._closed:
            return
        try:
            self._take_turn(self.clock.now())
        except Exception:
            log.exception("a turn failed, by a bug of the broker")
            self.loop.call_later(_AFTER_BUG_S, self.schedule_turn)

    def _take_turn(self, now: float) -> None:
        if self._clock_moved:
            self._clock_moved = False
            self._timer_deadline = None
            self.node.tick(now)
        for connection in self.node.take_dirty(now):
            protocol = self.protocols.get(connection)
            if protocol is not None:
                self._flush(protocol)
        for job in self.node.take_jobs(now):
            self._syncs.start(job)
        if self.node.storage_notes:
            self._log_storage_notes(now)
        self._webhooks.pump()
        self.arm_timer()

    def _flush(self, protocol: SocketProtocol) -> None:
        try:
            protocol.flush()
        except Exception:
            # The others have their output taken all the same.
            log.exception("a connection is cut, by a bug of the broker")
            protocol.abort()

    def _log_storage_notes(self, now: float) -> None:
        for note in self.node.take_storage_notes():
            # Not the position: a disk that is failing has many.
            of = f"storage: queue {note.queue}: " if note.queue else "storage: "
            self._lines.tell(of + note.place.partition(" ")[0], f"{of}{note.place}: {note.problem}", now)

    def advance_clock(self, payload: bytes) -> None:
        """Move the clock forward by the seconds in ``payload``. Raises :class:`QueueError`.

        What is due then is done before the turn's output leaves.
        """
        self.clock.advance(seconds_of(payload))
        self._clock_moved = True
        self.schedule_turn()

    def _sync_done(self, job: BackgroundJob, error: Exception | None) -> None:
        if error is not None and not isinstance(error, OSError):
            raise error
        if not self._closed:
            self.node.job_done(job, error, self.clock.now())
            self.schedule_turn()

    def arm_timer(self) -> None:
        """Have the loop wake up for the node's next deadline."""
        deadline = self.node.next_deadline()
        if deadline == self._timer_deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_deadline = deadline
        if deadline is not None:
            self._timer = self.loop.call_later(max(0.0, deadline - self.clock.now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer_deadline = None
        self._timer = None
        # First, should a timer raise: the turn arms the next one.
        self.schedule_turn()
        self.node.tick(self.clock.now())

    async def close(self) -> None:
        """Stop listening, say goodbye, wait for running syncs, close the queues."""
        for acceptor in self._acceptors:
            acceptor.close()
        for server in (self.http, self.grpc, self.coap):
            if server is not None:
                await server.close()
        await self._webhooks.close()
        await self._syncs.drain()
        self._closed = True
        now = self.clock.now()
        if self._timer is not None:
            self._timer.cancel()
        try:
            self.node.close(now)
        finally:
            for protocol in list(self.protocols.values()):
                protocol.flush()
            # One turn for the transports to send their goodbyes.
            await asyncio.sleep(0)
            self._syncs.stop()
            self._log_storage_notes(now)


def _source(transport: asyncio.Transport) -> tuple[str, str] | None:
    """The listener, by its address, and the client's address without its port; None once the client has gone again."""
    listener, peer = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
    return (f"{listener[0]}:{listener[1]}", str(peer[0])) if listener and peer else None
