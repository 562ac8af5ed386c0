"""What waits to be sent to others: bounded either way, and spared to who does not answer. Alerts have the rest."""

from __future__ import annotations

import pytest

from assay.reference_broker.queues.jobs.outbox import MAX_RUNNING, Breaker, OutboundRequest, Outbox

URL = "https://example.org/hook"


def _post(outbox: Outbox, *bodies: bytes, attempts: int = 5) -> None:
    for body in bodies:
        outbox.post(URL, body, attempts=attempts, timeout_s=1.0, allow_private=False)


@pytest.mark.parametrize(("drop_oldest", "left"), [(False, [b"0", b"1", b"2"]), (True, [b"2", b"3", b"4"])])
def test_of_too_many_the_newest_or_the_oldest_are_dropped(drop_oldest: bool, left: list[bytes]) -> None:
    outbox = Outbox("thing", max_waiting=3, drop_oldest=drop_oldest)
    _post(outbox, b"0", b"1", b"2", b"3", b"4")
    assert (outbox.dropped, outbox.waiting) == (2, 3)
    assert [each.body for each in outbox.take(0.0)] == left


def test_what_failed_before_is_the_oldest() -> None:
    outbox = Outbox("thing", max_waiting=2, drop_oldest=True)
    _post(outbox, b"0")
    (request,) = outbox.take(0.0)
    outbox.done(request, accepted=False, now=0.0)
    _post(outbox, b"1", b"2")
    assert (outbox.dropped, [each.body for each in outbox.take(60.0)]) == (1, [b"1", b"2"])


def test_who_fails_in_a_row_is_left_alone_and_asked_once_afterwards() -> None:
    outbox = Outbox("thing", max_waiting=100, breaker=Breaker(3, 60.0))
    _post(outbox, *(b"%d" % number for number in range(9)), attempts=1)
    for request in outbox.take(0.0)[:3]:
        outbox.done(request, accepted=False, now=1.0)
    assert outbox.take(1.0) == []
    assert outbox.next_deadline is None, "one that was under way may still come back"
    outbox.done(outbox_running(outbox), accepted=False, now=2.0)
    assert outbox.next_deadline == 62.0
    assert outbox.take(61.9) == []
    (probe,) = outbox.take(62.0)
    assert (outbox.take(62.0), outbox.next_deadline) == ([], None)
    outbox.done(probe, accepted=False, now=63.0)
    assert (outbox.take(122.9), outbox.next_deadline) == ([], 123.0)
    (probe,) = outbox.take(123.0)
    outbox.done(probe, accepted=True, now=123.0)
    assert len(outbox.take(123.0)) == 3, "it is asked as before"
    assert (outbox.sent, outbox.failed) == (1, 5)


def outbox_running(outbox: Outbox) -> OutboundRequest:
    (left,) = outbox._running.values()
    return left.request


def test_nothing_that_is_added_is_forgotten_while_it_is_left_alone() -> None:
    outbox = Outbox("thing", max_waiting=100, breaker=Breaker(1, 10.0))
    _post(outbox, b"first")
    (request,) = outbox.take(0.0)
    outbox.done(request, accepted=False, now=0.0)
    _post(outbox, *(b"%d" % number for number in range(2 * MAX_RUNNING)))
    now, seen = 0.0, []
    while (deadline := outbox.next_deadline) is not None:
        now = max(now, deadline)
        for request in outbox.take(now):
            seen.append(request.body)
            outbox.done(request, accepted=True, now=now)
    assert (len(seen), outbox.sent, outbox.dropped) == (2 * MAX_RUNNING + 1, 2 * MAX_RUNNING + 1, 0)
