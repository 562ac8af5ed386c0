"""Transactions, delays, priorities, new groups and plain MQTT: each rule with its near misses, which must pass.

The histories that break the rules are planted in whole runs (``tests/sim``); those here are as close to
them as a right broker can come.
"""

from __future__ import annotations

import msgspec
import pytest

from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import AckedMeans, OpKind, OpType
from tests.conformance.checkers.history import CONTRACT, FAIL, INFO, INVOKE, OK, History

SPACE = "$mqtt/s"
RETAINED = "$retained/s"
PLAIN = msgspec.structs.replace(CONTRACT, dead_letters=False)


class TestTransactions:
    def publish(self, history: History, seq: int, txn: str = "t") -> int:
        fields = {"queue": "q", "key": "k", "value": f"p-{seq}", "producer": "p", "seq": seq, "txn": txn}
        return history.add("p", OpKind.PUBLISH, INVOKE, **fields)

    def finish(self, history: History, ops: list[int], outcome: OpType) -> None:
        for seq, op in enumerate(ops):
            history.add("p", OpKind.PUBLISH, outcome, op=op, value=f"p-{seq}", txn="t")

    def unknown(self, seen: tuple[int, ...], *, subscribed_late: bool = False) -> History:
        """Two messages, whose commit has no answer."""
        history = History()
        ops = [self.publish(history, 0)]
        if subscribed_late:
            history.add("c", OpKind.SUBSCRIBE, OK, queue="q", group="g")
        ops.append(self.publish(history, 1))
        commit = history.add("p", OpKind.COMMIT, INVOKE, txn="t")
        for seq in seen:
            history.deliver(f"p-{seq}")
            history.settle(f"p-{seq}")
        history.add("p", OpKind.COMMIT, INFO, op=commit, txn="t")
        self.finish(history, ops, INFO)
        return history

    def test_an_unknown_commit_shows_all_or_nothing(self) -> None:
        for seen, found in (((0, 1), []), ((), []), ((0,), [("E2", "p-1")]), ((1,), [("E2", "p-0")])):
            history = self.unknown(seen)
            history.drain()
            assert history.found() == found

    def test_who_was_not_drained_or_came_late_proves_nothing(self) -> None:
        history = self.unknown((1,))
        history.drain(INFO)
        assert history.found() == []
        history = self.unknown((1,), subscribed_late=True)
        history.drain()
        assert history.found() == []

    def test_a_delivery_may_overtake_the_answer_to_the_commit(self) -> None:
        history = self.unknown((0, 1))
        assert history.found() == []

    def test_before_the_commit(self) -> None:
        history = History()
        op = self.publish(history, 0)
        history.deliver("p-0")
        history.add("p", OpKind.COMMIT, INVOKE, txn="t")
        self.finish(history, [op], OK)
        assert ("E1", "p-0") in history.found()

    def test_an_abandoned_one_shows_nothing(self) -> None:
        history = History()
        op = self.publish(history, 0)
        self.finish(history, [op], FAIL)
        history.drain()
        assert history.found() == []
        history.deliver("p-0")
        assert ("A10", "p-0") in history.found()


