"""Rare states that the hunt must reach now and then, seen from outside: a row each.

A broker that never was in such a state was not tested in it, however many seeds were green. Nothing of the broker is
changed or asked for this: the rows look at the history, at the simulated disk and at the node that drives the broker,
at the moment in which a fault begins; and only where somebody measures coverage.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from assay.conformance.checkers import Tables, build_tables
from assay.conformance.checkers.excuses import CRASHING
from assay.conformance.checkers.tables import FaultSpan, Settlement
from assay.faults.scenario import Fault, Scenario
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType
from assay.sim.world import World

SOON_NS: Final = 50_000_000
_LONG_NS: Final = 1_000_000_000
_MANY_DELIVERIES: Final = 5
_SETTLING: Final = frozenset({OpKind.ACK, OpKind.NACK, OpKind.REJECT})


class Sightings:
    """What a run's disk and node looked like when faults began."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def fault_begins(self, world: World, fault: Fault) -> None:
        """Just before a fault happens."""
        if fault.kind.value not in CRASHING:
            return
        node, disk = world.node, world.disk
        if not node.up:
            self.seen.add("down")
            return
        if node.recovering:
            self.seen.add("recovering")
        if node.syncing:
            self.seen.add("syncing")
        segments: Counter[str] = Counter()
        for path, folder in disk.folders.items():
            for name, inode in folder.entries.items():
                if inode is None:
                    continue  # a folder in it
                if name.endswith(".tmp"):
                    self.seen.add("snapshot")
                if name.endswith(".seg"):
                    segments[path] += 1
                    if inode.pending:
                        self.seen.add("unsynced messages")
                elif inode.pending:
                    self.seen.add("unsynced settlements")
            if folder.pending:
                self.seen.add("unsynced folder")
        if any(count > 1 for count in segments.values()):
            self.seen.add("segments")


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the rows look at it."""

    scenario: Scenario
    events: Sequence[HistoryEvent]
    tables: Tables
    seen: set[str]

    def crashes(self) -> list[FaultSpan]:
        """In order of their begin."""
        return sorted((span for span in self.tables.faults if span.kind in CRASHING), key=lambda span: span.from_idx)

    def settlements(self) -> Iterator[Settlement]:
        for rows in self.tables.settlements.values():
            yield from rows


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A rare state."""

    name: str
    what: str
    reached: Callable[[Observed], bool]
    within: int = 500
    """Drawn schedules among which a healthy hunt of queues reaches it, with room to spare."""


def _redelivered_with_ack_in_flight(run: Observed) -> bool:
    return any(
        row.kind is OpKind.ACK and row.status is OpType.INFO and event.index > row.inv_idx
        for subject in run.tables.repeated
        for row in run.tables.settlements.get(subject, ())
        for event in run.tables.main[subject]
    )


def _cut_settlement(run: Observed) -> bool:
    crashes = run.crashes()
    return any(
        row.status is OpType.INFO and any(row.inv_idx < crash.from_idx < _completed(row) for crash in crashes)
        for row in run.settlements()
    )


def _completed(row: Settlement) -> int:
    return row.cpl_idx if row.cpl_idx >= 0 else 2**62


def _unsure_and(run: Observed, *, delivered: bool, kind: str) -> bool:
    """A publish whose outcome its client never learnt, because of a fault of a kind."""
    read = {event.value for event in run.tables.deliveries}
    faults = [span for span in run.tables.faults if span.kind == kind]
    return any(
        send.status is OpType.INFO
        and (send.value in read) is delivered
        and any(0 <= span.from_ns - send.inv_ns < SOON_NS for span in faults)
        for send in run.tables.sends.values()
    )


def _crash_soon_after_start(run: Observed) -> bool:
    crashes = run.crashes()
    return any(0 <= later.from_ns - earlier.to_ns < SOON_NS for earlier, later in pairwise(crashes))


def _three_starts(run: Observed) -> bool:
    starts = sorted(span.to_ns for span in run.crashes())
    return any(third - first < _LONG_NS for first, third in zip(starts, starts[2:], strict=False))


def _refused(run: Observed) -> list[HistoryEvent]:
    return [event for event in run.events if event.f is OpKind.PUBLISH and event.type is OpType.FAIL]


