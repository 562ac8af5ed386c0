"""``/metrics`` for Prometheus: counters that the broker keeps anyway, read when they are asked for.

Names are those of FluxMQ's and GoQueue's documents where they have a meaning here. Labels are names of queues and
groups, and no more of them than :data:`MAX_QUEUES` and :data:`MAX_GROUPS`; how many were left out is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from fastapi.responses import Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from assay.reference_broker.api.callers import Caller
from assay.reference_broker.api.service import Service
from assay.reference_broker.config import Scope
from assay.reference_broker.http.areas import Area, Asked
from assay.reference_broker.queues import GroupStats, QueueError, QueueStats

AREA = Area("metrics", "Figures for Prometheus.", prefix="")
MAX_QUEUES: Final = 2_000
MAX_GROUPS: Final = 2_000
"""Of all queues together."""
_PORTION: Final = 50
"""Queues whose figures are read in a turn."""


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
    open_transactions = len(node.engine.transactions.list())
    yield "assay_transactions_open", "Transactions that have not ended", False, open_transactions


class _Figures(Collector):
    """What was read at one moment."""

    def __init__(self, broker: list[tuple[str, str, bool, float]], queues: list[tuple[str, QueueStats]]) -> None:
        self._broker = broker
        self._queues = queues
        self.left_out = 0

    def collect(self) -> Iterator[Metric]:
        """See :class:`Collector`."""
        for name, about, is_counter, value in self._broker:
            family = _family(name, about, is_counter, ())
            family.add_metric((), value)
            yield family
        for label, rows in (("queue", _QUEUES), ("topic", _TOPICS)):
            for name, about, is_counter, read in rows:
                family = _family(name, about, is_counter, (label,))
                for queue, stats in self._queues:
                    family.add_metric((queue,), read(stats))
                yield family
        groups = [(queue, group) for queue, stats in self._queues for group in stats.groups]
        for name, about, is_counter, of_group in _GROUPS:
            family = _family(name, about, is_counter, ("topic" if name.startswith("goqueue") else "queue", "group"))
            for queue, group in groups[:MAX_GROUPS]:
                family.add_metric((queue, group.group), of_group(group))
            yield family
        left_out = self.left_out + max(0, len(groups) - MAX_GROUPS)
        yield GaugeMetricFamily("assay_metrics_left_out", "Queues and groups without figures here", value=left_out)


def _base(name: str) -> str:
    return name.removesuffix("_total")


def _family(
    name: str, about: str, is_counter: bool, labels: tuple[str, ...]
) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if is_counter else GaugeMetricFamily
    return kind(_base(name), about, labels=labels)


async def exposition(service: Service, caller: Caller) -> bytes:
    """All figures in Prometheus' text format: read in portions, others are served between; written in a thread."""
    names = [name for name in service.engine.queues() if caller.reads(name)]
    queues: list[tuple[str, QueueStats]] = []
    for index, name in enumerate(names[:MAX_QUEUES]):
        if index % _PORTION == _PORTION - 1:
            await asyncio.sleep(0)
        with contextlib.suppress(QueueError):  # it has gone meanwhile
            queues.append((caller.told(name), service.engine.stats(name)))
    figures = _Figures(list(_broker_figures(service)), queues)
    figures.left_out = max(0, len(names) - MAX_QUEUES)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)
    return await asyncio.to_thread(generate_latest, registry)


@AREA.get("/metrics", str, Scope.READ, media_type="text/plain")
async def metrics(call: Asked) -> Response:
    """All figures, in Prometheus' text format, of the queues that the caller may read."""
    return Response(await exposition(call.service, call.caller), headers={"content-type": CONTENT_TYPE_LATEST})