class TestDelays:
    def delayed(self, delay_s: float, waited_s: float) -> History:
        history = History()
        fields = {"queue": "q", "value": "p-0", "producer": "p", "seq": 0}
        op = history.add("p", OpKind.PUBLISH, INVOKE, delay_ns=int(delay_s * 1e9), **fields)
        history.add("p", OpKind.PUBLISH, OK, op=op, **fields)
        history.wait(waited_s)
        return history

    def test_at_its_time_and_a_tick_early(self) -> None:
        for waited_s, found in ((1.0, []), (0.99, []), (0.95, [("D13", "p-0")])):
            history = self.delayed(1.0, waited_s)
            history.deliver("p-0")
            assert history.found() == found

    def test_a_wrong_clock_is_no_fault_of_the_broker(self) -> None:
        history = self.delayed(1.0, 0.2)
        history.fault("clock_jump")
        history.deliver("p-0")
        assert history.found() == []

    @pytest.mark.parametrize(("answer", "arrives", "found"), [(OK, False, []), (FAIL, True, []), (INFO, True, [])])
    def test_taken_back(self, answer: OpType, arrives: bool, found: list[tuple[str, str]]) -> None:
        """What was taken back, or perhaps so, need not come; what was not taken back, or perhaps not, may."""
        history = self.delayed(1.0, 0.1)
        op = history.add("p", OpKind.CANCEL, INVOKE, queue="q", value="p-0")
        history.add("p", OpKind.CANCEL, answer, op=op, queue="q", value="p-0")
        history.wait(1.0)
        if arrives:
            history.deliver("p-0")
            history.settle("p-0")
        history.drain()
        assert history.found() == found

    def test_a_refused_cancel_leaves_the_message_owed(self) -> None:
        for answer, full, found in ((FAIL, "", [("A1", "p-0")]), (FAIL, "disk_full", []), (INFO, "", []), (OK, "", [])):
            history = self.delayed(1.0, 0.1)
            op = history.add("p", OpKind.CANCEL, INVOKE, queue="q", value="p-0")
            if full:  # what the disk refused may be done once there is room
                history.fault(full)
            history.add("p", OpKind.CANCEL, answer, op=op, queue="q", value="p-0")
            history.deliver(history.send(1))
            history.settle("p-1")
            history.drain()
            assert history.found() == found

    def test_a_loss_of_power_may_fire_it_twice(self) -> None:
        for fault, found in (("power_loss", []), ("sync_error", []), ("crash", [("B1", "p-0")])):
            history = self.delayed(0.1, 0.2)
            history.deliver("p-0", at=3)
            history.settle("p-0")
            history.fault(fault)
            history.end_session()
            history.deliver("p-0", at=4, to="c2")
            assert [row for row in history.found() if row[0] == "B1"] == found
            assert bool([row for row in history.found() if row[0] == "A15"]) is bool(found)

    def test_delayed_messages_have_no_order(self) -> None:
        history = self.delayed(0.1, 0.2)
        history.deliver(history.send(1))
        history.deliver("p-0")
        assert history.found() == []


class TestPriorities:
    def backlog(self, lower: int, *, own: int = 0, lane: int = 0, pause_s: float = 1.0) -> History:
        """An urgent message, and what comes before it."""
        history = History()
        sent = 0
        for number, count in ((2, lower), (lane, own), (lane, 1)):
            for _ in range(count):
                fields = {"queue": "q", "key": f"k{number}", "value": f"p-{sent}", "producer": "p", "seq": sent}
                op = history.add("p", OpKind.PUBLISH, INVOKE, lane=number, **fields)
                history.add("p", OpKind.PUBLISH, OK, op=op, **fields)
                sent += 1
        history.wait(pause_s)
        for seq in range(sent):
            history.deliver(f"p-{seq}")
        return history

    def test_the_shares_bound_the_wait(self) -> None:
        """With 50 of a hundred, an urgent message waits for less than two rounds of the 50 others."""
        assert self.backlog(100).found() == []
        assert self.backlog(101).found() == [("D10", "p-101")]

    def test_no_promise(self) -> None:
        assert self.backlog(300).found(msgspec.structs.replace(CONTRACT, lane_shares="")) == []

    def test_what_was_under_way_may_come_before(self) -> None:
        assert self.backlog(300, pause_s=0.0).found() == [], "nothing is counted within half a second of the confirm"

    def test_a_fault_excuses(self) -> None:
        history = History()
        fields = {"queue": "q", "value": "p-0", "producer": "p", "seq": 0}
        op = history.add("p", OpKind.PUBLISH, INVOKE, lane=0, **fields)
        history.add("p", OpKind.PUBLISH, OK, op=op, **fields)
        history.fault("pause", 1.0)
        for seq in range(1, 301):
            history.deliver(history.send(seq))
        history.deliver("p-0")
        assert [row for row in history.found() if row[0] == "D10"] == []


class TestCursor:
    def test_what_was_not_confirmed_before_may_come(self) -> None:
        history = History()
        early = history.send(0)
        op = history.add("p", OpKind.PUBLISH, INVOKE, queue="q", key="k", value="p-1", producer="p", seq=1)
        history.add("c", OpKind.SUBSCRIBE, INVOKE, queue="q", group="g", reason="latest")
        history.add("p", OpKind.PUBLISH, OK, op=op, value="p-1")
        history.deliver("p-1")
        assert history.found() == []
        history.deliver(early, at=0)
        assert ("F14", "p-0") in history.found()

    def test_an_older_group_of_the_same_queue(self) -> None:
        history = History()
        value = history.send(0)
        history.add("c", OpKind.SUBSCRIBE, INVOKE, queue="q", group="g", reason="latest")
        history.deliver(value, group="h", to="d")
        assert history.found() == []

    def test_a_deleted_group_is_owed_nothing(self) -> None:
        history = History()
        history.add("c", OpKind.SUBSCRIBE, OK, queue="q", group="g")
        history.send(0)
        history.add("drain", OpKind.DRAIN, FAIL, queue="q", group="g")
        history.deliver(history.send(1), group="h", to="d")
        history.settle("p-1", by="d", group="h")
        history.deliver("p-0", at=0, group="h", to="d", count=1)
        history.settle("p-0", by="d", group="h")
        history.drain()
        assert [row for row in history.found() if row[0] == "A1"] == []