def _dead_letter_while_full(run: Observed) -> bool:
    refused = [event.time_ns for event in _refused(run)]
    return any(abs(event.time_ns - at_ns) < SOON_NS for event in run.tables.dead for at_ns in refused)


def _exhausted_by_timeouts(run: Observed) -> bool:
    refused = {subject[2] for subject in run.tables.refused}
    return any(event.value not in refused for event in run.tables.dead)


def _groups_differ(run: Observed) -> bool:
    acked = {row.value for row in run.settlements() if row.kind is OpKind.ACK and row.status is OpType.OK}
    return any(event.value in acked for event in run.tables.dead)


def _stale_settlement(run: Observed) -> bool:
    return any(row.status is OpType.FAIL for row in run.settlements())


def _held_over_pause(run: Observed) -> bool:
    timeout_ns = run.scenario.contract.delivery_timeout_s * 1e9
    pauses = [span for span in run.tables.faults if span.kind == "pause" and span.to_ns - span.from_ns > timeout_ns]
    return any(
        event.index < span.from_idx and span.from_ns - event.time_ns < timeout_ns
        for span in pauses
        for event in run.tables.deliveries
    )


def _session_gave_up(run: Observed) -> bool:
    """While nothing passed: the broker may hold the old session for alive when the client comes back."""
    walls = [span for span in run.tables.faults if span.kind == "partition"]
    return any(
        span.from_idx < idx < span.to_idx
        for ends in run.tables.session_ends.values()
        for idx, _ in ends
        for span in walls
    )


def _member_came_or_left(run: Observed) -> bool:
    """While another of its group held deliveries."""
    held: Counter[tuple[str, str, str]] = Counter()
    groups: dict[str, tuple[str, str]] = {}
    for event in run.events:
        scope = (event.queue, event.group)
        if event.f is OpKind.SUBSCRIBE and event.type is OpType.OK:
            groups[event.process] = scope
            if any(count > 0 and key[:2] == scope and key[2] != event.process for key, count in held.items()):
                return True
        elif event.f is OpKind.DELIVER:
            held[(*scope, event.process)] += 1
        elif event.f in _SETTLING and event.type is OpType.INVOKE:
            held[(*scope, event.process)] -= 1
        elif event.f is OpKind.SESSION_END:
            for key in [key for key in held if key[2] == event.process]:
                del held[key]
    return False


def _crash_in_drain(run: Observed) -> bool:
    last = max((max(send.inv_idx, send.cpl_idx) for send in run.tables.sends.values()), default=-1)
    return any(crash.from_idx > last >= 0 for crash in run.crashes())


def _seen(name: str) -> Callable[[Observed], bool]:
    return lambda run: name in run.seen


