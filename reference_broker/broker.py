"""The embedded broker: a real broker, on real sockets, inside your process.

>>> with Broker() as broker:            # doctest: +SKIP
...     client.connect(broker.host, broker.port)

``async with Broker() as broker`` runs it in the current event loop, ``with`` in a thread of its own. Either way it is
ready when the block begins: a client has connected to every listener and was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar
from weakref import WeakSet, finalize, ref

import msgspec

from assay.reference_broker.config import BrokerConfig, ListenerConfig, ServerReferenceConfig
from assay.reference_broker.embedded.aio import AsyncQueues
from assay.reference_broker.embedded.blocking import LoopCaller, Queues
from assay.reference_broker.embedded.errors import BrokerClosedError as BrokerClosedError
from assay.reference_broker.mqtt.queue_topics.addresses import is_queue_topic
from assay.reference_broker.queues import QueueError, QueueStats
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.topics import validate_topic
from assay.reference_broker.server.listeners import ListenerAddress
from assay.reference_broker.server.running import RunningBroker

_T = TypeVar("_T")
DEFAULT_TIMEOUT_S = 30.0
_brokers: WeakSet[Broker] = WeakSet()
_inherited: list[object] = []
"""In a forked child: event loops of the parent, which are not to be taken apart here."""


class BrokerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a broker at one moment, for assertions and dashboards."""

    connections: int
    sessions: tuple[str, ...]
    """Client ids, connected or not."""
    retained: int
    published: int
    """Messages routed since the start; queue messages not included."""
    queues: tuple[QueueStats, ...]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, else asyncio's."""
    try:
        import uvloop  # optional: absent on Windows
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Broker:
    """A broker to embed. Without configuration: one listener on a free loopback port, queues in memory."""

    def __init__(self, config: BrokerConfig | None = None) -> None:
        self.config = config or BrokerConfig(listeners=(ListenerConfig(port=0),))
        self._running: RunningBroker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._life: _Life | None = None
        self._forked_from = 0
        """The process that it runs in, where that is another one."""
        self._caller = LoopCaller(self._running_loop)
        self.queues_async = AsyncQueues(lambda: self._get().driver)
        """The durable queues, for code in the broker's event loop."""
        self.queues = Queues(self.queues_async, self._caller)
        """The durable queues, for any other thread."""
        _brokers.add(self)

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start in a thread; returns when ready. Raises what :meth:`RunningBroker.start` raises."""
        if self._thread is not None or self._running is not None:
            raise RuntimeError("this broker runs already")
        self._forked_from = 0
        ready: Future[None] = Future()
        self._life = life = _Life(self)
        finalize(self, life.end).atexit = False
        self._thread = threading.Thread(target=life.run, args=(ready,), name="assay-broker", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self.stop()
            raise
        return self

    def lives(self, running: RunningBroker | None, loop: asyncio.AbstractEventLoop | None) -> None:
        """In its thread: it is ready, or about to end."""
        self._running, self._loop = running, loop
        if loop is None:
            self._caller.abandon()

    def stop(self) -> None:
        """Stop and wait, but for a call in the broker's own thread, which cannot wait. Twice is fine."""
        thread, self._thread = self._thread, None
        if thread is not None and self._life is not None:
            self._life.end()
            if thread is not threading.current_thread():
                thread.join()

    def forget_in_child(self) -> None:
        """In a forked child: the broker goes on in the parent, and this is one that was not started."""
        if self._running is None and self._thread is None:
            return
        self._forked_from = os.getppid()
        if self._life is not None:
            self._life.forget_in_child()
        self._running = self._loop = self._thread = self._life = None
        self._caller.forget_in_child()
        self.queues_async.forget_in_child()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        running = RunningBroker(self.config)
        self._loop = asyncio.get_running_loop()
        await running.start()
        self._running = running
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.queues_async.close()
        running, self._running = self._running, None
        if running is not None:
            await running.stop()
        self._caller.abandon()

    # -- where ---------------------------------------------------------------------------------------------------

    def _get(self) -> RunningBroker:
        running = self._running
        if running is None and self._forked_from:
            raise BrokerClosedError(
                f"the broker runs in process {self._forked_from}, which this one was forked from: connect to it as a "
                "client, or start one of your own"
            )
        if running is None:
            raise BrokerClosedError("the broker is not running: use it as a context manager, or call start()")
        return running

    @property
    def host(self) -> str:
        return self._get().addresses[0].host

    @property
    def port(self) -> int:
        """Port of the first listener; chosen by the system when it was configured as 0."""
        return self._get().addresses[0].port

    @property
    def url(self) -> str:
        """Of the first listener: ``mqtt://``, ``mqtts://``, ``ws://`` or ``wss://``."""
        return self._get().addresses[0].url

    @property
    def addresses(self) -> tuple[ListenerAddress, ...]:
        """Of all listeners, in the order of the configuration."""
        return tuple(self._get().addresses)

    # -- what ----------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        user_properties: Sequence[tuple[str, str]] = (),
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Publish as the broker itself; from any thread but the broker's own. At QoS 1 a queue has the message,
        as durably as it promises, when this returns. Raises :class:`QueueError`, ``TopicError``, :class:`TimeoutError`.
        """
        self._call(
            lambda: self.publish_async(topic, payload, qos=qos, retain=retain, user_properties=user_properties),
            timeout_s,
        )

    async def publish_async(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        user_properties: Sequence[tuple[str, str]] = (),
    ) -> None:
        """:meth:`publish` for code in the broker's event loop."""
        validate_topic(topic)
        driver = self._get().driver
        message = Message(topic=topic, payload=payload, qos=qos, retain=retain, user_properties=tuple(user_properties))
        now = driver.clock.now()
        driver.node.state.now = now
        if not is_queue_topic(topic):
            driver.node.state.publish(message, None, now)
            driver.schedule_turn()
            return
        confirmed: asyncio.Future[None] = driver.loop.create_future()

        def settle(error: QueueError | None) -> None:
            if confirmed.done():
                return
            if error is None:
                confirmed.set_result(None)
            else:
                confirmed.set_exception(error)

        driver.node.state.publish_to_queue(message, None, now, settle)
        driver.schedule_turn()
        await confirmed

    def send_away(
        self,
        client_ids: Collection[str] | None = None,
        *,
        reference: ServerReferenceConfig | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> int:
        """Send connected clients, or all of them, to another server: DISCONNECT 0x9C or 0x9D with the Server Reference
        in MQTT 5.0, a closed connection in 3.1.1. ``reference`` defaults to the configured one; :class:`ValueError`
        without either. Returns how many were connected. From any thread but the broker's own.
        """

        async def send() -> int:
            return self.send_away_now(client_ids, reference=reference)

        return self._call(send, timeout_s)

    def send_away_now(
        self, client_ids: Collection[str] | None = None, *, reference: ServerReferenceConfig | None = None
    ) -> int:
        """:meth:`send_away` for code in the broker's event loop."""
        where = reference or self.config.server_reference
        if where is None:
            raise ValueError("where to? Configure server_reference, or give a reference")
        driver = self._get().driver
        count = driver.node.send_away(client_ids, where, driver.clock.now())
        driver.schedule_turn()
        return count

    def reload(self, config: BrokerConfig | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[str]:
        """Take users, access rules and tenants from another configuration, or those of the files that this one names,
        read again. Returns when everything was held against them: the sections that differ as well, which need a
        restart. Raises ``ConfigError``, and then nothing has changed. From any thread but the broker's own.
        """
        return self._call(lambda: self.reload_async(config), timeout_s)

    async def reload_async(self, config: BrokerConfig | None = None) -> list[str]:
        """:meth:`reload` for code in the broker's event loop."""
        reviewed = asyncio.Event()
        found = self._get().reload(config or self.config, reviewed.set)
        await reviewed.wait()
        if config is not None:
            self.config = msgspec.structs.replace(
                self.config,
                auth=config.auth,
                acl=config.acl,
                queues=msgspec.structs.replace(self.config.queues, tenants=config.queues.tenants),
            )
        return found

    def snapshot(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> BrokerSnapshot:
        """The broker's state now; from any thread but the broker's own."""

        async def take() -> BrokerSnapshot:
            return self.snapshot_now()

        return self._call(take, timeout_s)

    def snapshot_now(self) -> BrokerSnapshot:
        """:meth:`snapshot` for code in the broker's event loop."""
        node = self._get().driver.node
        state = node.state
        return BrokerSnapshot(
            connections=node.connection_count,
            sessions=tuple(sorted(state.sessions)),
            retained=len(state.retained),
            published=state.published,
            queues=tuple(node.engine.stats(queue) for queue in node.engine.queues()),
        )

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        self._get()
        loop = self._loop
        if loop is None:
            raise BrokerClosedError("the broker stopped")
        return loop

    def _call(self, make: Callable[[], Coroutine[Any, Any, _T]], timeout_s: float) -> _T:
        return self._caller.call(make, timeout_s)


class _Life:
    """What a broker is in its thread. It does not hold the broker: one that nobody has any more ends."""

    def __init__(self, broker: Broker) -> None:
        self._broker = ref(broker)
        self._config = broker.config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._is_over = False

    def end(self) -> None:
        """From any thread, at any time; does not wait."""
        self._is_over = True
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(self._stop.set)

    def forget_in_child(self) -> None:
        """In a forked child: its loop is the parent's."""
        _inherited.append(self._loop)
        self._loop = None

    def run(self, ready: Future[None]) -> None:
        """The thread."""
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._main(ready))
        finally:
            self._loop = None
            broker = self._broker()
            if broker is not None:
                broker.lives(None, None)

    async def _main(self, ready: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_over:
            self._stop.set()
        running = RunningBroker(self._config)
        try:
            await running.start()
        except BaseException as error:
            ready.set_exception(error)
            return
        broker = self._broker()
        if broker is not None:
            broker.lives(running, self._loop)
        del broker
        ready.set_result(None)
        await self._stop.wait()
        broker = self._broker()
        if broker is not None:
            await broker.queues_async.close()
            broker.lives(None, self._loop)
        del broker
        await running.stop()


def _in_child() -> None:
    for broker in list(_brokers):
        broker.forget_in_child()


os.register_at_fork(after_in_child=_in_child)
