"""Small but whole run folders, built from the schemas themselves, for every test of the reports."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec

from assay.reference_broker.trace.conformance import (
    CaseResult,
    CaseVerdict,
    Clause,
    ClauseStatus,
    Footer,
    Header,
    Line,
    WireLine,
)
from assay.reference_broker.trace.results import (
    Band,
    Check,
    Finding,
    Machine,
    Percentiles,
    RunKind,
    RunResult,
    Series,
    Severity,
    Verdict,
    write_result,
)

MACHINE = Machine(platform="Linux-6.1-x86_64", python="3.11.2", cpus=2)

_CASES = (
    ("mqtt311/connect/first-packet-must-be-connect", "A first packet other than CONNECT ends the connection", "MUST"),
    ("mqtt311/publish/qos-1-is-acknowledged", "A PUBLISH of QoS 1 is answered by its PUBACK", "MUST"),
    ("mqtt5/connect/second-connect-is-an-error", "A second CONNECT ends the connection", "MUST"),
    ("mqtt5/connect/client-id-may-be-empty", "A zero-length client identifier gets an assigned one", "MAY"),
    ("mqtt5/publish/topic-alias-zero", "A topic alias of 0 is a protocol error", "MUST"),
    ("mqtt5/session/expiry-is-kept", "A session is kept until its expiry interval has passed", "MUST"),
    ("mqtt5/shared/no-local-is-refused", "No Local on a shared subscription is a protocol error", "MUST"),
    ("mqtt5/will/delayed-will", "A will is sent only after its delay", "SHOULD"),
)


def case_result(case: str, verdict: CaseVerdict = CaseVerdict.PASS, **fields: object) -> CaseResult:
    """A result of one case; ``fields`` replace what would be there otherwise."""
    spec, area, slug = case.split("/")
    base = CaseResult(
        case=case,
        title=slug.replace("-", " "),
        spec=spec,
        area=area,
        clauses=["MQTT-3.1.0-1"],
        level="MUST",
        verdict=verdict,
        duration_ms=12.5,
        reproduce=f"assay conformance run --target reference --case {case}",
    )
    return msgspec.structs.replace(base, **fields)


def write_report(folder: Path, lines: list[Line]) -> Path:
    """Write a ``report.jsonl``; the transcripts are the caller's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def write_transcript(folder: Path, name: str, lines: list[WireLine]) -> str:
    """Write a transcript; returns its path relative to ``folder``."""
    path = folder / "transcripts" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return f"transcripts/{name}"


def clauses() -> list[Clause]:
    """A tested, an untested and an untestable clause of each version; one id means another thing in each."""
    return [
        Clause(
            spec="mqtt311",
            id="MQTT-3.1.0-1",
            level="MUST",
            role="client",
            section="3.1.0",
            sentence="After the network connection is up, the first packet from the client is a CONNECT.",
            status=ClauseStatus.TESTED,
            cases=["mqtt311/connect/first-packet-must-be-connect", "mqtt311/publish/qos-1-is-acknowledged"],
        ),
        Clause(
            spec="mqtt5",
            id="MQTT-3.1.0-1",
            level="MUST",
            role="client",
            section="3.1.0",
            sentence="A client opens with CONNECT and with nothing else.",
            status=ClauseStatus.TESTED,
            cases=[case for case, _, _ in _CASES if case.startswith("mqtt5/")],
        ),
        Clause(
            spec="mqtt5",
            id="MQTT-4.9.0-3",
            level="SHOULD",
            role="server",
            section="4.9",
            sentence="Flow control does not hold back packets other than PUBLISH.",
            status=ClauseStatus.UNTESTED,
        ),
        Clause(
            spec="mqtt5",
            id="MQTT-4.1.0-1",
            level="MUST",
            role="both",
            section="4.1",
            sentence="Session state is not thrown away while the network connection is open.",
            status=ClauseStatus.UNTESTABLE,
            reason="Only the broker can see when its own memory is released.",
        ),
    ]


