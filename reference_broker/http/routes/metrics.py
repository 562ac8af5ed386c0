"""``/metrics`` for Prometheus: counters that the broker keeps anyway, read when they are asked for.

Names are those of FluxMQ's and GoQueue's documents where they have a meaning here. Labels are names of queues and
groups, and no more of them than :data:`MAX_QUEUES` and :data:`MAX_GROUPS`; how many were left out is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fastapi.responses import Response

from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.service import Service
from assay.reference_broker.api.turns import in_portions
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked
from assay.reference_broker.queues import GroupStats, QueueError, QueueStats
from assay.reference_broker.queues.messages.control_records import Outcome
from assay.reference_broker.trace.durations import Durations

AREA = Area("metrics", "Figures for Prometheus.", prefix="")
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_QUEUES: Final = 2_000
MAX_GROUPS: Final = 2_000
"""Of all queues together."""


def _of_groups(name: str) -> Callable[[QueueStats], float]:
    return lambda stats: sum([getattr(group, name) for group in stats.groups])


_QUEUES: Final[tuple[tuple[str, str, bool, Callable[[QueueStats], float]], ...]] = (
    ("mqtt_queue_depth", "Messages that some group has not settled", False, lambda stats: stats.depth),
    ("mqtt_queue_ready", "Messages that a group could get now", False, lambda stats: stats.ready),
    ("mqtt_queue_in_flight", "Deliveries that are not settled", False, lambda stats: stats.in_flight),
    ("mqtt_queue_delayed", "Messages that wait for their time", False, lambda stats: stats.delayed),
    ("mqtt_queue_dead_letters", "Depth of the dead-letter queue", False, lambda stats: stats.dead_letters),
    ("mqtt_queue_enqueue_total", "Messages taken", True, lambda stats: stats.enqueued),
    ("mqtt_queue_refused_total", "Messages not taken", True, lambda stats: stats.refused),
    ("mqtt_queue_dequeue_total", "Deliveries made", True, _of_groups("delivered")),
    ("mqtt_queue_redelivered_total", "Deliveries made again", True, _of_groups("redelivered")),
    ("mqtt_queue_ack_total", "Deliveries acknowledged", True, _of_groups("acked")),
    ("mqtt_queue_nack_total", "Deliveries given back as failed", True, _of_groups("nacked")),
    ("mqtt_queue_reject_total", "Deliveries rejected", True, _of_groups("rejected")),
    ("mqtt_queue_timeout_total", "Deliveries that timed out", True, _of_groups("timed_out")),
    ("mqtt_queue_dlq_total", "Messages that became dead letters", True, _of_groups("dead_lettered")),
    (
        "mqtt_queue_expired_total",
        "Messages that expired",
        True,
        lambda stats: stats.expired + _of_groups("expired")(stats),
    ),
    (
        "mqtt_queue_capture_failures_total",
        "Messages of topics not captured",
        True,
        lambda stats: stats.capture_failures,
    ),
    ("mqtt_queue_stored_bytes", "Bytes of its logs", False, lambda stats: stats.stored_bytes),
    ("mqtt_queue_failed", "1 = it refuses work until the broker restarts", False, lambda stats: stats.failed),
)
_TOPICS: Final[tuple[tuple[str, str, bool, Callable[[QueueStats], float]], ...]] = (
    ("goqueue_messages_published_total", "Messages taken", True, lambda stats: stats.enqueued),
    ("goqueue_messages_consumed_total", "Deliveries made", True, _of_groups("delivered")),
    ("goqueue_messages_failed_total", "Messages not taken", True, lambda stats: stats.refused),
    ("goqueue_messages_acked_total", "Deliveries acknowledged", True, _of_groups("acked")),
    ("goqueue_messages_nacked_total", "Deliveries given back as failed", True, _of_groups("nacked")),
    ("goqueue_messages_rejected_total", "Deliveries rejected", True, _of_groups("rejected")),
    ("goqueue_topic_partitions", "Partitions", False, lambda stats: stats.partitions),
    ("goqueue_delayed_messages_scheduled_total", "Messages delayed", True, lambda stats: stats.delays.scheduled),
    ("goqueue_delayed_messages_fired_total", "Delayed messages published", True, lambda stats: stats.delays.fired),
    ("goqueue_delayed_messages_pending", "Delayed messages that wait", False, lambda stats: stats.delays.pending),
    ("goqueue_log_size_bytes", "Bytes of its logs", False, lambda stats: stats.stored_bytes),
)
_GROUPS: Final[tuple[tuple[str, str, bool, Callable[[GroupStats], float]], ...]] = (
    ("mqtt_queue_active_consumers", "Consumers", False, lambda group: group.consumers),
    ("mqtt_queue_group_lag", "Messages never delivered to the group", False, lambda group: group.lag),
    ("mqtt_queue_group_in_flight", "Deliveries that are not settled", False, lambda group: group.in_flight),
    ("goqueue_group_members", "Consumers", False, lambda group: group.consumers),
    ("goqueue_group_generation", "Assignments made so far", False, lambda group: group.generation),
    ("goqueue_committed_offset", "Settled of all partitions", False, lambda group: sum(group.ack_floors)),
    (
        "goqueue_session_timeouts_total",
        "Members removed since they were silent",
        True,
        lambda group: group.sessions_ended,
    ),
)


def _broker_figures(service: Service) -> Iterator[tuple[str, str, bool, float]]:
    driver, now = service.turn()
    node = driver.node
    state, traffic = node.state, node.state.traffic
    usage = node.engine.usage(lambda _: True)
    yield "assay_uptime_seconds", "Since the broker started", False, now - state.sys_topics.started_at
    yield "assay_connections", "Connections of MQTT and AMQP", False, node.connection_count
    yield "assay_messages_routed_total", "Messages of ordinary topics", True, state.published
    yield "mqtt_connections_current", "Clients connected", False, traffic.connected
    yield "mqtt_sessions_active", "Sessions, connected or remembered", False, len(state.sessions)
    yield "mqtt_subscriptions_active", "Subscriptions", False, traffic.subscriptions
    yield "mqtt_retained_messages", "Retained messages", False, len(state.retained)
    yield "mqtt_messages_received_total", "PUBLISH packets received", True, traffic.publishes_received
    yield "mqtt_messages_sent_total", "PUBLISH packets sent", True, traffic.publishes_sent
    yield "mqtt_messages_dropped_total", "Messages that clients were too slow for", True, traffic.dropped
    yield "assay_received_bytes_total", "Bytes received from clients of MQTT and AMQP", True, traffic.bytes_received
    yield "assay_sent_bytes_total", "Bytes sent to them", True, traffic.bytes_sent
    yield "assay_unread_bytes", "Output that clients have not taken", False, traffic.unread_bytes
    yield "assay_held_bytes", "Messages held for sessions", False, state.held.used
    yield "assay_http_requests", "Requests under way", False, service.requests.taken
    yield "assay_http_requests_limit", "Requests that may be under way", False, service.config.max_requests
    yield "assay_http_waiting", "Requests that wait for messages", False, service.waiting.taken
    yield "assay_http_consumers", "Consumers that come back for more", False, len(service.members)
    yield "goqueue_active_connections", "Connections of MQTT and AMQP", False, node.connection_count
    yield "goqueue_topic_count", "Queues, without dead letters", False, usage.queues
    yield "goqueue_partition_count", "Partitions, without dead letters", False, usage.partitions
    yield "goqueue_nodes_total", "Nodes", False, 1
    yield "goqueue_is_controller", "1 = this one decides", False, 1
    outboxes = node.webhooks.outboxes if node.webhooks is not None else []
    yield "assay_webhooks_sent_total", "Events that endpoints took", True, sum([box.sent for box in outboxes])
    yield "assay_webhooks_failed_total", "Events given up", True, sum([box.failed for box in outboxes])
    yield (
        "assay_webhooks_dropped_total",
        "Events dropped, since too many waited",
        True,
        sum([box.dropped for box in outboxes]),
    )
    yield "assay_webhooks_waiting", "Events that wait", False, sum([box.waiting for box in outboxes])
    if state.hooks is not None:
        yield "assay_hooks_answered_total", "Questions that hooks answered", True, state.hooks.outbox.sent
        yield "assay_hooks_undecided_total", "Questions without an answer", True, state.hooks.undecided
        yield "assay_hooks_waiting", "Questions that wait to be asked", False, state.hooks.outbox.waiting
    open_transactions = len(node.engine.transactions.list())
    yield "assay_transactions_open", "Transactions that have not ended", False, open_transactions
    ended = {outcome: lasted.count for outcome, lasted in node.engine.transactions.lasted.items()}
    begun = open_transactions + sum(ended.values())
    yield "goqueue_transactions_started_total", "Transactions begun, or open at the start", True, begun
    yield "goqueue_transactions_committed_total", "Transactions committed", True, ended[Outcome.COMMITTED]
    yield "goqueue_transactions_aborted_total", "Transactions aborted", True, ended[Outcome.ABORTED]
    yield "goqueue_fsync_total", "Syncs of logs", True, driver.syncs.took.count
    yield "goqueue_fsync_errors_total", "Syncs that failed", True, driver.syncs.failed
    tracing = node.tracing
    yield "assay_traces_spans_total", "Spans of traced messages", True, 0 if tracing is None else tracing.ring.spans
    lost = 0 if tracing is None else sum(sink.lost for sink in tracing.sinks)
    yield "assay_traces_spans_lost_total", "Spans that could not be written or sent", True, lost


def _broker_durations(service: Service) -> list[tuple[str, str, Durations]]:
    driver, _ = service.turn()
    lasted = Durations()
    lasted.add_all(driver.node.engine.transactions.lasted.values())
    took = Durations()
    took.add_all([driver.syncs.took])
    return [
        ("goqueue_fsync_latency_seconds", "Syncs of logs", took),
        ("goqueue_transaction_latency_seconds", "From the beginning of a transaction to its end", lasted),
    ]


class _Text:
    """Prometheus' text format. Its client library writes the same in six times the time, and a thousand queues have
    more than forty thousand lines."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, about: str, kind: str) -> None:
        """Begin with a metric; ``about``: plain words."""
        self._lines.append(f"# HELP {name} {about}\n# TYPE {name} {kind}\n")

    def add(self, name: str, about: str, is_counter: bool, values: Iterable[tuple[str, float]]) -> None:
        """A counter or gauge, by labels as :func:`_labels` writes them."""
        self.family(name, about, "counter" if is_counter else "gauge")
        self._lines += [f"{name}{labels} {+value}\n" for labels, value in values]

    def add_durations(self, name: str, about: str, durations: Iterable[tuple[str, Durations]]) -> None:
        """A histogram, by labels without their braces."""
        self.family(name, about, "histogram")
        for labels, each in durations:
            comma = "," if labels else ""
            so_far = 0
            for bound, count in zip((*map(str, each.bounds_s), "+Inf"), each.counts, strict=True):
                so_far += count
                self._lines.append(f'{name}_bucket{{le="{bound}"{comma}{labels}}} {so_far}\n')
            named = f"{{{labels}}}" if labels else ""
            self._lines.append(f"{name}_sum{named} {each.total_s}\n{name}_count{named} {so_far}\n")

    def encode(self) -> bytes:
        return "".join(self._lines).encode()


