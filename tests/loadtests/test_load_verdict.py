"""A load run is judged by all that was due: what is missing, and the generator's own delay, only widen a figure."""

from __future__ import annotations

import numpy as np
import pytest

from assay.loadtests.ledger import Ledger, PublisherLog
from assay.loadtests.profile import Profile, parse_profile
from assay.loadtests.recorder import Samples, collect, merged
from assay.loadtests.verdict import (
    GeneratorState,
    Tally,
    checks,
    generator_checks,
    per_second,
    steady_p99,
    steady_percentiles,
    tally,
)
from assay.reference_broker.trace.results import Check, Verdict
from assay.reference_broker.trace.schema import LatencyOperation

MS = 1_000_000
ENDED_NS = 30_000 * MS
TRUSTED = GeneratorState(lateness_p99_ms=0.1, late_starts=0, headroom=5.0)


def _profile(*, qos: int = 1, kind: str = "pubsub", p99_ms: float = 5.0) -> Profile:
    load = {"kind": kind, "name": "w", "arrivals": {"shape": "constant", "rate_per_s": 100}}
    return parse_profile(
        {
            "name": "test",
            "phases": {"warmup_s": 1.0, "steady_s": 10.0, "cooldown_s": 0.5},
            "workloads": [load | ({"qos": qos} if kind == "pubsub" else {})],
            "targets": [{"operation": "publish_to_deliver", "p99_ms": p99_ms}],
        }
    )


def _log(*, qos: int = 1, latency_ms: float = 2, late_ms: float = 0, stall_ms: float = 0) -> PublisherLog:
    """A message every 10 ms for 11.5 s; a stall holds up the deliveries of the sixth second."""
    log = PublisherLog(
        name="w-p0",
        number=0,
        workload="w",
        qos=qos,
        copies=1,
        settles=False,
        intended_ns=np.arange(1_150, dtype=np.int64) * 10 * MS,
        protocol="mqtt5",
    )
    for seq, intended_ns in enumerate(log.intended_ns):
        offered = intended_ns + int(late_ms * MS) + 1
        stalled = int(stall_ms * MS) if 500 <= seq < 600 else 0
        log.offered_ns[seq] = log.sent_ns[seq] = offered
        log.acked_ns[seq] = offered + int(latency_ms * MS) + stalled
        log.delivered_ns[0][seq] = offered + int(latency_ms * MS) + stalled
    return log


def _judge(
    log: PublisherLog, profile: Profile, state: GeneratorState = TRUSTED, null_ms: float = 0.0
) -> dict[str, Check]:
    samples = _samples(log)
    counted = _tally(log, profile, samples)
    groups = merged(samples)
    null = dict.fromkeys(groups, null_ms)
    return {check.name: check for check in checks(profile, [counted], samples, groups, state, null)}


def _samples(log: PublisherLog) -> list[Samples]:
    return collect(Ledger(b"12345678", [log]), ended_ns=ENDED_NS)


def _tally(log: PublisherLog, profile: Profile, samples: list[Samples]) -> Tally:
    class Recorded:
        ledger = Ledger(b"12345678", [log])

    return tally(profile.workloads[0], samples, Recorded())  # type: ignore[arg-type]


P99 = "w: publish to deliver, p99"
RATE = "w: deliveries per second"


def test_a_clean_run_passes_and_says_what_was_judged() -> None:
    found = _judge(_log(), _profile())
    assert {check.verdict for check in found.values()} == {Verdict.PASS}
    assert found[P99].subject == "workload w, no queue, mqtt5"
    assert found[P99].value == pytest.approx(2.0, abs=0.001)


@pytest.mark.parametrize(("kept", "verdict"), [(3, Verdict.UNKNOWN), (100, Verdict.UNKNOWN), (995, Verdict.PASS)])
def test_a_latency_passes_only_on_nearly_all_that_was_due(kept: int, verdict: Verdict) -> None:
    log = _log(qos=0)
    for seq in range(100 + kept, 1_100):
        log.delivered_ns[0][seq] = 0
    check = _judge(log, _profile(qos=0))[P99]
    assert check.verdict is verdict
    assert check.value == pytest.approx(2.0, abs=0.001)
    if verdict is Verdict.UNKNOWN:
        assert check.reason.startswith(f"{kept} of 1,000 due were answered")


def test_nothing_answered_is_unknown_and_says_so() -> None:
    log = _log(qos=0)
    for seq in range(len(log)):
        log.delivered_ns[0][seq] = 0
    found = _judge(log, _profile(qos=0))
    assert (found[P99].verdict, found[P99].value) == (Verdict.UNKNOWN, None)
    assert "none of 1,000 due" in found[P99].reason
    assert found[RATE].verdict is Verdict.FAIL
    assert found["w: out of order"].verdict is Verdict.UNKNOWN, "no delivery, so nothing is in order"
    assert found["w: lost"].bound is None, "at QoS 0 a loss is told, not held to a bound"


