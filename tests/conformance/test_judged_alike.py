"""One fault of a broker is judged alike in every case: a product of faults and cases.

A fault is planted on the wire (``meddling_proxy``). Whoever meets it fails on the rule that it breaks, is blocked by
such a failure, or does not look; nobody is accused by another rule, and none takes it for a matter of taste.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from meddling_proxy import Fault, KeptBack, MeddlingProxy
from msgspec.structs import replace

from conformance.booking import PLAINEST
from conformance.case import Case, load_cases
from conformance.engine import Engine, Outcome, RunOptions
from conformance.rules import VERSIONS, Rule
from conformance.targets import Endpoint, RunningTarget, hosted_target, probe
from conformance.wire import (
    Connack,
    MalformedPacketError,
    Packet,
    PacketType,
    Publish,
    Suback,
    decode_packet,
    encode,
)
from reference_broker.broker import Broker
from reference_broker.trace.conformance import CaseVerdict

SEED = 1
SAMPLE = 40
PATIENCE_S = 0.7
LONGEST_S = 5.0
APART = ("slow-clients", "size", "lesser-server")
CASES = [
    case
    for case in load_cases().values()
    if case.spec != "queue" and not case.is_private and case.limit_s <= LONGEST_S and case.area not in APART
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


def _cases(name: str, rules: tuple[Rule, ...]) -> list[Case]:
    """Cases drawn for this fault, and those where it may be booked."""
    drawn = random.Random(f"{SEED} {name}").sample(CASES, SAMPLE)
    judges = [
        case
        for rule in rules
        for case in CASES
        if case.id in PLAINEST.get(rule, ()) or (rule is not Rule.FORM and rule.is_subject_of(case.id, case.clauses))
    ]
    return list({case.id: case for case in (*drawn, *judges)}.values())


async def _judge(fault: Fault, cases: list[Case]) -> list[Outcome]:
    async with Broker() as broker:
        behind = Endpoint(host=broker.host, port=broker.port)
        async with MeddlingProxy(behind, fault).running() as place:
            target = hosted_target(place.host, place.port)
            # What it can is asked of the broker itself: nobody would go on with one that is broken at the first look.
            capabilities = await asyncio.to_thread(probe, target, behind)
            options = RunOptions(patience_s=PATIENCE_S, concurrency=SAMPLE, seed=SEED)
            engine = Engine(RunningTarget(target, place), capabilities, options)
            return await engine.run_all(cases, lambda _outcome: None)


def _clauses(rules: tuple[Rule, ...], outcome: Outcome) -> set[str]:
    """All that the fault may be booked on: the rules, and what a step adds to them (a code, the answer to a kind)."""
    own = {statement for incident in outcome.incidents if incident.rule in rules for statement in incident.statements}
    version = VERSIONS[outcome.result.spec]
    return {clause for rule in rules for clause in rule.clauses(version)} | {f"MQTT-{name}" for name in own}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_judged_alike_wherever_it_shows(name: str) -> None:
    fault, rules = FAULTS[name]
    outcomes = asyncio.run(_judge(fault, _cases(name, rules)))
    wrong = []
    for outcome in outcomes:
        result = outcome.result
        right = result.verdict in (CaseVerdict.PASS, CaseVerdict.UNSUPPORTED, CaseVerdict.BLOCKED)
        if result.verdict is CaseVerdict.FAIL:
            plainest = any(result.case in PLAINEST.get(rule, ()) for rule in rules)
            right = plainest or not _clauses(rules, outcome).isdisjoint(result.clauses)
        if not right:
            wrong.append(f"{result.verdict.value} {result.case} {' '.join(result.clauses)}: {result.detail}")
    assert not wrong, f"seed {SEED}:\n" + "\n".join(wrong)
    failed = {outcome.result.case for outcome in outcomes if outcome.result.verdict is CaseVerdict.FAIL}
    blocked = {outcome.result.blocked_by for outcome in outcomes if outcome.result.verdict is CaseVerdict.BLOCKED}
    assert blocked <= failed
    assert bool(failed) is bool(rules), "a fault that nobody saw says nothing of the suite"
