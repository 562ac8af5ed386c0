"""The broker as a whole over HTTP: sessions, subscriptions, figures, tenants, the configuration read again, metrics."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import paho.mqtt.client as paho
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from assay.reference_broker.config import ConfigError, QueuesConfig
from assay.reference_broker.http.routes import metrics
from assay.reference_broker.queues import QueueEngine
from assay.reference_broker.storage.queue_store import LogQueueStore
from assay.reference_broker.trace.durations import COARSE_S, Durations
from tests.http.conftest import Served


def _get(served: Served, path: str, status: int = 200, **query: Any) -> Any:
    answer = served.client().get(path, params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def busy(served: Served) -> Iterator[Served]:
    """With three sessions, one of them connected, and a queue with some past."""
    clients = []
    for name in ("a", "b", "c"):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=f"session-{name}", clean_session=False)
        done: list[object] = []
        client.on_subscribe = lambda *_, done=done: done.append(1)
        clients.append(client)
        client.connect(served.broker.host, served.broker.port)
        client.subscribe([("shop/#", 1), (f"own/{name}", 0)])
        while not done:
            client.loop()
        if name != "c":
            client.disconnect()
    ask = served.client()
    ask.post("/topics", json={"name": "past", "num_partitions": 1})
    ask.post(
        "/topics/past/messages", json={"messages": [{"value": "x"}, {"value": "y"}, {"value": "z", "delay": "1h"}]}
    )
    body = {"group": "g", "max_messages": 2, "wait_s": 10}
    taken: list[Any] = []
    while len(taken) < 2:
        taken += ask.post("/api/v1/queues/past/consume", json=body).json()["messages"]
    ask.post("/messages/ack", json={"receipt_handle": taken[0]["receipt"]})
    ask.post("/messages/reject", json={"receipt_handle": taken[1]["receipt"], "reason": "bad"})
    yield served
    clients[-1].disconnect()


def test_sessions_come_in_pages(busy: Served) -> None:
    first = _get(busy, "/api/v1/sessions", prefix="session-", limit=2)
    assert [each["client_id"] for each in first["sessions"]] == ["session-a", "session-b"]
    rest = _get(busy, "/api/v1/sessions", prefix="session-", page_token=first["next_page_token"])
    assert ([each["client_id"] for each in rest["sessions"]], rest["next_page_token"]) == (["session-c"], "")
    away = _get(busy, "/api/v1/sessions", state="disconnected", prefix="session-")["sessions"]
    assert [each["client_id"] for each in away] == ["session-a", "session-b"]
    one = _get(busy, "/api/v1/sessions/session-c")
    assert (one["connected"], one["subscription_count"]) == (True, 2)
    assert [each["filter"] for each in one["subscriptions"]] == ["shop/#", "own/c"]
    assert _get(busy, "/api/v1/sessions/nobody", 404)["code"] == "unknown_member"


def test_subscriptions_by_filter(busy: Served) -> None:
    found = _get(busy, "/api/v1/subscriptions", prefix="shop")["subscriptions"]
    assert found == [{"filter": "shop/#", "subscriber_count": 3, "max_qos": 1}]
    page = _get(busy, "/api/v1/subscriptions", prefix="own/", limit=2)
    assert page["next_page_token"] == "own/b"
    clients = _get(busy, "/api/v1/subscriptions/shop%2F%23/clients")["clients"]
    assert [each["client_id"] for each in clients] == ["session-a", "session-b", "session-c"]


def test_figures(busy: Served) -> None:
    stats = _get(busy, "/api/v1/stats")
    assert _get(busy, "/stats").keys() == stats.keys()
    assert (stats["sessions"], stats["connections"]["mqtt"]) == (3, 1)
    totals = stats["queues"]
    assert (totals["enqueued"], totals["acked"], totals["rejected"], totals["delayed"]) == (3, 1, 1, 1)
    overview = _get(busy, "/api/v1/overview")
    assert overview["sessions"] == {"connected": 1, "total": 3}
    assert overview["cluster"]["is_leader"] is True
    assert _get(busy, "/reliability/stats")["dead_lettered"] == 1
    assert _get(busy, "/delay/stats")["topics"]["past"]["pending"] == 1
    lanes = _get(busy, "/priority/stats", topic="past")["topics"]["past"]["partitions"]["0"]
    assert (lanes["ready"], lanes["in_flight"]) == ([0] * 5, [0] * 5)
    assert "past.dlq" in _get(busy, "/priority/stats")["topics"]


def test_topics_get_more_partitions(busy: Served) -> None:
    answer = busy.client().post("/admin/topics/past/partitions", json={"count": 3}).json()
    assert (answer["old_partition_count"], answer["new_partition_count"], answer["partitions_added"]) == (1, 3, 2)


def test_tenants(guarded: Served) -> None:
    admin = guarded.client(1, authorization="Bearer assay_admin")
    (tenant,) = admin.get("/api/v1/tenants").json()["tenants"]
    assert (tenant["name"], tenant["users"], tenant["usage"]["queues"]) == ("acme", ["tom"], 1)
    assert admin.get("/admin/tenants/acme").json() == tenant
    assert admin.get("/api/v1/tenants/none").status_code == 404
    for path in ("tenants", "sessions", "subscriptions"):
        assert guarded.client(1, authorization="Bearer assay_writer").get(f"/api/v1/{path}").status_code == 403


def test_the_configuration_is_read_again(served: Served) -> None:
    client = served.client()
    answer = client.post("/api/v1/reload", json={})
    assert (answer.status_code, answer.json()["code"]) == (501, "unsupported")
    driver = served.broker._get().driver

    def wrong(_on_done: Callable[[], None]) -> list[str]:
        message = "auth.users: no"
        raise ConfigError(message)

    def right(on_done: Callable[[], None]) -> list[str]:
        driver.loop.call_soon(on_done)
        return ["listeners"]

    driver.read_again = wrong
    assert "auth.users: no" in client.post("/api/v1/reload", json={}).json()["detail"]
    driver.read_again = right
    assert client.post("/api/v1/reload", json={}).json() == {"needs_restart": ["listeners"]}
    driver.read_again = None


def _samples(text: str) -> dict[tuple[str, str], float]:
    """Value by name and labels of Prometheus' text format, as its own parser reads it."""
    return {
        (sample.name, ",".join(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_what_there_is(busy: Served) -> None:
    answer = busy.client().get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found = _samples(answer.text)
    assert found["mqtt_queue_enqueue_total", "past"] == found["goqueue_messages_published_total", "past"] == 2
    assert found["mqtt_queue_ack_total", "past"] == found["goqueue_messages_rejected_total", "past"] == 1
    assert found["mqtt_queue_dlq_total", "past"] == found["goqueue_delayed_messages_pending", "past"] == 1
    assert found["mqtt_queue_active_consumers", "g,past"] == found["goqueue_group_members", "g,past"] == 1
    assert found["mqtt_sessions_active", ""] == 3
    assert found["assay_metrics_left_out", ""] == 0
    assert found["assay_http_requests_limit", ""] == 256
    assert found["mqtt_queue_delivery_latency_seconds_count", "past"] == 2
    assert found["mqtt_queue_delivery_latency_seconds_bucket", "+Inf,past"] == 2
    assert found["goqueue_transactions_started_total", ""] == found["goqueue_transactions_committed_total", ""] == 0
    assert found["goqueue_fsync_errors_total", ""] == 0
    names = {name for name, _ in found}
    assert all(re.fullmatch(r"(assay|mqtt|goqueue)_[a-z_]+", name) for name in names)


def test_the_text_is_what_the_client_library_writes() -> None:
    """Names with quotes, backslashes and line ends; counters, gauges and histograms; whole numbers and others."""
    names = ["plain", 'a "b"', "back\\slash", "two\nlines", "ünicode"]
    engine = QueueEngine(QueuesConfig(), LogQueueStore(None), random.Random(1), 100.0)
    engine.create_queue("q", {}, 100.0)
    stats = engine.stats("q")
    durations = Durations(COARSE_S)
    for seconds in (0.0, 0.0005, 0.001, 0.3, 1_000.0):
        durations.add(seconds)
    broker = [("assay_uptime_seconds", "About it", False, 1.5), ("assay_messages_routed_total", "About it", True, 7)]
    queues = [(name, msgspec.structs.replace(stats, queue=name), durations) for name in names]
    text = metrics.text_of(broker, [("goqueue_fsync_latency_seconds", "Syncs", durations)], queues, 3).decode()
    families = list(text_string_to_metric_families(text))
    again = {each.name: each for each in families}
    assert [sample.labels["queue"] for sample in again["mqtt_queue_depth"].samples] == names
    assert again["mqtt_queue_enqueue"].type == "counter"
    assert again["mqtt_queue_failed"].samples[0].value == 0.0

    class Read(Collector):
        def collect(self) -> Iterable[Metric]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Read())
    theirs = generate_latest(registry).decode()
    found, expected = (
        {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in each.splitlines() if line[0] != "#"}
        for each in (text, theirs)
    )
    assert found == expected
    buckets = [sample.value for sample in again["goqueue_fsync_latency_seconds"].samples if "le" in sample.labels]
    assert buckets == [3, 3, 3, 3, 4, 4, 4, 4, 5]


def test_figures_that_are_left_out_are_counted(busy: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_QUEUES", 1)
    monkeypatch.setattr(metrics, "MAX_GROUPS", 0)
    found = _samples(busy.client().get("/metrics").text)
    assert sum(name == "mqtt_queue_depth" for name, _ in found) == 1
    assert found["assay_metrics_left_out", ""] >= 1
    assert not any(name == "goqueue_group_members" for name, _ in found)


def test_the_log_of_a_program_around_is_its_own(served: Served) -> None:
    """A broker that is embedded changes no levels of its program."""
    ask = served.client()
    assert ask.get("/api/v1/log").json()["code"] == ask.put("/api/v1/log", json={"level": "error"}).json()["code"]
    assert ask.get("/api/v1/log").status_code == 501
