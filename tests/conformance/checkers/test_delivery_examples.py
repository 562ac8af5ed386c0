"""How a message is delivered again: rules with a history that breaks each, and a near miss that does not."""

from __future__ import annotations

import msgspec

from assay.reference_broker.trace.results import Severity
from assay.reference_broker.trace.schema import (
    AckedMeans,
    OpKind,
)
from tests.conformance.checkers.history import CONTRACT, FAIL, INFO, INVOKE, OK, History


class TestRedeliveries:
    def delivered(self) -> tuple[History, str]:
        history = History()
        value = history.send(0)
        history.deliver(value)
        return history, value

    def test_without_cause(self) -> None:
        history, value = self.delivered()
        history.deliver(value, count=2)
        assert history.found() == [("B3", "p-0")]

    def test_while_its_ack_is_under_way(self) -> None:
        history, value = self.delivered()
        op = history.add("c", OpKind.ACK, INVOKE, queue="q", group="g", value=value)
        history.deliver(value, count=2)
        history.add("c", OpKind.ACK, OK, queue="q", group="g", value=value, op=op)
        assert history.found() == [("B3", "p-0")]

    def test_causes(self) -> None:
        for cause in ("nack", "ack unknown", "ack refused", "session", "crash", "reset", "partition", "timeout"):
            history, value = self.delivered()
            if cause == "nack":
                history.settle(value, OpKind.NACK)
            elif cause == "ack unknown":
                history.settle(value, status=INFO)
            elif cause == "ack refused":
                history.settle(value, status=FAIL)
            elif cause == "session":
                history.end_session()
            elif cause == "timeout":
                history.wait(10.0)
            else:
                history.fault(cause)
            history.deliver(value, count=2)
            assert history.found() == [], cause

    def test_not_causes(self) -> None:
        for cause in ("other session", "latency", "short wait", "other message"):
            history, value = self.delivered()
            if cause == "other session":
                history.end_session("somebody")
            elif cause == "latency":
                history.fault("latency")
            elif cause == "short wait":
                history.wait(8.0)
            else:
                history.settle("p-1", OpKind.NACK)
            history.deliver(value, count=2)
            assert history.found() == [("B3", "p-0")], cause

    def test_an_old_cause_justifies_one_redelivery(self) -> None:
        history, value = self.delivered()
        history.settle(value, OpKind.NACK)
        history.deliver(value, count=2)
        history.deliver(value, count=3)
        assert history.found() == [("B3", "p-0")]

    def test_late_notice_of_a_lost_session(self) -> None:
        history, value = self.delivered()
        history.deliver(value, count=2, to="c2")
        history.end_session("c")
        assert history.found() == []

    def test_latency_may_show_an_old_timeout_late(self) -> None:
        history = History()
        value = history.send(0)
        history.fault("latency", 10.0)
        history.deliver(value)
        history.deliver(value, count=2)
        assert history.found() == []

    def test_a_stalled_client_may_read_several_timeouts_at_once(self) -> None:
        """The broker delivered at 0, 10 and 20 s; the client woke up at 20 s."""
        history = History()
        value = history.send(0)
        history.wait(20.0)
        for count in (1, 2, 3):
            history.deliver(value, count=count)
        assert history.found() == []
        history.deliver(value, count=4)
        assert ("B3", "p-0") in history.found()

    def test_deliveries_may_be_seen_in_another_order(self) -> None:
        history = History()
        value = history.send(0)
        history.wait(10.0)
        history.deliver(value, count=2, to="c2")
        history.deliver(value, count=1)
        assert [row.severity for row in history.rows()] in ([], [Severity.QUALITY])

    def test_a_cause_serves_once_whatever_came_between(self) -> None:
        history, value = self.delivered()
        history.settle(value, OpKind.NACK)
        history.deliver(value, count=2)
        history.settle(value, OpKind.NACK)
        history.deliver(value, count=3)
        assert history.found() == []
        history.deliver(value, count=3)
        assert ("B3", "p-0") in history.found()

    def test_an_uncaused_delivery_does_not_use_up_a_later_cause(self) -> None:
        history, value = self.delivered()
        history.deliver(value, count=2)
        history.settle(value, OpKind.NACK)
        history.deliver(value, count=3)
        assert history.found() == [("B3", "p-0")]

    def test_at_two_consumers_at_once(self) -> None:
        history, value = self.delivered()
        history.deliver(value, count=2, to="c2")
        assert history.found() == [("B6", "p-0")]

    def test_at_another_consumer_after_the_timeout(self) -> None:
        history, value = self.delivered()
        history.wait(10.0)
        history.deliver(value, count=2, to="c2")
        assert history.found() == []


class TestResurrection:
    def settled(self, kind: OpKind = OpKind.ACK) -> tuple[History, str]:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.settle(value, kind)
        return history, value

    def test_after_a_confirmed_ack(self) -> None:
        history, value = self.settled()
        history.deliver(value, count=2)
        assert history.found() == [("A15", "p-0")]

    def test_a_crash_is_no_excuse_for_a_durable_ack(self) -> None:
        for fault in ("crash", "power_loss"):
            history, value = self.settled()
            history.fault(fault)
            history.end_session()
            history.deliver(value, count=2)
            assert history.found() == [("A15", "p-0")]

    def test_power_loss_excuses_an_ack_in_the_cache(self) -> None:
        history, value = self.settled()
        history.fault("power_loss")
        history.deliver(value, count=2)
        contract = msgspec.structs.replace(CONTRACT, acked_means=AckedMeans.OS)
        assert [(row.anomaly, row.severity) for row in history.rows(contract)] == [("A15", Severity.QUALITY)]

    def test_after_a_reject(self) -> None:
        history, value = self.settled(OpKind.REJECT)
        history.deliver(value, count=2)
        assert history.found() == [("A15", "p-0")]

    def test_under_way_since_before_the_ack(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.wait(10.0)
        history.settle(value)
        history.deliver(value, count=2, to="c2")
        assert history.found() == []

    def test_an_unknown_ack_may_be_repeated(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.settle(value, status=INFO)
        history.fault("crash")
        history.deliver(value, count=2)
        assert history.found() == []


class TestDeliveryCount:
    def nacked(self) -> tuple[History, str]:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.settle(value, OpKind.NACK)
        return history, value

    def test_redelivery_called_first(self) -> None:
        history, value = self.nacked()
        history.deliver(value, count=1)
        assert history.found() == [("B4", "p-0")]

    def test_counted_right(self) -> None:
        history, value = self.nacked()
        history.deliver(value, count=2)
        assert history.found() == []

    def test_two_deliveries_with_one_count(self) -> None:
        history, value = self.nacked()
        history.deliver(value, count=2)
        history.settle(value, OpKind.NACK)
        history.deliver(value, count=2)
        assert history.found() == [("B4", "p-0")]

    def test_a_crash_may_lose_the_count(self) -> None:
        history = History()
        value = history.send(0)
        history.deliver(value)
        history.fault("crash")
        history.deliver(value, count=1)
        assert history.found() == []

    def test_first_delivery_called_second(self) -> None:
        history = History()
        history.deliver(history.send(0), count=2)
        assert [(row.anomaly, row.severity) for row in history.rows()] == [("B4", Severity.QUALITY)]

    def test_first_seen_after_a_lost_session(self) -> None:
        history = History()
        value = history.send(0)
        history.end_session()
        history.deliver(value, count=2)
        assert history.found() == []

    def test_beyond_the_limit(self) -> None:
        history = History()
        value = history.send(0)
        history.end_session()
        history.deliver(value, count=4)
        assert history.found() == [("B7", "p-0")]
