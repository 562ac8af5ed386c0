"""Alerts of dead letters: what they say, how often they are tried, and that they stay bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.config import DeadLetterConfig, QueueConfig
from assay.reference_broker.config_queues import dead_letter_problems
from assay.reference_broker.config_webhooks import is_webhook
from assay.reference_broker.queues.dead_letters.alerts import MAX_ALERTS, Alerts, DeadLetterAlert
from assay.reference_broker.queues.jobs.outbox import MAX_RUNNING, OutboundRequest

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]
URL = "https://example.org/hook"
ALERT = DeadLetterAlert(
    queue_name="q",
    dlq_topic="$dlq/q",
    message_id="q:0:0",
    failure_reason="bad",
    retry_count=0,
    first_attempt=None,
    moved_to_dlq_at="2026-01-31T12:00:00.000Z",
    total_duration=0,
)


def add(alerts: Alerts, attempts: int = 5) -> None:
    alerts.add(URL, ALERT, attempts=attempts, timeout_s=5.0)


def test_an_alert_says_what_failed_and_why(bench_with: BenchWith) -> None:
    bench = bench_with(dead_letter={"alert_webhook": URL}, retry={"max_retries": 1})
    consumer = bench.consumer()
    bench.publish("m")
    bench.advance(2)
    consumer.nack(consumer.got[-1])
    bench.advance(1.5)
    consumer.nack(consumer.got[-1])
    assert bench.engine.alerts.take(bench.now) == [], "not before the dead-letter queue has it"
    bench.turn()
    (request,) = bench.engine.alerts.take(bench.now)
    assert (request.url, request.allow_private) == (URL, False)
    assert msgspec.json.decode(request.body) == {
        "queue_name": "q",
        "dlq_topic": "$dlq/q",
        "message_id": "q:0:0",
        "failure_reason": "max retries exceeded",
        "retry_count": 1,
        "first_attempt": "2023-11-14T22:13:20.000Z",
        "moved_to_dlq_at": "2023-11-14T22:13:23.500Z",
        "total_duration": 3_500_000_000,
    }


def test_queues_without_a_hook_alert_nobody(bench: QueueBench) -> None:
    consumer = bench.consumer()
    bench.publish("m")
    bench.turn()
    consumer.reject(consumer.got[0])
    bench.turn()
    assert bench.engine.alerts.next_deadline is None


def test_a_failed_alert_is_tried_again_later_and_later_then_given_up() -> None:
    alerts = Alerts()
    add(alerts)
    now, waits = 100.0, []
    for _ in range(5):
        (request,) = alerts.take(now)
        alerts.done(request, accepted=False, now=now)
        due = alerts.next_deadline
        if due is not None:
            assert alerts.take(due - 0.001) == []
            waits.append(due - now)
            now = due
    assert waits == [1, 2, 4, 8]
    assert (alerts.sent, alerts.failed, alerts.next_deadline) == (0, 1, None)


def test_waits_are_capped() -> None:
    alerts = Alerts()
    add(alerts, attempts=20)
    now = 0.0
    for _ in range(19):
        (request,) = alerts.take(now)
        alerts.done(request, accepted=False, now=now)
        assert alerts.next_deadline is not None
        assert alerts.next_deadline - now <= 30
        now = alerts.next_deadline


def test_alerts_are_bounded_and_what_is_dropped_is_counted() -> None:
    alerts = Alerts()
    for _ in range(MAX_ALERTS + 10):
        add(alerts)
    assert alerts.dropped == 10
    assert len(alerts.take(0.0)) == MAX_RUNNING
    assert alerts.take(0.0) == []


def test_done_twice_counts_once() -> None:
    alerts = Alerts()
    add(alerts)
    (request,) = alerts.take(0.0)
    alerts.done(request, accepted=True, now=0.0)
    alerts.done(request, accepted=True, now=0.0)
    assert alerts.sent == 1


@given(st.lists(st.sampled_from(["add", "take", "ok", "fail", "wait"]), max_size=200))
def test_every_alert_is_sent_given_up_dropped_or_still_there(steps: list[str]) -> None:
    alerts, now, added = Alerts(), 0.0, 0
    running: list[OutboundRequest] = []
    for step in steps:
        if step == "add":
            add(alerts, attempts=2)
            added += 1
        elif step == "take":
            running += alerts.take(now)
        elif step == "wait":
            now += 1.0
        elif running:
            alerts.done(running.pop(0), accepted=step == "ok", now=now)
        open_alerts = len(alerts._waiting) + len(alerts._retries) + len(alerts._running)
        assert alerts.sent + alerts.failed + alerts.dropped + open_alerts == added
        assert len(alerts._running) <= MAX_RUNNING


@pytest.mark.parametrize(
    "url", ["http://a", "https://example.org:8443/x/y?z=1", "http://[::1]:80/", "http://10.0.0.1/"]
)
def test_urls_of_hooks(url: str) -> None:
    assert is_webhook(url)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a",
        "file:///etc/passwd",
        "http://",
        "http://a b/",
        "http://a/\r\nX: y",
        "http://user:secret@a/",
        "http://a:0/",
        "http://a:99999/",
        "http://a/#part",
        "http://ü/",
        "gopher://a",
        "//a",
        "http://a/" + "x" * 3_000,
    ],
)
def test_what_is_no_hook(url: str) -> None:
    assert not is_webhook(url)
    queue = QueueConfig(name="q", dead_letter=DeadLetterConfig(alert_webhook=url))
    assert len(dead_letter_problems(queue)) == 1