def wire_lines() -> list[WireLine]:
    """An exchange over two connections."""
    return [
        WireLine(t_ns=11_000, connection="c1", direction="event", decoded="connection opened"),
        WireLine(
            t_ns=52_000,
            connection="c1",
            direction="send",
            hex="101000044d5154540502003c0000036162" + "63" * 3,
            decoded="CONNECT client_id='abc', clean=True, keep_alive_s=60",
        ),
        WireLine(t_ns=431_000, connection="c1", direction="recv", hex="2003000000", decoded="CONNACK"),
        WireLine(t_ns=480_000, connection="c2", direction="event", decoded="connection opened"),
        WireLine(t_ns=502_000, connection="c2", direction="send", hex="c000", decoded="PINGREQ"),
        WireLine(t_ns=533_000, connection="", direction="event", decoded="the case waits for the end"),
        WireLine(t_ns=900_000, connection="c2", direction="recv", hex="e000", decoded="DISCONNECT"),
        WireLine(t_ns=912_000, connection="c2", direction="event", decoded="the broker ended the stream"),
    ]


def write_conformance(folder: Path, target: str, verdicts: dict[str, CaseVerdict], *, cut: bool = False) -> None:
    """A conformance run of the sample cases, ``pass`` unless ``verdicts`` says otherwise."""
    results = []
    for case, title, level in _CASES:
        verdict = verdicts.get(case, CaseVerdict.PASS)
        detail = {
            CaseVerdict.FAIL: "c2: expected the broker to end the connection; seen PINGRESP",
            CaseVerdict.NON_STRICT: "c1: expected a DISCONNECT with a reason code; the broker ended the connection",
            CaseVerdict.UNSUPPORTED: "needs shared_subscriptions, which CONNACK declares absent",
            CaseVerdict.XFAIL: "known: the will is sent at once",
            CaseVerdict.NOT_RUN: "the run was asked to stop",
        }.get(verdict, "")
        results.append(
            case_result(
                case,
                verdict,
                title=title,
                level=level,
                detail=detail,
                expectation="The case sends a packet that the clause forbids.\n\nIt expects the end.",
                link="https://example.org/issues/7" if verdict is CaseVerdict.XFAIL else "",
                transcript=write_transcript(folder, f"{case.replace('/', '_')}.jsonl", wire_lines()),
            )
        )
    header = Header(
        target=target,
        target_version="2.0.11" if target == "mosquitto" else "0.1.0",
        started_at="2026-03-01T10:00:00Z",
        suite_version="0.1.0",
        seed=7,
        capabilities={"shared_subscriptions": target != "mosquitto", "receive_maximum": 20},
        machine=MACHINE,
    )
    counts = {verdict.value: sum(1 for row in results if row.verdict is verdict) for verdict in CaseVerdict}
    failed = any(row.verdict in {CaseVerdict.FAIL, CaseVerdict.XPASS} for row in results)
    footer = [] if cut else [Footer(counts=counts, exit_code=int(failed), duration_s=3.2)]
    write_report(folder, [header, *clauses(), *results, *footer])
    if not cut:
        result = RunResult(
            kind=RunKind.CONFORMANCE,
            name="mqtt",
            target=target,
            verdict=Verdict.FAIL if failed else Verdict.PASS,
            summary=f"{counts['pass']} of {len(results)} cases pass on {target}.",
            seed=7,
            started_at="2026-03-01T10:00:00Z",
            duration_s=3.2,
            command=f"assay conformance run --target {target}",
            machine=MACHINE,
        )
        write_result(folder, result)


