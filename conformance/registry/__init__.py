"""The statements that the cases cite, and which of them are tested: the TOML files of this folder, read strictly.

``mqtt311.toml`` and ``mqtt5.toml`` hold every numbered statement of the standards, ``queue.toml`` our own rules of the
durable queues, ``rfc6455.toml`` what both versions need of WebSocket, ``amqp091.toml`` the rules of AMQP 0.9.1,
``http.toml`` and ``grpc.toml`` those of the
APIs of requests and answers.
``case_ids.txt`` is the permanent list of case ids: an id once listed is never renamed and never reused.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

import msgspec

from assay.conformance.case import Case
from assay.conformance.rules import FACES
from assay.reference_broker.trace.conformance import Clause, ClauseStatus
from assay.reference_broker.trace.described import described

SPECS = ("mqtt311", "mqtt5", "queue", "amqp091", "http", "grpc")
"""The specifications that cases are sorted by."""
WEBSOCKET = "rfc6455"
STANDARDS = (*SPECS, WEBSOCKET)
"""All whose statements a case may cite."""


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One statement, in our own words."""

    id: str
    section: str
    level: Literal["MUST", "SHOULD", "MAY"]
    role: Literal["server", "client", "both"]
    testable: Literal["yes", "partly", "no"]
    """Whether a black-box client can judge a server by it."""
    sentence: str
    reason: str = ""
    variants: tuple[str, ...] = ()
    """Of AMQP: the reactions that pass (``amqp091.toml`` says how they are written); empty = the sentence says it."""


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    statement: tuple[Statement, ...]


@functools.cache
def load_statements(spec: str) -> Mapping[str, Statement]:
    """Statements of one specification by id. Raises :class:`msgspec.ValidationError` with the path of a wrong key."""
    text = files(__package__).joinpath(f"{spec}.toml").read_text(encoding="utf-8")
    return MappingProxyType({entry.id: entry for entry in msgspec.toml.decode(text, type=described(_File)).statement})


def listed_case_ids() -> list[str]:
    """The permanent list of case ids."""
    text = files(__package__).joinpath("case_ids.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def unproven_case_ids() -> list[str]:
    """Cases without a mutant yet, which are left out of the self-check: the list may only become shorter."""
    text = files(__package__).joinpath("unproven.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def clauses(cases: Iterable[Case], specs: Iterable[str] = STANDARDS) -> list[Clause]:
    """Every statement with the cases that cite it.

    A case of ``queue`` may cite MQTT 5.0 statements too; ids starting with ``Q-`` are the queues' own, those starting
    with ``RFC6455-`` of WebSocket.
    """
    citing: dict[tuple[str, str], list[str]] = defaultdict(list)
    for case in cases:
        for clause in case.clauses:
            citing[home_of(case, clause), clause].append(case.id)
    found = []
    for spec in specs:
        for statement in load_statements(spec).values():
            tested_by = citing[spec, statement.id]
            status = ClauseStatus.UNTESTABLE if statement.testable == "no" else ClauseStatus.UNTESTED
            found.append(
                Clause(
                    spec=spec,
                    id=statement.id,
                    level=statement.level,
                    role=statement.role,
                    section=statement.section,
                    sentence=statement.sentence,
                    status=ClauseStatus.TESTED if tested_by else status,
                    reason=statement.reason,
                    cases=tested_by,
                )
            )
    return found


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the statements of one specification have cases."""

    spec: str
    server: int
    """Statements that a black-box client can see a server violate."""
    server_tested: int
    client: int
    """Duties of the client whose neglect a server reacts to."""
    client_tested: int
    untestable: int


def spoken(capabilities: Mapping[str, object]) -> tuple[str, ...]:
    """The standards that concern a broker with these capabilities: of each protocol that it speaks."""
    mqtt = bool(capabilities.get("mqtt311") or capabilities.get("mqtt5"))
    others = {name: bool(capabilities.get(name)) for name in ("amqp091", *FACES)}
    return tuple(name for name in STANDARDS if others.get(name, mqtt or not any(others.values())))


def coverage(cases: Iterable[Case], spec: str) -> Coverage:
    """Count the statements of a specification that ``cases`` test."""
    counts: Counter[tuple[bool, bool]] = Counter()
    found = clauses(cases, (spec,))
    statements = load_statements(spec)
    for clause in found:
        if statements[clause.id].testable != "no":
            counts[clause.role == "client", clause.status is ClauseStatus.TESTED] += 1
    return Coverage(
        spec=spec,
        server=counts[False, True] + counts[False, False],
        server_tested=counts[False, True],
        client=counts[True, True] + counts[True, False],
        client_tested=counts[True, True],
        untestable=len(found) - counts.total(),
    )


def home_of(case: Case, clause: str) -> str:
    """The specification whose file must hold ``clause`` when ``case`` cites it."""
    if clause.startswith("Q-"):
        return "queue"
    if case.spec == "amqp091" or case.is_about_a_face:
        return case.spec
    if clause.startswith("RFC6455-"):
        return WEBSOCKET
    return "mqtt5" if case.spec == "queue" else case.spec
