"""``retained`` (R1, R2, R3): a new subscription got another retained message than there can have been.

Each topic is a register that its publishes (the sends of ``$retained/<space>``) write, or remove, and that each READ
reads. For a read r of a topic, invoked at r.inv_idx and seen at r.idx, a write w2 is *settled* when w2.status = ok and
w2.cpl_idx < r.inv_idx, or when an earlier read that was over before r.inv_idx had seen it. ``after(w, w2)`` says that w
was surely over before w2 began: 0 <= w.cpl_idx < w2.inv_idx, or w at QoS 0 of the same producer, with a lower
sequence. ::

    R1 = {r : r saw w, and there is a settled w2 with after(w, w2)}                              stale, or removed
    R2 = {r : r saw nothing, there is a settled write that is no removal, and each removal, or write at QoS 0, that was
              invoked before r.idx and not refused is before a settled write that is no removal}   lost
    R3 = {r : r saw a value that nobody wrote to that topic, that was refused, or that was written after r.idx}

A broker may drop a retained message of QoS 0 at any time (3.3.1.3). R1 and R2 are ``quality`` when a fault that the
contract lets destroy what was acknowledged began between the settled write, or the begin of the last read that saw it,
and r; or, where it was not confirmed by then, a crash: nobody had promised to keep it. Severity else: ``safety``.
"""

from __future__ import annotations

from assay.conformance.checkers.anomaly import Anomaly, quality_if
from assay.conformance.checkers.excuses import CRASHING, active, destroyed
from assay.conformance.checkers.tables import RETAINED_PREFIX, Read, Send, Tables
from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import Contract, OpType

CHECKER = "retained"


def _after(write: Send, later: Send) -> bool:
    """Whether the write was surely over before the later one began."""
    in_line = write.qos == 0 and write.producer == later.producer and write.seq < later.seq
    return in_line or 0 <= write.cpl_idx < later.inv_idx


class _Register:
    """One topic: its writes, and how far it has surely come."""

    def __init__(self) -> None:
        self.writes: list[Send] = []
        self.confirmed: list[Send] = []
        """In order of completion, those before ``place`` are taken into account."""
        self.place = 0
        self.newest: Send | None = None
        """The settled write that began last."""
        self.newest_set: Send | None = None
        """Likewise, of those that are no removal."""
        self.pending: list[tuple[Read, Send]] = []
        """What reads saw; not taken into account yet."""
        self.there_idx: dict[str, int] = {}
        """By value, where the last read begins that saw it."""

    def settle(self, until_idx: int) -> None:
        """Take into account what is settled for a read that is invoked then."""
        while self.place < len(self.confirmed) and self.confirmed[self.place].cpl_idx < until_idx:
            self._newer(self.confirmed[self.place])
            self.place += 1
        for read, write in self.pending:
            if read.idx < until_idx:
                self._newer(write)
                self.there_idx[write.value] = max(read.inv_idx, self.there_idx.get(write.value, -1))
        self.pending = [each for each in self.pending if each[0].idx >= until_idx]

    def _newer(self, write: Send) -> None:
        if self.newest is None or write.inv_idx > self.newest.inv_idx:
            self.newest = write
        if not write.removes and (self.newest_set is None or write.inv_idx > self.newest_set.inv_idx):
            self.newest_set = write

    def may_be_empty(self, seen_idx: int) -> bool:
        """Whether nothing may be there."""
        surely = self.newest_set
        return surely is None or any(
            write.inv_idx < seen_idx and write.status is not OpType.FAIL and not _after(write, surely)
            for write in self.writes
            if write.removes or write.qos == 0
        )


def check(tables: Tables, contract: Contract) -> list[Anomaly]:
    """All R1, R2 and R3 rows; ``index`` is the read's, ``group`` its topic."""
    if not tables.reads:
        return []
    registers: dict[str, _Register] = {}
    for send in tables.sends.values():
        if send.queue.startswith(RETAINED_PREFIX):
            register = registers.setdefault(send.key.rpartition(":")[0], _Register())
            register.writes.append(send)
    for register in registers.values():
        register.confirmed = [send for send in register.writes if send.status is OpType.OK]
        register.confirmed.sort(key=lambda send: send.cpl_idx)
    rows = []
    for read in sorted(tables.reads, key=lambda read: (read.inv_idx, read.idx)):
        found = _judge(tables, contract, registers.setdefault(read.topic, _Register()), read)
        if found is not None:
            rows.append(found)
    return rows


def _judge(tables: Tables, contract: Contract, register: _Register, read: Read) -> Anomaly | None:
    register.settle(read.inv_idx)
    if not read.value:
        if register.may_be_empty(read.idx):
            return None
        assert register.newest_set is not None
        return _row(tables, contract, "R2", read, register, register.newest_set, "nothing where a message must be")
    write = tables.sends.get(read.value)
    if (
        write is None
        or write.removes
        or write.inv_idx > read.idx
        or write.status is OpType.FAIL
        or write.key.rpartition(":")[0] != read.topic
    ):
        return _row(tables, contract, "R3", read, register, None, "never written there")
    register.pending.append((read, write))
    newest = register.newest
    if newest is None or not _after(write, newest):
        return None
    return _row(tables, contract, "R1", read, register, newest, "removed" if newest.removes else "replaced")


def _row(
    tables: Tables,
    contract: Contract,
    anomaly: str,
    read: Read,
    register: _Register,
    settled: Send | None,
    detail: str,
) -> Anomaly:
    excused = False
    if settled is not None:
        there_idx = max(settled.inv_idx, register.there_idx.get(settled.value, -1))
        excused = destroyed(tables, contract, there_idx, read.idx) or (
            not 0 <= settled.cpl_idx < read.idx and active(tables, CRASHING, there_idx, read.idx)
        )
    return Anomaly(
        checker=CHECKER,
        anomaly=anomaly,
        severity=quality_if(excused) if anomaly != "R3" else Severity.SAFETY,
        queue="",
        group=read.topic,
        value=read.value or (settled.value if settled is not None else ""),
        index=read.idx,
        detail=detail,
    )