STATES: Final = (
    State(
        name="redelivery-with-ack-in-flight",
        what="a message came again whose ack had been sent, and was never answered",
        reached=_redelivered_with_ack_in_flight,
    ),
    State(
        name="settlement-cut", what="the broker died while a settlement waited for its answer", reached=_cut_settlement
    ),
    State(
        name="publish-cut-and-kept",
        what="the process died before it had confirmed a publish, and delivered it later",
        reached=lambda run: _unsure_and(run, delivered=True, kind="crash"),
    ),
    State(
        name="publish-cut-and-gone",
        what="likewise, and it is gone",
        reached=lambda run: _unsure_and(run, delivered=False, kind="crash"),
    ),
    State(
        name="unsynced-publish-kept",
        what="power failed before a publish was confirmed, and it was delivered later",
        reached=lambda run: _unsure_and(run, delivered=True, kind="power_loss"),
    ),
    State(
        name="unsynced-publish-gone",
        what="likewise, and it is gone",
        reached=lambda run: _unsure_and(run, delivered=False, kind="power_loss"),
    ),
    State(
        name="died-with-unsynced-messages",
        what="the broker died with messages not yet synced",
        reached=_seen("unsynced messages"),
    ),
    State(
        name="died-with-unsynced-settlements",
        what="likewise, with settlements or state",
        reached=_seen("unsynced settlements"),
    ),
    State(
        name="died-with-unsynced-folder",
        what="likewise, with files made, renamed or removed",
        reached=_seen("unsynced folder"),
    ),
    State(name="died-during-sync", what="the broker died while a sync was under way", reached=_seen("syncing")),
    State(name="died-during-snapshot", what="the broker died with a snapshot half written", reached=_seen("snapshot")),
    State(
        name="died-with-several-segments",
        what="the broker died with more than one segment of a log",
        reached=_seen("segments"),
    ),
    State(
        name="died-during-recovery", what="the broker died before its recovery was over", reached=_seen("recovering")
    ),
    State(
        name="died-soon-after-start", what="the broker died within 50 ms of its start", reached=_crash_soon_after_start
    ),
    State(name="three-starts-in-a-second", what="a storm of restarts", reached=_three_starts),
    State(name="died-in-drain", what="the broker died when all had been published", reached=_crash_in_drain),
    State(name="queue-full", what="a publish was refused", reached=lambda run: bool(_refused(run))),
    State(
        name="dead-letter-while-full",
        what="a message was dead-lettered while publishes were refused",
        reached=_dead_letter_while_full,
    ),
    State(
        name="exhausted-by-timeouts",
        what="a dead letter that nobody had nacked or rejected",
        reached=_exhausted_by_timeouts,
        within=2_000,
    ),
    State(name="groups-differ", what="one group dead-lettered what another acknowledged", reached=_groups_differ),
    State(name="stale-settlement", what="the broker refused a settlement", reached=_stale_settlement),
    State(
        name="many-deliveries",
        what="a message was delivered five times",
        reached=lambda run: any(event.delivery_count >= _MANY_DELIVERIES for event in run.tables.deliveries),
    ),
    State(
        name="held-over-pause",
        what="a pause outlasted the timeout of a delivery that was out",
        reached=_held_over_pause,
        within=2_000,
    ),
    State(
        name="session-gave-up",
        what="a client gave its session up that the broker believed in",
        reached=_session_gave_up,
    ),
    State(
        name="rebalance-with-deliveries-out",
        what="a consumer joined while another of its group held deliveries",
        reached=_member_came_or_left,
    ),
)


class RunCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """What one run reached."""

    states: tuple[str, ...]
    kinds: tuple[str, ...]
    """Kinds of faults."""
    pairs: tuple[tuple[str, str], ...]
    """Kinds that were active at the same time, sorted."""
    visited: tuple[int, ...]
    """Abstract states, as numbers: what happened, with which faults active, and how much was under way."""


def coverage_of(scenario: Scenario, events: list[HistoryEvent], sightings: Sightings) -> RunCoverage:
    """What a run reached, from its history and what was seen from outside."""
    tables = build_tables(events)
    run = Observed(scenario=scenario, events=events, tables=tables, seen=sightings.seen)
    spans = tables.faults
    pairs = {
        (min(one.kind, other.kind), max(one.kind, other.kind))
        for index, one in enumerate(spans)
        for other in spans[index + 1 :]
        if one.overlaps(other.from_idx, other.to_idx)
    }
    return RunCoverage(
        states=tuple(state.name for state in STATES if state.reached(run)),
        kinds=tuple(sorted({span.kind for span in spans})),
        pairs=tuple(sorted(pairs)),
        visited=tuple(sorted(set(_visited(events)))),
    )


def _visited(events: list[HistoryEvent]) -> Iterator[int]:
    for kind, type_, kinds, *much in steps_of(events):
        yield zlib.crc32(f"{kind} {type_} {kinds} {'/'.join(map(str, much))}".encode())


Step = tuple[OpKind, OpType, str, int, int, int]
"""What happened, with which faults active, and how much was under way, by orders of magnitude."""


def steps_of(events: list[HistoryEvent]) -> set[Step]:
    """The abstract states that a run came to."""
    found: set[Step] = set()
    active: Counter[str] = Counter()
    kinds = ""
    publishing = settling = held = 0
    for event in events:
        kind, type_ = event.f, event.type
        begins = type_ is OpType.INVOKE
        if kind is OpKind.DELIVER:
            held += 1
        elif kind is OpKind.PUBLISH:
            publishing += 1 if begins else -1
        elif kind in _SETTLING:
            settling += 1 if begins else -1
            held = max(0, held - begins)
        elif kind is OpKind.FAULT:
            active[event.detail.split(" ")[0]] += 1 if begins else -1
            kinds = "+".join(each for each in sorted(active) if active[each] > 0)
        found.add((kind, type_, kinds, publishing.bit_length(), settling.bit_length(), held.bit_length()))
    return found
