"""The faults that a scenario may schedule: kinds, what each takes, and in which world it can be made.

Pure data, for :mod:`assay.faults.scenario` and both worlds. What a fault lets a broker do is said where the checkers
are told: :mod:`assay.reference_broker.trace.fault_classes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from assay.reference_broker.trace.file_kinds import FileKind


class FaultKind(StrEnum):
    """See :data:`FORMS` for what each takes."""

    CRASH = "crash"
    """kill -9; the operating system keeps what was written. Restarts after ``for_s``."""
    POWER_LOSS = "power_loss"
    """Machine gone: unsynced data is lost."""
    TORN_WRITE = "torn_write"
    """As a loss of power in the middle of a write: of that one a part is on the disk."""
    STOP = "stop"
    """SIGTERM: the broker ends in order, and is started again after ``for_s``."""
    RESTART_STORM = "restart_storm"
    """kill -9, then ``times`` further ones, each while the broker still starts; ``for_s`` after the last it may."""
    PAUSE = "pause"
    """SIGSTOP for ``for_s``."""
    SLOW_NODE = "slow_node"
    """The processor is ``factor`` times slower for ``for_s``."""
    LATENCY = "latency"
    """Adds ``latency_ms`` +/- ``jitter_ms`` between clients and broker, each direction."""
    LOSS = "loss"
    """Segments lost with probability ``rate``; as on TCP they arrive a retransmission timeout later."""
    RESET = "reset"
    """Resets every client connection once."""
    PARTITION = "partition"
    """Nothing passes between clients and broker for ``for_s``; connections stay open (half-open)."""
    CLOG = "clog"
    """As a partition that new connections get through: bytes pile up, and come all at once in the end."""
    BANDWIDTH = "bandwidth"
    """At most ``rate`` kilobytes per second and connection."""
    TAKEOVER = "takeover"
    """What clients send is held up for ``for_s``; then each gives its connection up, connects once more under its
    client id, and the bytes of the old connection arrive beside those of the new one."""
    DISK_FULL = "disk_full"
    """Only ``free_bytes`` are left for ``for_s``; then there is room again."""
    WRITE_ERROR = "write_error"
    """Writes fail with EIO, perhaps after a part."""
    READ_ERROR = "read_error"
    """Reads fail with EIO."""
    SYNC_ERROR = "sync_error"
    """Syncs fail with EIO, and what they were to cover is gone: the next sync says yes without it."""
    LYING_SYNC = "lying_sync"
    """Syncs say yes for ``for_s`` and do nothing."""
    SLOW_DISK = "slow_disk"
    """Syncs take ``latency_ms`` +/- ``jitter_ms`` longer."""
    LOST_WRITE = "lost_write"
    """A write that never gets to the disk, though it is shown until the machine is off, and synced."""
    MISDIRECTED_WRITE = "misdirected_write"
    """A write that gets to another place of its file, though the right one is shown until the machine is off."""
    BIT_ROT = "bit_rot"
    """``times`` bits of the files flip, on the disk and in what is shown."""
    CLOCK_JUMP = "clock_jump"
    """The machine's wall clock moves by ``by_s``, for good. A broker may read it at any time, also when it starts."""
    CLOCK_RATE = "clock_rate"
    """Every clock of the machine runs ``factor`` times as fast for ``for_s``."""


class Direction(StrEnum):
    """Which way a fault of the network works."""

    BOTH = "both"
    TO_BROKER = "to_broker"
    TO_CLIENTS = "to_clients"


class DiskCall(StrEnum):
    """A call to the disk, in the middle of which a node may go down."""

    ANY_TIME = "any_time"
    """Not within a call: at ``at_s``."""
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    TRUNCATE = "truncate"
    CREATE = "create"
    RENAME = "rename"
    REMOVE = "remove"
    CHANGE = "change"
    """Any of those but a read."""