def fault_run(kind: RunKind, *, verdict: Verdict = Verdict.PASS) -> RunResult:
    """A scenario with one crash and one cut; with ``fail``, a message is lost."""
    rng = random.Random(kind.value)
    moments = [index / 4 for index in range(80)]

    def during_fault(x: float) -> bool:
        return 5 <= x < 7 or 12 <= x < 14

    rate: list[float | None] = [0.0 if during_fault(x) else 480 + rng.random() * 60 for x in moments]
    p99: list[float | None] = [
        None if 5 <= x < 7 else (90_000 if during_fault(x) else 900) * (1 + rng.random()) for x in moments
    ]
    lost = Finding(
        checker="lost",
        anomaly="A1",
        severity=Severity.SAFETY,
        message="p1-17 was confirmed and never delivered",
        values=["p1-17"],
        evidence=[
            {
                "index": 41,
                "time_ns": 5_012_000_000,
                "process": "p1",
                "f": "publish",
                "type": "invoke",
                "value": "p1-17",
            },
            {"index": 44, "time_ns": 5_013_500_000, "process": "p1", "f": "publish", "type": "ok", "value": "p1-17"},
        ],
    )
    slow = Finding(
        checker="redelivery_without_cause",
        anomaly="A4",
        severity=Severity.QUALITY,
        message="two values were delivered again although nothing had failed",
        values=["p1-3", "p1-4"],
    )
    world = "sim" if kind is RunKind.SIM else "real"
    return RunResult(
        kind=kind,
        name="crash-and-cut",
        verdict=verdict,
        summary="1 confirmed message was lost."
        if verdict is Verdict.FAIL
        else "2,000 messages, none lost or repeated.",
        world=world,
        seed=42,
        started_at="2026-03-01T10:01:00Z",
        duration_s=20.0,
        command=f"assay {kind.value} run scenarios/crash-and-cut.yaml --seed 42",
        findings=[lost, slow] if verdict is Verdict.FAIL else [slow],
        metrics={
            "messages": 2_000,
            "recovery_max_s": 0.412,
            "lost": 0,
            "trace_hash": "9f" * 16,
            "sim_real_ratio": 38.4,
        },
        series=[
            Series(name="published", unit="messages/s", x_s=moments, y=rate, group="rate"),
            Series(name="delivered", unit="messages/s", x_s=moments, y=[(y or 0) * 0.98 for y in rate], group="rate"),
            Series(
                name="publish to deliver p50", unit="µs", x_s=moments, y=[y and y / 3 for y in p99], group="latency"
            ),
            Series(name="publish to deliver p99", unit="µs", x_s=moments, y=p99, group="latency"),
        ],
        bands=[Band(label="kill -9 broker", from_s=5, to_s=7), Band(label="cut network", from_s=12, to_s=14)],
        percentiles=[
            Percentiles(
                name="publish_to_deliver",
                count=2_000,
                p50_us=310,
                p90_us=620,
                p99_us=92_000,
                p999_us=140_000,
                max_us=151_000,
            )
        ],
        machine=MACHINE,
    )


def load_run(*, verdict: Verdict = Verdict.PASS) -> RunResult:
    """An open-loop load run with targets."""
    moments = [float(second) for second in range(30)]
    return RunResult(
        kind=RunKind.LOAD,
        name="steady-2k",
        verdict=verdict,
        summary="2,000 messages per second for 30 s; publish p99 is 2.10 ms.",
        world="real",
        seed=1,
        duration_s=30,
        command="assay load run --rate 2000 --seconds 30",
        checks=[
            Check(
                name="publish p99",
                value=2.1 if verdict is Verdict.PASS else 12.1,
                unit="ms",
                bound=10,
                relation="<",
                verdict=verdict,
                source="targets.yaml",
            ),
            Check(
                name="messages lost", value=0, unit="", bound=0, relation="==", verdict=Verdict.PASS, source="contract"
            ),
            Check(name="generator headroom", value=4.4, unit="×", bound=2, relation=">=", verdict=Verdict.PASS),
        ],
        metrics={"rate_per_s": 1998.4, "lateness_p99_us": 210, "null_broker_rate_per_s": 8_810, "messages": 59_952},
        percentiles=[
            Percentiles(
                name="publish_to_ack", count=59_952, p50_us=402, p90_us=700, p99_us=2_100, p999_us=4_800, max_us=9_300
            ),
            Percentiles(
                name="publish_to_deliver",
                count=59_952,
                p50_us=505,
                p90_us=910,
                p99_us=2_900,
                p999_us=6_000,
                max_us=11_000,
            ),
        ],
        series=[
            Series(
                name="p50", unit="µs", x_s=moments, y=[400 + 30 * math.sin(x) for x in moments], group="publish to ack"
            ),
            Series(
                name="p99",
                unit="µs",
                x_s=moments,
                y=[2000 + 300 * math.cos(x) for x in moments],
                group="publish to ack",
            ),
            Series(name="acknowledged", unit="messages/s", x_s=moments, y=[2000.0] * 30, group="rate"),
        ],
        machine=MACHINE,
    )