class TestPlainDeliveries:
    def sent(self, qos: int, invocations: int = 1) -> History:
        history = History()
        fields = {"queue": SPACE, "key": f"s/t/0:{qos}", "value": "p-0", "producer": "p", "seq": 0, "qos": qos}
        for _ in range(invocations):
            op = history.add("p", OpKind.PUBLISH, INVOKE, **fields)
        history.add("p", OpKind.PUBLISH, OK, op=op, **fields)
        return history

    def take(self, history: History, qos: int, *, to: str = "s0.0", group: str = "s0", again: bool = False) -> None:
        history.add(
            to, OpKind.DELIVER, OK, queue=SPACE, group=group, value="p-0", qos=qos, redelivered=again, offset=-1
        )

    def test_qos_1_comes_again_over_the_next_connection(self) -> None:
        history = self.sent(1)
        self.take(history, 1)
        self.take(history, 1, to="s0.1", again=True)
        assert history.found(PLAIN) == []

    def test_a_publisher_that_sent_it_again_may_have_made_two(self) -> None:
        history = self.sent(1, invocations=2)
        self.take(history, 1)
        self.take(history, 1)
        assert history.found(PLAIN) == []
        self.take(history, 1)
        assert history.found(PLAIN) == [("B3", "p-0")]

    def test_3_1_1_does_not_forbid_to_repeat_over_one_connection(self) -> None:
        history = History()
        op = history.add("s0.0", OpKind.CONNECT, INVOKE, group="s0", detail="MQTT 3.1.1")
        history.add("s0.0", OpKind.CONNECT, OK, op=op, group="s0", reason="new")
        fields = {"queue": SPACE, "key": "s/t/0:1", "value": "p-0", "producer": "p", "seq": 0, "qos": 1}
        history.add("p", OpKind.PUBLISH, INVOKE, **fields)
        self.take(history, 1)
        self.take(history, 1, again=True)
        assert [(row.anomaly, row.severity) for row in history.rows(PLAIN)] == [("B3", Severity.QUALITY)]

    def test_two_sessions_and_two_lives_get_one_each(self) -> None:
        history = self.sent(2)
        for group in ("s0", "s1", "s0~2"):
            self.take(history, 2, to=f"{group}.0", group=group)
        assert history.found(PLAIN) == []

    def test_lost_state_may_repeat_qos_2(self) -> None:
        for means, severity in ((AckedMeans.DISK, Severity.SAFETY), (AckedMeans.MEMORY, Severity.QUALITY)):
            history = self.sent(2)
            self.take(history, 2)
            history.fault("crash")
            self.take(history, 2, to="s0.1")
            rows = history.rows(msgspec.structs.replace(PLAIN, acked_means=means))
            assert [(row.anomaly, row.severity) for row in rows] == [("B2", severity)]

    def set_back(self, *, ignored: bool = False, held_before: bool = True, later: str = "") -> History:
        """A session over a loss of power, after which ``p-1`` is confirmed and never comes.

        ``ignored``: it came under the packet identifier of ``p-0``, which came before the loss, or after it. ``later``:
        ``r-2`` comes, which is published once ``p-1`` is confirmed, or before, or left as a will.
        """
        history = History()
        history.add("s0.0", OpKind.SUBSCRIBE, OK, queue=SPACE, group="s0")
        held = -1
        for seq in range(2):
            fields = {"queue": SPACE, "key": "s/t/0:2", "value": f"p-{seq}", "producer": "p", "seq": seq, "qos": 2}
            named = {"queue": SPACE, "group": "s0", "value": f"p-{seq}", "qos": 2}
            op = history.add("p", OpKind.PUBLISH, INVOKE, **fields)
            if seq and later:
                ours = {**fields, "value": "r-2", "producer": "r", "seq": 2}
            if seq and later == "at once":
                history.add("r", OpKind.PUBLISH, INVOKE, **ours)
            history.add("p", OpKind.PUBLISH, OK, op=op, **fields)
            if seq == 0:
                if not held_before:
                    history.fault("power_loss")
                held = history.add("s0.0" if held_before else "s0.1", OpKind.DELIVER, OK, **named)
                if held_before:
                    history.fault("power_loss")
            elif ignored:
                history.add("s0.1", OpKind.IGNORE, OK, op=held, **named)
        if later == "after":
            history.add("r", OpKind.PUBLISH, INVOKE, **ours)
        elif later == "will":
            history.add("r", OpKind.WILL, INVOKE, **ours)
        if later:
            history.add("s0.1", OpKind.DELIVER, OK, queue=SPACE, group="s0", value="r-2", qos=2)
        history.add("drain", OpKind.DRAIN, OK, queue=SPACE)
        return history

    @pytest.mark.parametrize(
        ("means", "how", "severity"),
        [
            (AckedMeans.OS, {}, Severity.QUALITY),
            (AckedMeans.OS, {"later": "at once"}, Severity.QUALITY),
            (AckedMeans.OS, {"later": "will"}, Severity.QUALITY),
            (AckedMeans.OS, {"later": "after"}, Severity.SAFETY),
            (AckedMeans.DISK, {}, Severity.SAFETY),
        ],
    )
    def test_a_session_that_was_set_back_may_have_no_subscription(
        self, means: AckedMeans, how: dict[str, str], severity: Severity
    ) -> None:
        """Then it gets no message at all that is sent later: one that does not come is lost. It subscribed to wills by
        themselves (swarm seed 200774 of mqtt-flaky-network)."""
        rows = self.set_back(**how).rows(msgspec.structs.replace(PLAIN, acked_means=means))
        assert [(row.anomaly, row.value, row.severity) for row in rows] == [("A1", "p-1", severity)]

    @pytest.mark.parametrize(
        ("means", "how", "severity"),
        [
            (AckedMeans.OS, {"ignored": True}, Severity.QUALITY),
            (AckedMeans.OS, {"ignored": False}, Severity.SAFETY),
            (AckedMeans.OS, {"ignored": True, "held_before": False}, Severity.SAFETY),
            (AckedMeans.DISK, {"ignored": True}, Severity.SAFETY),
        ],
    )
    def test_a_session_that_was_set_back_may_use_packet_identifiers_that_are_in_use(
        self, means: AckedMeans, how: dict[str, bool], severity: Severity
    ) -> None:
        """Swarm seed 1052 of mqtt-flaky-network. What the broker has sent since it is back it must know of."""
        rows = self.set_back(**how, later="after").rows(msgspec.structs.replace(PLAIN, acked_means=means))
        assert [(row.anomaly, row.value, row.severity) for row in rows] == [("A1", "p-1", severity)]

    @pytest.mark.parametrize("cursor", ["latest", ""])
    def test_a_group_that_a_crash_took_begins_anew(self, cursor: str) -> None:
        """Swarm seeds 20004 of passing-groups and 200198 of power-loss: a queue in memory, and the group with it. What
        other groups settle before it is back need not be kept for it.

        Once it is there again it is owed what comes, also when its consumer asks for the latest message a third time.
        """
        for means, severity in ((AckedMeans.MEMORY, Severity.QUALITY), (AckedMeans.OS, Severity.SAFETY)):
            history = History()
            self.begin(history, "c", cursor)
            history.fault("crash")
            history.send(0)
            self.begin(history, "c.1", cursor)
            history.send(1)
            self.begin(history, "c.2", cursor)
            history.drain()
            rows = history.rows(msgspec.structs.replace(CONTRACT, acked_means=means))
            found = [(row.anomaly, row.value, row.severity) for row in rows]
            assert found == [("A1", "p-0", severity), ("A1", "p-1", Severity.SAFETY)]

    def begin(self, history: History, process: str, cursor: str) -> None:
        op = history.add(process, OpKind.SUBSCRIBE, INVOKE, queue="q", group="g", reason=cursor)
        history.add(process, OpKind.SUBSCRIBE, OK, op=op, queue="q", group="g", reason=cursor)

    def test_a_share_goes_on_when_a_member_is_gone(self) -> None:
        history = self.sent(1)
        self.take(history, 1, to="h0.0", group="$share/x")
        history.end_session("h0.0")
        self.take(history, 1, to="h1.0", group="$share/x")
        assert history.found(PLAIN) == []
        self.take(history, 1, to="h2.0", group="$share/x")
        assert history.found(PLAIN) == [("B6", "p-0")]

    def test_a_share_keeps_a_message_of_qos_2_with_its_member(self) -> None:
        history = self.sent(2)
        self.take(history, 2, to="h0.0", group="$share/x")
        history.end_session("h0.0")
        self.take(history, 2, to="h1.0", group="$share/x")
        assert history.found(PLAIN) == [("B2", "p-0")]

    def test_qos_0_is_owed_to_nobody(self) -> None:
        history = History()
        history.add("s0.0", OpKind.SUBSCRIBE, OK, queue=SPACE, group="s0")
        history.add("p", OpKind.PUBLISH, INVOKE, queue=SPACE, key="s/t/0:0", value="p-0", producer="p", seq=0, qos=0)
        history.add("drain", OpKind.DRAIN, OK, queue=SPACE)
        assert history.found(PLAIN) == []

    def test_an_ended_session_is_owed_nothing(self) -> None:
        for ended in (True, False):
            history = History()
            history.add("s0.0", OpKind.SUBSCRIBE, OK, queue=SPACE, group="s0")
            fields = {"queue": SPACE, "key": "s/t/0:1", "value": "p-0", "producer": "p", "seq": 0, "qos": 1}
            op = history.add("p", OpKind.PUBLISH, INVOKE, **fields)
            history.add("p", OpKind.PUBLISH, OK, op=op, **fields)
            if ended:
                history.add("drain", OpKind.DRAIN, FAIL, queue=SPACE, group="s0")
            history.add("drain", OpKind.DRAIN, OK, queue=SPACE)
            assert history.found(PLAIN) == ([] if ended else [("A1", "p-0")])


