"""Writes histories for the checkers, step by step."""

from __future__ import annotations

import msgspec

from assay.conformance.checkers import anomalies, build_tables, check_history
from assay.conformance.checkers.anomaly import Anomaly
from assay.reference_broker.trace.results import Verdict
from assay.reference_broker.trace.schema import (
    Contract,
    HistoryEvent,
    HistoryHeader,
    OpKind,
    OpType,
)

CONTRACT = Contract(delivery_timeout_s=10.0, max_deliveries=3)
OK, FAIL, INFO, INVOKE = OpType.OK, OpType.FAIL, OpType.INFO, OpType.INVOKE
NO_ANSWER = None


class History:
    """Writes a history step by step; one millisecond passes per event."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []
        self.time_ns = 0

    def add(self, process: str, f: OpKind, type_: OpType, **fields: object) -> int:
        self.time_ns += 1_000_000
        index = len(self.events)
        data = {"index": index, "time_ns": self.time_ns, "process": process, "f": f, "type": type_, **fields}
        self.events.append(msgspec.convert(data, HistoryEvent))
        return index

    def wait(self, seconds: float) -> None:
        self.time_ns += int(seconds * 1e9)

    def send(self, seq: int, *, key: str = "k", status: OpType | None = OK, queue: str = "q") -> str:
        value = f"p-{seq}"
        fields = {"queue": queue, "key": key, "value": value, "producer": "p", "seq": seq}
        op = self.add("p", OpKind.PUBLISH, INVOKE, **fields)
        if status is not None:
            self.add("p", OpKind.PUBLISH, status, op=op, **fields)
        return value

    def deliver(
        self,
        value: str,
        *,
        to: str = "c",
        group: str = "g",
        count: int = 1,
        at: int = -1,
        queue: str = "q",
        **more: object,
    ) -> None:
        offset = at if at >= 0 else int(value.rpartition("-")[2])
        fields = {"queue": queue, "group": group, "value": value, "delivery_count": count, "redelivered": count > 1}
        self.add(to, OpKind.DELIVER, OK, partition=0, offset=offset, **(fields | more))

    def settle(
        self, value: str, kind: OpKind = OpKind.ACK, status: OpType | None = OK, *, by: str = "c", group: str = "g"
    ) -> None:
        op = self.add(by, kind, INVOKE, queue="q", group=group, value=value)
        if status is not None:
            self.add(by, kind, status, queue="q", group=group, value=value, op=op)

    def end_session(self, process: str = "c") -> None:
        self.add(process, OpKind.SESSION_END, OK)

    def fault(self, kind: str, seconds: float = 0.0) -> None:
        op = self.add("faults", OpKind.FAULT, INVOKE, detail=f"{kind} broker")
        self.wait(seconds)
        self.add("faults", OpKind.FAULT, OK, op=op, detail=f"{kind} broker")

    def dead_letter(self, value: str, reason: str = "rejected") -> None:
        self.deliver(value, to="watch", group="watch", queue="$dlq/q", reason=reason)

    def drain(self, status: OpType = OK, dead_letters: OpType = OK) -> None:
        self.add("drain", OpKind.DRAIN, status, queue="q")
        self.add("drain", OpKind.DRAIN, dead_letters, queue="$dlq/q")

    def rows(self, contract: Contract = CONTRACT) -> list[Anomaly]:
        return anomalies(build_tables(self.events), contract)

    def found(self, contract: Contract = CONTRACT) -> list[tuple[str, str]]:
        return [(row.anomaly, row.value) for row in self.rows(contract)]

    def verdict(self, contract: Contract = CONTRACT) -> Verdict:
        return check_history(HistoryHeader(contract=contract), self.events).verdict


def one_message(history: History, seq: int = 0, **more: object) -> str:
    value = history.send(seq, **more)
    history.deliver(value)
    history.settle(value)
    return value