_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def _label(name: str, value: str) -> str:
    return f'{name}="{value.translate(_ESCAPES)}"'


def text_of(
    broker: list[tuple[str, str, bool, float]],
    durations: list[tuple[str, str, Durations]],
    queues: list[tuple[str, QueueStats, Durations]],
    left_out: int,
) -> bytes:
    """What was read at one moment, by the names of queues as the caller knows them."""
    text = _Text()
    for name, about, is_counter, value in broker:
        text.add(name, about, is_counter, [("", value)])
    for name, about, each in durations:
        text.add_durations(name, about, [("", each)])
    for label, rows in (("queue", _QUEUES), ("topic", _TOPICS)):
        labelled = [(f"{{{_label(label, queue)}}}", stats) for queue, stats, _ in queues]
        for name, about, is_counter, read in rows:
            text.add(name, about, is_counter, [(named, read(stats)) for named, stats in labelled])
    text.add_durations(
        "mqtt_queue_delivery_latency_seconds",
        "From publish to first delivery",
        [(_label("queue", queue), waited) for queue, _, waited in queues if waited.total_s or waited.count],
    )
    groups = [(queue, group) for queue, stats, _ in queues for group in stats.groups]
    shown = groups[:MAX_GROUPS]
    for label, prefix in (("queue", "mqtt"), ("topic", "goqueue")):
        by_group = [(f"{{{_label(label, queue)},{_label('group', group.group)}}}", group) for queue, group in shown]
        for name, about, is_counter, of_group in _GROUPS:
            if name.startswith(prefix):
                text.add(name, about, is_counter, [(named, of_group(group)) for named, group in by_group])
    left_out += len(groups) - len(shown)
    text.add("assay_metrics_left_out", "Queues and groups without figures here", False, [("", left_out)])
    return text.encode()


async def exposition(service: Service, caller: Caller) -> bytes:
    """All figures in Prometheus' text format: read in portions, others are served between; written in a thread."""
    names = [name for name in service.engine.queues() if caller.reads(name)]
    queues: list[tuple[str, QueueStats, Durations]] = []
    async for name in in_portions(names[:MAX_QUEUES]):
        with contextlib.suppress(QueueError):  # it has gone meanwhile
            queues.append((caller.told(name), service.engine.stats(name), service.engine.waited(name)))
    left_out = max(0, len(names) - MAX_QUEUES)
    broker, durations = list(_broker_figures(service)), _broker_durations(service)
    return await asyncio.to_thread(text_of, broker, durations, queues, left_out)


@AREA.get("/metrics", Scope.READ, answer=str, media_type="text/plain")
async def metrics(call: Asked) -> Response:
    """All figures, in Prometheus' text format, of the queues that the caller may read."""
    return Response(await exposition(call.service, call.caller), headers={"content-type": CONTENT_TYPE})