class TestSessions:
    def connect(self, history: History, number: int, reason: str, *, expiry_s: float = 2.0) -> None:
        process = f"s0.{number}"
        expiry_ns = -1 if expiry_s < 0 else int(expiry_s * 1e9)
        op = history.add(process, OpKind.CONNECT, INVOKE, group="s0", delay_ns=expiry_ns)
        history.add(process, OpKind.CONNECT, OK, op=op, group="s0", reason=reason)

    def end(self, history: History, number: int, silent_s: float = 0.0) -> None:
        history.add(f"s0.{number}", OpKind.SESSION_END, OK, delay_ns=int(silent_s * 1e9))

    def away(self, seconds: float, reason: str, *, silent_s: float = 0.0, fault: str = "") -> list[str]:
        """A session of two seconds, whose client is away."""
        history = History()
        self.connect(history, 0, "new")
        self.end(history, 0, silent_s)
        if fault:
            history.fault(fault)
        history.wait(seconds)
        self.connect(history, 1, reason)
        return [anomaly for anomaly, _ in history.found(PLAIN)]

    def test_the_expiry_and_the_time_around_it(self) -> None:
        assert self.away(0.5, "present") == []
        assert self.away(0.5, "new") == ["S1"]
        for reason in ("present", "new"):
            assert self.away(1.7, reason) == [], "half a second before the expiry, and one after it, both are right"
            assert self.away(2.9, reason) == []
        assert self.away(1.3, "new") == ["S1"]
        assert self.away(3.5, "new") == []
        assert self.away(3.5, "present") == ["S2"]

    def test_the_broker_may_have_noticed_the_end_earlier_or_later(self) -> None:
        assert self.away(0.5, "new", silent_s=1.0) == []
        assert self.away(3.5, "present", fault="partition") == []

    @pytest.mark.parametrize(("healed_s", "found"), [(0.1, []), (0.9, ["S1"])])
    def test_what_the_network_held_up_is_no_new_sign_of_life(self, healed_s: float, found: list[str]) -> None:
        """Swarm seed 201193 of mqtt-sessions: what came last had been sent before the connection ended."""
        history = History()
        self.connect(history, 0, "new")
        op = history.add("faults", OpKind.FAULT, INVOKE, detail="partition consumers")
        history.wait(1.0)
        history.add("faults", OpKind.FAULT, OK, op=op, detail="partition consumers")
        history.wait(healed_s)
        self.end(history, 0)
        history.wait(0.8)
        self.connect(history, 1, "new")
        assert [anomaly for anomaly, _ in history.found(PLAIN)] == found

    def test_taken_over(self) -> None:
        history = History()
        self.connect(history, 0, "new", expiry_s=-1)
        self.connect(history, 1, "present", expiry_s=-1)
        assert history.found(PLAIN) == []
        self.connect(history, 2, "new", expiry_s=-1)
        assert [anomaly for anomaly, _ in history.found(PLAIN)] == ["S1"]

    @pytest.mark.parametrize(("answer", "lost"), [(FAIL, []), (INFO, []), (OK, ["S1"])])
    def test_only_an_accepted_connection_surely_begins_its_time_anew(self, answer: OpType, lost: list[str]) -> None:
        """Swarm seeds 35 and 10016 of mqtt-sessions: a full disk, or a sync that failed, let nobody in for as long."""
        history = History()
        self.connect(history, 0, "new")
        self.end(history, 0)
        history.wait(1.9)
        op = history.add("s0.1", OpKind.CONNECT, INVOKE, group="s0", delay_ns=2_000_000_000)
        history.add("s0.1", OpKind.CONNECT, answer, op=op, group="s0")
        history.wait(0.5)
        self.connect(history, 2, "new")
        assert [anomaly for anomaly, _ in history.found(PLAIN)] == lost

    def test_who_never_heard_of_the_session_may_find_one(self) -> None:
        history = History()
        op = history.add("s0.0", OpKind.CONNECT, INVOKE, group="s0", delay_ns=-1)
        history.add("s0.0", OpKind.CONNECT, INFO, op=op, group="s0")
        self.connect(history, 1, "present", expiry_s=-1)
        assert history.found(PLAIN) == []


