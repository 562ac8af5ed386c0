"""What is selected: names mean what they say, what matches nothing is told, others are spared our queues."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from assay.conformance.case import load_cases
from assay.conformance.report import ExitCode
from assay.conformance.selection import (
    Selection,
    SelectionError,
    check_target,
    for_target,
    is_named,
    left_out,
    require,
    select,
    split,
    to_be_repeated,
)
from assay.conformance.targets import ExpectedFailure, Target, load_target
from assay.reference_broker.trace.conformance import CaseResult, CaseVerdict

KNOWN = ("mqtt5/will/delay", "mqtt5/will/delay-ends", "mqtt311/will/delay", "queue/order/first")


def ids(**fields: object) -> list[str]:
    return [case.id for case in select(load_cases(), Selection(**fields))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mqtt5/will/delay", ["mqtt5/will/delay"]),
        ("will/delay", ["mqtt5/will/delay", "mqtt5/will/delay-ends", "mqtt311/will/delay"]),
        ("mqtt5/*", ["mqtt5/will/delay", "mqtt5/will/delay-ends"]),
        ("*/delay", ["mqtt5/will/delay", "mqtt311/will/delay"]),
        ("delay-[a-f]*", []),
        ("*/delay-[a-f]*", ["mqtt5/will/delay-ends"]),
    ],
)
def test_a_whole_id_means_itself_a_pattern_what_it_matches_and_a_text_whatever_holds_it(
    name: str, meant: list[str]
) -> None:
    assert [case_id for case_id in KNOWN if is_named(name, case_id, KNOWN)] == meant


def test_every_id_selects_itself_alone() -> None:
    """Else the command that repeats a case would run others too."""
    cases = load_cases()
    assert all(sum(is_named(case_id, other, cases) for other in cases) == 1 for case_id in list(cases)[::40])


def test_conditions_are_met_together() -> None:
    both = ids(specs=("mqtt311", "mqtt5"), areas=("ping",))
    assert {case_id.split("/")[0] for case_id in both} == {"mqtt311", "mqtt5"}
    assert {case_id.split("/")[1] for case_id in both} == {"ping"}
    assert ids(specs=("mqtt311",), areas=("ping",)) == [case_id for case_id in both if case_id.startswith("mqtt311/")]
    assert set(ids(areas=("ping", "auth"))) == {*both, *ids(areas=("auth",))}
    left = ids(specs=("mqtt311", "mqtt5"), areas=("ping",), exclude=(both[0], "silence"))
    assert left == [case_id for case_id in both[1:] if "silence" not in case_id]
    assert ids(only=frozenset(both[:2])) == both[:2]
    assert split("a, b", "c,", "") == ("a", "b", "c")


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"specs": ("mqtt9",)}, ExitCode.USAGE, "unknown specification 'mqtt9'"),
        ({"areas": ("ping", "nowhere")}, ExitCode.USAGE, "unknown area"),
        ({"names": ("ping", "nothing-like-it")}, ExitCode.NOTHING_SELECTED, "'nothing-like-it'"),
        (
            {"names": ("mqtt311/ping/every-pingreq-is-answred",)},
            ExitCode.NOTHING_SELECTED,
            "every-pingreq-is-answered?",
        ),
        ({"exclude": ("nothing-like-it",)}, ExitCode.USAGE, "'nothing-like-it'"),
        ({"names": ("mqtt5/*",), "specs": ("mqtt311",)}, ExitCode.NOTHING_SELECTED, "no case is selected"),
        ({"only": frozenset()}, ExitCode.NOTHING_SELECTED, "no case is selected"),
    ],
)
def test_what_selects_nothing_is_told(fields: dict[str, object], code: ExitCode, text: str) -> None:
    with pytest.raises(SelectionError) as caught:
        ids(**fields)
    assert caught.value.code is code
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (Target(name="x", required=("mqtt7/*",)), "required 'mqtt7/*' matches no case"),
        (Target(name="x", required=("ping",)), "required 'ping' matches no case"),
        (Target(name="x", optional=("mqtt5/nowhere/*",)), "optional 'mqtt5/nowhere/*' matches no case"),
        (
            Target(name="x", expect_fail=(ExpectedFailure(case="mqtt5/a/b", reason="r", link="l"),)),
            "expect_fail names unknown cases: mqtt5/a/b",
        ),
    ],
)
def test_a_target_that_names_no_case_is_wrong(target: Target, text: str) -> None:
    with pytest.raises(SelectionError) as caught:
        check_target(target, load_cases())
    assert text in str(caught.value)
    check_target(Target(name="x", required=("*",), optional=("*/ping/*",)), load_cases())


def test_an_option_requires_what_is_selected() -> None:
    cases = select(load_cases(), Selection(specs=("mqtt311",)))
    assert require(Target(name="x", required=("a",)), ("mqtt311/*",), cases).required == ("a", "mqtt311/*")
    with pytest.raises(SelectionError, match="--required 'mqtt5/\\*' matches no case that is selected"):
        require(Target(name="x"), ("mqtt5/*",), cases)


def test_our_queues_are_asked_of_those_alone_who_have_them() -> None:
    everything = list(load_cases().values())
    foreign = Target(name="x")
    asked = for_target(everything, foreign)
    assert {case.spec for case in asked} == {"mqtt311", "mqtt5"}
    assert not any("queues" in case.requires for case in asked)
    assert for_target(everything, load_target("reference")) == everything
    wanted = next(case for case in everything if case.spec == "queue")
    assert for_target(everything, msgspec.structs.replace(foreign, required=(wanted.id,))) == sorted(
        [*asked, wanted], key=everything.index
    )
    with pytest.raises(SelectionError, match="durable queues of Assay's kind, which x does not have") as caught:
        for_target([wanted], foreign)
    assert caught.value.code is ExitCode.NOTHING_SELECTED


def test_each_protocol_is_asked_of_those_alone_who_speak_it() -> None:
    everything = list(load_cases().values())
    amqp = [case for case in everything if case.spec == "amqp091"]
    plain = Target(name="x")
    assert for_target(amqp, plain) == amqp, "nothing else was asked for, and nothing is known of the broker"
    speaks = Target(name="x", capabilities={"amqp091": True, "mqtt311": False, "mqtt5": False})
    assert for_target(everything, speaks) == amqp
    assert left_out(everything, speaks).keys() == {"mqtt311", "queues", "http", "grpc"}
    both = Target(name="x", capabilities={"amqp091": True})
    spoken = {case.id for case in for_target(everything, both)}
    assert spoken == {case.id for case in (*for_target(everything, plain), *amqp)}
    with pytest.raises(SelectionError, match=r"AMQP 0\.9\.1, which x does not have"):
        for_target(amqp, Target(name="x", capabilities={"mqtt5": True}))


def write_report(path: Path, verdicts: dict[str, CaseVerdict]) -> Path:
    lines = [
        CaseResult(case=case, title="t", spec="s", area="a", clauses=[], level="MUST", verdict=verdict)
        for case, verdict in verdicts.items()
    ]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def test_what_failed_or_got_no_verdict_is_repeated(tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.jsonl", {verdict.value: verdict for verdict in CaseVerdict})
    again = to_be_repeated(path)
    assert again >= {"fail", "blocked", "xpass", "error", "not_run"}
    assert not again & {"pass", "non_strict", "unsupported", "xfail"}
    assert to_be_repeated(tmp_path) == again, "the folder stands for its report"
    with pytest.raises(SelectionError, match="none failed") as caught:
        to_be_repeated(write_report(tmp_path / "good.jsonl", {"a": CaseVerdict.PASS}))
    assert caught.value.code is ExitCode.NOTHING_SELECTED
    with pytest.raises(SelectionError, match="is not a whole conformance report"):
        to_be_repeated(tmp_path / "absent.jsonl")
