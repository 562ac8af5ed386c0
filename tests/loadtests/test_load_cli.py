"""``assay load``: exit statuses, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from narrow_pipe import output_of
from typer.testing import CliRunner

from assay.cli import build_app
from assay.reference_broker.trace.results import Verdict, read_result

QUICK = """
name: quick
phases: {warmup_s: 0.1, steady_s: 0.4, cooldown_s: 0.0}
baseline: {steady_s: 0}
workloads:
  - {kind: pubsub, name: one, qos: 1, arrivals: {rate_per_s: 100}}
  - {kind: queue, name: two, arrivals: {rate_per_s: 100}}
"""
STATUS = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.UNKNOWN: 5}


def _invoke(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(build_app("load"), ["load", *arguments])
    return done.exit_code, done.output


def test_run_against_the_reference_broker_exits_by_its_verdict(tmp_path: Path) -> None:
    profile = tmp_path / "quick.yaml"
    profile.write_text(QUICK)
    status, output = _invoke("run", str(profile), "--out", str(tmp_path / "out"), "--seed", "3")
    result = read_result(tmp_path / "out" / "result.json")
    assert status == STATUS[result.verdict], output
    assert result.findings == []
    assert result.seed == 3
    assert result.metrics["two.delivered"] == result.metrics["two.sent"] != 0
    assert result.command == "assay load run quick --target reference --seed 3"


def test_queues_are_left_out_where_the_target_has_none(tmp_path: Path) -> None:
    profile = tmp_path / "quick.yaml"
    profile.write_text(QUICK)
    target = tmp_path / "plain.toml"
    target.write_text(
        'name = "plain"\n[start]\ncommand = ["{python}", "-m", "assay.loadtests.null_broker"]\nport_from = "stdout"\n'
    )
    _, output = _invoke("run", str(profile), "--target", str(target), "--out", str(tmp_path / "out"))
    assert "workload two is left out, plain lacks queues" in output
    result = read_result(tmp_path / "out" / "result.json")
    assert "two.sent" not in result.metrics
    (check,) = (check for check in result.checks if check.name == "two: the whole workload")
    assert (check.verdict, check.value) == (Verdict.UNKNOWN, None)
    assert check.reason.startswith("unsupported: queues (durable queues")
    assert result.summary.endswith("left out: two")


def test_mistakes_and_absent_brokers_have_their_own_status(tmp_path: Path, free_port: Callable[[], int]) -> None:
    status, output = _invoke("run", "smokey")
    assert (status, "smoke" in output) == (2, True)
    status, output = _invoke("run", "smoke", "--target", "nobody")
    assert (status, "mosquitto" in output) == (2, True)
    status, output = _invoke("run", "smoke", "--target", f"mqtt://127.0.0.1:{free_port()}", "--out", str(tmp_path))
    assert (status, "cannot be reached" in output) == (3, True)


def test_profiles_are_listed() -> None:
    status, output = _invoke("profiles")
    assert status == 0
    assert "smoke" in output
    assert "ramp" in output


def test_the_profiles_are_all_named_in_a_narrow_pipe() -> None:
    listed = output_of("load", "profiles")
    assert "smoke" in listed
    assert "…" not in listed
