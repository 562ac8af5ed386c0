"""The registry, durable: each change is written to a state log, and counts once that is synced.

Changes go one after the other, so that each is decided on what the one before it left. Nobody is told of one, and no
message is held against it, before it is durable: an id that anybody ever saw means the same schema for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from assay.reference_broker.config_schemas import SchemasConfig
from assay.reference_broker.queues.jobs.agenda import Agenda
from assay.reference_broker.queues.jobs.confirms import SyncPoint
from assay.reference_broker.queues.jobs.errors import LogError, QueueError
from assay.reference_broker.queues.jobs.store import KeyedState, QueueStore
from assay.reference_broker.queues.jobs.timed_state import TimedState
from assay.reference_broker.schemas.errors import SchemaError, SchemaErrorCode
from assay.reference_broker.schemas.registry import Change, Changes, Registry

FOLDER: Final = "schemas"
MAX_WAITING: Final = 1_000
"""Changes that wait for others to be durable."""
Decide = Callable[[], Changes]
Told = Callable[[SchemaError | None, Any], None]
"""Called once, with what went wrong, or with the answer."""


class _StatePoint(SyncPoint):
    """The state log as something that the engine syncs."""

    def __init__(self, state: KeyedState, agenda: Agenda) -> None:
        self.state = state
        super().__init__(TimedState(state, agenda))


class SchemaLog:
    """One for a broker. Its folder comes with the first change."""

    def __init__(self, config: SchemasConfig, store: QueueStore, agenda: Agenda) -> None:
        """Open and recover; what cannot be read is left as it is, and everything is refused. Never raises."""
        self.registry = Registry(config)
        self._store = store
        self._agenda = agenda
        self._waiting: deque[tuple[Decide, Told]] = deque()
        self._is_busy = False
        self._point: _StatePoint | None = None
        """None as long as nothing was ever changed."""
        self._drop: list[Change] = []
        self._failure: SchemaError | None = None
        try:
            self._point = self._open(create=False)
            if self._point is not None:
                self._drop, problems = self.registry.restore(self._point.state.state)
                for problem in problems:
                    store.note("", FOLDER, problem)
        except LogError as error:
            self._failure = SchemaError(SchemaErrorCode.STORE_FAILED, f"the schemas cannot be read: {error}")
            store.note("", FOLDER, f"{error}; there are no schemas until its folder is repaired, or moved away")

    def _open(self, *, create: bool) -> _StatePoint | None:
        """Raises :class:`LogError`."""
        state = self._store.open_state(FOLDER, create=create)
        if state is None:
            return None
        point = _StatePoint(state, self._agenda)
        self._agenda.state_points[point] = None
        return point

    def check_usable(self) -> None:
        """Raises :class:`SchemaError` (STORE_FAILED)."""
        if self._failure is not None:
            raise self._failure

    def change(self, decide: Decide, on_done: Told) -> None:
        """Decide on a change, write it and tell its answer, once it is durable and holds; or what went wrong."""
        if len(self._waiting) >= MAX_WAITING:
            on_done(SchemaError(SchemaErrorCode.LIMIT, "too many changes of schemas are under way"), None)
            return
        self._waiting.append((decide, on_done))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not self._is_busy:
            decide, on_done = self._waiting.popleft()
            try:
                self.check_usable()
                wanted = decide()
                if wanted.changes:
                    self._write(wanted, on_done)
                    continue
            except SchemaError as error:
                on_done(error, None)
                continue
            on_done(None, wanted.answer)

    def _write(self, wanted: Changes, on_done: Told) -> None:
        """Raises :class:`SchemaError` (STORE_FAILED) with nothing changed."""
        try:
            if self._point is None:
                self._point = self._open(create=True)
            point = self._point
            assert point is not None
            if point.failure is not None:
                raise _failed(point.failure.text)
            point.state.apply([*self._drop, *wanted.changes], self._agenda.now)
        except LogError as error:
            if error.sticky and self._point is not None:
                self._point.fail(str(error))
            raise _failed(str(error)) from error
        self._drop = []
        self._is_busy = True

        def durable(error: QueueError | None) -> None:
            self._is_busy = False
            if error is None:
                self.registry.apply(wanted.changes)
                on_done(None, wanted.answer)
            else:
                on_done(_failed(error.text), None)
            self._go_on()

        if point.when_synced(durable):
            self._agenda.awaited_syncs[point] = None
        else:
            durable(None)


def _failed(text: str) -> SchemaError:
    return SchemaError(SchemaErrorCode.STORE_FAILED, text)
