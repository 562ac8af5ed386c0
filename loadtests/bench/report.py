"""A bench run as a table for people and as a :class:`RunResult`."""

from __future__ import annotations

from rich.table import Table

from assay.loadtests.bench.cases import AMQP, QUEUES, Aim, Line
from assay.loadtests.bench.figures import NULL, BenchRun
from assay.loadtests.machine import this_machine
from assay.reference_broker.trace.results import Check, RunKind, RunResult, Series, Verdict, worst
from assay.reference_broker.trace.terminal import WholeTable

MARKS = {Verdict.PASS: "[green]met[/]", Verdict.FAIL: "[red]missed[/]", Verdict.UNKNOWN: "[yellow]unknown[/]"}


def title(bench: BenchRun, line: Line) -> str:
    """The line's title with the plan's numbers."""
    plan = bench.plan
    return line.title.format(
        crowd=f"{plan.crowd:,}",
        amqp_crowd=f"{plan.amqp_crowd:,}",
        bindings=f"{plan.bindings:,}",
        open_rate=f"{plan.open_rate_per_s:,}",
        idle=f"{plan.idle:,}",
        storm_rate=f"{plan.storm_rate_per_s:,}",
    )


def _value(line: Line, value: float | None) -> str:
    if value is None:
        return "-"
    if line.unit in ("ms", "KB"):
        return f"{value:,.2f}"
    return f"{value / 1_000:,.1f}k" if value >= 1_000 else f"{value:,.0f}"


def _spread(line: Line, values: list[float]) -> str:
    return f"{_value(line, min(values))} - {_value(line, max(values))}" if values else "-"


def _protocol(bench: BenchRun) -> str:
    plan = bench.plan
    if all(line.case in QUEUES for line in bench.lines):
        return f"durable queues over MQTT 5.0 (RabbitMQ: AMQP 0.9.1), {plan.in_flight} messages under way"
    if all(line.case in AMQP for line in bench.lines):
        return f"AMQP 0.9.1, window {plan.window} (transient) or {plan.in_flight} messages (persistent)"
    return f"MQTT 3.1.1, window {plan.window} (QoS 0) or {plan.in_flight} messages"


