"""Drives the real broker code in simulated time: turns, syncs, timers, crash, power loss, pause, restart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType

from assay.reference_broker.config import BrokerConfig
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import BackgroundJob
from assay.reference_broker.queues.jobs.store import RecoveryNote
from assay.reference_broker.server.clock import Clock
from assay.reference_broker.trace.schema import Tracer
from assay.sim.buggify import Whims
from assay.sim.disk import SimDisk
from assay.sim.guard import NondeterminismError
from assay.sim.inodes import Flush
from assay.sim.kernel import Alarm, Kernel
from assay.sim.machine_clock import MachineClock
from assay.sim.network import Link
from assay.sim.troubled_disk import NodeGoneError, TroubledDisk

TURN_S = 0.00005
"""From the first input to the output of a turn of the event loop: what arrives in between shares the turn."""
SOCKET_BYTES = 256 * 1024
"""What the operating system takes of a connection's output before the client has it."""
INPUT_S = 0.00005
"""What a slow processor takes a multiple of for each input, and for the turn; a usual one takes no time."""
RESTART_S = 0.25
"""Until a broker that its disk did not let start is started again."""
MAX_NOTES = 1_000
MAX_SYNCS_AT_ONCE = 2
"""As many as the server has sync threads."""


class BrokerDiedError(RuntimeError):
    """Broker code raised, where a real process would have ended. The cause is the exception."""


