"""The generated site: links, structure, escaping, limits, sameness, and that nothing unproven looks green."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
from html_check import Page, packed_bodies, read_pages
from report_samples import (
    case_result,
    clauses,
    fault_run,
    load_run,
    wire_lines,
    write_conformance,
    write_report,
    write_sample_runs,
    write_transcript,
)

from assay.reference_broker.trace.conformance import CaseVerdict, Clause, ClauseStatus, Footer, Header, Line, WireLine
from assay.reference_broker.trace.results import (
    Check,
    Finding,
    Percentiles,
    RunKind,
    RunResult,
    Severity,
    Verdict,
    write_result,
)
from assay.reports.collect import MARKER_FILE, ReportError
from assay.reports.raw_files import MAX_FILE_BYTES
from assay.reports.run_views import MAX_EVIDENCE_ROWS
from assay.reports.site import MAX_FINDINGS, PACKED_MAX_LINES, build_report, safe_link
from assay.reports.transcripts import MAX_LINES
from assay.reports.verdicts import CASE_LOOKS, RUN_LOOKS

HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)><b>bold</b>&amp;{{ 7919 * 7907 }}"


def build(runs: Path) -> Path:
    build_report(runs, runs / "report")
    return runs / "report"


def page(site: Path, path: str) -> Page:
    return Page(site / path)


def test_every_page_is_well_formed(sample_site: Path) -> None:
    pages = read_pages(sample_site)
    assert len(pages) > 25
    assert {str(path): found.faults for path, found in pages.items() if found.faults} == {}


def test_every_link_resolves_without_network(sample_site: Path) -> None:
    pages = read_pages(sample_site)
    broken = []
    for path, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme in {"data", "https"}:
                continue
            assert parts.scheme == "", link
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = parts.fragment if "=" not in parts.fragment else ""  # a filter, not an element
            if not target.is_file() or (fragment and fragment not in pages[target].ids):
                broken.append(f"{path.relative_to(sample_site)}: {link}")
    assert broken == []


def test_nothing_is_loaded_from_elsewhere(sample_site: Path) -> None:
    for path, found in read_pages(sample_site).items():
        loaded = [
            attributes.get("src") or attributes.get("href", "")
            for tag, attributes in found.elements
            if tag in {"script", "link", "img", "iframe", "use"}
        ]
        assert all(not link.startswith(("http", "//")) for link in loaded), path


def test_pages_have_landmarks_one_heading_and_labelled_controls(sample_site: Path) -> None:
    for path, found in read_pages(sample_site).items():
        tags = [tag for tag, _ in found.elements]
        assert tags.count("h1") == 1, path
        assert {"main", "header", "nav", "footer"} <= set(tags), path
        assert dict(found.elements)["html"]["lang"] == "en"
        for tag, attributes in found.elements:
            if tag == "svg":
                assert "aria-hidden" in attributes or "aria-label" in attributes, path


def test_the_index_answers_what_failed_and_how_to_see_it_again(sample_site: Path) -> None:
    text = " ".join(page(sample_site, "index.html").text.split())
    assert "8 runs: 3 failed, 1 without a claim, 4 passed." in text
    assert "A second CONNECT ends the connection" in text
    assert "expected the broker to end the connection; seen PINGRESP" in text
    assert "p1-17 was confirmed and never delivered" in text
    assert "assay conformance run --target mosquitto" in text
    for look in (*RUN_LOOKS.values(), *CASE_LOOKS.values()):
        assert look.meaning in text


def test_a_case_page_tells_the_whole_story(sample_site: Path) -> None:
    path = "conformance/conformance-mqtt-mosquitto/mqtt5-connect-second-connect-is-an-error.html"
    text = " ".join(page(sample_site, path).text.split())
    for part in (
        "A second CONNECT ends the connection",
        "Expected the broker to end the connection",
        "Seen PINGRESP at c2",
        "The case sends a packet that the clause forbids.",
        "A client opens with CONNECT and with nothing else.",  # the sentence of 5.0, not that of 3.1.1
        "10 10 00 04 4d 51 54 54",
        "CONNECT client_id='abc', clean=True, keep_alive_s=60",
        "mqtt5/connect/second-connect-is-an-error",
        "Other brokers: reference",
    ):
        assert part in text


def test_the_matrix_shows_the_gravest_verdict_of_an_area(sample_site: Path) -> None:
    cells = [
        attributes["class"]
        for tag, attributes in page(sample_site, "conformance/index.html").elements
        if tag == "td" and attributes.get("class", "").startswith("cell")
    ]
    mosquitto, reference = cells[0::2], cells[1::2]
    assert mosquitto == [
        "cell tone-pass",
        "cell tone-error",
        "cell tone-fail",
        "cell tone-non-strict",
        "cell tone-not-run not-asked",
        "cell tone-unsupported not-asked",
        "cell tone-xfail",
    ]
    assert set(reference) == {"cell tone-pass"}


def test_what_a_broker_lacks_is_no_part_of_its_fraction(tmp_path: Path) -> None:
    verdicts = {"a": CaseVerdict.PASS, "b": CaseVerdict.UNSUPPORTED, "c": CaseVerdict.FAIL, "d": CaseVerdict.NOT_RUN}
    results: list[Line] = [case_result(f"mqtt5/will/{name}", verdict) for name, verdict in verdicts.items()]
    lacking: list[Line] = [case_result("mqtt5/shared/lacking", CaseVerdict.UNSUPPORTED)]
    header = Header(target="peer", target_version="1", started_at="", suite_version="1", seed=0, capabilities={})
    write_report(tmp_path / "runs" / "peer", [header, *results, *lacking])
    text = " ".join(page(build(tmp_path / "runs"), "conformance/index.html").text.split())
    assert "will 1 /2 1 fail 1 unsupported 1 not run" in text
    assert "shared 1 unsupported" in text


def test_a_broker_that_was_not_judged_is_named_below_the_matrix(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    reference: list[Line] = [
        Header(target="reference", target_version="1", started_at="", suite_version="1", seed=0, capabilities={}),
        case_result("mqtt5/will/a"),
    ]
    write_report(runs / "reference", reference)
    absent = RunResult(
        kind=RunKind.CONFORMANCE,
        name="conformance of rabbitmq",
        verdict=Verdict.UNKNOWN,
        summary="rabbitmq is not installed; to have it judged: <b>install</b> it",
        target="rabbitmq",
    )
    write_result(runs / "rabbitmq", absent)
    text = " ".join(page(build(runs), "conformance/index.html").text.split())
    assert "rabbitmq was not judged: rabbitmq is not installed; to have it judged: <b>install</b> it" in text


def test_coverage_gives_each_clause_its_cases_or_the_reason(sample_site: Path) -> None:
    text = " ".join(page(sample_site, "conformance/coverage-mqtt5.html").text.split())
    assert "1 tested" in text
    assert "Only the broker can see when its own memory is released." in text
    assert "No case yet." in text
    assert "mqtt5/will/delayed-will" in text


def test_both_worlds_of_a_scenario_share_a_page(sample_site: Path) -> None:
    found = page(sample_site, "scenarios/crash-and-cut.html")
    assert {"plot-timeline-sim-crash-and-cut-reference-sim", "plot-timeline-faults-crash-and-cut-reference-real"} <= (
        found.ids
    )
    assert "recovery max 412 ms 412 ms" in " ".join(found.text.split())


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNKNOWN, Verdict.ERROR])
def test_only_a_pass_is_green(tmp_path: Path, verdict: Verdict) -> None:
    write_result(tmp_path / "run", msgspec.structs.replace(load_run(), verdict=verdict, checks=[]))
    site = build(tmp_path)
    banners = [
        attributes["class"]
        for path in (site / "index.html", *(site / "runs").glob("*.html"))
        for _, attributes in Page(path).elements
        if attributes.get("class", "").startswith(("banner tone", "card tone"))
    ]
    assert banners == [f"banner tone-{verdict.value}", f"card tone-{verdict.value}", f"banner tone-{verdict.value}"]
    assert json.loads((site / "badge.json").read_text())["color"] != "brightgreen"


def test_no_look_but_pass_has_the_tone_of_a_pass() -> None:
    looks = [*RUN_LOOKS.items(), *CASE_LOOKS.items()]
    assert {verdict.value for verdict, look in looks if look.tone == "pass"} == {"pass"}
    shapes = [look.symbol for look in CASE_LOOKS.values()]
    assert len(shapes) == len(set(shapes)), "verdicts must differ in shape, not only in colour"


def hostile_runs(root: Path) -> Path:
    clause = Clause(
        spec=HOSTILE,
        id=HOSTILE,
        level="MUST",
        role="server",
        section=HOSTILE,
        sentence=HOSTILE,
        status=ClauseStatus.TESTED,
        reason=HOSTILE,
        cases=[HOSTILE],
    )
    wire = [
        WireLine(t_ns=1, connection=HOSTILE, direction=way, hex=HOSTILE, decoded=HOSTILE) for way in ("send", "recv")
    ]
    case = msgspec.structs.replace(
        case_result("mqtt5/connect/x", CaseVerdict.FAIL),
        case=HOSTILE,
        title=HOSTILE,
        expectation=HOSTILE,
        spec=HOSTILE,
        area=HOSTILE,
        clauses=[HOSTILE],
        detail=f"c1: expected {HOSTILE}; seen {HOSTILE}",
        link="javascript:alert(1)",
        requires=[HOSTILE],
        mutant=HOSTILE,
        reproduce=HOSTILE,
        transcript=write_transcript(root / "conformance", "t.jsonl", wire),
    )
    header = Header(
        target=HOSTILE,
        target_version=HOSTILE,
        started_at=HOSTILE,
        suite_version=HOSTILE,
        seed=1,
        capabilities={HOSTILE: HOSTILE},
    )
    write_report(root / "conformance", [header, clause, case, Footer(counts={}, exit_code=1, duration_s=0)])
    for kind in (RunKind.SIM, RunKind.FAULTS):
        base = fault_run(kind, verdict=Verdict.FAIL)
        finding = Finding(
            checker=HOSTILE,
            anomaly=HOSTILE,
            severity=Severity.SAFETY,
            message=HOSTILE,
            values=[HOSTILE],
            evidence=[{HOSTILE: HOSTILE}],
        )
        result = msgspec.structs.replace(
            base,
            name=HOSTILE,
            summary=HOSTILE,
            target=HOSTILE,
            world=HOSTILE,
            command=HOSTILE,
            started_at=HOSTILE,
            findings=[finding],
            metrics={HOSTILE: HOSTILE},
            series=[msgspec.structs.replace(line, name=HOSTILE, unit=HOSTILE, group=HOSTILE) for line in base.series],
            bands=[msgspec.structs.replace(band, label=HOSTILE) for band in base.bands],
            percentiles=[msgspec.structs.replace(row, name=HOSTILE) for row in base.percentiles],
            artefacts={HOSTILE: HOSTILE, "up": "../../../secret.txt", "absolute": "/etc/hostname"},
        )
        write_result(root / kind.value, result)
    (root / "bad").mkdir()
    (root / "bad" / "result.json").write_text('{"kind": "' + HOSTILE.replace('"', "") + '"}')
    return root


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    site = build(hostile_runs(tmp_path))
    pages = read_pages(site)
    assert len(pages) >= 8
    for path, found in pages.items():
        assert found.faults == [], path
        tags = {tag for tag, _ in found.elements}
        assert not tags & {"img", "b", "iframe"}, path
        for tag, attributes in found.elements:
            assert not any(name.startswith("on") for name in attributes), (path, tag)
            assert not attributes.get("href", "").strip().lower().startswith("javascript:"), path
            if tag == "script":
                assert "src" in attributes or attributes.get("type") == "application/json", path
        assert "62615533" not in found.text, "a template in the data was evaluated"
    assert HOSTILE in pages[site / "index.html"].text


def test_files_outside_the_runs_folder_are_never_copied(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "secret.txt").write_text("secret")
    outside = msgspec.structs.replace(
        load_run(), artefacts={"a": "../../secret.txt", "b": str(tmp_path / "secret.txt")}
    )
    write_result(runs / "run", outside)
    (runs / "run" / "link.txt").symlink_to(tmp_path / "secret.txt")
    write_result(runs / "linked", msgspec.structs.replace(load_run(), name="linked", artefacts={"c": "link.txt"}))
    site = build(runs)
    copied = [path for path in site.rglob("*") if path.is_file() and path.read_bytes() == b"secret"]
    assert copied == []
    assert "outside the run's folder" in page(site, "runs/load-steady-2k-reference-real.html").text


def test_what_is_too_large_is_named_not_copied(tmp_path: Path) -> None:
    write_result(tmp_path / "run", msgspec.structs.replace(load_run(), artefacts={"samples": "samples.parquet"}))
    with (tmp_path / "run" / "samples.parquet").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    text = page(build(tmp_path), "runs/load-steady-2k-reference-real.html").text
    assert "too large to copy" in text
    assert not list((tmp_path / "report").rglob("samples.parquet"))


def test_long_transcripts_and_findings_are_cut_with_a_note(tmp_path: Path) -> None:
    lines = wire_lines() * 500
    transcript = write_transcript(tmp_path / "c", "long.jsonl", lines)
    header = Header(target="reference", started_at="", suite_version="", seed=1)
    cases = [
        case_result("mqtt5/connect/long", CaseVerdict.FAIL, transcript=transcript),
        case_result("mqtt5/connect/long-and-passed", transcript=transcript),
    ]
    write_report(tmp_path / "c", [header, *clauses(), *cases, Footer(counts={}, exit_code=1, duration_s=1)])
    event: dict[str, str | int | float | bool] = {"index": 1, "value": "p1-1"}
    finding = Finding(checker="lost", anomaly="A1", severity=Severity.SAFETY, message="gone", evidence=[event] * 500)
    many = RunResult(kind=RunKind.SIM, name="many", verdict=Verdict.FAIL, summary="", findings=[finding] * 300)
    write_result(tmp_path / "s", many)
    site = build(tmp_path)
    text = " ".join(page(site, "conformance/conformance-c-reference/mqtt5-connect-long.html").text.split())
    assert f"The first {MAX_LINES} of 4,000 lines are shown." in text
    body = packed_bodies(site / "conformance/conformance-c-reference/area-mqtt5-connect.html")
    assert f"The first {PACKED_MAX_LINES} of 4,000 lines are shown." in body["mqtt5-connect-long-and-passed"]
    with tarfile.open(site / "raw/conformance-c-reference/transcripts.tar.xz") as archive:
        (member,) = archive.getmembers()
        whole = archive.extractfile(member)
        assert whole is not None
        assert whole.read() == (tmp_path / "c" / transcript).read_bytes()
    found = page(site, "runs/sim-many-reference.html")
    assert [tag for tag, _ in found.elements].count("details") == MAX_FINDINGS
    assert "200 more findings" in found.text
    assert f"{500 - MAX_EVIDENCE_ROWS} more events" in found.text


def test_a_bad_transcript_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    write_conformance(tmp_path / "c", "reference", {})
    transcript = next((tmp_path / "c" / "transcripts").iterdir())
    transcript.write_bytes(transcript.read_bytes() + b"not json\n")
    (tmp_path / "c" / "transcripts" / "mqtt5_will_delayed-will.jsonl").unlink()
    site = build(tmp_path)
    texts = {name: text for path in site.rglob("area-*.html") for name, text in packed_bodies(path).items()}
    assert sum("could not be read to its end: line 9" in text for text in texts.values()) == 1
    assert "missing" in texts["mqtt5-will-delayed-will"]


def test_a_run_that_was_cut_is_shown_as_such(tmp_path: Path) -> None:
    write_conformance(tmp_path / "c", "reference", {}, cut=True)
    site = build(tmp_path)
    assert "Cut before its end." in page(site, "conformance/index.html").text
    assert "no footer" in page(site, "index.html").text


@pytest.mark.parametrize("kind", list(RunKind))
def test_a_run_without_any_data_has_a_page(tmp_path: Path, kind: RunKind) -> None:
    write_result(tmp_path, RunResult(kind=kind, name="", verdict=Verdict.PASS, summary=""))
    site = build(tmp_path)
    for found in read_pages(site).values():
        assert found.faults == []
    assert "can claim nothing" in page(site, "index.html").text


def test_a_folder_that_is_no_report_is_left_alone(tmp_path: Path) -> None:
    write_result(tmp_path / "runs", load_run())
    precious = tmp_path / "out" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    with pytest.raises(ReportError, match="left alone"):
        build_report(tmp_path / "runs", tmp_path / "out")
    assert precious.read_text() == "years of work"


def test_a_former_report_is_replaced_whole(tmp_path: Path) -> None:
    write_result(tmp_path / "a", load_run())
    write_result(tmp_path / "b", fault_run(RunKind.SIM))
    site = build(tmp_path)
    shutil.rmtree(tmp_path / "b")
    build(tmp_path)
    assert [path.name for path in (site / "runs").iterdir()] == ["load-steady-2k-reference-real.html"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "report"], "no temporary folder is left"


def test_the_marker_sums_the_report_up(sample_site: Path) -> None:
    summary = json.loads((sample_site / MARKER_FILE).read_text())
    assert summary["verdict"] == "fail"
    assert len(summary["runs"]) == 8


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    trees: list[dict[str, bytes]] = []
    for hash_seed in ("1", "2"):
        runs = write_sample_runs(tmp_path / hash_seed)
        command = [sys.executable, "-m", "assay.reports.cli", str(runs), "--out", str(tmp_path / f"site{hash_seed}")]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        root = Path(__file__).parents[2]
        subprocess.run(command, check=True, env=environment, cwd=root, stdout=subprocess.DEVNULL, timeout=60)
        site = tmp_path / f"site{hash_seed}"
        trees.append({str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()})
    assert trees[0].keys() == trees[1].keys()
    assert [name for name, content in trees[0].items() if trees[1][name] != content] == []


@pytest.mark.parametrize(
    ("url", "followed"),
    [
        ("https://example.org/1", True),
        ("http://example.org", True),
        ("javascript:alert(1)", False),
        ("JAVASCRIPT:x", False),
        ("data:text/html,x", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
def test_only_web_addresses_become_links(url: str, followed: bool) -> None:
    assert bool(safe_link(url)) is followed


def test_a_locust_run_is_shown_with_its_counts(tmp_path: Path) -> None:
    row = Percentiles(
        name="MQTT: publish qos1 to ack", count=1_234, p50_us=1, p90_us=2, p99_us=3, p999_us=4, max_us=5, missing=7
    )
    run = RunResult(
        kind=RunKind.LOAD,
        name="locust",
        verdict=Verdict.FAIL,
        summary="1234 of 1241 requests answered",
        world="real",
        checks=[
            Check(name="failed requests", value=7.0, unit="requests", bound=0.0, relation="==", verdict=Verdict.FAIL)
        ],
        metrics={"requests": 1_241},
        percentiles=[row],
    )
    write_result(tmp_path, run)
    site = build(tmp_path)
    shown = " ".join(page(site, "runs/load-locust-reference-real.html").text.split())
    assert "MQTT: publish QoS 1 to ack 1,234 7 1 µs" in shown
    index = " ".join(page(site, "index.html").text.split())
    assert "1234 of 1241 requests answered" in index
    assert "MQTT: publish QoS 1 to ack p99" in index


def test_what_nobody_has_to_look_at_is_packed_by_area_and_whole(sample_site: Path, tmp_path: Path) -> None:
    """Its body is HTML like that of any page: well-formed, its links lead somewhere, its ids do not collide."""
    areas = sorted(sample_site.rglob("area-*.html"))
    assert areas
    seen = 0
    for path in areas:
        listed = page(sample_site, str(path.relative_to(sample_site)))
        bodies = packed_bodies(path)
        anchors = [named["id"] for tag, named in listed.elements if tag == "details" and named.get("class") == "case"]
        assert list(bodies) == anchors
        whole = tmp_path / "whole.html"
        whole.write_text("".join(bodies.values()), encoding="utf-8")
        together = Page(whole)
        assert together.faults == []
        for link in together.links:
            parts = urlsplit(link)
            if parts.scheme == "" and parts.path:
                assert (path.parent / unquote(parts.path)).resolve().is_file(), link
        seen += len(bodies)
    assert seen > 8
    failed = [path for path in sample_site.rglob("mqtt*.html") if "reference" in str(path)]
    assert failed == [], "the reference broker passed all: no case of it needs a page of its own"
    wire = packed_bodies(sample_site / "conformance/conformance-mqtt-reference/area-mqtt5-connect.html")
    assert "CONNECT client_id=" in wire["mqtt5-connect-second-connect-is-an-error"]


def test_long_text_is_compressed_and_the_notebook_shares_the_script_of_the_site(tmp_path: Path) -> None:
    run = tmp_path / "run"
    named = {"history": "history.jsonl", "short": "short.jsonl", "notebook": "report.html"}
    write_result(run, msgspec.structs.replace(load_run(), artefacts=named))
    history = b'{"f":"publish"}\n' * 20_000
    (run / "history.jsonl").write_bytes(history)
    (run / "short.jsonl").write_bytes(b"{}\n")
    (run / "report.html").write_bytes(b'<script src="plotly.min.js"></script>')
    site = build(tmp_path)
    raw = site / "raw" / "load-steady-2k-reference-real"
    assert gzip.decompress((raw / "history.jsonl.gz").read_bytes()) == history
    assert (raw / "short.jsonl").read_bytes() == b"{}\n"
    script = re.search(r'src="([^"]+)"', (raw / "report.html").read_text())
    assert script is not None
    assert (raw / script[1]).resolve() == (site / "assets" / "plotly.min.js").resolve()