@pytest.mark.parametrize(
    ("latency_ms", "null_ms", "verdict"),
    [
        (30, 28, Verdict.UNKNOWN),
        (90, 20, Verdict.UNKNOWN),  # a machine on which nobody could hold the bound
        (120, 20, Verdict.FAIL),  # six times as much as a broker that does nothing
        (30, 2.4, Verdict.FAIL),
        (12, 2.6, Verdict.UNKNOWN),
        (6, 0.5, Verdict.FAIL),
        (2, 28, Verdict.PASS),
    ],
)
def test_a_machine_on_which_nobody_is_faster_excuses_a_miss(
    latency_ms: float, null_ms: float, verdict: Verdict
) -> None:
    """At a load of 40 the demo accused the broker of what starved it and the null broker alike."""
    check = _judge(_log(latency_ms=latency_ms), _profile(), null_ms=null_ms)[P99]
    assert check.verdict is verdict
    assert ("a broker that does nothing needed" in check.reason) == (verdict is Verdict.UNKNOWN)


@pytest.mark.parametrize(
    ("latency_ms", "late_ms", "verdict"),
    [
        (96, 54, Verdict.FAIL),  # 150 ms instead of 5: the generator's 54 ms explain little of it
        (4, 54, Verdict.UNKNOWN),
        (6, 0, Verdict.FAIL),
        (2, 2, Verdict.PASS),
    ],
)
def test_a_late_generator_excuses_no_more_than_its_lateness(
    latency_ms: float, late_ms: float, verdict: Verdict
) -> None:
    state = GeneratorState(lateness_p99_ms=late_ms, late_starts=1_000, headroom=0.5)
    check = _judge(_log(latency_ms=latency_ms, late_ms=late_ms), _profile(), state)[P99]
    assert check.verdict is verdict
    assert ("the generator itself was 54" in check.reason) == (verdict is Verdict.UNKNOWN)


def test_a_broker_without_room_is_not_excused_as_a_late_generator() -> None:
    """What waits in the client for the broker's acknowledgements was offered in time."""
    log = _log(latency_ms=2)
    for seq in range(len(log)):
        log.sent_ns[seq] += 50 * MS
        log.delivered_ns[0][seq] += 50 * MS
    assert _judge(log, _profile())[P99].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("headroom", "kept", "verdict"),
    [
        (5.0, 2, Verdict.FAIL),
        (0.8, 2, Verdict.UNKNOWN),  # half of the rate: the generator may not have managed more itself
        (0.8, 5, Verdict.FAIL),  # a fifth: with the null broker it managed twice that twice over
        (None, 2, Verdict.FAIL),
        (0.8, 1, Verdict.PASS),
    ],
)
def test_a_missed_rate_is_excused_by_no_more_than_the_generators_ceiling(
    headroom: float | None, kept: int, verdict: Verdict
) -> None:
    log = _log(qos=0)
    for seq in range(len(log)):
        if seq % kept:
            log.delivered_ns[0][seq] = 0
    state = GeneratorState(lateness_p99_ms=0.1, late_starts=0, headroom=headroom)
    assert _judge(log, _profile(qos=0), state)[RATE].verdict is verdict


def test_percentiles_tell_what_is_missing_from_them() -> None:
    log = _log()
    for seq in (100, 500, 1_120):
        log.delivered_ns[0][seq] = 0
    groups = merged(_samples(log))
    profile = _profile()
    key = ("w", LatencyOperation.PUBLISH_TO_DELIVER, 1)
    figures = steady_percentiles(groups, profile.phases)
    assert (figures[key].count, figures[key].missing) == (998, 2)
    assert steady_p99(groups[key], profile.phases).missing == 2


def test_a_stall_shows_as_a_hole_in_the_rate() -> None:
    lines = per_second(_profile(), merged(_samples(_log(stall_ms=1_000))))
    (rate,) = (line for line in lines if line.group == "rate" and "deliver" in line.name)
    assert rate.y[4] == 100
    assert rate.y[5] is not None
    assert rate.y[5] < 5, "nothing came in the sixth second"
    assert rate.y[6] is not None
    assert rate.y[6] > 195
    assert rate.y[11] is None, "the last half second is no second"
    assert not [line for line in lines if line.group == "due and never answered"]


def test_a_second_in_which_messages_were_lost_has_no_flattering_p99() -> None:
    log = _log()
    for seq in range(300, 310):
        log.delivered_ns[0][seq] = 0
    lines = per_second(_profile(), merged(_samples(log)))
    by_group = {line.group: line for line in lines if "deliver" in line.name}
    assert by_group["latency p99"].y[3] is None
    assert by_group["latency p99"].y[2] == pytest.approx(2.0, abs=0.001)
    assert by_group["due and never answered"].y[3] == 10


def test_the_generator_is_told_apart_from_the_broker() -> None:
    late = GeneratorState(lateness_p99_ms=54.0, late_starts=3, headroom=1.0)
    assert [check.verdict for check in generator_checks(late)] == [Verdict.UNKNOWN, Verdict.UNKNOWN]
    assert [check.verdict for check in generator_checks(TRUSTED)] == [Verdict.PASS, Verdict.PASS]
    assert all(check.reason for check in generator_checks(late))