class _Session:
    """The node's end of one link."""

    def __init__(self, node: SimNode, link: Link, connection: Connection) -> None:
        self.link = link
        self.connection = connection
        self._node = node
        self.unread: list[bytes] = []
        """What arrived while the connection asked for a pause."""
        self._closed = False

    def received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._node.do(partial(self._receive, data))

    def disconnected(self) -> None:
        """The client is gone."""
        self._node.do(self._lost)

    def _receive(self, data: bytes) -> None:
        if self._closed:
            return
        if self.unread or self.connection.wants_pause:
            self.unread.append(data)
        else:
            self._node.broker.receive(self.connection, data, self._node.now)

    def _lost(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._node.forget(self)
        self._node.broker.connection_lost(self.connection, self._node.now)

    def resume_reading(self) -> None:
        """Give the connection what waited, as far as it takes it."""
        while self.unread and not self.connection.wants_pause and not self._closed:
            self._node.broker.receive(self.connection, self.unread.pop(0), self._node.now)

    def _took(self) -> None:
        """The client has read while it is sent nothing more."""
        if self.link.to_client.in_flight_bytes <= SOCKET_BYTES:
            self.link.to_client.on_arrival = None
            self._node.do(self.connection.rouse)

    def flush(self) -> None:
        """End of a turn: send, and close if asked."""
        if self._closed:
            return
        stream = self.link.to_client
        connection = self.connection
        data = connection.take_output()
        stream.send(data)
        backlog = max(0, stream.in_flight_bytes - SOCKET_BYTES)
        if backlog or connection.noted_unread_bytes:
            connection.note_backlog(backlog, len(data), self._node.now)
            if connection.closing:
                stream.send(connection.take_output())
        stream.on_arrival = self._took if connection.is_full else None
        if connection.may_close:
            self.link.close_from_node()
            self._node.do(self._lost)


class SimNode:
    """One broker process on its machine. Every event of broker code happens inside :meth:`do`."""

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        disk: SimDisk,
        kernel: Kernel,
        tracer: Tracer | None,
        machine: MachineClock | None = None,
        whims: Whims | None = None,
    ) -> None:
        """``machine``: its clocks; None where they are right and stay so. ``whims``: changes orders that are free."""
        self.name = name
        self.disk = disk
        self.starts = 0
        self.turns = 0
        self.slowness = 0.0
        """How many times longer than usual everything takes the processor; 0 where it takes no time."""
        self.notes: list[RecoveryNote] = []
        """What the broker said of its disk."""
        self._machine = machine
        self._whims = whims
        self._clock: Clock | None = None
        self._inputs = 0
        """Since the last turn."""
        self._config = config
        self._kernel = kernel
        self._tracer = tracer
        self._broker: BrokerNode | None = None
        self._sessions: dict[Connection, _Session] = {}
        self._accepting: dict[Link, None] = {}
        """Accepted by the operating system, not yet seen by the process."""
        self._orphans: list[Link] = []
        """Links whose clients believe in them although the machine lost power."""
        self._powered = True
        self._starting = False
        self._paused = False
        self._stopped_inputs: list[Callable[[], None]] = []
        self._turn_planned = False
        self._waiting_syncs: list[BackgroundJob] = []
        self._running_syncs: dict[BackgroundJob, tuple[Flush, OSError | None]] = {}
        self._busy_until = 0.0
        self._recovered_at = 0.0
        self._alarm = Alarm(kernel, self._wake)
        self._rng = kernel.stream(f"node/{name}/links")

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """What the broker's clock shows."""
        clock = self._clock
        return self._kernel.now if clock is None else clock.now()

    @property
    def up(self) -> bool:
        """The process runs, perhaps paused."""
        return self._broker is not None

    @property
    def recovering(self) -> bool:
        """The process has started and not yet come to its first turn."""
        return self.up and self._kernel.now < self._recovered_at

    @property
    def syncing(self) -> bool:
        """A sync is under way."""
        return bool(self._running_syncs)

    @property
    def broker(self) -> BrokerNode:
        if self._broker is None:
            message = f"node {self.name} is down"
            raise RuntimeError(message)
        return self._broker

    # -- life and death ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Boot the process: open the disk and recover. Raises :class:`BrokerDiedError`."""
        if self._broker is not None:
            return
        self._kernel.trace(f"start {self.name}")
        self.starts += 1
        self._powered = True
        rng = self._kernel.stream(f"node/{self.name}/{self.starts}")
        if self._machine is not None:
            self._clock = Clock(wall=self._machine.wall, steady=self._machine.steady)
        self._starting = True
        try:
            self._broker = BrokerNode(self._config, self.disk, rng, self.now, self._tracer)
        except NondeterminismError:
            raise
        except NodeGoneError:
            self._kernel.trace(f"gone while it started {self.name}")
            self._clock = None
            return
        except Exception as error:
            if self._is_gone:
                self._clock = None
                return
            if isinstance(self.disk, TroubledDisk) and self.disk.is_erring and _is_of_the_disk(error):
                # As its operator would, until the disk is well.
                self._kernel.trace(f"does not start {self.name}: {error}")
                self.disk.crash()
                self._clock = None
                self._kernel.after(RESTART_S, self._start_again)
                return
            message = f"the broker does not start: {error}"
            raise BrokerDiedError(message) from error
        finally:
            self._starting = False
        self._take_notes(self._broker.recovery_notes)
        self._busy_until = self._recovered_at = self._kernel.now + self.disk.take_blocked_s()
        for link in self._orphans:
            link.node_is_back(self._rng.uniform(0, 1.0))
        self._orphans.clear()
        self._plan_turn()

    def _start_again(self) -> None:
        """Unless the machine lost its power meanwhile: then it starts with that."""
        if self._powered:
            self.start()

    @property
    def _is_gone(self) -> bool:
        """The process ended within a call: what its code makes of that does not count."""
        return self._broker is None and isinstance(self.disk, TroubledDisk) and self.disk.nobody

    @property
    def powered(self) -> bool:
        """The machine is on, and answers a dial even when the process is down."""
        return self._powered

    def crash(self) -> None:
        """kill -9: memory is gone; the operating system keeps what was written and closes the connections."""
        if self._broker is None and not self._starting:
            return
        self._die(silently=False)
        self.disk.crash()
        self._kernel.trace(f"crash {self.name}")

    def stop(self) -> None:
        """SIGTERM: the broker ends in order, with what it has under way; its process is gone after that."""
        if self._broker is None:
            return
        if self._paused:
            self.resume()
        self._guarded(self._end_in_order)
        if self._broker is not None:
            self.crash()

    def _end_in_order(self) -> None:
        # As the server: syncs under way are reported, and those that they lead to.
        while self._running_syncs or self._waiting_syncs:
            for job, (flush, error) in list(self._running_syncs.items()):
                del self._running_syncs[job]
                self.disk.finish(flush)
                self.broker.job_done(job, error, self.now)
            self._start_syncs()
        self.broker.close(self.now)
        for session in list(self._sessions.values()):
            session.link.to_client.send(session.connection.take_output())
            session.link.close_from_node()
        self._sessions = {}

    def lose_power(self) -> None:
        """The machine is gone: so is what was not synced, and nobody closes the connections."""
        self._powered = False
        self._die(silently=True)
        outcome = self.disk.power_loss()
        self._kernel.trace(f"power loss {self.name} {outcome}")

    def _die(self, *, silently: bool) -> None:
        self.take_notes()
        self._broker = None
        self._clock = None
        links = [*(session.link for session in self._sessions.values()), *self._accepting]
        self._sessions = {}
        self._accepting = {}
        for link in links:
            link.node_died(silently=silently, rng=self._rng)
            if silently:
                self._orphans.append(link)
        self._waiting_syncs.clear()
        self._running_syncs.clear()
        self._inputs = 0
        self._stopped_inputs.clear()
        self._alarm.set(None)
        self._turn_planned = False
        self._paused = False

    def pause(self) -> None:
        """SIGSTOP: nothing happens in the process; the network and a sync that is under way go on."""
        self._paused = True

    def resume(self) -> None:
        """SIGCONT: everything that waited happens at once, late timers first."""
        self._paused = False
        if self._broker is not None:
            inputs, self._stopped_inputs = self._stopped_inputs, []
            self._wake()
            for action in inputs:
                self.do(action)

    # -- work ----------------------------------------------------------------------------------------------------

    def accept(self, link: Link, protocol: str) -> None:
        """A client's connection arrived, to a listener of that protocol. While paused, the operating system accepts and
        the process does not see it.
        """
        self._accepting[link] = None
        pending = _Pending(self, link, protocol)
        link.to_node.target = pending
        self.do(pending.admit)

    def admit(self, link: Link, protocol: str) -> _Session:
        """The process sees a new connection."""
        self._accepting.pop(link, None)
        connection = self.broker.accept(link.name, self.now, protocol=protocol)
        session = self._sessions[connection] = _Session(self, link, connection)
        link.to_node.target = session
        return session

    def forget(self, session: _Session) -> None:
        """The connection ended."""
        self._sessions.pop(session.connection, None)

    def do(self, action: Callable[[], None]) -> None:
        """Run an input of the broker now, or when its process is resumed; a turn follows. Nothing when it is down."""
        if self._broker is None:
            return
        if self._paused:
            self._stopped_inputs.append(action)
            return
        self._guarded(action)
        if self._broker is not None:
            self._inputs += 1
            self._plan_turn()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (BrokerDiedError, NondeterminismError):
            raise
        except NodeGoneError:
            # Who made it end has taken its links and its disk away.
            self._kernel.trace(f"gone within a call {self.name}")
        except Exception as error:
            if self._is_gone:
                return
            if not _passed_through_broker(error.__traceback__):
                raise
            message = f"broker code raised {type(error).__name__}: {error}"
            raise BrokerDiedError(message) from error

    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            broker = self._broker
            turn_s = TURN_S if self._whims is None else TURN_S + self._whims.turn_delay_s()
            when = max(self._kernel.now + turn_s, self._busy_until)
            self._kernel.at(when, partial(self._begin_turn, broker))

    def _begin_turn(self, broker: BrokerNode | None) -> None:
        if broker is None or broker is not self._broker:
            return  # planned before a crash
        self._turn_planned = False
        if self._paused:
            self._stopped_inputs.append(_nothing)
            return
        self.turns += 1
        inputs, self._inputs = self._inputs, 0
        self._guarded(self._turn)
        self._busy_until = self._kernel.now + self.disk.take_blocked_s() + self.slowness * INPUT_S * (inputs + 1)

    def _turn(self) -> None:
        broker, now = self.broker, self.now
        dirty = broker.take_dirty(now)
        if self._whims is not None:
            self._whims.order(dirty)
        for connection in dirty:
            session = self._sessions.get(connection)
            if session is not None:
                session.flush()
        for session in [session for session in self._sessions.values() if session.unread]:
            session.resume_reading()
        self._waiting_syncs += broker.take_jobs(now)
        if self._whims is not None:
            self._whims.order(self._waiting_syncs)
        if self._waiting_syncs:
            self._start_syncs()
        if self._machine is None:
            self._alarm.set(broker.next_deadline())
        else:
            self._set_alarm(broker, self._machine)

    def _set_alarm(self, broker: BrokerNode, machine: MachineClock) -> None:
        deadline = broker.next_deadline()
        if deadline is not None and (machine.rate != 1.0 or self.now != self._kernel.now):
            deadline = machine.when(deadline - self.now)
        self._alarm.set(deadline)

    def clock_changed(self) -> None:
        """The machine's clocks go otherwise from now on."""
        if self._broker is not None and self._machine is not None and not self._paused:
            self._set_alarm(self._broker, self._machine)

    def take_notes(self) -> None:
        """Take over what the broker said since it started."""
        if self._broker is not None:
            self._take_notes(self._broker.take_storage_notes())

    def _take_notes(self, notes: list[RecoveryNote]) -> None:
        self.notes += notes[: MAX_NOTES - len(self.notes)]

    def _start_syncs(self) -> None:
        while self._waiting_syncs and len(self._running_syncs) < MAX_SYNCS_AT_ONCE:
            job = self._waiting_syncs.pop(0)
            error: OSError | None = None
            with self.disk.deferred() as flush:
                try:
                    job.run()
                except OSError as failure:
                    error = failure
            self._running_syncs[job] = (flush, error)
            latency_s = self.disk.sync_latency_s()
            if self._whims is not None:
                latency_s += self._whims.sync_delay_s()
            self._kernel.after(latency_s, partial(self._synced, self.broker, job))

    def _synced(self, broker: BrokerNode, job: BackgroundJob) -> None:
        if broker is not self._broker or job not in self._running_syncs:
            return  # the process, or the whole machine, is gone
        self._guarded(lambda: self._report(broker, job))

    def _report(self, broker: BrokerNode, job: BackgroundJob) -> None:
        flush, error = self._running_syncs[job]
        self.disk.finish(flush)
        self._kernel.trace(f"synced {error}")

        def done() -> None:
            del self._running_syncs[job]
            broker.job_done(job, error, self.now)
            self._start_syncs()

        self.do(done)

    def _wake(self) -> None:
        self.do(lambda: self.broker.tick(self.now))


class _Pending:
    """The node's end of a link that the process has not accepted yet."""

    def __init__(self, node: SimNode, link: Link, protocol: str) -> None:
        self._node = node
        self._link = link
        self._protocol = protocol
        self._session: _Session | None = None

    def admit(self) -> None:
        self._session = self._node.admit(self._link, self._protocol)

    def received(self, data: bytes) -> None:
        """Bytes arrived first; inputs keep their order, so the session exists when this one's turn comes."""
        self._node.do(lambda: self._pass(lambda session: session.received(data)))

    def disconnected(self) -> None:
        self._node.do(lambda: self._pass(lambda session: session.disconnected()))

    def _pass(self, action: Callable[[_Session], None]) -> None:
        if self._session is not None:
            action(self._session)


def _passed_through_broker(traceback: TracebackType | None) -> bool:
    """Whether an exception came out of broker code, and not only out of ours."""
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__", "").startswith("assay.reference_broker."):
            return True
        traceback = traceback.tb_next
    return False


def _is_of_the_disk(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _nothing() -> None:
    """An input that only asks for a turn."""
