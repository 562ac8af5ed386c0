"""`assay report` from a shell: exit status, messages, and what a browser makes of the pages."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from report_samples import load_run, write_conformance
from typer.testing import CliRunner

from assay.reference_broker.trace.conformance import CaseVerdict
from assay.reference_broker.trace.results import write_result
from assay.reports.cli import app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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


def in_browser(url: str, profile: Path) -> str:
    """The page's elements after its scripts have run."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--virtual-time-budget=8000",
        f"--user-data-dir={profile}",
        "--dump-dom",
        url,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")
def test_the_filter_works_in_a_browser(sample_site: Path, tmp_path: Path) -> None:
    url = (sample_site / "conformance" / "index.html").as_uri()
    shown = re.compile(r"<output[^>]*>([^<]*)</output>")
    for fragment, expected in {
        "": "8 of 8 shown",
        "#verdict=fail,xpass": "2 of 8 shown",
        "#area=mqtt5/connect": "2 of 8 shown",
        "#verdict=fail&target=2": "0 of 8 shown",  # the reference broker fails nothing
        "#text=topic%20alias": "1 of 8 shown",
        "#differs=yes": "7 of 8 shown",
    }.items():
        assert shown.findall(in_browser(url + fragment, tmp_path)) == [expected], fragment


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")
def test_a_packed_case_is_unpacked_in_a_browser(sample_site: Path, tmp_path: Path) -> None:
    page = sample_site / "conformance" / "conformance-mqtt-reference" / "area-mqtt5-connect.html"
    closed = in_browser(page.as_uri(), tmp_path)
    assert "What went over the wire" not in closed
    opened = in_browser(f"{page.as_uri()}#mqtt5-connect-second-connect-is-an-error", tmp_path)
    assert opened.count("What went over the wire") == 1
    assert "CONNECT client_id=" in opened


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium on the PATH")
def test_charts_are_drawn_in_a_browser(sample_site: Path, tmp_path: Path) -> None:
    page = in_browser((sample_site / "scenarios" / "crash-and-cut.html").as_uri(), tmp_path)
    assert page.count('class="main-svg"') >= 2
    assert page.count("scatterlayer") >= 4
