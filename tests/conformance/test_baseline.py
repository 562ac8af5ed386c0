"""Baselines and differences: what is written is read back, accepts what it was written from, and grows stale."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.conformance.baseline import (
    FAILING,
    PASSING,
    Baseline,
    BaselineError,
    Known,
    difference,
    read_baseline,
    write_baseline,
)
from assay.conformance.engine import with_expectation
from assay.conformance.report import ExitCode, exit_code
from assay.conformance.targets import Target, load_target
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict

NAMES = ("mqtt5/a/one", "mqtt5/a/two", "mqtt311/b/three", "queue/c/four")
SEEN = (CaseVerdict.PASS, CaseVerdict.NON_STRICT, CaseVerdict.FAIL, CaseVerdict.UNSUPPORTED, CaseVerdict.NOT_RUN)
TARGET = Target(name="x")
QUICKLY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine draws slowly."""


def result(case: str, verdict: CaseVerdict, detail: str = "") -> CaseResult:
    return CaseResult(
        case=case, title="t", spec="mqtt5", area="a", clauses=[], level="MUST", verdict=verdict, detail=detail
    )


def results(verdicts: dict[str, CaseVerdict]) -> dict[str, CaseResult]:
    return {case: result(case, verdict) for case, verdict in verdicts.items()}


def runs() -> st.SearchStrategy[dict[str, CaseVerdict]]:
    """What a broker does, before anything is expected of it."""
    return st.dictionaries(st.sampled_from(NAMES), st.sampled_from(SEEN), min_size=1)


@QUICKLY
@given(st.lists(st.builds(Known, case=st.text(), detail=st.text())), st.text())
def test_whatever_it_holds_is_read_back(known: list[Known], target: str) -> None:
    baseline = Baseline(target=target, known=tuple(known))
    assert msgspec.toml.decode(baseline.text(), type=Baseline) == baseline


def test_half_a_character_is_no_obstacle(tmp_path: Path) -> None:
    """What a broker sent may be quoted in a detail."""
    (tmp_path / "b.toml").write_text(Baseline(known=(Known(case="a", detail="x\ud800"),)).text(), encoding="utf-8")
    assert read_baseline(tmp_path / "b.toml").known == (Known(case="a", detail="x?"),)


@QUICKLY
@given(runs(), runs())
def test_a_baseline_accepts_the_run_it_was_written_after_and_nothing_else(
    first: dict[str, CaseVerdict], second: dict[str, CaseVerdict]
) -> None:
    baseline = Baseline().renewed(TARGET, results(first))
    target = baseline.accepted_by(TARGET, "b.toml")
    same = [with_expectation(entry, target) for entry in results(first).values()]
    assert not {entry.verdict for entry in same} & {CaseVerdict.FAIL, CaseVerdict.XPASS}
    assert exit_code(same) in (ExitCode.OK, ExitCode.UNREACHABLE)
    failed_before = {case for case, verdict in first.items() if verdict is CaseVerdict.FAIL}
    for case, verdict in second.items():
        judged = with_expectation(result(case, verdict), target).verdict
        assert (judged is CaseVerdict.FAIL) is (verdict is CaseVerdict.FAIL and case not in failed_before)
        assert (judged is CaseVerdict.XPASS) is (verdict in PASSING and case in failed_before)


@QUICKLY
@given(runs(), runs())
def test_a_renewed_baseline_forgets_what_is_fixed_and_keeps_what_was_not_asked(
    first: dict[str, CaseVerdict], second: dict[str, CaseVerdict]
) -> None:
    before = Baseline().renewed(TARGET, results(first))
    accepting = before.accepted_by(TARGET, "b.toml")
    seen = {case: with_expectation(entry, accepting) for case, entry in results(second).items()}
    after = {entry.case for entry in before.renewed(TARGET, seen).known}
    settled = {case for case, verdict in second.items() if verdict in (*PASSING, CaseVerdict.UNSUPPORTED)}
    failing = {case for case, verdict in second.items() if verdict is CaseVerdict.FAIL}
    assert after == ({entry.case for entry in before.known} - settled) | failing