def table(bench: BenchRun) -> Table:
    """A section for each line, a row in it for each broker; the ratio tells how many times better the first is."""
    plan = bench.plan
    head = f"{plan.payload_bytes}-byte payloads, {_protocol(bench)}, median of {plan.rounds} interleaved rounds"
    versions = ", ".join(f"{name} {bench.versions[name]}".strip() for name in bench.peers)
    caption = f"{versions}; null: no broker" if NULL in bench.versions else versions
    found = WholeTable(title=head, title_justify="left", caption=caption, caption_justify="left")
    found.add_column("line and broker", no_wrap=True)
    ratio_title = f"{bench.peers[0]} is" if bench.peers else "ratio"
    for name in ("median", "range", ratio_title, "per CPU s", "client", "client us"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("aim", overflow="fold")
    judged = checks(bench)
    for line in bench.lines:
        found.add_row(f"[bold]{title(bench, line)}[/]", line.unit)
        for peer in [*bench.peers, NULL]:
            if not bench.figures(peer, line.name):
                continue
            load, note = bench.client_load(peer, line.name), bench.note(peer, line.name)
            first = peer == bench.peers[0]
            ratio = None if first or peer == NULL else bench.advantage(line, bench.peers[0], peer)
            per_cpu_s = bench.per_cpu_second(peer, line.name) if line.timed_client else None
            client_us = bench.client_us(peer, line.name) if line.timed_client else None
            aims = [f"{MARKS[check.verdict]} {_bound(check)}" for check in judged.get((line.name, peer), [])]
            found.add_row(
                f"  {peer}",
                _value(line, bench.median(peer, line.name)),
                _spread(line, bench.values(peer, line.name)),
                "-" if ratio is None else f"{ratio:.2f}x",
                "-" if per_cpu_s is None else f"{per_cpu_s / 1_000:,.1f}k",
                "-" if load is None else f"{load:.0%}",
                "-" if client_us is None else f"{client_us:.2f}",
                "; ".join(aims + ([note.partition(":")[0]] if note else [])),
            )
        found.add_section()
    return found


def notes(bench: BenchRun) -> list[str]:
    """Why a peer has no figures on some lines, each reason once."""
    found: dict[str, list[str]] = {}
    for line in bench.lines:
        for peer in bench.peers:
            note = bench.note(peer, line.name)
            if note and bench.median(peer, line.name) is None:
                found.setdefault(f"{peer} {note}", []).append(title(bench, line))
    return [f"{reason} ({'; '.join(lines)})" for reason, lines in found.items()]


def _bound(check: Check) -> str:
    return f"{check.relation} {check.bound:g}{'' if check.unit == 'x' else ' '}{check.unit}"


def _compared(bench: BenchRun, line: Line, aim: Aim, peer: str) -> Check | None:
    first = bench.peers[0]
    if aim.per_cpu:
        return _compared_per_cpu(bench, line, aim, peer)
    ratio = bench.advantage(line, first, peer)
    if ratio is None:
        return None
    # A client at its limit shows too little of a broker. A ratio stands if it would also with a client that had a whole
    # core: then the peer could be that much faster at most, or the first broker.
    met = ratio >= aim.times
    limited = bench.client_limits(line, peer if met else first)
    if line.timed_client and limited:
        sure = (
            ratio / bench.headroom(line, peer) >= aim.times if met else ratio * bench.headroom(line, first) < aim.times
        )
        limited = not sure
    return Check(
        name=f"{title(bench, line)}: {first} against {peer}",
        value=ratio,
        unit="x",
        bound=aim.times,
        relation=">=",
        verdict=Verdict.UNKNOWN if limited else Verdict.PASS if met else Verdict.FAIL,
        source="the client may be the limit" if limited else "ratio in the same run",
    )


def _compared_per_cpu(bench: BenchRun, line: Line, aim: Aim, peer: str) -> Check | None:
    """The client's own load does not show in it."""
    mine, theirs = bench.per_cpu_second(bench.peers[0], line.name), bench.per_cpu_second(peer, line.name)
    if not mine or not theirs:
        return None
    return Check(
        name=f"{title(bench, line)}, per second of processor time: {bench.peers[0]} against {peer}",
        value=mine / theirs,
        unit="x",
        bound=aim.times,
        relation=">=",
        verdict=Verdict.PASS if mine / theirs >= aim.times else Verdict.FAIL,
        source="ratio in the same run, of what a second of the brokers' processor time moves",
    )


def _absolute(bench: BenchRun, line: Line, aim: Aim) -> Check | None:
    first = bench.peers[0]
    value, unit, source = bench.median(first, line.name), line.unit, "absolute"
    if aim.share_of:
        part, whole = bench.per_cpu_second(first, line.name), bench.per_cpu_second(first, aim.share_of)
        value = part / whole if part and whole else None
        unit, source = "x", "messages per second of the broker's processor time"
    if value is None:
        return None
    at_least = aim.at_least is not None
    bound = aim.at_least if aim.at_least is not None else aim.at_most
    assert bound is not None
    met = value >= bound if at_least else value <= bound
    limited = not met and not aim.share_of and bench.client_limits(line, first)
    return Check(
        name=f"{title(bench, line)}: {first}",
        value=value,
        unit=unit,
        bound=bound,
        relation=">=" if at_least else "<=",
        verdict=Verdict.UNKNOWN if limited else Verdict.PASS if met else Verdict.FAIL,
        source="the client may be the limit" if limited else source,
    )


def checks(bench: BenchRun) -> dict[tuple[str, str], list[Check]]:
    """The aims of every line that the readings can judge, by line and by the peer that they are about."""
    found: dict[tuple[str, str], list[Check]] = {}
    for line in bench.lines if bench.peers else []:
        named = {aim.peer for aim in line.aims if aim.peer}
        for aim in line.aims:
            if not aim.times:
                own = _absolute(bench, line, aim)
                if own is not None:
                    found.setdefault((line.name, bench.peers[0]), []).append(own)
                continue
            for peer in bench.peers[1:]:
                if aim.peer == peer or (not aim.peer and peer not in named):
                    check = _compared(bench, line, aim, peer)
                    if check is not None:
                        found.setdefault((line.name, peer), []).append(check)
    return found


def _metrics(bench: BenchRun) -> dict[str, float | int | str]:
    plan = bench.plan
    metrics: dict[str, float | int | str] = {
        "payload_bytes": plan.payload_bytes,
        "window": plan.window,
        "in_flight": plan.in_flight,
        "rounds": plan.rounds,
        "crowd": plan.crowd,
    }
    for peer in [*bench.peers, NULL]:
        metrics[f"{peer}.version"] = bench.versions.get(peer, "")
        for line in bench.lines:
            name, value = f"{peer}.{line.name}", bench.median(peer, line.name)
            note, load = bench.note(peer, line.name), bench.client_load(peer, line.name)
            if value is not None:
                metrics[f"{name}.{line.metric}"] = round(value, 3)
            if load is not None:
                metrics[f"{name}.client_load"] = round(load, 3)
            if line.timed_client and (per_cpu_s := bench.per_cpu_second(peer, line.name)) is not None:
                metrics[f"{name}.per_cpu_s"] = round(per_cpu_s, 1)
            if line.timed_client and (client_us := bench.client_us(peer, line.name)) is not None:
                metrics[f"{name}.client_us"] = round(client_us, 3)
            if note:
                metrics[f"{name}.note"] = note
            ratio = bench.advantage(line, bench.peers[0], peer) if peer not in (bench.peers[0], NULL) else None
            if ratio is not None:
                metrics[f"{name}.ratio"] = round(ratio, 3)
    for peer, reason in bench.skipped.items():
        metrics[f"{peer}.skipped"] = reason
    return metrics


def result(bench: BenchRun, *, name: str, command: str) -> RunResult:
    """The run in the schema of all verdicts. Metrics are named ``<peer>.<line>.<metric>``."""
    judged = [check for group in checks(bench).values() for check in group]
    series = []
    for line in bench.lines:
        for peer in bench.peers:
            values: list[float | None] = [*bench.values(peer, line.name)]
            x = [float(number) for number in range(len(values))]
            if values:
                group = f"{title(bench, line)} by round"
                series.append(Series(name=peer, unit=line.unit, x_s=x, y=values, group=group))
    met = sum(check.verdict is Verdict.PASS for check in judged)
    missed = sum(check.verdict is Verdict.FAIL for check in judged)
    summary = f"{bench.peers[0]}: {met} of {len(judged)} aims met, {missed} missed" if bench.peers else ""
    return RunResult(
        kind=RunKind.BENCH,
        name=name,
        verdict=worst([check.verdict for check in judged]),
        summary=summary or "no broker could be measured",
        target=", ".join(bench.peers),
        world="real",
        started_at=bench.started_at,
        duration_s=round(bench.duration_s, 3),
        command=command,
        checks=judged,
        metrics=_metrics(bench),
        series=series,
        machine=this_machine(),
    )
