"""Profiles are strict: every mistake is named by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.conformance.targets import TargetError
from assay.loadtests.endpoint import find_target, has_queues, parse_endpoint
from assay.loadtests.generator import make_logs
from assay.loadtests.profile import MAX_CONNECTIONS, ProfileError, load_profile, parse_profile, shipped_profiles
from assay.loadtests.runner import asked_rate_per_s


def _data(**changes: Any) -> dict[str, Any]:
    workload = {"kind": "pubsub", "name": "w", "arrivals": {"rate_per_s": 10}, **changes.pop("workload", {})}
    return {"name": "p", "workloads": [workload], **changes}


def test_every_shipped_profile_loads_and_says_what_it_does() -> None:
    assert {"smoke", "ramp", "burst", "fanout", "queue"} <= set(shipped_profiles())
    for name in shipped_profiles():
        profile = load_profile(name)
        assert profile.name == name
        assert profile.description
        assert asked_rate_per_s(profile) > 0


def test_smoke_covers_every_qos_and_a_queue_in_about_twelve_seconds() -> None:
    profile = load_profile("smoke")
    kinds = {(type(load).__name__, load.qos) for load in profile.workloads}
    assert kinds == {("PubSubLoad", 0), ("PubSubLoad", 1), ("PubSubLoad", 2), ("QueueLoad", 1)}
    assert profile.phases.total_s + profile.baseline.steady_s < 10
    operations = {target.operation.value: target.p99_ms for target in profile.targets}
    assert operations == {"publish_to_ack": 10, "publish_to_deliver": 5}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (_data(extra=1), "unknown field `extra`"),
        (_data(workload={"rate": 1}), r"unknown field `rate` - at `\$.workloads"),
        (_data(workload={"kind": "amqp"}), "amqp"),
        (_data(workload={"qos": 3}), r"workloads.w.qos must be 0, 1 or 2, not 3"),
        (_data(workload={"version": 3}), r"workloads.w.version"),
        (_data(workload={"payload_bytes": 10}), r"workloads.w.payload_bytes must be 28"),
        (_data(workload={"publishers": 0}), "at least 1"),
        (_data(workload={"publishers": MAX_CONNECTIONS}), "connections; at most"),
        (_data(workload={"arrivals": {"rate_per_s": 0}}), "workloads.w.arrivals: rate_per_s must be above 0"),
        (_data(workload={"arrivals": {"rate_per_s": 1e6}}), "deliveries; at most"),
        (_data(phases={"steady_s": 0}), "steady_s must be above 0"),
        (_data(workloads=[]), "at least one"),
        (_data(targets=[{"operation": "publish_to_ack", "p99_ms": 1, "workloads": ["x"]}]), "unknown workloads: x"),
    ],
)
def test_mistakes_are_named(data: dict[str, Any], text: str) -> None:
    with pytest.raises(ProfileError, match=text):
        parse_profile(data)


def test_missing_profiles_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="smoke"):
        load_profile("smok")
    with pytest.raises(ProfileError, match="cannot read"):
        load_profile(str(tmp_path / "none.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(ProfileError, match="is not YAML"):
        load_profile(str(broken))


def test_the_schedule_is_a_function_of_the_seed() -> None:
    profile = load_profile("smoke")
    first, again, other = (make_logs(profile, seed) for seed in (1, 1, 2))
    assert [log.intended_ns for log in first] == [log.intended_ns for log in again]
    assert [log.intended_ns for log in first] != [log.intended_ns for log in other]


def test_a_part_of_a_profile_keeps_its_targets() -> None:
    profile = load_profile("burst").only(["burst"])
    assert [load.name for load in profile.workloads] == ["burst"]
    assert [target.workloads for target in profile.targets] == [("burst",)]


def test_targets_are_found_by_name_and_url() -> None:
    assert has_queues(find_target("reference"))
    assert not has_queues(find_target("mosquitto"))
    assert has_queues(find_target("mqtt://127.0.0.1:1", queues=True))
    endpoint = parse_endpoint("mqtt://user:p%40ss@localhost")
    assert (endpoint.host, endpoint.port, endpoint.username, endpoint.password) == ("localhost", 1883, "user", "p@ss")
    for wrong in ("http://localhost", "mqtt://", "mqtt://h:99999", "mqtt://h/path"):
        with pytest.raises(TargetError):
            parse_endpoint(wrong)


def test_every_rate_can_be_multiplied_within_the_limits() -> None:
    profile = load_profile("smoke")
    faster = profile.faster(2.5)
    assert [load.arrivals.rate_per_s for load in faster.workloads] == [
        2.5 * load.arrivals.rate_per_s for load in profile.workloads
    ]
    assert load_profile("ramp").faster(0.5).workloads[0].arrivals.end_rate_per_s > 0
    with pytest.raises(ProfileError, match="1000 times the rates of queue"):
        load_profile("queue").faster(1_000)