class TestRetained:
    def write(
        self, history: History, seq: int, status: OpType | None = OK, *, qos: int = 1, removes: bool = False
    ) -> int:
        fields = {
            "queue": RETAINED,
            "key": f"s/r/0:{qos}",
            "value": f"w-{seq}",
            "producer": "w",
            "seq": seq,
            "qos": qos,
        }
        op = history.add("w", OpKind.PUBLISH, INVOKE, reason="removes" if removes else "", **fields)
        if status is not None:
            history.add("w", OpKind.PUBLISH, status, op=op, **fields)
        return op

    def read(self, history: History, value: str) -> None:
        op = history.add("r.0", OpKind.READ, INVOKE, queue=RETAINED)
        history.add("r.0", OpKind.READ, OK, op=op, queue=RETAINED, group="s/r/0", value=value)

    def found(self, history: History) -> list[str]:
        return [anomaly for anomaly, _ in history.found(PLAIN)]

    def test_the_last_one(self) -> None:
        history = History()
        self.write(history, 0)
        self.write(history, 1)
        self.read(history, "w-1")
        assert self.found(history) == []
        self.read(history, "w-0")
        assert self.found(history) == ["R1"]

    def test_two_at_once_and_one_without_answer(self) -> None:
        history = History()
        self.write(history, 0)
        first = self.write(history, 1, None)
        self.write(history, 2, None)
        history.add("w", OpKind.PUBLISH, OK, op=first, queue=RETAINED, value="w-1")
        for value in ("w-1", "w-2", "w-1"):
            self.read(history, value)
        assert self.found(history) == [], "neither was over before the other began"

    def test_what_somebody_has_seen_stays_seen(self) -> None:
        history = History()
        self.write(history, 0)
        self.write(history, 1, INFO)
        self.read(history, "w-0")
        assert self.found(history) == []
        self.read(history, "w-1")
        self.read(history, "w-0")
        assert self.found(history) == ["R1"]

    def test_what_was_seen_and_never_confirmed_may_go_with_a_crash(self) -> None:
        """Swarm seed 2009 of mqtt-sessions: a full disk refused what the broker had in memory and showed."""
        for status, severity in ((INFO, Severity.QUALITY), (OK, Severity.SAFETY)):
            history = History()
            self.write(history, 0)
            self.write(history, 1, status)
            self.read(history, "w-1")
            history.fault("power_loss")
            self.read(history, "w-0")
            assert [(row.anomaly, row.severity) for row in history.rows(PLAIN)] == [("R1", severity)]

    def test_what_was_seen_after_the_crash_is_there(self) -> None:
        for again, severity in ((False, Severity.QUALITY), (True, Severity.SAFETY)):
            for contract, status in ((PLAIN, INFO), (msgspec.structs.replace(PLAIN, acked_means=AckedMeans.OS), OK)):
                history = History()
                self.write(history, 0)
                self.write(history, 1, status)
                self.read(history, "w-1")
                history.fault("power_loss")
                if again:
                    self.read(history, "w-1")
                self.read(history, "w-0")
                assert [(row.anomaly, row.severity) for row in history.rows(contract)] == [("R1", severity)]

    def test_what_is_confirmed_later_was_not_promised_yet(self) -> None:
        """Its publisher sent it again (swarm seed 2009 of mqtt-sessions, to its end)."""
        history = History()
        self.write(history, 0)
        op = self.write(history, 1, None)
        self.read(history, "w-1")
        history.fault("power_loss")
        self.read(history, "w-0")
        history.add("w", OpKind.PUBLISH, OK, op=op, queue=RETAINED, value="w-1")
        assert [(row.anomaly, row.severity) for row in history.rows(PLAIN)] == [("R1", Severity.QUALITY)]

    def test_nothing(self) -> None:
        history = History()
        self.read(history, "")
        self.write(history, 0)
        self.write(history, 1, INFO, removes=True)
        self.read(history, "")
        self.read(history, "w-0")
        assert self.found(history) == [], "the removal may come at any time"
        self.write(history, 2)
        self.read(history, "")
        assert self.found(history) == [], "even now"

    def test_nothing_where_something_must_be(self) -> None:
        history = History()
        self.write(history, 0, removes=True)
        self.write(history, 1)
        self.read(history, "")
        assert self.found(history) == ["R2"]

    def test_qos_0_may_be_dropped(self) -> None:
        history = History()
        self.write(history, 0)
        self.write(history, 1, None, qos=0)
        self.read(history, "")
        assert self.found(history) == []
        self.write(history, 2)
        self.read(history, "")
        assert self.found(history) == ["R2"], "not what its producer wrote afterwards"

    def test_memory_may_be_lost(self) -> None:
        history = History()
        self.write(history, 0)
        history.fault("crash")
        self.read(history, "")
        rows = history.rows(msgspec.structs.replace(PLAIN, acked_means=AckedMeans.MEMORY))
        assert [(row.anomaly, row.severity) for row in rows] == [("R2", Severity.QUALITY)]