CALL_PATIENCE_S: Final = 0.4
"""A fault that waits for a call happens after this long without one."""


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the fault schedule."""

    at_s: float
    kind: FaultKind
    for_s: float = 0.0
    target: str = "broker"
    """A node; a network fault takes ``clients`` (every connection, as does a node), ``producers``, ``consumers``, or
    the name of a client as histories have it: ``p0``, ``c1``."""
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    rate: float = 0.0
    direction: Direction = Direction.BOTH
    files: FileKind = FileKind.ALL
    call: DiskCall = DiskCall.ANY_TIME
    """The node goes down within the ``nth`` such call that concerns ``files``."""
    nth: int = 1
    """Counted from ``at_s`` on."""
    times: int = 1
    free_bytes: int = 0
    factor: float = 1.0
    by_s: float = 0.0

    @property
    def ends_s(self) -> float:
        """When it is over at the latest."""
        waits = self.call is not DiskCall.ANY_TIME or self.kind in WITHIN_A_CALL
        return self.at_s + self.for_s + (CALL_PATIENCE_S if waits else 0.0)


WITHIN_A_CALL: Final = frozenset({FaultKind.TORN_WRITE, FaultKind.RESTART_STORM})
"""Kinds that wait for a call of the disk."""

DISK_FAULTS: Final = frozenset(
    {
        FaultKind.TORN_WRITE,
        FaultKind.RESTART_STORM,
        FaultKind.DISK_FULL,
        FaultKind.WRITE_ERROR,
        FaultKind.READ_ERROR,
        FaultKind.SYNC_ERROR,
        FaultKind.LYING_SYNC,
        FaultKind.SLOW_DISK,
        FaultKind.LOST_WRITE,
        FaultKind.MISDIRECTED_WRITE,
        FaultKind.BIT_ROT,
    }
)
"""Kinds that the disk must be asked for."""
CLOCK_FAULTS: Final = frozenset({FaultKind.CLOCK_JUMP, FaultKind.CLOCK_RATE})
NODE_FAULTS: Final = (
    DISK_FAULTS
    | CLOCK_FAULTS
    | {FaultKind.CRASH, FaultKind.POWER_LOSS, FaultKind.STOP, FaultKind.PAUSE, FaultKind.SLOW_NODE}
)
"""Faults of a node; the others are faults of the network between clients and broker."""

CLIENT_TARGETS: Final = ("clients", "producers", "consumers")
_CLIENT_NAME: Final = re.compile(r"[a-z][0-9]+b?")
"""As :class:`assay.faults.workload.plan.WorkloadPlan` names them; who is there it knows."""
EVERY_FAULT: Final = frozenset({"at_s", "kind", "for_s", "target"})
"""Fields that no kind is refused."""
MOST_FACTOR: Final = 100.0
LEAST_CLOCK_RATE: Final = 0.5
MOST_CLOCK_RATE: Final = 2.0
"""Checkers count twice as many timeouts as the contract's when a clock was wrong."""
MOST_TIMES: Final = 1_000
MOST_JUMP_S: Final = 86_400.0 * 365


class FaultForm(msgspec.Struct, frozen=True):
    """What a kind of fault takes."""

    takes: frozenset[str] = frozenset()
    lasts: bool = False
    """``for_s`` must be above 0."""
    only_simulated: str = ""
    """Why it cannot be made on real processes."""


_NO_POWER: Final = "nobody can take the power from a disk here"
_NO_TRAP: Final = "a real disk does not say when its nth call comes"
_NO_CACHE: Final = "what a disk did wrong shows when the machine is off, which is not to be had here"

FORMS: Final[dict[FaultKind, FaultForm]] = {
    FaultKind.CRASH: FaultForm(frozenset({"call", "nth", "files"})),
    FaultKind.POWER_LOSS: FaultForm(frozenset({"call", "nth", "files"}), only_simulated=_NO_POWER),
    FaultKind.TORN_WRITE: FaultForm(frozenset({"nth", "files"}), only_simulated=_NO_POWER),
    FaultKind.STOP: FaultForm(),
    FaultKind.RESTART_STORM: FaultForm(frozenset({"times"})),
    FaultKind.PAUSE: FaultForm(lasts=True),
    FaultKind.SLOW_NODE: FaultForm(frozenset({"factor"}), lasts=True),
    FaultKind.LATENCY: FaultForm(frozenset({"latency_ms", "jitter_ms", "direction"}), lasts=True),
    FaultKind.LOSS: FaultForm(frozenset({"rate", "direction"}), lasts=True),
    FaultKind.RESET: FaultForm(),
    FaultKind.PARTITION: FaultForm(frozenset({"direction"}), lasts=True),
    FaultKind.CLOG: FaultForm(frozenset({"direction"}), lasts=True),
    FaultKind.BANDWIDTH: FaultForm(frozenset({"rate", "direction"}), lasts=True),
    FaultKind.TAKEOVER: FaultForm(
        only_simulated="the proxy cannot hold up the bytes of one connection and let the next of that client pass"
    ),
    FaultKind.DISK_FULL: FaultForm(frozenset({"free_bytes"}), lasts=True),
    FaultKind.WRITE_ERROR: FaultForm(frozenset({"files", "nth", "times"}), lasts=True),
    FaultKind.READ_ERROR: FaultForm(frozenset({"files", "nth", "times"}), lasts=True),
    FaultKind.SYNC_ERROR: FaultForm(frozenset({"files", "nth", "times"}), lasts=True),
    FaultKind.LYING_SYNC: FaultForm(
        lasts=True, only_simulated=f"a sync that lied shows with the next loss of power, and {_NO_POWER}"
    ),
    FaultKind.SLOW_DISK: FaultForm(frozenset({"latency_ms", "jitter_ms"}), lasts=True),
    FaultKind.LOST_WRITE: FaultForm(frozenset({"files", "nth"}), lasts=True, only_simulated=_NO_CACHE),
    FaultKind.MISDIRECTED_WRITE: FaultForm(frozenset({"files", "nth"}), lasts=True, only_simulated=_NO_CACHE),
    FaultKind.BIT_ROT: FaultForm(frozenset({"files", "times"})),
    FaultKind.CLOCK_JUMP: FaultForm(frozenset({"by_s"})),
    FaultKind.CLOCK_RATE: FaultForm(
        frozenset({"factor"}), lasts=True, only_simulated="the broker has no option for the rate of its clock"
    ),
}


