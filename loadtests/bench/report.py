"""A bench run as a table for people and as a :class:`RunResult`."""

from __future__ import annotations

from rich.table import Table

from loadtests.bench.mqtt import CLIENT_LOAD_MAX, HEADROOM_MIN, NULL, BenchRun, Case
from loadtests.machine import this_machine
from reference_broker.trace.results import Check, RunKind, RunResult, Series, Verdict, worst

TITLES = {
    Case.QOS_0: "QoS 0",
    Case.QOS_1: "QoS 1",
    Case.QOS_2: "QoS 2",
    Case.QUEUE: "queue, to $ack",
}
AIM_CASES = (Case.QOS_0, Case.QOS_1)
"""The project aims at a multiple of the peer's rate at QoS 0 and 1 only."""


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value / 1_000:,.1f}k"


def _spread(rates: list[float]) -> str:
    return f"{min(rates) / 1_000:,.0f}-{max(rates) / 1_000:,.0f}k" if rates else "-"


def table(bench: BenchRun) -> Table:
    """Medians, spread, client load and ratio to the second peer, a row per broker below each case."""
    plan = bench.plan
    title = (
        f"Messages per second, {plan.payload_bytes}-byte payload, 1 publisher, 1 subscriber, window {plan.window}, "
        f"{plan.in_flight} in flight, median of {plan.rounds} interleaved rounds"
    )
    versions = ", ".join(f"{name} {bench.versions[name]}".strip() for name in bench.peers)
    caption = f"{versions}; null: the client's own ceiling"
    found = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    found.add_column("case and broker", no_wrap=True)
    for name in ("median/s", "range", "ratio", "per CPU s", "client"):
        found.add_column(name, justify="right", no_wrap=True)
    baseline = bench.peers[1] if len(bench.peers) > 1 else ""
    for case in plan.cases:
        found.add_row(f"[bold]{TITLES[case]}[/]")
        for peer in [*bench.peers, NULL]:
            share = bench.client_share(peer, case)
            ratio = bench.ratio(peer, baseline, case) if baseline and case is not Case.QUEUE else None
            found.add_row(
                f"  {peer}",
                _rate(bench.median_per_s(peer, case)),
                _spread(bench.rates_per_s(peer, case)),
                "-" if ratio is None else f"{ratio:.1f}x",
                _rate(bench.per_cpu_second(peer, case)),
                "-" if share is None else f"{share:.0%}",
            )
        found.add_section()
    return found


def checks(bench: BenchRun, *, aim: float = 0.0) -> list[Check]:
    """The client's headroom in every case; with ``aim`` > 0 also the first peer's ratio to the second."""
    found = []
    for case in bench.plan.cases:
        headroom, load = bench.headroom(case), bench.client_share(bench.fastest(case), case)
        # The null broker is Python too: where it is slow, an idle client still proves that it is not the limit.
        enough = (headroom is not None and headroom >= HEADROOM_MIN) or (load is not None and load < CLIENT_LOAD_MAX)
        found.append(
            Check(
                name=f"client headroom, {TITLES[case]}",
                value=headroom,
                unit="x",
                bound=HEADROOM_MIN,
                relation=">=",
                # A client without headroom says nothing about the brokers: unknown, not failed.
                verdict=Verdict.PASS if enough else Verdict.UNKNOWN,
                source=(
                    f"null broker in the same run; or a client load below {CLIENT_LOAD_MAX:.0%}, "
                    f"measured {'none' if load is None else f'{load:.0%}'}"
                ),
            )
        )
    if aim > 0 and len(bench.peers) > 1:
        first, second = bench.peers[:2]
        for case in bench.plan.cases:
            ratio = bench.ratio(first, second, case)
            if case in AIM_CASES and ratio is not None:
                found.append(
                    Check(
                        name=f"{first} / {second}, {TITLES[case]}",
                        value=ratio,
                        unit="x",
                        bound=aim,
                        relation=">=",
                        verdict=Verdict.PASS if ratio >= aim else Verdict.FAIL,
                        source="aim of the bench (--aim)",
                    )
                )
    return found


def result(bench: BenchRun, *, command: str, aim: float = 0.0) -> RunResult:
    """The run in the schema of all verdicts. Metrics are named ``<peer>.<case>.messages_per_s``."""
    metrics: dict[str, float | int | str] = {
        "payload_bytes": bench.plan.payload_bytes,
        "window": bench.plan.window,
        "in_flight": bench.plan.in_flight,
        "rounds": bench.plan.rounds,
    }
    series = []
    for peer in [*bench.peers, NULL]:
        metrics[f"{peer}.version"] = bench.versions.get(peer, "")
        for case in bench.plan.cases:
            rates = bench.rates_per_s(peer, case)
            metrics[f"{peer}.{case}.messages_per_s"] = round(bench.median_per_s(peer, case) or 0.0, 1)
            metrics[f"{peer}.{case}.messages_per_cpu_s"] = round(bench.per_cpu_second(peer, case) or 0.0, 1)
            metrics[f"{peer}.{case}.client_load"] = round(bench.client_share(peer, case) or 0.0, 3)
            if peer != NULL:
                rounds = [float(number) for number in range(len(rates))]
                y: list[float | None] = [*rates]
                series.append(Series(name=peer, unit="messages/s", x_s=rounds, y=y, group=f"{TITLES[case]} by round"))
    for peer, reason in bench.skipped.items():
        metrics[f"{peer}.skipped"] = reason
    judged = checks(bench, aim=aim)
    best = ", ".join(
        f"{TITLES[case]} {_rate(bench.median_per_s(bench.peers[0], case))}/s"
        for case in bench.plan.cases
        if bench.peers
    )
    return RunResult(
        kind=RunKind.BENCH,
        name="bench mqtt",
        verdict=worst([check.verdict for check in judged]) if bench.peers else Verdict.UNKNOWN,
        summary=f"{bench.peers[0]}: {best}" if bench.peers else "no broker could be measured",
        target=", ".join(bench.peers),
        world="real",
        started_at=bench.started_at,
        duration_s=round(bench.duration_s, 3),
        command=command,
        checks=judged,
        metrics=metrics,
        series=series,
        machine=this_machine(),
    )
