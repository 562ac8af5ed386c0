"""The small parts: sequence layout, transcripts, details, numbers, gauges, evidence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from report_samples import fault_run, wire_lines, write_transcript

from assay.reference_broker.trace.conformance import WireLine
from assay.reference_broker.trace.results import Check, Finding, RunKind, Severity, Verdict
from assay.reports.detail import split_detail
from assay.reports.humanise import bytes_size, check_name, duration_us, metric, plural, quantity, words
from assay.reports.run_views import check_gauge, checker_counts, evidence_table, plain_metrics
from assay.reports.sequence import MAX_MESSAGES, layout
from assay.reports.transcripts import MAX_HEX_BYTES, Transcript, hex_bytes, hex_left_out, read_transcript


def test_the_broker_stands_between_the_connections() -> None:
    sequence = layout(Transcript(lines=wire_lines(), total=8))
    assert sequence is not None
    assert [line.name for line in sequence.lifelines] == ["c1", "broker", "c2"]
    c1, broker, c2 = (line.x for line in sequence.lifelines)
    assert c1 < broker < c2 <= sequence.width
    arrows = [(message.from_x, message.to_x) for message in sequence.messages]
    assert arrows == [
        (c1, c1),
        (c1, broker),
        (broker, c1),
        (c2, c2),
        (c2, broker),
        (broker, broker),
        (broker, c2),
        (c2, c2),
    ]
    heights = [message.y for message in sequence.messages]
    assert heights == sorted(set(heights))
    assert heights[-1] < sequence.height


def test_a_long_exchange_is_drawn_in_part() -> None:
    sequence = layout(Transcript(lines=wire_lines() * 50, total=1_000))
    assert sequence is not None
    assert len(sequence.messages) == MAX_MESSAGES
    assert sequence.left_out == 1_000 - MAX_MESSAGES


def test_nothing_is_drawn_of_nothing() -> None:
    assert layout(Transcript(lines=[], total=0)) is None
    assert (
        layout(Transcript(lines=[WireLine(t_ns=0, connection="", direction="event", decoded="note")], total=1)) is None
    )


def test_a_transcript_is_read_up_to_its_first_bad_line(tmp_path: Path) -> None:
    path = tmp_path / write_transcript(tmp_path, "a.jsonl", wire_lines())
    path.write_bytes(path.read_bytes() + b'{"t_ns": "soon"}\n')
    transcript = read_transcript(path)
    assert len(transcript.lines) == 8
    assert "line 9" in transcript.problem
    assert "$.t_ns" in transcript.problem


def test_long_hex_is_cut() -> None:
    assert hex_bytes("10ff0a") == ["10", "ff", "0a"]
    long = "ab" * (MAX_HEX_BYTES + 5)
    assert len(hex_bytes(long)) == MAX_HEX_BYTES
    assert hex_left_out(long) == 5
    assert hex_left_out("ab") == 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("c1: expected CONNACK; seen PUBACK packet_id=1", ("c1", "CONNACK", "PUBACK packet_id=1")),
        ("expected PINGRESP; the broker ended the connection", ("", "PINGRESP", "the broker ended the connection")),
        ("c2: expected X; nothing arrived within 5.0 s", ("c2", "X", "nothing arrived within 5.0 s")),
    ],
)
def test_a_detail_is_split_into_expected_and_seen(text: str, parts: tuple[str, str, str]) -> None:
    detail = split_detail(text)
    assert detail is not None
    assert (detail.place, detail.expected, detail.seen) == parts


@pytest.mark.parametrize("text", ["", "known bug", "we expected better", "c1: expected CONNACK"])
def test_other_details_stay_whole(text: str) -> None:
    assert split_detail(text) is None


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (quantity(None, "ms"), "no data"),
        (quantity(float("nan"), "ms"), "no data"),
        (quantity(0, "µs"), "0 µs"),
        (quantity(2.1, "ms"), "2.10 ms"),
        (quantity(0.0021, "s"), "2.10 ms"),
        (quantity(3.44, "x"), "3.44×"),
        (quantity(0.000_000_04, "x"), "4.00e-08×"),
        (quantity(1_238.0, "1/s"), "1,238 /s"),
        (quantity(12_345.6, "messages/s"), "12,346 messages/s"),
        (duration_us(151_000), "151 ms"),
        (duration_us(3_600e6), "60 min 0 s"),
        (bytes_size(812), "812 bytes"),
        (bytes_size(4_500_000), "4.29 MiB"),
        (plural(1, "run"), "1 run"),
        (plural(2_000, "run"), "2,000 runs"),
        (words("publish_to_ack"), "publish to ack"),
        (words("mosquitto.qos1"), "mosquitto · QoS 1"),
        (words("p99.9"), "p99.9"),
    ],
)
def test_figures_read_well(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("recovery_s", 0.412, ("recovery", "412 ms")),
        ("messages_per_s", 1998.4, ("messages", "1,998 /s")),
        ("trace_hash", "9f9f", ("trace hash", "9f9f")),
        ("messages_lost", 0, ("messages lost", "0")),
        ("publish_ok_ratio", 0.992, ("publish ok ratio", "0.992")),
    ],
)
def test_metrics_name_their_unit(key: str, value: float | str, expected: tuple[str, str]) -> None:
    assert metric(key, value) == expected


def test_a_check_does_not_say_its_unit_twice() -> None:
    assert check_name("publish_gap_max_s", "s") == "publish gap max"
    assert check_name("publish_gap_max_s", "ms") == "publish gap max s"
    assert check_name("client headroom, QoS 0", "x") == "client headroom, QoS 0"


def test_figures_are_told_once() -> None:
    run = fault_run(RunKind.FAULTS)
    repeated: dict[str, float | int | str] = {**run.metrics, "publish_to_deliver_p99_ms": 92.0, "phantom": 3}
    run = msgspec.structs.replace(run, metrics=repeated)
    assert checker_counts(run) == [("lost", 0), ("phantom", 3)]
    assert not {"publish_to_deliver_p99_ms", "lost", "phantom"} & set(plain_metrics(run))
    assert "recovery_max_s" in plain_metrics(run)


def test_a_gauge_sets_the_figure_against_its_bound() -> None:
    gauge = check_gauge(Check(name="a", value=5, unit="ms", bound=10, relation="<", verdict=Verdict.PASS))
    assert gauge is not None
    assert (gauge.value, gauge.bound, gauge.overflow) == (0.25, 0.5, False)
    beyond = check_gauge(Check(name="a", value=500, unit="ms", bound=10, relation="<", verdict=Verdict.FAIL))
    assert beyond is not None
    assert (beyond.value, beyond.overflow) == (1.0, True)


@pytest.mark.parametrize(
    "check",
    [
        Check(name="none", value=None, unit="ms", bound=10, relation="<"),
        Check(name="free", value=5, unit="ms"),
        Check(name="zero", value=5, unit="", bound=0, relation="=="),
        Check(name="nan", value=float("nan"), unit="", bound=1, relation="<"),
    ],
    ids=lambda check: check.name,
)
def test_no_gauge_where_a_length_says_nothing(check: Check) -> None:
    assert check_gauge(check) is None


def test_evidence_of_unlike_events_shares_one_table() -> None:
    finding = Finding(
        checker="lost",
        anomaly="A1",
        severity=Severity.SAFETY,
        message="",
        evidence=[{"value": "p1-1", "index": 3, "time_ns": 1_500_000}, {"index": 4, "redelivered": True}],
    )
    table = evidence_table(finding)
    assert table.head == ["index", "time", "value", "redelivered"]
    assert table.rows == [["3", "1.500 ms", "p1-1", ""], ["4", "", "", "yes"]]
