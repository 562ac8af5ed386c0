"""`assay report` from a shell: exit status, messages, and what a browser makes of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, browser
from report_samples import load_run, write_conformance
from typer.testing import CliRunner

from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reference_broker.trace.results import write_result
from assay.reports.cli import app


def test_a_report_is_written_beside_the_runs(tmp_path: Path) -> None:
    write_result(tmp_path / "load", load_run())
    result = CliRunner().invoke(app, [str(tmp_path), "--check"])
    assert result.exit_code == 0
    assert (tmp_path / "report" / "index.html").is_file()
    assert "✓ Pass: The one run passed." in result.output
    assert str(tmp_path / "report" / "index.html") in result.output


def test_check_turns_the_verdict_into_the_exit_status(sample_runs: Path, tmp_path: Path) -> None:
    arguments = [str(sample_runs), "--out", str(tmp_path / "site")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    failed = CliRunner().invoke(app, [*arguments, "--check"])
    assert failed.exit_code == 1
    assert "✗ Fail: 8 runs: 3 failed" in failed.output


def test_only_the_judged_target_decides(tmp_path: Path) -> None:
    write_conformance(tmp_path / "m", "mosquitto", {"mqtt5/will/delayed-will": CaseVerdict.FAIL})
    write_conformance(tmp_path / "r", "reference", {})
    result = CliRunner().invoke(app, [str(tmp_path), "--judge", "reference", "--check"])
    assert result.exit_code == 0
    assert "mqtt (mosquitto), for comparison" in result.output
    assert "for comparison, does not decide" in (tmp_path / "report" / "index.html").read_text()


def test_unreadable_files_are_told_and_fail_the_check(tmp_path: Path) -> None:
    write_result(tmp_path / "load", load_run())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_text('{"kind": "tea"}')
    result = CliRunner().invoke(app, [str(tmp_path), "--check"])
    assert result.exit_code == 1
    assert "bad/result.json" in result.output
    assert "$.kind" in result.output


@pytest.mark.parametrize("make", [True, False])
def test_nothing_to_report_says_what_to_do(tmp_path: Path, make: bool) -> None:
    folder = tmp_path / "out"
    if make:
        folder.mkdir()
    result = CliRunner().invoke(app, [str(folder)])
    assert result.exit_code == 2
    assert "assay" in result.output
    assert not (folder / "report").exists()


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@needs_chromium
def test_the_filter_works_in_a_browser(sample_site: Path, chromium: Browser) -> None:
    url = (sample_site / "conformance" / "index.html").as_uri()
    for fragment, expected in {
        "": "8 of 8 shown",
        "#verdict=fail,xpass": "2 of 8 shown",
        "#area=mqtt5/connect": "2 of 8 shown",
        "#verdict=fail&target=2": "0 of 8 shown",  # the reference broker fails nothing
        "#text=topic%20alias": "1 of 8 shown",
        "#differs=yes": "7 of 8 shown",
    }.items():
        page = chromium.page(url + fragment)
        page.until(f"document.querySelector('output').textContent === '{expected}'")
        page.close()


@needs_chromium
def test_a_packed_case_is_unpacked_in_a_browser(sample_site: Path, chromium: Browser) -> None:
    path = sample_site / "conformance" / "conformance-mqtt-reference" / "area-mqtt5-connect.html"
    page = chromium.page(path.as_uri())
    text = "document.documentElement.outerHTML"
    assert "What went over the wire" not in page.run(text)
    page.run("location.hash = 'mqtt5-connect-second-connect-is-an-error'")
    page.until(f"{text}.includes('CONNECT client_id=')")
    assert page.run(text).count("What went over the wire") == 1
    page.close()


@needs_chromium
def test_charts_are_drawn_in_a_browser(sample_site: Path, chromium: Browser) -> None:
    page = chromium.page((sample_site / "scenarios" / "crash-and-cut.html").as_uri())
    page.until("document.querySelectorAll('.main-svg').length >= 2")
    page.until("document.querySelectorAll('.scatterlayer').length >= 4")
    page.close()
