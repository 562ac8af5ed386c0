"""The bench page: rates per broker, the ratio to peers, the client's ceiling kept apart."""

from __future__ import annotations

import msgspec
import pytest
from report_samples import bench_run, load_run

from assay.reports.bench import bench_cases
from assay.reports.run_views import plain_metrics


def test_a_case_sets_brokers_side_by_side() -> None:
    qos0, qos1 = bench_cases(bench_run())
    assert (qos0.name, qos1.name) == ("qos0", "qos1")
    reference, mosquitto, ceiling = qos0.rows
    assert (reference.broker, reference.version, reference.ratio, reference.share) == ("reference", "0.1.0", None, 1.0)
    assert mosquitto.ratio == pytest.approx(210_000 / 61_000)
    assert mosquitto.share == pytest.approx(61_000 / 210_000)
    assert mosquitto.client_load == 0.25
    assert ceiling.is_ceiling
    assert ceiling.ratio is None
    assert ceiling.share == 1.0, "the ceiling does not set the scale"


def test_variants_of_one_broker_are_no_peers() -> None:
    metrics: dict[str, float | int | str] = {
        "reference/memory.queue.messages_per_s": 11_000.0,
        "reference/fsync.queue.messages_per_s": 10_000.0,
        "null.queue.messages_per_s": 50_000.0,
    }
    (case,) = bench_cases(msgspec.structs.replace(bench_run(), metrics=metrics))
    assert [row.ratio for row in case.rows] == [None, 1.1, None]
    assert case.peers == []


def test_a_broker_without_a_rate_gets_no_ratio() -> None:
    metrics: dict[str, float | int | str] = {"a.x.messages_per_s": 0.0, "b.x.messages_per_s": 0.0}
    (case,) = bench_cases(msgspec.structs.replace(bench_run(), metrics=metrics))
    assert [(row.ratio, row.share) for row in case.rows] == [(None, 0.0), (None, 0.0)]


def test_only_a_bench_has_bench_cases() -> None:
    assert bench_cases(load_run()) == []
    assert list(plain_metrics(bench_run())) == ["payload_bytes"]
    assert "rate_per_s" in plain_metrics(load_run())