@QUICKLY
@given(runs(), runs())
def test_a_difference_is_none_with_itself_and_turns_around(
    first: dict[str, CaseVerdict], second: dict[str, CaseVerdict]
) -> None:
    same = difference(results(first), results(first))
    assert (same.same, same.exit_code) == (len(first), ExitCode.OK)
    there, back = difference(results(first), results(second)), difference(results(second), results(first))
    names = {case for case in {*first, *second} if first.get(case) is not second.get(case)}
    listed = [c.case for group in (there.newly_failing, there.fixed, there.lost, there.changed) for c in group]
    assert sorted(listed) == sorted(names), "each change is told once"
    assert there.same == back.same
    both = {case for case in names if case in first and case in second}
    for one, other in ((there, back), (back, there)):
        fixed = {change.case for change in one.fixed}
        assert fixed == {c.case for c in other.newly_failing if c.case in both and c.before in PASSING}
    assert (there.exit_code is ExitCode.FAILED) is bool(there.newly_failing)


@pytest.mark.parametrize(
    ("before", "after", "group", "code"),
    [
        ("pass", "fail", "newly_failing", ExitCode.FAILED),
        (None, "fail", "newly_failing", ExitCode.FAILED),
        ("not_run", "fail", "newly_failing", ExitCode.FAILED),
        ("pass", "xfail", "newly_failing", ExitCode.FAILED),
        ("fail", "pass", "fixed", ExitCode.OK),
        ("xfail", "xpass", "fixed", ExitCode.OK),
        ("fail", "non_strict", "fixed", ExitCode.OK),
        ("pass", "not_run", "lost", ExitCode.UNREACHABLE),
        ("fail", "error", "lost", ExitCode.UNREACHABLE),
        ("pass", "non_strict", "changed", ExitCode.OK),
        ("fail", "xfail", "changed", ExitCode.OK),
        ("fail", "unsupported", "changed", ExitCode.OK),
        ("pass", None, "changed", ExitCode.OK),
    ],
)
def test_how_a_change_is_told(before: str | None, after: str | None, group: str, code: ExitCode) -> None:
    a, b = (results({} if value is None else {NAMES[0]: CaseVerdict(value)}) for value in (before, after))
    found = difference(a, b)
    assert [change.case for change in getattr(found, group)] == [NAMES[0]]
    assert found.exit_code is code


def test_what_is_stale_is_told() -> None:
    baseline = Baseline(known=tuple(Known(case=name) for name in (*NAMES, "mqtt5/gone/case")))
    seen = {
        NAMES[0]: result(NAMES[0], CaseVerdict.XPASS),
        NAMES[1]: result(NAMES[1], CaseVerdict.XFAIL),
        NAMES[2]: result(NAMES[2], CaseVerdict.UNSUPPORTED, "it lacks qos2"),
    }
    assert baseline.stale(seen, NAMES) == [
        f"{NAMES[0]}: it passes",
        f"{NAMES[2]}: it lacks qos2",
        "mqtt5/gone/case: there is no such case",
    ]


def test_to_a_target_file_new_failures_are_added_and_its_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    entry = f'[[expect_fail]]\ncase = "{NAMES[0]}"\nreason = "r"\nlink = "l"\n'
    path.write_text(f'# mine\nname = "mine"\n{entry}', encoding="utf-8")
    seen = {
        NAMES[0]: result(NAMES[0], CaseVerdict.XFAIL),
        NAMES[1]: result(NAMES[1], CaseVerdict.FAIL, 'seen "x"\nand more'),
        NAMES[2]: result(NAMES[2], CaseVerdict.PASS),
    }
    assert write_baseline(path, load_target(str(path)), seen) == 1
    assert path.read_text(encoding="utf-8").startswith("# mine\n")
    target = load_target(str(path))
    assert [(known.case, known.reason) for known in target.expect_fail] == [(NAMES[0], "r"), (NAMES[1], 'seen "x"')]
    assert write_baseline(path, target, seen) == 0, "once is enough"


def test_a_file_that_is_neither_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text("schema = 'assay.baseline/2'\n", encoding="utf-8")
    with pytest.raises(BaselineError, match="is no baseline"):
        write_baseline(path, TARGET, results({NAMES[0]: CaseVerdict.FAIL}))
    with pytest.raises(BaselineError, match="is no baseline"):
        read_baseline(tmp_path / "absent.toml")
    assert path.read_text(encoding="utf-8") == "schema = 'assay.baseline/2'\n"


def test_failing_and_passing_are_apart() -> None:
    assert not set(FAILING) & set(PASSING)
