"""How much a history showed: what could not have shown the broken rule counts for nothing."""

from __future__ import annotations

from assay.conformance.checkers import build_tables
from assay.conformance.checkers.chances import chances
from assay.reference_broker.trace.schema import Contract, OpKind
from tests.conformance.checkers.history import CONTRACT, FAIL, INFO, History, one_message


def seen(history: History, name: str, contract: Contract = CONTRACT) -> int:
    return chances(build_tables(history.events), contract)[name]


class TestOrder:
    def test_messages_that_come_one_by_one_show_nothing(self) -> None:
        history = History()
        for seq in range(5):
            one_message(history, seq)
        assert seen(history, "order") == 0

    def test_each_that_waits_beside_an_earlier_one_could_overtake_it(self) -> None:
        history = History()
        for value in [history.send(seq) for seq in range(5)]:
            history.deliver(value)
        assert seen(history, "order") == 4

    def test_also_where_it_did(self) -> None:
        history = History()
        for value in reversed([history.send(seq) for seq in range(3)]):
            history.deliver(value)
        assert seen(history, "order") == 2

    def test_other_keys_consumers_and_groups_are_other_streams(self) -> None:
        history = History()
        first, second = history.send(0, key="a"), history.send(1, key="b")
        history.deliver(first)
        history.deliver(second)
        third, fourth = history.send(2), history.send(3)
        history.deliver(third, to="c1")
        history.deliver(fourth, to="c2")
        history.deliver(third, to="c1", group="h")
        assert seen(history, "order") == 0

    def test_what_the_rule_does_not_compare_is_none(self) -> None:
        history = History()
        values = [history.send(0), history.send(1, status=INFO), history.send(2, status=FAIL), history.send(3)]
        for value in values[:3]:
            history.deliver(value)
        history.deliver(values[3], count=2)
        assert seen(history, "order") == 0


class TestLost:
    def test_what_was_settled_before_the_crash_was_not_at_risk(self) -> None:
        history = History()
        one_message(history, 0)
        history.fault("crash")
        assert seen(history, "lost") == 0

    def test_what_waited_or_was_held_during_one_was(self) -> None:
        for kind in ("crash", "reset"):
            history = History()
            history.deliver(history.send(0))
            history.send(1)
            refused = history.send(2)
            history.deliver(refused)
            history.settle(refused, OpKind.NACK)
            history.fault(kind)
            history.send(3)
            history.fault("latency")
            assert seen(history, "lost") == 3, kind


def test_settlements_confirmed_before_a_crash_could_come_back() -> None:
    history = History()
    one_message(history, 0)
    assert seen(history, "resurrection") == 0
    history.fault("crash")
    one_message(history, 1)
    assert seen(history, "resurrection") == 1


def test_what_must_be_dead_lettered_could_be_lost() -> None:
    history = History()
    for seq, kind in enumerate((OpKind.ACK, OpKind.REJECT, OpKind.NACK)):
        value = history.send(seq)
        history.deliver(value, count=CONTRACT.max_deliveries)
        history.settle(value, kind)
    assert seen(history, "dlq_loss") == 2


def test_repeated_deliveries_are_counted() -> None:
    history = History()
    value = history.send(0)
    for count in (1, 2, 3):
        history.deliver(value, count=count)
    assert seen(history, "delivery_count") == seen(history, "redelivery_without_cause") == 2