def names_a_client(fault: Fault) -> bool:
    """Whether the fault is one of a single client's connections."""
    return fault.kind not in NODE_FAULTS and _CLIENT_NAME.fullmatch(fault.target) is not None


def why_only_simulated(fault: Fault) -> str:
    """Why a fault cannot be made on real processes; empty when it can."""
    if fault.call is not DiskCall.ANY_TIME:
        return _NO_TRAP
    return FORMS[fault.kind].only_simulated


def fault_problems(fault: Fault, nodes: tuple[str, ...], *, real: bool) -> Iterator[str]:
    """What is wrong with an entry, by key; ``real``: the scenario is also for real processes."""
    kind, form = fault.kind, FORMS[fault.kind]
    if fault.at_s < 0 or fault.for_s < 0:
        yield "at_s, for_s: must not be negative"
    if real and (why := why_only_simulated(fault)):
        yield f"kind: {kind.value} can only be simulated ({why}); set worlds: [sim]"
    of_node = kind in NODE_FAULTS
    if fault.target not in nodes and (of_node or not (fault.target in CLIENT_TARGETS or names_a_client(fault))):
        targets = nodes if of_node else (*CLIENT_TARGETS, "the name of a client")
        yield f"target: {kind.value} takes {', '.join(targets)}, not {fault.target!r}"
    if form.lasts and fault.for_s == 0:
        yield f"for_s: {kind.value} needs a duration"
    for field in msgspec.structs.fields(Fault):
        if field.name in EVERY_FAULT or field.name in form.takes:
            continue
        if getattr(fault, field.name) != field.default:
            yield f"{field.name}: {kind.value} does not take it"
    yield from _parameter_problems(fault, form.takes)


def _parameter_problems(fault: Fault, takes: frozenset[str]) -> Iterator[str]:
    kind = fault.kind
    if "latency_ms" in takes and (fault.latency_ms <= 0 or not 0 <= fault.jitter_ms <= fault.latency_ms):
        yield "latency_ms: must be above 0, and jitter_ms between 0 and it"
    if kind is FaultKind.LOSS and not 0 < fault.rate < 1:
        yield "rate: loss needs a probability between 0 and 1"
    if kind is FaultKind.BANDWIDTH and fault.rate <= 0:
        yield "rate: bandwidth needs kilobytes per second above 0"
    if not 1 <= fault.nth <= MOST_TIMES:
        yield f"nth: must be 1 to {MOST_TIMES}"
    if not 1 <= fault.times <= MOST_TIMES:
        yield f"times: must be 1 to {MOST_TIMES}"
    if "call" in takes and fault.call is DiskCall.ANY_TIME and (fault.nth != 1 or fault.files is not FileKind.ALL):
        yield "nth, files: are of a call; name it"
    if fault.free_bytes < 0:
        yield "free_bytes: must not be negative"
    if kind is FaultKind.SLOW_NODE and not 1 < fault.factor <= MOST_FACTOR:
        yield f"factor: slow_node needs one above 1, up to {MOST_FACTOR:g}"
    if kind is FaultKind.CLOCK_RATE and not (LEAST_CLOCK_RATE <= fault.factor <= MOST_CLOCK_RATE and fault.factor != 1):
        yield f"factor: clock_rate needs one from {LEAST_CLOCK_RATE:g} to {MOST_CLOCK_RATE:g}, and not 1"
    if kind is FaultKind.CLOCK_JUMP and (fault.by_s == 0 or abs(fault.by_s) > MOST_JUMP_S):
        yield f"by_s: clock_jump needs seconds from -{MOST_JUMP_S:g} to {MOST_JUMP_S:g}, and not 0"


def describe(fault: Fault) -> str:
    """``<kind> <target> ...`` as histories and charts show it, in both worlds."""
    words = [fault.kind.value, fault.target]
    takes = FORMS[fault.kind].takes
    if fault.latency_ms:
        words.append(f"{fault.latency_ms:g}+/-{fault.jitter_ms:g} ms")
    if fault.kind is FaultKind.LOSS:
        words.append(f"{fault.rate:.0%}")
    elif fault.kind is FaultKind.BANDWIDTH:
        words.append(f"{fault.rate:g} kB/s")
    if fault.direction is not Direction.BOTH:
        words.append(fault.direction.value)
    if fault.call is not DiskCall.ANY_TIME:
        words.append(f"in {fault.call.value} {fault.nth}")
    elif "nth" in takes and fault.nth != 1:
        words.append(f"at {fault.nth}")
    if fault.files is not FileKind.ALL:
        words.append(fault.files.value)
    if fault.times != 1:
        words.append(f"{fault.times} times")
    if "free_bytes" in takes:
        words.append(f"{fault.free_bytes} bytes free")
    if fault.factor != 1:
        words.append(f"x{fault.factor:g}")
    if fault.by_s:
        words.append(f"{fault.by_s:+g} s")
    return " ".join(words)