def bench_run() -> RunResult:
    return RunResult(
        kind=RunKind.BENCH,
        name="mqtt",
        verdict=Verdict.PASS,
        summary="3.4 times Mosquitto at QoS 0.",
        target="reference, mosquitto",
        metrics={
            "payload_bytes": 100,
            "reference.version": "0.1.0",
            "reference.qos0.messages_per_s": 210_000.0,
            "reference.qos0.client_load": 0.5,
            "reference.qos1.messages_per_s": 68_000.0,
            "mosquitto.version": "2.0.11",
            "mosquitto.qos0.messages_per_s": 61_000.0,
            "mosquitto.qos0.client_load": 0.25,
            "mosquitto.qos1.messages_per_s": 20_500.0,
            "null.qos0.messages_per_s": 900_000.0,
        },
        checks=[
            Check(name="QoS 0 over Mosquitto", value=3.44, unit="×", bound=3, relation=">=", verdict=Verdict.PASS),
            Check(name="QoS 1 over Mosquitto", value=3.32, unit="×", bound=3, relation=">=", verdict=Verdict.PASS),
        ],
        command="assay bench mqtt",
        machine=MACHINE,
    )


def self_check_run() -> RunResult:
    mutants = ("ping-before-connect", "second-connect-accepted", "alias-zero-accepted", "session-dropped", "no-puback")
    return RunResult(
        kind=RunKind.SELF_CHECK,
        name="mutants",
        verdict=Verdict.FAIL,
        summary="4 of 5 mutants were killed.",
        metrics={"mutants": 5, "killed": 4, "survived": 1},
        checks=[
            Check(
                name=name,
                value=float(name != "session-dropped"),
                unit="",
                verdict=Verdict.FAIL if name == "session-dropped" else Verdict.PASS,
                source="mqtt5/session/expiry-is-kept",
            )
            for name in mutants
        ],
        command="assay conformance self-check",
        machine=MACHINE,
    )


def spark_run() -> RunResult:
    return RunResult(
        kind=RunKind.SPARK,
        name="verdicts",
        verdict=Verdict.UNKNOWN,
        summary="One target has no data.",
        world="steady-2k",
        checks=[
            Check(
                name="publish p99", value=2.1, unit="ms", bound=10, relation="<", verdict=Verdict.PASS, source="seed"
            ),
            Check(name="consume p99", value=None, unit="ms", bound=5, relation="<", source="seed"),
        ],
        metrics={"samples": 59_952},
        artefacts={"notebook": "latency.html"},
        command="assay spark verdicts out/load",
        machine=MACHINE,
    )


def write_sample_runs(root: Path) -> Path:
    """Fills a folder with a run of every kind and of every case verdict; returns it."""
    write_conformance(root / "conformance" / "reference", "reference", {})
    write_conformance(
        root / "conformance" / "mosquitto",
        "mosquitto",
        {
            "mqtt5/connect/second-connect-is-an-error": CaseVerdict.FAIL,
            "mqtt5/publish/topic-alias-zero": CaseVerdict.NON_STRICT,
            "mqtt5/shared/no-local-is-refused": CaseVerdict.UNSUPPORTED,
            "mqtt5/will/delayed-will": CaseVerdict.XFAIL,
            "mqtt5/connect/client-id-may-be-empty": CaseVerdict.XPASS,
            "mqtt311/publish/qos-1-is-acknowledged": CaseVerdict.ERROR,
            "mqtt5/session/expiry-is-kept": CaseVerdict.NOT_RUN,
        },
    )
    write_result(root / "self-check", self_check_run())
    write_result(root / "sim", fault_run(RunKind.SIM))
    write_result(root / "faults", fault_run(RunKind.FAULTS, verdict=Verdict.FAIL))
    write_result(root / "load", load_run())
    write_result(root / "bench", bench_run())
    write_result(root / "spark", spark_run())
    (root / "spark" / "latency.html").write_text("<!doctype html><title>notebook</title>")
    return root
