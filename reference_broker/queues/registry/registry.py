"""The queues of a broker: which there are, how each is configured, and how they come, change and go.

How a queue is configured, each over the one before: the profile, ``defaults``, the ``templates`` that fit its name, its
entry among the ``configured``, and what was set at run time, which is stored with the queue.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

import msgspec

from assay.reference_broker.config import (
    ConfigError,
    Durability,
    EventKind,
    Ordering,
    QueueConfig,
    QueuesConfig,
    merged_settings,
    queue_defaults,
    with_settings,
)
from assay.reference_broker.queues.dead_letters.alerts import Alerts
from assay.reference_broker.queues.dead_letters.dead_letters import dead_letter_config
from assay.reference_broker.queues.dead_letters.undelivered import LetterTaker
from assay.reference_broker.queues.groups.delivery import QueueUsage
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.background_job import BackgroundJob
from assay.reference_broker.queues.jobs.confirms import Confirm, ignore
from assay.reference_broker.queues.jobs.errors import (
    LogError,
    QueueError,
    QueueErrorCode,
    QueueOpenError,
    may_pass,
    raise_if_not_tried,
)
from assay.reference_broker.queues.jobs.store import QueueStore, RecoveryNote, StoredQueue
from assay.reference_broker.queues.messages.address import (
    DEAD_LETTER_PREFIX,
    check_queue_name,
    dead_letter_name,
    is_dead_letter,
)
from assay.reference_broker.queues.messages.lanes import LANES
from assay.reference_broker.queues.messages.message_cache import MessageCache
from assay.reference_broker.queues.queue.queue import DurableQueue
from assay.reference_broker.queues.registry.memory_limit import MemoryLimit
from assay.reference_broker.queues.registry.removal import Removal, check_removable, leave_to_nobody
from assay.reference_broker.queues.registry.reopening import Reopening
from assay.reference_broker.routing.remembered import SharedMemory
from assay.reference_broker.trace.schema import TraceKind, Tracer

CACHE_BYTES: Final = 32 * 1024 * 1024
MAX_KNOWN_BYTES: Final = 64 * 1024 * 1024
MAX_PARTITIONS: Final = 1_024
_FREE_INTERVAL_S: Final = 1.0
"""Between looks for what can be freed on a disk that is nearly full."""
MAX_SETTINGS_BYTES: Final = 16 * 1024
FIXED: Final = ("durability", "compression", "ordering", "ephemeral", "priority.levels")
"""Settings that a queue keeps for life, since what is stored depends on them."""
LETTERS_TAKE: Final = ("delivery_timeout_s",)
"""What a dead-letter queue takes over, as it is made, of what its queue was told at run time."""
_LANES_OF_BEFORE: Final = {"enabled": True, "weights": [1_000_000, 100_000, 10_000, 100, 1], "starvation_s": 0.0}
"""How queues with exact priorities were kept before there were levels: whoever published chose one of five lanes."""
_LEVELS_OF_BEFORE: Final = {"enabled": True, "levels": LANES}


class QueueRegistry:
    """All queues by their engine name; :attr:`queues` is only to be read."""

    def __init__(
        self,
        config: QueuesConfig,
        store: QueueStore,
        agenda: Agenda,
        alerts: Alerts,
        rng: random.Random,
        tracer: Tracer | None,
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called whenever a queue came, went, or has other settings."""
        self._config = config
        self._store = store
        self._agenda = agenda
        self._alerts = alerts
        self._rng = rng
        self._tracer = tracer
        if tracer is not None:
            store.on_note = partial(_trace_note, tracer)
        self._freed_at = float("-inf")
        store.on_full = self._refused_by_disk
        self._on_change = on_change
        self.on_delete: Callable[[DurableQueue], None] | None = None
        """Told of each queue that goes, while its logs are still open."""
        limit_bytes = config.max_memory_bytes
        self._cache = MessageCache(min(CACHE_BYTES, limit_bytes // 4) if limit_bytes else CACHE_BYTES)
        self.known: SharedMemory = SharedMemory(MAX_KNOWN_BYTES)
        """What the queues remember of how to store messages."""
        self.memory: MemoryLimit | None = None
        """What queues in memory hold, where that is limited."""
        if limit_bytes:
            self.memory = MemoryLimit(limit_bytes, self._cache, lambda: self.queues.values(), agenda)
        self._configured = {queue.name for queue in config.configured}
        self.removals: dict[str, Removal] = {}
        """Queues that are deleted and whose files are still there."""
        self._used_at: dict[str, float] = {}
        """Ephemeral queues, and when each was known to have a consumer; if never, when it was created."""
        self.expire_due_at: float | None = None
        """When to call :meth:`expire`."""
        self.reopening = Reopening()
        self.queues: dict[str, DurableQueue] = {}
        self.admit: Callable[[QueueConfig, bool], QueueConfig] | None = None
        """Asked about a queue that is about to be created, and whether that is by use; may change it, or refuse."""
        self.letters_elsewhere: Callable[[str], LetterTaker | None] | None = None
        """Who takes the dead letters of a queue in place of its dead-letter queue; None = nobody does."""

    def open_all(self, now: float) -> None:
        """Open and recover every stored and configured queue.

        One that cannot be opened is set aside, and the others go on: its name is not free, whoever wants something of
        it gets an error, and its files stay as they are. Where that may pass, :meth:`reopen` tries again.
        Raises :class:`QueueOpenError` when the configuration is to blame.
        """
        stored = {queue.name: queue for queue in self._store.stored_queues()}
        for name in dict.fromkeys([queue.name for queue in self._config.configured] + list(stored)):
            found = stored.get(name)
            if self._store.unusable(name) is not None:
                continue
            try:
                check_queue_name(name)
                config = self.merged_config(name, {})
            except QueueError as error:
                if name in self._configured:
                    raise QueueOpenError(error.text) from error
                self.set_aside(name, error.text)
                continue
            if found is not None:
                try:
                    config = self._stored_config(found)
                except QueueError as error:
                    self.set_aside(name, f"its settings in queue.json: {error.text}")
                    continue
            try:
                self._open(config, None, now)
            except LogError as error:
                raise_if_not_tried(error)
                self.set_aside(name, str(error), error)
        for name in self._store.unread_queues():
            self.reopening.failed(name, now)

    def reopen(self, now: float, take_up: Callable[[DurableQueue], None]) -> None:
        """Try one queue again that could not be opened for now, if one is due; ``take_up`` may set it aside again."""
        name = self.reopening.next_due(now)
        if name is None:
            return
        self._store.take_back(name)
        queue = None
        try:
            found = self._store.stored_queue(name)
            if found is not None or name in self._configured:
                config = self.merged_config(name, {}) if found is None else self._stored_config(found)
                queue = self._open(config, None, now)
                take_up(queue)
        except (LogError, QueueError, QueueOpenError) as error:
            self.set_aside(name, str(error), error)
        self.reopening.tried(name, now)
        if queue is not None and self.queues.get(name) is queue:
            self._store.note(name, "", "it could be opened now")

    def set_aside(self, name: str, problem: str, error: Exception | None = None) -> None:
        """Nothing is done any more with a queue that cannot be opened, or be relied on; only at opening. Where that may
        pass, :meth:`reopen` tries again."""
        if error is not None and may_pass(error):
            self.reopening.failed(name, self._agenda.now)
        self._store.set_aside(name, problem)
        queue = self.queues.pop(name, None)
        if queue is not None:
            queue.forget_known()
            # Its clock stands still, too: who does not know what was committed takes it for expired.
            leave_to_nobody(queue, self._agenda)
        kept = {point for other in self.queues.values() for point in other.points}
        dropped = self._agenda.forget_others(kept)
        for point in {*dropped, *(() if queue is None else queue.points)}:
            point.close_log()
        self._used_at.pop(name, None)
        self._on_change()

    def unusable_queues(self) -> list[str]:
        """See :meth:`QueueStore.unusable_queues`."""
        return self._store.unusable_queues()

    def is_unusable(self, name: str) -> bool:
        """Whether a queue was set aside."""
        return self._store.unusable(name) is not None

    def _check_usable(self, name: str) -> None:
        """Raises :class:`QueueError` (STORAGE_FAILED) for a queue that was set aside."""
        problem = self._store.unusable(name)
        if problem is not None:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, f"the queue {name[:80]!r} cannot be used: {problem}")

    # -- configurations ------------------------------------------------------------------------------------------

    def config_of(self, name: str) -> QueueConfig:
        """The configuration of an existing queue, or the one that it would get."""
        found = self.queues.get(name)
        return found.config if found is not None else self.merged_config(name, {})

    def merged_config(self, name: str, settings: dict[str, Any]) -> QueueConfig:
        """Raises :class:`QueueError` (BAD_OPTION)."""
        try:
            if is_dead_letter(name) and name not in self._configured:
                config = dead_letter_config(queue_defaults(self._config, name[len(DEAD_LETTER_PREFIX) :]))
            else:
                config = queue_defaults(self._config, name)
            if settings:
                config = with_settings(config, settings)
        except ConfigError as error:
            raise QueueError(QueueErrorCode.BAD_OPTION, str(error)) from error
        if config.ephemeral:
            config = msgspec.structs.replace(config, durability=Durability.MEMORY)
        return config

    def _stored_config(self, found: StoredQueue) -> QueueConfig:
        """Raises :class:`QueueError` (BAD_OPTION), :class:`QueueOpenError`."""
        settings = found.settings
        if settings.get("priority") == _LANES_OF_BEFORE:
            settings = settings | {"priority": _LEVELS_OF_BEFORE}
        return self._with_partitions(self.merged_config(found.name, settings), found.partitions)

    def _with_partitions(self, config: QueueConfig, stored: int) -> QueueConfig:
        """A queue cannot have fewer partitions than it was created with. Raises :class:`QueueOpenError`."""
        if stored == config.partitions:
            return config
        if config.ordering is Ordering.STRICT:
            text = f"the queue {config.name!r} is stored with {stored} partitions: strict ordering needs one"
            raise QueueOpenError(text)
        if config.name in self._configured and config.partitions < stored:
            raise QueueOpenError(
                f"the queue {config.name!r} is stored with {stored} partitions but configured with "
                f"{config.partitions}: partitions can be added, not removed"
            )
        return config if config.name in self._configured else msgspec.structs.replace(config, partitions=stored)

    # -- coming --------------------------------------------------------------------------------------------------

    def _open(
        self, config: QueueConfig, settings: dict[str, Any] | None, now: float, *, later: bool = False
    ) -> DurableQueue:
        """``later``: one that is new is made by a job. Raises :class:`LogError`."""
        queue = DurableQueue(
            config,
            self._store.open_queue(config, settings, later=later),
            cache=self._cache,
            known=self.known,
            agenda=self._agenda,
            dead_letter_target=lambda: self._letter_taker(config.name),
            alerts=self._alerts,
            tracer=self._tracer,
            rng=self._rng,
            now=now,
        )
        self.queues[config.name] = queue
        queue.admit_group = self.check_group_room
        for partition in queue.partitions:
            self._agenda.owners[partition] = queue
        self._trace_recovery(queue)
        queue.on_unmade = partial(self._unmade, queue)
        queue.begin()
        if config.ephemeral:
            self.unused(queue, now)
        self._on_change()
        return queue

    def _trace_recovery(self, queue: DurableQueue) -> None:
        if self._tracer is None:
            return
        if queue.contents.depth or queue.groups:
            detail = f"{queue.contents.depth} messages, {len(queue.groups)} groups"
            self._tracer(TraceKind.RECOVERED, {"queue": queue.name, "detail": detail})

    def _create(self, name: str, settings: dict[str, Any], *, by_use: bool = False) -> DurableQueue:
        self._check_usable(name)
        if name in self.removals:
            raise QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"the queue {name[:80]!r} is being deleted: try again later")
        config = self._admitted(self.merged_config(name, settings), by_use=by_use)
        try:
            queue = self._open(config, settings, self._agenda.now, later=True)
        except LogError as error:
            raise QueueError(QueueErrorCode.STORAGE_FAILED, str(error)) from error

        def made(error: QueueError | None) -> None:
            if error is None:
                queue.is_told_of = True
                self._agenda.tell(EventKind.QUEUE_CREATED, name, {"queue": name, "partitions": config.partitions})

        queue.when_made(made)
        return queue

    def _admitted(self, config: QueueConfig, *, by_use: bool) -> QueueConfig:
        """Raises :class:`QueueError` (QUOTA)."""
        return config if self.admit is None else self.admit(config, by_use)

    def config_for_use(self, name: str) -> QueueConfig:
        """What a queue would be that is created by use. Raises :class:`QueueError`."""
        check_queue_name(name)
        return self._admitted(self.merged_config(name, {}), by_use=True)

    def _letter_taker(self, origin: str) -> LetterTaker:
        """Who takes the dead letters of a queue. Raises :class:`QueueError`."""
        other = None if self.letters_elsewhere is None else self.letters_elsewhere(origin)
        return self.dead_letter_queue(origin) if other is None else other

    def dead_letter_queue(self, origin: str) -> DurableQueue:
        """Not counted against ``max_queues``: a message that must be dead-lettered cannot wait for room."""
        name = dead_letter_name(origin)
        existing = self.queues.get(name)
        return existing if existing is not None else self._create(name, self._taken_over(name))

    def _taken_over(self, name: str) -> dict[str, Any]:
        """Run-time settings of a queue that is made on demand."""
        origin = self.queues.get(name[len(DEAD_LETTER_PREFIX) :]) if is_dead_letter(name) else None
        if origin is None or name in self._configured:
            return {}
        return {field: origin.settings[field] for field in LETTERS_TAKE if field in origin.settings}

    def get_or_create(self, name: str) -> DurableQueue:
        """An existing queue, or one created now. Raises :class:`QueueError`."""
        queue = self.queues.get(name)
        if queue is not None:
            return queue
        self._check_usable(name)
        origin_exists = is_dead_letter(name) and name[len(DEAD_LETTER_PREFIX) :] in self.queues
        if not self._config.auto_create and not origin_exists:
            raise QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"there is no queue {name[:80]!r}, and auto_create is off")
        if not origin_exists:
            self._check_room(self.merged_config(name, {}).partitions)
        check_queue_name(name)
        return self._create(name, self._taken_over(name), by_use=True)

    def _check_room(self, partitions: int) -> None:
        """For a queue of so many. Raises :class:`QueueError` (LIMIT)."""
        self._check_partition_room(partitions)
        count = sum(
            not is_dead_letter(existing) or existing[len(DEAD_LETTER_PREFIX) :] not in self.queues
            for existing in self.queues
        )
        if count >= self._config.max_queues:
            raise QueueError(QueueErrorCode.LIMIT, f"there are {count} queues, which is the limit (queues.max_queues)")

    def _check_partition_room(self, more: int) -> None:
        count = sum(queue.wanted.partitions for queue in self.queues.values())
        if count + more > self._config.max_partitions:
            text = f"there are {count} partitions, and {more} more are over the limit (queues.max_partitions)"
            raise QueueError(QueueErrorCode.LIMIT, text)

    def check_group_room(self) -> None:
        count = sum(len(queue.groups) for queue in self.queues.values())
        if count >= self._config.max_groups:
            text = f"there are {count} consumer groups, which is the limit (queues.max_groups)"
            raise QueueError(QueueErrorCode.LIMIT, text)

    def create(self, name: str, settings: dict[str, Any]) -> DurableQueue:
        """Create a queue with run-time settings; one that is there with the same is left alone. It is there for good
        once :meth:`DurableQueue.when_made` says so.

        Raises :class:`QueueError` (EXISTS, BAD_OPTION, BAD_ADDRESS, LIMIT, STORAGE_FAILED).
        """
        check_queue_name(name)
        settings = merged_settings({}, settings)
        _check_size(settings)
        existing = self.queues.get(name)
        if existing is not None:
            kept = existing.settings if is_dead_letter(name) else {}
            taken = {field: kept[field] for field in LETTERS_TAKE if field in kept}
            if self.merged_config(name, taken | settings) == existing.config:
                return existing
            text = f"the queue {name[:80]!r} is there with another configuration: change that, or delete the queue"
            raise QueueError(QueueErrorCode.EXISTS, text)
        self._check_room(self.merged_config(name, settings).partitions)
        return self._create(name, settings)

    def _refused_by_disk(self) -> None:
        self.disk_is_full(self._agenda.now)

    def disk_is_full(self, now: float) -> None:
        """Let every queue free what nobody needs; not more often than is of use."""
        if now >= self._freed_at + _FREE_INTERVAL_S:
            self._freed_at = now
            self.free_settled(lambda _: True, now)

    def free_settled(self, wanted: Callable[[str], bool], now: float) -> None:
        """Somebody is refused for want of room: let these queues free what nobody needs, soon."""
        for name, queue in self.queues.items():
            if wanted(name):
                queue.limits.free_settled(now)

    def usage(self, wanted: Callable[[str], bool]) -> QueueUsage:
        """What the queues whose names are wanted use."""
        queues = [queue for name, queue in self.queues.items() if wanted(name)]
        plain = [queue for queue in queues if not is_dead_letter(queue.name)]
        return QueueUsage(
            queues=len(plain),
            partitions=sum(len(queue.partitions) for queue in plain),
            groups=sum(len(queue.groups) for queue in plain),
            stored_bytes=sum(
                sum(partition.log.stored_bytes for partition in queue.partitions) + queue.delays.stored_bytes
                for queue in queues
            ),
        )

    # -- changing ------------------------------------------------------------------------------------------------

    def existing(self, name: str) -> DurableQueue:
        """Raises :class:`QueueError` (UNKNOWN_QUEUE)."""
        found = self.queues.get(name)
        if found is None:
            self._check_usable(name)
            raise QueueError(QueueErrorCode.UNKNOWN_QUEUE, f"there is no queue {name[:80]!r}")
        return found

    def update(self, name: str, changes: dict[str, Any], on_done: Confirm) -> None:
        """Change run-time settings of a queue in use; None takes a setting back to the file's. ``on_done`` is called
        once they hold, which is once they are durable, or with the error, and nothing changed.

        Raises :class:`QueueError` (UNKNOWN_QUEUE, BAD_OPTION, NOT_ALLOWED, LIMIT), and then never calls it.
        """
        queue = self.existing(name)
        settings = merged_settings(queue.wanted_settings, changes)
        _check_size(settings)
        wanted, config = queue.wanted, self.merged_config(name, settings)
        if "partitions" in changes and config.partitions != wanted.partitions:
            text = "partitions are added by an operation of their own, and cannot be taken away"
            raise QueueError(QueueErrorCode.NOT_ALLOWED, text)
        config = msgspec.structs.replace(config, partitions=wanted.partitions)
        if (config.max_bytes > 0) != (wanted.max_bytes > 0):
            text = "whether a queue counts bytes is fixed for its life: max_bytes cannot become 0, or stop being 0"
            raise QueueError(QueueErrorCode.NOT_ALLOWED, text)
        for field in FIXED:
            if attrgetter(field)(config) != attrgetter(field)(wanted):
                text = f"{field} is fixed for the life of a queue: delete it and create it anew"
                raise QueueError(QueueErrorCode.NOT_ALLOWED, text)
        queue.check_changes()

        def applied(error: QueueError | None) -> None:
            if error is None:
                if config.ephemeral:
                    self._expire_at(self._agenda.now)
                self._on_change()
            on_done(error)

        queue.reconfigure(config, settings, applied)

    def add_partitions(self, name: str, total: int, on_done: Confirm) -> None:
        """Let a queue in use have more partitions; ``on_done`` is called once they are there for good, or with the
        error.

        Raises :class:`QueueError` (UNKNOWN_QUEUE, BAD_OPTION, NOT_ALLOWED, LIMIT), and then never calls it.
        """
        queue = self.existing(name)
        count = queue.wanted.partitions
        if queue.config.ordering is Ordering.STRICT:
            raise QueueError(QueueErrorCode.NOT_ALLOWED, "a queue with strict ordering has one partition")
        if not count <= total <= MAX_PARTITIONS:
            text = f"a queue with {count} partitions can have {count} to {MAX_PARTITIONS}, not {total}"
            raise QueueError(QueueErrorCode.BAD_OPTION, text)
        queue.check_changes()
        if total > count:
            self._check_partition_room(total - count)
            queue.add_partitions(total, on_done)
        else:
            queue.when_remembered(on_done)

    # -- going ---------------------------------------------------------------------------------------------------

    def delete(self, name: str, on_done: Confirm | None, *, although_used: bool = False) -> None:
        """Delete a queue in use with all it holds. At once it is gone; ``on_done`` is called when its files are, too.

        Consumers are told, and whoever waits for a confirm gets an error. A queue that the file configures comes back,
        empty, with the next start. ``although_used``: transactions that are open in it go on without it, or fail.
        One that was deleted, and could not be removed, is tried again. Raises :class:`QueueError` (UNKNOWN_QUEUE,
        NOT_ALLOWED).
        """
        failed = self.removals.get(name)
        if failed is not None and failed.failure is not None:
            failed.when_done(on_done or ignore)
            return
        queue = self.existing(name)
        # Nothing that was published to it is there, or it has what this turn published.
        is_unmade = queue.description.failure is not None or (queue.is_new and not queue.has_producers)
        write = queue.go_on if is_unmade else queue.write_unwritten
        if not although_used:
            write()
            check_removable(queue)
            if self.queues.get(name) is not queue:  # whoever was told by that has deleted it
                self.delete(name, on_done)
                return
        removal = self.removals[name] = Removal(queue, on_done)
        removal.on_removed = lambda: self._removed(name)
        del self.queues[name]
        write()
        removal.cut_off(self._agenda)
        queue.forget_known()
        if self.on_delete is not None:
            self.on_delete(queue)
        self._used_at.pop(name, None)
        self._on_change()
        if queue.is_told_of:
            self._agenda.tell(EventKind.QUEUE_DELETED, name, {"queue": name})
        for consumer in removal.consumers:
            if consumer.on_end is not None:
                consumer.on_end()
            consumer.end()

    def _unmade(self, queue: DurableQueue, error: QueueError) -> None:
        """The disk did not make it: whoever wants something of it is told why, and what there is of it goes."""
        for point in queue.points:
            point.failure = point.failure or error
        if self.queues.get(queue.name) is queue:
            self.delete(queue.name, None, although_used=True)

    def _removed(self, name: str) -> None:
        del self.removals[name]

    def removal_jobs(self) -> list[BackgroundJob]:
        """Removals that can begin now."""
        return [removal.start() for removal in self.removals.values() if removal.is_ready]

    # -- ephemeral queues ----------------------------------------------------------------------------------------

    def unused(self, queue: DurableQueue, now: float) -> None:
        """An ephemeral queue may have lost its last consumer, or has none yet."""
        self._used_at[queue.name] = now
        self._expire_at(now + queue.config.expires_after_s)

    def _expire_at(self, at: float) -> None:
        if self.expire_due_at is None or at < self.expire_due_at:
            self.expire_due_at = at

    def expire(self, now: float) -> None:
        """Delete ephemeral queues that were unused for their time, and what they dead-lettered."""
        self.expire_due_at = None
        for name, used_at in list(self._used_at.items()):
            queue = self.queues.get(name)
            if queue is None:
                continue  # it went with the queue whose letters it held
            at = used_at + queue.config.expires_after_s
            if queue.consumer_count:
                self._used_at[name] = now
                at = now + queue.config.expires_after_s
            if at > now:
                self._expire_at(at)
                continue
            try:
                self.delete(name, None)
            except QueueError:
                self.unused(queue, now)
                continue
            letters = dead_letter_name(name)
            if letters in self.queues and letters not in self._configured:
                self.delete(letters, None)


def _trace_note(tracer: Tracer, note: RecoveryNote) -> None:
    tracer(TraceKind.RECOVERED, {"queue": note.queue, "detail": f"{note.place}: {note.problem}"})


def _check_size(settings: dict[str, Any]) -> None:
    """Raises :class:`QueueError` (BAD_OPTION)."""
    if len(msgspec.json.encode(settings)) > MAX_SETTINGS_BYTES:
        text = f"the settings of a queue take at most {MAX_SETTINGS_BYTES} bytes of JSON"
        raise QueueError(QueueErrorCode.BAD_OPTION, text)