class TestTopology:
    """Exchanges, queues and bindings of AMQP."""

    def step(self, history: History, f: OpKind, answer: OpType | None = OK) -> None:
        op = history.add("c", f, INVOKE, queue="q", key="queue/x")
        if answer is not None:
            history.add("c", f, answer, op=op, queue="q", key="queue/x")

    @pytest.mark.parametrize(
        ("steps", "found"),
        [
            ([(OpKind.DECLARE, OK), (OpKind.LOOK, OK), (OpKind.DELETE, OK), (OpKind.LOOK, FAIL)], []),
            ([(OpKind.DECLARE, OK), (OpKind.LOOK, FAIL)], [("T3", "queue/x")]),
            ([(OpKind.DECLARE, OK), (OpKind.DELETE, OK), (OpKind.LOOK, OK)], [("T2", "queue/x")]),
            ([(OpKind.DECLARE, INFO), (OpKind.LOOK, FAIL)], []),
            ([(OpKind.DECLARE, OK), (OpKind.DELETE, INFO), (OpKind.LOOK, OK)], []),
            ([(OpKind.DECLARE, OK), (OpKind.DELETE, None), (OpKind.LOOK, FAIL)], []),
            ([(OpKind.DECLARE, OK), (OpKind.DELETE, OK), (OpKind.DECLARE, None), (OpKind.LOOK, OK)], []),
            ([(OpKind.DECLARE, OK), (OpKind.DELETE, OK), (OpKind.LOOK, INFO)], []),
        ],
    )
    def test_what_was_declared_is_there_and_what_was_deleted_is_not(
        self, steps: list[tuple[OpKind, OpType | None]], found: list[tuple[str, str]]
    ) -> None:
        history = History()
        for f, answer in steps:
            self.step(history, f, answer)
        assert history.found() == found

    def test_a_loss_of_power_excuses_where_the_disk_was_not_promised(self) -> None:
        history = History()
        self.step(history, OpKind.DECLARE)
        history.fault("power_loss")
        self.step(history, OpKind.LOOK, FAIL)
        for means, severity in ((AckedMeans.OS, Severity.QUALITY), (AckedMeans.DISK, Severity.SAFETY)):
            rows = history.rows(msgspec.structs.replace(CONTRACT, acked_means=means))
            assert [(row.anomaly, row.severity) for row in rows] == [("T3", severity)]

    @pytest.mark.parametrize(
        ("reason", "answer", "found"),
        [("unbound", OK, [("T1", "p-1")]), ("unbound", INFO, []), ("", OK, [])],
    )
    def test_nothing_that_is_published_after_an_unbinding_comes(
        self, reason: str, answer: OpType, found: list[tuple[str, str]]
    ) -> None:
        history = History()
        before = history.send(0)
        op = history.add("c", OpKind.UNSUBSCRIBE, INVOKE, queue="q", group="g", reason=reason)
        history.add("c", OpKind.UNSUBSCRIBE, answer, op=op, queue="q", group="g", reason=reason)
        for value in (before, history.send(1)):
            history.deliver(value)
        assert history.found() == found


