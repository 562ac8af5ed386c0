"""One fault of a broker is judged alike in every case: a product of faults and cases.

A fault is planted on the wire (``meddling_proxy``), or in the broker (``assay.conformance.mutants.confused``). Whoever
meets it fails on the rule that it breaks, is blocked by such a failure, or does not look; nobody is accused by another
rule, and none takes it for a matter of taste.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping

import pytest
from meddling_proxy import Fault, KeptBack, MeddlingProxy
from msgspec.structs import replace

from assay.conformance.booking import PLAINEST
from assay.conformance.case import Case, load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.judged import Outcome
from assay.conformance.mutants import applied
from assay.conformance.rules import VERSIONS, Rule
from assay.conformance.targets import CapabilityValue, Endpoint, RunningTarget, hosted_target, probe
from assay.conformance.wire import (
    Connack,
    MalformedPacketError,
    Packet,
    PacketType,
    Publish,
    Suback,
    decode_packet,
    encode,
)
from assay.reference_broker.broker import Broker
from assay.reference_broker.trace.conformance import CaseVerdict

SEED = 1
SAMPLE = 40
PATIENCE_S = 1.0
LONGEST_S = 5.0
MANY_CONNECTIONS = "connect/many-in-a-row-are-served"
MANY = ("publish/many-in-a-row-arrive-once", MANY_CONNECTIONS)
APART = ("slow-clients", "size", "lesser-server")
CASES = [
    case
    for case in load_cases().values()
    if case.spec.startswith("mqtt") and not case.is_private and case.area not in APART
    if case.limit_s <= LONGEST_S or case.id.endswith(MANY)
]
_UNDEFINED_CODE = 0x7F
_REFUSED = 0x80
Change = Callable[[Packet], Packet]


class Changed(Fault):
    """Packets of one type are changed, and sent so many times."""

    def __init__(
        self, kind: PacketType, change: Change = lambda packet: packet, *, flags: int = 0, times: int = 1
    ) -> None:
        self._kind, self._change, self._flags, self._times = kind, change, flags, times

    def from_broker(self, frame: bytes, version: int) -> bytes:
        if frame[0] >> 4 != self._kind:
            return frame
        try:
            frame = encode(self._change(decode_packet(frame, version)), version)
        except MalformedPacketError:
            return frame
        return (bytes((frame[0] ^ self._flags,)) + frame[1:]) * self._times


class Preceded(Fault):
    """A PINGRESP that nobody asked for comes before each CONNACK that accepts."""

    def from_broker(self, frame: bytes, version: int) -> bytes:
        accepts = frame[0] >> 4 == PacketType.CONNACK and not frame[3]
        return b"\xd0\x00" + frame if accepts else frame


def other_id(packet: Packet) -> Packet:
    return replace(packet, packet_id=packet.packet_id ^ 0x4000)  # type: ignore[attr-defined]


def with_codes(code: int) -> Change:
    def change(packet: Packet) -> Packet:
        return (
            replace(packet, reason_codes=(code,) * len(packet.reason_codes)) if isinstance(packet, Suback) else packet
        )

    return change


def cut(packet: Packet) -> Packet:
    return replace(packet, payload=packet.payload[:-1]) if isinstance(packet, Publish) else packet


def present(packet: Packet) -> Packet:
    accepted = isinstance(packet, Connack) and not packet.reason_code
    return replace(packet, session_present=True) if accepted else packet


P = PacketType
FAULTS: dict[str, tuple[Fault, tuple[Rule, ...]]] = {
    "CONNACK with a reserved flag": (Changed(P.CONNACK, flags=1), (Rule.FORM,)),
    "a packet before CONNACK": (Preceded(), (Rule.FIRST,)),
    "Session Present 1 for everybody": (Changed(P.CONNACK, present), (Rule.SESSION_NEW,)),
    "SUBACK with another identifier": (Changed(P.SUBACK, other_id), (Rule.SUBACK,)),
    "SUBACK twice": (Changed(P.SUBACK, times=2), (Rule.SUBACK, Rule.ONCE)),
    "SUBACK with an undefined code": (Changed(P.SUBACK, with_codes(_UNDEFINED_CODE)), (Rule.FORM,)),
    "SUBACK that refuses": (Changed(P.SUBACK, with_codes(_REFUSED)), (Rule.SUBACK,)),
    "no SUBACK": (KeptBack(P.SUBACK), (Rule.SUBACK,)),
    "no UNSUBACK": (KeptBack(P.UNSUBACK), (Rule.UNSUBACK,)),
    "PUBACK with another identifier": (Changed(P.PUBACK, other_id), (Rule.PUBACK,)),
    "PUBACK twice": (Changed(P.PUBACK, times=2), (Rule.PUBACK, Rule.ONCE)),
    "no PUBACK": (KeptBack(P.PUBACK), (Rule.PUBACK,)),
    "PUBREC twice": (Changed(P.PUBREC, times=2), ()),
    "no PUBCOMP": (KeptBack(P.PUBCOMP), (Rule.PUBCOMP,)),
    "PINGRESP twice": (Changed(P.PINGRESP, times=2), (Rule.PINGRESP, Rule.ONCE)),
    "payloads cut": (Changed(P.PUBLISH, cut), (Rule.CONTENT,)),
}


CONFUSED: dict[str, tuple[tuple[Rule, ...], set[str], int]] = {
    "confused-all-twice": ((Rule.COPIES,), set(), 2),
    "confused-topics": ((Rule.CONTENT, Rule.FOREIGN), set(), 2),
    # Given to who subscribes to # a topic with $ in front is what another rule is about.
    "confused-receivers": ((Rule.FOREIGN,), {"mqtt311/MQTT-4.7.2-1", "mqtt5/MQTT-4.7.2-1"}, 4),
    "confused-loses-some": ((Rule.DELIVERY,), set(), 2),
    "confused-ends-some": ((Rule.STAYS_OPEN,), set(), 2),
    "confused-order": ((Rule.ORDER,), set(), 2),
    "confused-pings": ((Rule.ONCE, Rule.PINGRESP), set(), 2),
    "confused-keeps-retained": (
        (),
        {"mqtt311/MQTT-3.3.1-10", "mqtt311/MQTT-3.3.1-11", "mqtt5/MQTT-3.3.1-6", "mqtt5/MQTT-3.3.1-7"},
        4,
    ),
    "confused-retain-1": ((Rule.RETAIN_CLEAR,), {"mqtt5/MQTT-3.3.1-13"}, 5),
    "confused-retain-0": ((Rule.RETAIN_SET,), {"mqtt5/MQTT-3.3.1-13"}, 7),
    "confused-dup-1": ((Rule.DUP_CLEAR,), {"mqtt5/MQTT-4.3.2-2", "mqtt5/MQTT-4.3.3-2"}, 4),
    "confused-dup-0": ((Rule.DUP_SET,), set(), 5),
}
"""Of each mutant, the rules that it breaks, further statements that say so, and how many cases may fail at most: one a
version where any case may meet it, else those that are about it."""


def _cases(name: str, rules: tuple[Rule, ...]) -> list[Case]:
    """Cases drawn for this fault, and those where it may be booked."""
    drawn = random.Random(f"{SEED} {name}").sample(CASES, SAMPLE)
    judges = [
        case
        for rule in rules
        for case in CASES
        if case.id in PLAINEST.get(rule, ()) or (rule is not Rule.FORM and rule.is_subject_of(case.id, case.clauses))
    ]
    found = {case.id: case for case in (*drawn, *judges)}
    if Rule.STAYS_OPEN not in rules:  # it takes longer than all others
        found = {name: case for name, case in found.items() if not name.endswith(MANY_CONNECTIONS)}
    return list(found.values())


async def _judge(fault: Fault, cases: list[Case]) -> list[Outcome]:
    async with Broker() as broker:
        behind = Endpoint(host=broker.host, port=broker.port)
        async with MeddlingProxy(behind, fault).running() as place:
            # What it can is asked of the broker itself: nobody would go on with one that is broken at the first look.
            capabilities = await asyncio.to_thread(probe, hosted_target(place.host, place.port), behind)
            return await _judge_at(place, capabilities, cases)


async def _judge_at(place: Endpoint, capabilities: Mapping[str, CapabilityValue], cases: list[Case]) -> list[Outcome]:
    options = RunOptions(patience_s=PATIENCE_S, concurrency=SAMPLE, seed=SEED)
    engine = Engine(RunningTarget(hosted_target(place.host, place.port), place), capabilities, options)
    return await engine.run_all(cases, lambda _outcome: None)


async def _judge_mutant(name: str, cases: list[Case]) -> list[Outcome]:
    async with Broker() as sound:
        place = Endpoint(host=sound.host, port=sound.port)
        capabilities = await asyncio.to_thread(probe, hosted_target(place.host, place.port), place)
    with applied(name):
        async with Broker() as broker:
            return await _judge_at(Endpoint(host=broker.host, port=broker.port), capabilities, cases)


def _clauses(rules: tuple[Rule, ...], outcome: Outcome) -> set[str]:
    """All that the fault may be booked on: the rules, and what a step adds to them (a code, the answer to a kind)."""
    own = {statement for incident in outcome.incidents if incident.rule in rules for statement in incident.statements}
    version = VERSIONS[outcome.result.spec]
    return {clause for rule in rules for clause in rule.clauses(version)} | {f"MQTT-{name}" for name in own}


def _wrong(outcomes: list[Outcome], rules: tuple[Rule, ...], more: Collection[str] = ()) -> list[str]:
    """Verdicts that accuse a broker of what it did not do, or take what it did for a matter of taste."""
    wrong = []
    for outcome in outcomes:
        result = outcome.result
        right = result.verdict in (CaseVerdict.PASS, CaseVerdict.UNSUPPORTED, CaseVerdict.BLOCKED)
        if result.verdict is CaseVerdict.FAIL:
            plainest = any(result.case in PLAINEST.get(rule, ()) for rule in rules)
            told = {clause for clause in result.clauses if f"{result.spec}/{clause}" in more}
            right = plainest or bool(told) or not _clauses(rules, outcome).isdisjoint(result.clauses)
        if not right:
            wrong.append(f"{result.verdict.value} {result.case} {' '.join(result.clauses)}: {result.detail}")
    return wrong


def _failed(outcomes: list[Outcome]) -> set[str]:
    failed = {outcome.result.case for outcome in outcomes if outcome.result.verdict is CaseVerdict.FAIL}
    blocked = {outcome.result.blocked_by for outcome in outcomes if outcome.result.verdict is CaseVerdict.BLOCKED}
    assert blocked <= failed
    return failed


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_judged_alike_wherever_it_shows(name: str) -> None:
    fault, rules = FAULTS[name]
    outcomes = asyncio.run(_judge(fault, _cases(name, rules)))
    wrong = _wrong(outcomes, rules)
    assert not wrong, f"seed {SEED}:\n" + "\n".join(wrong)
    assert bool(_failed(outcomes)) is bool(rules), "a fault that nobody saw says nothing of the suite"


@pytest.mark.parametrize("name", CONFUSED)
def test_what_disturbs_every_case_is_booked_once(name: str) -> None:
    rules, more, most = CONFUSED[name]
    about = [case for case in CASES if any(f"{case.spec}/{clause}" in more for clause in case.clauses)]
    cases = {case.id: case for case in (*_cases(name, rules), *about)}

    def judged() -> tuple[list[Outcome], dict[str, str]]:
        outcomes = asyncio.run(_judge_mutant(name, list(cases.values())))
        lines = [line for line in _wrong(outcomes, rules, more) if not line.startswith(CaseVerdict.NON_STRICT.value)]
        return outcomes, {line.split()[1]: line for line in lines}

    outcomes, wrong = judged()
    if wrong:
        # A confused broker sends a case its own message, too, where others are slow: what a second run repeats counts.
        outcomes, again = judged()
        wrong = {case: again[case] for case in wrong.keys() & again.keys()}
    assert not wrong, f"seed {SEED}:\n" + "\n".join(wrong.values())
    failed = _failed(outcomes)
    assert 1 <= len(failed) <= most, f"seed {SEED}: {sorted(failed)}"
