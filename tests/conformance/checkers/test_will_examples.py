"""Wills: each rule of W1, W2 and W3 with its near misses, which must pass."""

from __future__ import annotations

import msgspec
import pytest

from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import AckedMeans, OpKind, OpType
from tests.conformance.checkers.history import CONTRACT, FAIL, INFO, INVOKE, OK, History

SPACE = "$mqtt/s"
PLAIN = msgspec.structs.replace(CONTRACT, dead_letters=False)


class TestWills:
    def left(self, delay_s: float = 0.0) -> History:
        """A watcher, and a client that has left a will."""
        history = History()
        history.add("s0.0", OpKind.SUBSCRIBE, OK, queue=SPACE, group="s0")
        self.connect(history, 0, delay_s)
        return history

    def connect(self, history: History, number: int, delay_s: float = 0.0) -> None:
        fields = {"queue": SPACE, "value": f"l0-{number}", "producer": "l0", "seq": number, "group": "l0"}
        self.will = history.add(f"l0.{number}", OpKind.WILL, INVOKE, delay_ns=int(delay_s * 1e9), **fields)
        op = history.add(f"l0.{number}", OpKind.CONNECT, INVOKE, group="l0")
        reason = "present" if number else "new"
        history.add(f"l0.{number}", OpKind.CONNECT, OK, op=op, group="l0", reason=reason)

    def end(self, history: History, outcome: OpType, silent_s: float = 0.0, number: int = 0) -> None:
        history.wait(0.5)
        history.add(f"l0.{number}", OpKind.SESSION_END, OK, delay_ns=int(silent_s * 1e9))
        history.add(f"l0.{number}", OpKind.WILL, outcome, op=self.will, value=f"l0-{number}", group="l0")

    def publish(self, history: History, after_s: float = 0.0) -> None:
        history.wait(after_s)
        history.add("s0.0", OpKind.DELIVER, OK, queue=SPACE, group="s0", value="l0-0", qos=1)

    def drained(self, history: History) -> list[str]:
        history.wait(6.0)
        history.add("drain", OpKind.DRAIN, OK, queue=SPACE)
        return [anomaly for anomaly, _ in history.found(PLAIN)]

    def test_due_and_withdrawn(self) -> None:
        for outcome, published, found in (
            (OK, True, []),
            (OK, False, ["W1"]),
            (FAIL, False, []),
            (FAIL, True, ["W2"]),
            (INFO, True, []),
            (INFO, False, []),
        ):
            history = self.left()
            self.end(history, outcome)
            if published:
                self.publish(history)
            assert self.drained(history) == found

    @pytest.mark.parametrize(
        ("faults", "after_s", "found"),
        [
            (("disk_full broker 0 bytes free",), 0.0, []),
            (("write_error broker sessions",), 3.0, []),
            (("disk_full broker 0 bytes free",), 5.0, ["W1"]),
            (("write_error broker at 2",), 5.0, ["W1"]),
            (("write_error broker at 2 segments", "sync_error broker groups", "sync_error broker others"), 0.0, ["W1"]),
            (("sync_error broker",), 5.0, []),
            (("sync_error broker", "crash broker"), 0.0, ["W1"]),
            (("latency clients",), 0.0, ["W1"]),
        ],
    )
    def test_a_will_that_cannot_be_written_may_be_refused(
        self, faults: tuple[str, ...], after_s: float, found: list[str]
    ) -> None:
        """Swarm seed 10018 of mqtt-flaky-network: a full disk. After a sync that failed only a start helps."""
        history = History()
        history.add("s0.0", OpKind.SUBSCRIBE, OK, queue=SPACE, group="s0")
        for fault in faults:
            op = history.add("faults", OpKind.FAULT, INVOKE, detail=fault)
            history.add("faults", OpKind.FAULT, OK, op=op, detail=fault)
        self.connect(history, 0)
        history.wait(after_s)
        self.end(history, OK)
        assert self.drained(history) == found

    def test_a_fault_may_hide_the_disconnect_and_a_crash_the_will(self) -> None:
        history = self.left()
        history.fault("partition")
        self.end(history, FAIL)
        self.publish(history)
        assert self.drained(history) == []
        history = self.left()
        self.end(history, OK)
        history.fault("crash")
        assert self.drained(history) == []

    def test_a_session_that_was_set_back_knows_of_no_disconnect(self) -> None:
        """Swarm seed 2032 of mqtt-flaky-network."""
        for means, severity in ((AckedMeans.OS, Severity.QUALITY), (AckedMeans.DISK, Severity.SAFETY)):
            history = self.left()
            self.end(history, FAIL)
            history.wait(1.0)
            history.fault("power_loss")
            self.publish(history)
            rows = history.rows(msgspec.structs.replace(PLAIN, acked_means=means))
            assert [(row.anomaly, row.severity) for row in rows] == [("W2", severity)]

    @pytest.mark.parametrize(
        ("fault", "end", "found"),
        [
            ("sync_error broker sessions", "crash", []),
            ("sync_error broker sessions", "", ["W2"]),
            ("sync_error broker groups", "crash", ["W2"]),
            ("write_error broker sessions", "crash", []),
        ],
    )
    def test_a_disconnect_that_could_not_be_written_is_forgotten_by_a_crash(
        self, fault: str, end: str, found: list[str]
    ) -> None:
        """Swarm seed 200428 of mqtt-flaky-network: the will of who left came when the broker was back."""
        history = self.left()
        op = history.add("faults", OpKind.FAULT, INVOKE, detail=fault)
        history.add("faults", OpKind.FAULT, OK, op=op, detail=fault)
        self.end(history, FAIL)
        history.wait(1.0)
        if end:
            history.fault(end)
        self.publish(history)
        assert self.drained(history) == found

    @pytest.mark.parametrize(
        ("means", "newer", "severity"),
        [
            (AckedMeans.OS, "", Severity.QUALITY),
            (AckedMeans.OS, "message", Severity.QUALITY),
            (AckedMeans.OS, "will", Severity.SAFETY),
            (AckedMeans.DISK, "", Severity.SAFETY),
        ],
    )
    def test_a_session_that_was_set_back_may_have_lost_its_subscription(
        self, means: AckedMeans, newer: str, severity: Severity
    ) -> None:
        """Swarm seed 200463 of mqtt-flaky-network: a will that was left afterwards did not come to it, whatever came
        of messages."""
        history = History()
        history.add("s0.0", OpKind.SUBSCRIBE, OK, queue=SPACE, group="s0")
        history.fault("power_loss")
        history.wait(5.0)
        self.connect(history, 0)
        self.end(history, OK)
        if newer == "message":
            history.send(1, queue=SPACE)
            history.deliver("p-1", to="s0.0", group="s0", queue=SPACE)
        elif newer:
            self.connect(history, 1)
            self.end(history, OK, number=1)
            history.add("s0.0", OpKind.DELIVER, OK, queue=SPACE, group="s0", value="l0-1", qos=1)
        history.wait(6.0)
        history.add("drain", OpKind.DRAIN, OK, queue=SPACE)
        rows = history.rows(msgspec.structs.replace(PLAIN, acked_means=means))
        assert [(row.anomaly, row.severity) for row in rows] == [("W1", severity)]

    @pytest.mark.parametrize(
        ("fault", "healed", "found"), [("clog", 3.0, []), ("clog", 0.6, ["W1"]), ("", 3.0, ["W1"])]
    )
    def test_a_broker_notices_an_end_once_the_network_tells_it(
        self, fault: str, healed: float, found: list[str]
    ) -> None:
        """Swarm seed 201136 of mqtt-sessions: the client was back before the broker knew that it had gone."""
        history = History()
        history.add("s0.0", OpKind.SUBSCRIBE, OK, queue=SPACE, group="s0")
        self.connect(history, 0, delay_s=1.0)
        op = history.add("faults", OpKind.FAULT, INVOKE, detail=f"{fault} producers to_broker") if fault else -1
        self.end(history, OK)
        for pause in (healed, 3.1 - healed):
            history.wait(pause)
            if op >= 0:
                history.add("faults", OpKind.FAULT, OK, op=op, detail=f"{fault} producers to_broker")
                op = -1
        self.connect(history, 1)
        assert self.drained(history) == found

    def test_a_will_that_came_before_its_session_was_set_back_is_judged(self) -> None:
        history = self.left()
        self.end(history, FAIL)
        history.wait(1.0)
        self.publish(history)
        history.fault("power_loss")
        rows = history.rows(msgspec.structs.replace(PLAIN, acked_means=AckedMeans.OS))
        assert [(row.anomaly, row.severity) for row in rows] == [("W2", Severity.SAFETY)]
        history = History()
        history.fault("power_loss")
        self.connect(history, 0)
        history.wait(1.0)
        self.end(history, FAIL)
        self.publish(history)
        rows = history.rows(msgspec.structs.replace(PLAIN, acked_means=AckedMeans.OS))
        assert [(row.anomaly, row.severity) for row in rows] == [("W2", Severity.SAFETY)]

    def test_the_delay(self) -> None:
        for after_s, silent_s, found in ((2.0, 0.0, []), (1.0, 0.5, []), (1.0, 0.0, ["W3"])):
            history = self.left(2.0)
            self.end(history, OK, silent_s)
            self.publish(history, after_s)
            assert self.drained(history) == found

    def test_back_in_time(self) -> None:
        for back_after_s, published, found in ((0.5, False, []), (0.5, True, ["W2"]), (1.8, True, []), (2.8, True, [])):
            history = self.left(2.0)
            self.end(history, OK)
            history.wait(back_after_s)
            self.connect(history, 1)
            if published:
                self.publish(history, 3.0)
            assert self.drained(history) == found