class TestAcknowledgementsInTransactions:
    """A mover acknowledges ``p-0`` and publishes a copy, ``m-0``, in a commit whose answer is lost."""

    @pytest.mark.parametrize(
        ("copied", "again", "taken_over", "found"),
        [
            (True, False, False, []),
            (False, True, False, []),
            (True, True, False, [("E3", "p-0")]),
            (False, False, False, [("E3", "p-0")]),
            (False, False, True, []),
        ],
    )
    def test_it_counts_with_its_copy_or_not_at_all(
        self, copied: bool, again: bool, taken_over: bool, found: list[tuple[str, str]]
    ) -> None:
        """``taken_over``: a client whose connection is dead asks for what somebody else has settled meanwhile."""
        history = History()
        history.send(0)
        history.deliver("p-0", to="m")
        if taken_over:
            history.deliver("p-0", to="m2", count=2)
            history.settle("p-0", by="m2")
        named = {"queue": "q", "group": "g", "value": "p-0", "txn": "t"}
        ack = history.add("m", OpKind.ACK, INVOKE, **named)
        copy = {"queue": "r", "key": "k", "value": "m-0", "producer": "m", "seq": 0, "txn": "t"}
        sent = history.add("m", OpKind.PUBLISH, INVOKE, **copy)
        commit = history.add("m", OpKind.COMMIT, INVOKE, txn="t")
        for f, op, fields in (
            (OpKind.COMMIT, commit, {"txn": "t"}),
            (OpKind.ACK, ack, named),
            (OpKind.PUBLISH, sent, copy),
        ):
            history.add("m", f, INFO, op=op, **fields)
        history.add("m", OpKind.SESSION_END, OK)
        if copied:
            history.deliver("m-0", to="r", group="h", queue="r")
        history.add("r", OpKind.SUBSCRIBE, OK, queue="r", group="h")
        if again:
            history.deliver("p-0", to="m2", count=2)
            history.settle("p-0", by="m2")
        for queue in ("q", "$dlq/q", "r", "$dlq/r"):
            history.add("drain", OpKind.DRAIN, OK, queue=queue)
        assert history.found() == found

    @pytest.mark.parametrize(
        ("at", "means", "severity"),
        [
            ("taken", AckedMeans.OS, Severity.QUALITY),
            ("asked", AckedMeans.OS, Severity.QUALITY),
            ("taken", AckedMeans.DISK, Severity.SAFETY),
            ("sent", AckedMeans.OS, Severity.SAFETY),
        ],
    )
    def test_what_is_gone_may_have_gone_before_the_commit_was_asked_for(
        self, at: str, means: AckedMeans, severity: Severity
    ) -> None:
        """A disk that lied and lost its power took it while its consumer, who did not know, asked for the commit."""
        history = History()
        history.send(0)
        if at == "sent":
            history.fault("power_loss")
        history.deliver("p-0", to="m")
        if at == "taken":
            history.fault("power_loss")
        named = {"queue": "q", "group": "g", "value": "p-0", "txn": "t"}
        copy = {"queue": "r", "key": "k", "value": "m-0", "producer": "m", "seq": 0, "txn": "t"}
        asked = [(OpKind.ACK, named), (OpKind.PUBLISH, copy), (OpKind.COMMIT, {"txn": "t"})]
        ops = [history.add("m", f, INVOKE, **fields) for f, fields in asked]
        for op, (f, fields) in zip(ops, asked, strict=True):
            history.add("m", f, INFO, op=op, **fields)
        if at == "asked":
            history.fault("power_loss")
        history.add("m", OpKind.SESSION_END, OK)
        history.add("r", OpKind.SUBSCRIBE, OK, queue="r", group="h")
        for queue in ("q", "$dlq/q", "r", "$dlq/r"):
            history.add("drain", OpKind.DRAIN, OK, queue=queue)
        rows = history.rows(msgspec.structs.replace(CONTRACT, acked_means=means))
        assert [(row.anomaly, row.value, row.severity) for row in rows if row.anomaly == "E3"] == [
            ("E3", "p-0", severity)
        ]
