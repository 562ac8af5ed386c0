"""Every rule with a history that breaks it and a near miss that does not."""

from __future__ import annotations

import msgspec
import pytest

from assay.conformance.checkers import check_history
from assay.reference_broker.trace.results import Severity, Verdict
from assay.reference_broker.trace.schema import (
    AckedMeans,
    DeliveryGuarantee,
    HistoryHeader,
    OpKind,
    OpType,
    OrderGuarantee,
)
from tests.conformance.checkers.history import CONTRACT, FAIL, INFO, INVOKE, NO_ANSWER, OK, History, one_message


class TestLost:
    def test_what_was_on_its_way_when_power_failed_was_said_before(self) -> None:
        """Held up by a partition: a confirm, a delivery and the answer to a reject are seen after the fault."""
        contract = msgspec.structs.replace(CONTRACT, acked_means=AckedMeans.OS)
        for reader, severity in (("c", Severity.QUALITY), ("new", Severity.SAFETY)):
            history = History()
            one_message(history, 0)
            sent = {"queue": "q", "key": "k", "value": "p-1", "producer": "p", "seq": 1}
            publish = history.add("p", OpKind.PUBLISH, INVOKE, **sent)
            history.deliver(history.send(2))
            rejected = {"queue": "q", "group": "g", "value": "p-2"}
            reject = history.add("c", OpKind.REJECT, INVOKE, **rejected)
            value = history.send(3)
            history.fault("power_loss")
            history.add("p", OpKind.PUBLISH, OK, op=publish, **sent)
            history.add("c", OpKind.REJECT, OK, op=reject, **rejected)
            history.deliver(value, to=reader)
            history.drain()
            found = {row.anomaly: row.severity for row in history.rows(contract)}
            assert found == {"A1": Severity.QUALITY, "A11": Severity.QUALITY, "F6": severity}

    def lossy(self, status: OpType | None = OK) -> History:
        history = History()
        one_message(history, 0)
        history.send(1, status=status)
        one_message(history, 2)
        history.drain()
        return history

    def test_confirmed_and_never_read(self) -> None:
        history = self.lossy()
        assert history.found() == [("A1", "p-1")]
        assert history.rows()[0].detail == "middle"
        assert history.verdict() is Verdict.FAIL

    def test_unconfirmed_may_be_lost(self) -> None:
        assert self.lossy(INFO).found() == []
        assert self.lossy(NO_ANSWER).found() == []
        assert self.lossy(FAIL).found() == []

    def test_without_a_full_drain_there_is_no_claim(self) -> None:
        for status, dead_letters in ((INFO, OK), (OK, INFO)):
            history = History()
            one_message(history)
            history.send(1)
            history.drain(status, dead_letters)
            assert history.found() == []
            assert history.verdict() is Verdict.UNKNOWN

    def test_dead_lettered_counts_as_seen(self) -> None:
        history = History()
        one_message(history)
        history.dead_letter(history.send(1), reason="expired")
        history.drain()
        assert history.found() == []

    def test_every_group_must_get_it(self) -> None:
        history = History()
        history.add("d", OpKind.SUBSCRIBE, OK, queue="q", group="other")
        one_message(history)
        history.drain()
        assert [(row.anomaly, row.group) for row in history.rows()] == [("A1", "other")]

    def test_a_group_that_came_later_need_not_get_it(self) -> None:
        history = History()
        one_message(history)
        history.add("d", OpKind.SUBSCRIBE, OK, queue="q", group="other")
        history.drain()
        assert history.found() == []

    def test_place_in_the_stream(self) -> None:
        history = History()
        history.send(0)
        one_message(history, 1)
        history.send(2)
        history.drain()
        assert {row.value: row.detail for row in history.rows()} == {"p-0": "prefix", "p-2": "postfix"}

    def test_power_loss_excuses_only_what_the_contract_keeps_in_memory_or_cache(self) -> None:
        for acked_means, fault, severity in (
            (AckedMeans.DISK, "power_loss", Severity.SAFETY),
            (AckedMeans.OS, "power_loss", Severity.QUALITY),
            (AckedMeans.OS, "crash", Severity.SAFETY),
            (AckedMeans.MEMORY, "crash", Severity.QUALITY),
        ):
            history = History()
            one_message(history)
            history.send(1)
            history.fault(fault)
            history.drain()
            rows = history.rows(msgspec.structs.replace(CONTRACT, acked_means=acked_means))
            assert [(row.anomaly, row.severity) for row in rows] == [("A1", severity)]

    def test_loss_after_the_fault_is_not_excused(self) -> None:
        history = History()
        one_message(history)
        history.fault("power_loss")
        history.send(1)
        history.drain()
        rows = history.rows(msgspec.structs.replace(CONTRACT, acked_means=AckedMeans.OS))
        assert [row.severity for row in rows] == [Severity.SAFETY]

    def test_a_nacked_message_that_never_returns_vanished(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.settle(value, OpKind.NACK)
        history.drain()
        assert history.found() == [("F6", "p-0")]

    def test_a_nacked_message_that_returns_is_fine(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.settle(value, OpKind.NACK)
        history.deliver(value, count=2)
        history.settle(value)
        history.drain()
        assert history.found() == []

    def test_an_unanswered_ack_may_have_settled(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.settle(value, status=INFO)
        history.drain()
        assert history.found() == []

    def test_at_most_once_may_lose(self) -> None:
        contract = msgspec.structs.replace(CONTRACT, delivery=DeliveryGuarantee.AT_MOST_ONCE)
        assert [row.severity for row in self.lossy().rows(contract)] == [Severity.QUALITY]


class TestPhantom:
    def test_never_sent(self) -> None:
        history = History()
        history.deliver("ghost-0")
        assert history.found() == [("A5", "ghost-0")]

    def test_corrupt(self) -> None:
        history = History()
        history.deliver("corrupt:12345678", at=0)
        assert history.found() == [("A7", "corrupt:12345678")]

    def test_refused_yet_delivered(self) -> None:
        history = History()
        history.deliver(history.send(0, status=FAIL))
        assert history.found() == [("A10", "p-0")]

    @pytest.mark.parametrize(
        ("faults", "severity"),
        [
            (("sync_error",), Severity.QUALITY),
            (("sync_error", "crash"), Severity.SAFETY),
            (("write_error",), Severity.SAFETY),
        ],
    )
    def test_a_failed_sync_is_told_of_until_the_next_start(self, faults: tuple[str, ...], severity: Severity) -> None:
        """Swarm seeds 201319 of bad-disk and 201281 of passing-groups: it took a slow disk long to fail."""
        history = History()
        for fault in faults:
            history.fault(fault)
        value = history.send(0, status=FAIL)
        history.fault("crash")
        history.deliver(value)
        history.settle(value, status=FAIL)
        history.drain()
        rows = [(row.anomaly, row.severity) for row in history.rows() if row.anomaly != "F6"]
        assert rows == [("A10", severity)]

    @pytest.mark.parametrize(
        ("faults", "found"),
        [(("sync_error",), []), (("sync_error", "crash"), ["F6"]), (("write_error",), ["F6"])],
    )
    def test_what_a_failed_sync_refused_may_be_settled(self, faults: tuple[str, ...], found: list[str]) -> None:
        history = History()
        value = history.send(0)
        for fault in faults:
            history.fault(fault)
        history.deliver(value)
        history.settle(value, status=FAIL)
        history.drain()
        assert [row.anomaly for row in history.rows()] == found

    def test_unknown_and_delivered_is_a_recovery(self) -> None:
        history = History()
        history.deliver(history.send(0, status=INFO))
        assert history.found() == []

    def test_before_it_was_sent(self) -> None:
        history = History()
        history.deliver("p-0")
        history.send(0)
        assert history.found() == [("A9", "p-0")]

    def test_from_another_queue(self) -> None:
        history = History()
        history.deliver(history.send(0, queue="elsewhere"))
        assert history.found() == [("A6", "p-0")]

    def test_own_dead_letter_queue_is_not_another_queue(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.settle(value, OpKind.REJECT)
        history.dead_letter(value)
        assert history.found() == []

    def test_one_offset_two_values(self) -> None:
        history = History()
        first, second = history.send(0), history.send(1)
        history.deliver(first)
        history.deliver(second, at=0)
        assert history.found() == [("C1", "p-1")]

    def test_an_offset_may_be_given_anew_after_a_crash(self) -> None:
        history = History()
        history.deliver(history.send(0, status=INFO))
        history.fault("power_loss")
        history.deliver(history.send(1), at=0)
        assert history.found() == []

    @pytest.mark.parametrize("began_before", [True, False])
    def test_a_delivery_of_before_a_crash_may_come_after_it(self, began_before: bool) -> None:
        """Seed 10010 of passing-groups: what the network held up came after the crash that gave its offset away."""
        history = History()
        if began_before:
            history.add("old", OpKind.SUBSCRIBE, OK, queue="q", group="g")
        first = history.send(0, status=INFO)
        history.fault("power_loss")
        history.deliver(first, to="old")
        history.end_session("old")
        history.deliver(history.send(1), at=0)
        assert history.found() == ([] if began_before else [("C1", "p-1")])


class TestDuplicate:
    def twice(self, sends: int) -> History:
        history = History()
        for _ in range(sends):
            history.send(0)
        history.deliver("p-0", at=0)
        history.settle("p-0")
        history.deliver("p-0", at=1, group="h")
        return history

    def test_sent_once_stored_twice(self) -> None:
        assert self.twice(1).found() == [("B1", "p-0")]

    def test_a_retried_send_may_be_stored_twice(self) -> None:
        assert self.twice(2).found() == []

    def test_unless_the_broker_deduplicates(self) -> None:
        contract = msgspec.structs.replace(CONTRACT, delivery=DeliveryGuarantee.EXACTLY_ONCE)
        assert self.twice(2).found(contract) == [("B1", "p-0")]

    def test_two_groups_at_one_position(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.deliver(value, group="h")
        assert history.found() == []

    def test_exactly_once_forbids_even_a_justified_second_delivery(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.end_session()
        history.deliver(value, to="c2", count=2)
        assert history.found() == []
        contract = msgspec.structs.replace(CONTRACT, delivery=DeliveryGuarantee.EXACTLY_ONCE)
        assert history.found(contract) == [("B2", "p-0")]


class TestOrder:
    def reversed_pair(self, fault: str = "") -> History:
        history = History()
        first, later = history.send(0), history.send(1)
        if fault:
            history.fault(fault)
        history.deliver(later)
        history.deliver(first)
        return history

    def test_overtaken(self) -> None:
        assert self.reversed_pair().found() == [("D8", "p-0")]

    def test_other_key(self) -> None:
        history = History()
        first, later = history.send(0, key="a"), history.send(1, key="b")
        history.deliver(later)
        history.deliver(first)
        assert history.found() == []

    def test_a_redelivery_may_come_late(self) -> None:
        history = History()
        first, later = history.send(0), history.send(1)
        history.end_session("c0")
        history.deliver(later)
        history.deliver(first, count=2)
        assert history.found() == []
        strict = msgspec.structs.replace(CONTRACT, redelivery_may_reorder=False)
        assert history.found(strict) == [("D8", "p-0")]

    def test_two_connections_prove_nothing(self) -> None:
        history = History()
        history.add("c2", OpKind.CONNECT, INVOKE)
        first, later = history.send(0), history.send(1)
        history.deliver(later)
        history.deliver(first, to="c2")
        assert history.found() == []

    def test_a_consumer_that_came_later_does(self) -> None:
        history = History()
        first, later = history.send(0), history.send(1)
        history.deliver(later)
        history.add("c2", OpKind.CONNECT, INVOKE)
        history.deliver(first, to="c2")
        assert history.found() == [("D8", "p-0")]

    def test_unless_a_crash_may_have_made_the_broker_forget(self) -> None:
        history = History()
        first, later = history.send(0), history.send(1)
        history.deliver(later)
        history.fault("crash")
        history.add("c2", OpKind.CONNECT, INVOKE)
        history.deliver(first, to="c2")
        assert history.found() == []

    @pytest.mark.parametrize(("sends", "late", "accused"), [(2, True, False), (2, False, True), (1, True, True)])
    def test_what_was_sent_again_to_who_subscribed_meanwhile(self, sends: int, late: bool, accused: bool) -> None:
        """Swarm seed 200373 of mqtt-sessions: it got what came after the first sending, then the second."""
        history = History()
        if late:
            history.send(0)
        history.add("c", OpKind.SUBSCRIBE, OK, queue="q", group="g")
        if not late:
            history.send(0)
        history.deliver(history.send(1))
        for _ in range(sends - 1):
            history.send(0)
        history.deliver("p-0")
        assert history.found() == ([("D8", "p-0")] if accused else [])

    @pytest.mark.parametrize(
        ("fault", "late", "accused"), [("bit_rot", True, 0), ("bit_rot", False, 1), ("crash", True, 1)]
    )
    def test_damage_may_bring_back_what_an_earlier_session_had(self, fault: str, late: bool, accused: int) -> None:
        """Swarm seed 201672 of mqtt-sessions: that the earlier one had ended stood where the bits rotted."""
        history = History()
        if late:
            history.send(0)
        history.add("c", OpKind.SUBSCRIBE, OK, queue="q", group="g")
        if not late:
            history.send(0)
        later = history.send(1)
        history.fault(fault)
        history.deliver(later)
        history.deliver("p-0")
        assert history.found() == [("D8", "p-0")] * accused

    @pytest.mark.parametrize(("fault", "found"), [("power_loss", []), ("crash", [("D8", "p-0")])])
    def test_power_may_take_one_of_two_that_were_not_confirmed(self, fault: str, found: list[tuple[str, str]]) -> None:
        """Swarm seed 200361 of mqtt-flaky-network: its producer sent it again, after the one that was left."""
        history = History()
        sent = {"queue": "q", "key": "k", "value": "p-0", "producer": "p", "seq": 0}
        op = history.add("p", OpKind.PUBLISH, INVOKE, **sent)
        later = history.send(1)
        history.fault(fault)
        history.add("p", OpKind.PUBLISH, OK, op=op, **sent)
        history.deliver(later)
        history.deliver("p-0")
        assert history.found() == found
        assert self.reversed_pair(fault="power_loss").found() == [("D8", "p-0")], "they were confirmed"

    def test_unconfirmed_sends_have_no_order(self) -> None:
        history = History()
        first, later = history.send(0, status=INFO), history.send(1)
        history.deliver(later)
        history.deliver(first)
        assert history.found() == []

    def test_no_order_promised(self) -> None:
        contract = msgspec.structs.replace(CONTRACT, order=OrderGuarantee.NONE)
        assert self.reversed_pair().found(contract) == []


class TestDeadLetters:
    def rejected(self) -> tuple[History, str]:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.settle(value, OpKind.REJECT)
        return history, value

    def test_rejected_and_gone(self) -> None:
        history, _ = self.rejected()
        history.drain()
        assert history.found() == [("A11", "p-0")]

    def test_rejected_and_dead_lettered(self) -> None:
        history, value = self.rejected()
        history.dead_letter(value)
        history.drain()
        assert history.found() == []

    def test_no_claim_before_the_dead_letter_queue_is_drained(self) -> None:
        history, _ = self.rejected()
        history.drain(dead_letters=INFO)
        assert history.found() == []

    def test_rejected_without_dead_letters(self) -> None:
        history, _ = self.rejected()
        history.drain()
        assert history.found(msgspec.structs.replace(CONTRACT, dead_letters=False)) == []

    def exhausted(self, deliveries: int) -> tuple[History, str]:
        history = History()
        value = history.send(0)
        for count in range(1, deliveries + 1):
            history.deliver(value, count=count)
            history.settle(value, OpKind.NACK)
        return history, value

    def test_exhausted_and_gone(self) -> None:
        history, _ = self.exhausted(3)
        history.drain()
        assert ("A11", "p-0") in history.found()

    def test_exhausted_and_dead_lettered(self) -> None:
        history, value = self.exhausted(3)
        history.dead_letter(value, reason="max retries exceeded")
        history.drain()
        assert history.found() == []

    def test_buried_without_cause(self) -> None:
        history = History()
        history.dead_letter(one_message(history))
        assert history.found() == [("A12", "p-0")]

    def test_buried_too_early(self) -> None:
        history, value = self.exhausted(2)
        history.dead_letter(value, reason="max retries exceeded")
        assert history.found() == [("A12", "p-0")]

    def test_timed_out_unseen(self) -> None:
        """As many timeouts as fit into the time since the send may have used up deliveries that nobody saw."""
        for waited_s, found in ((20.0, [("A12", "p-0")]), (30.0, [])):
            history = History()
            value = history.send(0)
            history.wait(waited_s)
            history.dead_letter(value, reason="max retries exceeded")
            assert history.found() == found

    def test_expired(self) -> None:
        history = History()
        history.dead_letter(history.send(0), reason="expired")
        assert history.found() == []

    @pytest.mark.parametrize(("back_first", "found"), [(False, []), (True, [("A12", "p-0")])])
    def test_a_broker_may_believe_in_a_connection_until_its_client_is_back(
        self, back_first: bool, found: list[tuple[str, str]]
    ) -> None:
        """Swarm seed 114 of the small scenario: deliveries to connections that clients had given up."""
        history = History()
        history.add("c.0", OpKind.SUBSCRIBE, OK, queue="q", group="g")
        history.end_session("c.0")
        if back_first:
            history.add("c.1", OpKind.SUBSCRIBE, OK, queue="q", group="g")
        value = history.send(0)
        if not back_first:
            history.add("c.1", OpKind.SUBSCRIBE, OK, queue="q", group="g")
        history.dead_letter(value, reason="max retries exceeded")
        history.end_session("c.1")
        assert history.found() == found

    def test_unseen_deliveries_may_have_used_up_the_retries(self) -> None:
        history, value = self.exhausted(1)
        history.end_session()
        history.dead_letter(value, reason="max retries exceeded")
        assert history.found() == []


def test_findings_carry_the_events_of_their_values() -> None:
    history = History()
    one_message(history, 0)
    history.send(1)
    history.drain()
    outcome = check_history(HistoryHeader(contract=CONTRACT), history.events)
    (finding,) = outcome.findings
    assert finding.values == ["p-1"]
    assert {"publish", "drain"} <= {str(row["f"]) for row in finding.evidence}
    assert all(row.get("value", "p-1") == "p-1" for row in finding.evidence)
    assert outcome.counts["lost"] == 1
