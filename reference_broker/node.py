"""BrokerNode: the pure composition of core, storage and protocols that server and simulator drive alike.

A turn is: input (``receive``, ``connection_lost``, ``tick``, ``job_done``), then :meth:`BrokerNode.take_dirty` and
:meth:`BrokerNode.take_jobs` once. Nothing here reads a clock, draws its own randomness or touches a socket.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec

from assay.reference_broker.amqp091.connection import wire_protocol
from assay.reference_broker.amqp091.names import AMQP091
from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.auth import Authenticator, PasswordCheck
from assay.reference_broker.config import BrokerConfig, Durability, QueuesConfig, ServerReferenceConfig
from assay.reference_broker.config_files import read_named_files
from assay.reference_broker.core.callouts import ExternalUsers
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.core.hooks import Hooks
from assay.reference_broker.core.protocols import MQTT, Arrival, WireProtocol
from assay.reference_broker.core.rates import ArrivalRates, arrival_key
from assay.reference_broker.core.webhooks import Webhooks
from assay.reference_broker.mqtt.connections.connection import MqttConnection, opens_with_connect
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session_journal import SessionJournal
from assay.reference_broker.mqtt.sessions.session_records import RecordError, read_state
from assay.reference_broker.mqtt.sessions.session_restore import restore
from assay.reference_broker.queues import BackgroundJob, LogError, QueueEngine, QueueError, QueueErrorCode
from assay.reference_broker.queues.jobs.confirms import Confirm
from assay.reference_broker.queues.jobs.errors import raise_if_not_tried
from assay.reference_broker.queues.jobs.outbox import Outbox
from assay.reference_broker.queues.jobs.store import RecoveryNote
from assay.reference_broker.quirks import node_classes
from assay.reference_broker.schemas.checks import SchemaChecks
from assay.reference_broker.schemas.document import is_available
from assay.reference_broker.schemas.log import SchemaLog
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.disk_room import DiskRoom
from assay.reference_broker.storage.log import LogOptions
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.storage.session_store import FOLDER as SESSIONS_FOLDER
from assay.reference_broker.storage.session_store import SessionStore, set_sessions_aside
from assay.reference_broker.trace.schema import Tracer
from assay.reference_broker.trace.tracing import Tracing

_NO_OTHERS: Mapping[str, WireProtocol] = {}
_NOTE_INTERVAL_S = 10.0
"""A disk that stays nearly full is mentioned that often."""


class BrokerNode:
    """One broker process without its sockets and threads."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk | None,
        rng: random.Random,
        now: float,
        tracer: Tracer | None = None,
        protocols: Mapping[str, WireProtocol] = _NO_OTHERS,
    ) -> None:
        """Locks the disk, opens and recovers queues, sessions and retained messages; without one all is in memory.

        ``protocols``: what connections may speak beside MQTT, by name.

        Raises ``DirectoryInUseError``, ``LogError``, ``QueueOpenError``, ``ConfigError``, ``OSError``.
        """
        config = read_named_files(config)
        self.config = config
        classes = node_classes(config.quirks)
        self._connection_class = classes.connection
        self._store = LogQueueStore(disk, options=_log_options(config.queues))
        self.tracing = tracing_of(config, rng)
        """Spans of some messages; None where tracing is off."""
        self.engine = QueueEngine(config.queues, self._store, rng, now, tracer, self.tracing)
        self.schemas = SchemaLog(config.schemas, self._store, self.engine.agenda)
        self.schema_checks: SchemaChecks | None = None
        """None without the extra ``schemas``."""
        if is_available():
            self.schema_checks = SchemaChecks(self.schemas)
            self.engine.agenda.misfit = self.schema_checks.problem
        self.state: MqttBroker = classes.state(config, self.engine, rng, tracer)
        self.state.now = self.state.sys_topics.started_at = now
        self.webhooks: Webhooks | None = None
        """None where nobody is to be told of anything."""
        if config.webhooks.endpoints:
            self.webhooks = Webhooks(config.webhooks, config.node, rng, lambda: self.state.now, self.engine)
            self.engine.agenda.notify = self.webhooks.notify
        self.amqp091 = Amqp091(self.state)
        self.protocols = {
            MQTT: WireProtocol(accept=self._accept_mqtt, opens=opens_with_connect),
            AMQP091: wire_protocol(self.amqp091),
            **protocols,
        }
        """By name; :func:`assay.reference_broker.core.protocols.detect` chooses among those of a listener."""
        limits = config.limits
        self._arrivals: ArrivalRates | None = None
        if limits.connects_per_s:
            self._arrivals = ArrivalRates(limits.connects_per_s, limits.connect_burst, limits.max_tracked_addresses)
        self.authenticator = Authenticator(config.auth, rng.randbytes(32))
        self.external_users: ExternalUsers | None = None
        """None where nobody is asked."""
        if config.authenticate is not None:
            found = ExternalUsers(config.authenticate, rng.randbytes(32), lambda: self.state.now)
            self.external_users = self.authenticator.external = found
            self.state.know(found.rules)
        if config.hooks is not None:
            id_of = (lambda _: "") if self.external_users is None else self.external_users.id_of
            self.state.hooks = Hooks(config.hooks, id_of, lambda: self.state.now)
        self._connections: dict[Connection, None] = {}
        self._dirty: list[Connection] = []
        self.reloads = 0
        """How often users, access rules and tenants were read again."""
        self._awaiting_write: list[Confirm] = []
        """Who waits for the end of this turn."""
        self._holding: dict[Connection, None] = {}
        """Connections whose output waits for a sync of the sessions: a sync looks at no others."""
        self._sessions: SessionStore | None = None
        self._room_noted_at = -_NOTE_INTERVAL_S
        self._room_is_low = False
        self._room = self._store.room
        self._sure_bytes = 0
        """What sessions and retained messages may take in any turn, until the room is looked at again."""
        self._holds_output = config.sessions.durability is Durability.FSYNC
        """What depends on a write leaves once it is synced."""
        if disk is not None and config.sessions.durability is not Durability.MEMORY:
            self._sessions = self._open_sessions(disk, now)
        self.recovery_notes: list[RecoveryNote] = self._store.recovery_notes()
        """What opening the logs found: damage that was cut, quarantined or repaired."""
        if self._sessions is not None:
            # When who was connected was lost: intervals count from there, however often the broker starts again.
            self.write_sessions(self._sessions, now)
            if self._room is not None:
                self._look_at_room(self._sessions, self._room, now)
        self._store.notes.take_fresh()

    def _open_sessions(self, disk: Disk, now: float) -> SessionStore:
        """Where they cannot be read the broker starts without them, and their folder is kept under another name.

        Raises :class:`LogError`.
        """
        try:
            store = SessionStore(disk, self.config.sessions, self._store.notes, self._store.room)
            records = store.read_all()
        except LogError as error:
            raise_if_not_tried(error)
            try:
                place = set_sessions_aside(disk)
            except OSError:
                raise error from None
            lost = "the sessions and retained messages in it are not there until it is put back"
            self._store.note("", SESSIONS_FOLDER, f"{error}; kept as {place}: {lost}")
            store = SessionStore(disk, self.config.sessions, self._store.notes, self._store.room)
            records = {}
        try:
            state = read_state(records, store.note)
        except RecordError as error:
            message = f"the sessions cannot be read: {error}; move their folder away to start without them"
            raise LogError(message) from error
        journal = SessionJournal(self.state.retained)
        for problem in restore(self.state, journal, state, now):
            store.note(problem)
        journal.owed = store.owes_record
        self.amqp091.restore(records, journal, store.note, now)
        journal.others.append(self.amqp091.topology)
        return store

    @property
    def storage_notes(self) -> list[RecoveryNote]:
        """What the disk refused, or was found on it, since they were taken."""
        return self._store.notes.fresh

    def take_storage_notes(self) -> list[RecoveryNote]:
        return self._store.notes.take_fresh()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def accept(
        self,
        peer: str,
        now: float,
        *,
        protocol: str = MQTT,
        loopback: bool = True,
        certificate_name: str | None = None,
        source: tuple[str, str] | None = None,
    ) -> Connection:
        """A client connected from ``peer`` to a listener that is, or is not, bound to loopback only.

        ``certificate_name``: who it is by its verified certificate, where the listener goes by that. ``source``: the
        listener and the client's address without its port, by which the connect rate is counted; None = no limit.
        """
        arrival = Arrival(
            broker=self.state,
            authenticator=self.authenticator,
            wake=self._dirty.append,
            peer=peer,
            now=now,
            loopback=loopback,
            certificate_name=certificate_name,
        )
        connection = self.protocols[protocol].accept(arrival)
        if self._arrivals is not None and source is not None:
            connection.over_rate = not self._arrivals.allows(arrival_key(*source), now)
        self._connections[connection] = None
        self.state.connecting.add(connection, peer if source is None else arrival_key(*source), now)
        return connection

    def _accept_mqtt(self, arrival: Arrival) -> MqttConnection:
        return self._connection_class(
            self.state,
            arrival.authenticator,
            arrival.wake,
            peer=arrival.peer,
            loopback=arrival.loopback,
            now=arrival.now,
            certificate_name=arrival.certificate_name,
        )

    def receive(self, connection: Connection, data: bytes, now: float) -> None:
        self.state.now = now
        connection.receive(data, now)

    def connection_lost(self, connection: Connection, now: float) -> None:
        """The transport is gone; the connection is not to be asked anything after that. Twice is fine."""
        if connection not in self._connections:
            return
        self.state.now = now
        connection.connection_lost(now)
        del self._connections[connection]
        self.state.connecting.remove(connection)
        self._holding.pop(connection, None)

    def take_dirty(self, now: float) -> list[Connection]:
        """End of the turn: dispatch the queues, then every connection that has output or wants to close."""
        state = self.state
        state.now = now
        state.work = 0
        if state.leaving or state.unfinished:
            state.go_on(now)
        sending = state.sending
        if sending.woken:
            sending.go_on(now)
        self.engine.dispatch(now)
        sending.begin_turn()
        sessions = self._sessions
        if sessions is not None:
            self.write_sessions(sessions, now)
            room = self._room
            if room is not None:
                if room.written_bytes >= room.look_at_bytes or state.room_refusals:
                    self._look_at_room(sessions, room, now)
                else:
                    state.room_bytes = self._sure_bytes
        elif self._awaiting_write:
            self._tell_written(None)
        dirty = self._dirty[:]
        self._dirty.clear()
        return dirty

    def when_written(self, confirm: Confirm) -> None:
        """``confirm`` is called once what this turn changed of sessions and retained messages is as safe as they
        promise, or with the error."""
        self._awaiting_write.append(confirm)

    def _look_at_room(self, sessions: SessionStore, room: DiskRoom, now: float) -> None:
        """What sessions and retained messages may take in the next turn; within the reserve nothing that waits."""
        spare_bytes = self._sure_bytes = room.sure_bytes()
        state = self.state
        is_low = spare_bytes < room.reserve_bytes // 4
        if not (is_low or self._room_is_low or state.room_refusals):
            state.room_bytes = spare_bytes
            return
        self._room_is_low = is_low
        if self.state.room_refusals and now >= self._room_noted_at + _NOTE_INTERVAL_S:
            self._room_noted_at = now
            text = "the disk is nearly full; messages for sessions, and retained ones, are refused until there is room"
            self._store.note(
                "", SESSIONS_FOLDER, f"{text}, and {room.reserve_bytes} bytes are kept for what makes some"
            )
        if self.state.room_refusals:
            self.engine.disk_is_full(now)
        self.state.room_refusals = 0
        sessions.make_room(now, is_low=self._room_is_low)
        self.state.take_room(spare_bytes, room.reserve_bytes)

    def write_sessions(self, store: SessionStore, now: float) -> None:
        """What changed in this turn is written before anything that tells of it leaves."""
        journal = self.state.journal
        assert journal is not None
        turn, asking, wrote = journal.turn, journal.asking, False
        asked = asking or self._awaiting_write
        if asking:
            journal.asking = {}
        is_due = store.retry_at is not None and now >= store.retry_at
        if journal.has_changes or is_due or (asked and store.owes()):
            try:
                wrote = store.write(journal.take_changes(now), now)
            except LogError as error:
                # What could not be written must not be told: these clients lose their connections and try again.
                for connection in [each for each in self._connections if each.depends_on(turn)]:
                    connection.abandon_output(error, now)
                self._tell_written(QueueError(QueueErrorCode.STORAGE_FAILED, str(error)))
                return
        if not self._holds_output:
            if self._awaiting_write:
                self._tell_written(None)
            return
        last = journal.turn - 1
        for connection in self._dirty:
            if connection.holds_output or (wrote and connection.depends_on(turn)):
                connection.hold_output(last)
                self._holding[connection] = None
        if (wrote or asked) and store.when_synced(partial(self._synced_sessions, last)):
            for connection in [each for each in asking if each in self._connections]:
                connection.hold_output(last)
                self._holding[connection] = None
            waiting, self._awaiting_write = self._awaiting_write, []
            for confirm in waiting:
                store.when_synced(confirm)
        elif self._awaiting_write:
            self._tell_written(None)

    def _tell_written(self, error: QueueError | None) -> None:
        waiting, self._awaiting_write = self._awaiting_write, []
        for confirm in waiting:
            confirm(error)

    def _synced_sessions(self, turn: int, error: QueueError | None) -> None:
        """A sync ended that covers the writes up to a turn's."""
        for connection in list(self._holding):
            if error is None:
                connection.release_output(turn)
            else:
                connection.abandon_output(error, self.state.now)
            if not connection.holds_output:
                self._holding.pop(connection, None)

    def next_deadline(self) -> float | None:
        if self._dirty:
            # Its driver found a connection at fault while it sent the last turn's output: others are to hear of it.
            return self.state.now
        asked = (
            self.state.next_deadline(),
            self._sessions.next_deadline() if self._sessions is not None else None,
            self.webhooks.next_deadline if self.webhooks is not None else None,
        )
        return min((deadline for deadline in asked if deadline is not None), default=None)

    def tick(self, now: float) -> None:
        self.state.now = now
        self.state.tick(now)
        if self.webhooks is not None:
            self.webhooks.look(now)

    @property
    def outboxes(self) -> list[Outbox]:
        """What is to be sent to others over HTTP."""
        found: list[Outbox] = [self.engine.alerts]
        if self.webhooks is not None:
            found += self.webhooks.outboxes
        if self.external_users is not None:
            found.append(self.external_users.outbox)
        if self.state.hooks is not None:
            found.append(self.state.hooks.outbox)
        return found

    def take_jobs(self, now: float) -> list[BackgroundJob]:
        jobs = self.engine.take_jobs(now)
        if self._sessions is not None:
            jobs += self._sessions.take_jobs(now)
        if self.authenticator.waiting:
            checks = self.authenticator.take_checks()
            jobs += [BackgroundJob(_PasswordPoint(self.authenticator, check), check) for check in checks]
        return jobs

    def job_done(self, job: BackgroundJob, error: OSError | None, now: float) -> None:
        self.state.now = now
        self.engine.job_done(job, error, now)

    def send_away(self, client_ids: Collection[str] | None, reference: ServerReferenceConfig, now: float) -> int:
        """Send clients, or all there are, to another server (5.0 section 4.11). Returns how many were connected."""
        self.state.now = now
        wanted = [each for each in self._connections if client_ids is None or each.client_id in client_ids]
        return sum([connection.send_away(reference, now) for connection in wanted])

    def reload(self, config: BrokerConfig, now: float, on_done: Callable[[], None] | None = None) -> list[str]:
        """Take users, access rules and tenants from another configuration, and hold all there is against them.

        The rest of it needs a restart: returns the sections in which it differs. ``on_done`` is called when every
        session has been looked at, which may take some turns; who connects is judged by the new ones at once. Raises
        :class:`ConfigError`, and then nothing has changed.
        """
        self.state.now = now
        config = read_named_files(config)
        self.reloads += 1
        before = self.config
        self.authenticator.configure(config.auth)
        queues = msgspec.structs.replace(before.queues, tenants=config.queues.tenants)
        self.config = msgspec.structs.replace(before, auth=config.auth, acl=config.acl, queues=queues)
        if config.auth.users != before.auth.users:
            for connection in list(self._connections):
                connection.interrupt_login(now)
        self.state.reload(self.config, now, on_done)
        for connection in list(self._connections):
            connection.rules_changed(now)
        return [name for name in config.__struct_fields__ if getattr(config, name) != getattr(self.config, name)]

    def close(self, now: float) -> None:
        """Say goodbye to every client and close the queues, synced. The driver sends what is left first."""
        self.state.now = now
        for connection in list(self._connections):
            connection.shut_down(now)
        self.engine.dispatch(now)
        if self._sessions is not None:
            self.write_sessions(self._sessions, now)
            self.engine.finish_retries(now)
            self._sessions.close()
        self.engine.close(now)
        self._store.close()


class _PasswordPoint:
    """Where the check of a password reports to."""

    def __init__(self, authenticator: Authenticator, check: PasswordCheck) -> None:
        self._authenticator = authenticator
        self._check = check

    def finish_sync(self, _error: OSError | None) -> list[tuple[Confirm, QueueError | None]]:
        """See :class:`JobPoint`."""
        return [(lambda _problem: self._authenticator.finish(self._check), None)]


def tracing_of(config: BrokerConfig, rng: random.Random) -> Tracing | None:
    """As it is configured; it draws from random numbers of its own, so that nothing else depends on it."""
    wanted = config.tracing
    if not wanted.enabled:
        return None
    return Tracing(
        config.node,
        random.Random(rng.getrandbits(64)),
        ratio=wanted.ratio,
        max_traces=wanted.max_traces,
        max_spans=wanted.max_spans,
        max_messages=wanted.max_messages,
    )


def _log_options(queues: QueuesConfig) -> LogOptions:
    return LogOptions(
        segment_bytes=queues.segment_bytes,
        segment_age_ms=int(queues.segment_age_s * 1000),
        reserve_bytes=queues.disk_reserve_bytes,
    )
