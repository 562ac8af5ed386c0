"""A broker whose HTTP or gRPC has one fault fails one case; whatever rests on the same step is blocked by that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from assay.conformance.case import load_cases
from assay.conformance.engine import Engine, RunOptions
from assay.conformance.mutants import Patch
from assay.conformance.mutants import grpc as of_grpc
from assay.conformance.mutants import http as of_http
from assay.conformance.targets import Endpoint, RunningTarget, Target, probe
from assay.reference_broker.broker import Broker
from assay.reference_broker.config import BrokerConfig, ListenerConfig, ListenerProtocol
from assay.reference_broker.trace.conformance import CaseVerdict

PATIENCE_S = 3.0
QUEUE = of_http.QUEUE
BROKEN = {"title": "x", "status": 500, "code": "internal", "detail": "x", "error": "x", "error_code": 50001}
CONFIG = BrokerConfig(
    listeners=(
        ListenerConfig(port=0),
        ListenerConfig(port=0, protocols=(ListenerProtocol.HTTP,)),
        ListenerConfig(port=0, protocols=(ListenerProtocol.GRPC,)),
    )
)
Apply = Callable[[Patch], None]


def broken(method: str, path: str) -> Apply:
    """Requests of HTTP are answered with 500, whatever they ask."""

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def change(_scope: Any, _status: int, _told: Any) -> tuple[int, Any]:
            return 500, BROKEN

        return lambda service: of_http.Altered(original(service), method, path, change)

    return lambda patch: patch.wrap(of_http.module("server"), "create_app", make)


def failing(methods: str) -> Apply:
    """Calls of gRPC end in a bug."""

    def make(_function: Any, _response: Any) -> Any:
        async def serve(_call: Any, _asked: Any) -> Any:
            message = "planted"
            raise RuntimeError(message)

        return serve

    return lambda patch: of_grpc.plant(patch, methods, make)


def judged(apply: Apply, spec: str, areas: str) -> dict[str, tuple[CaseVerdict, str]]:
    """Verdict and what blocks, of all cases of these areas that share a broker."""
    cases = [
        case
        for case in load_cases().values()
        if case.spec == spec and case.area in areas.split() and not case.is_private
    ]
    with ExitStack() as stack:
        apply(Patch(stack))
        broker = stack.enter_context(Broker(CONFIG))
        urls = {f"{place.scheme}_url": place.url for place in broker.addresses[1:]}
        place = Endpoint(host=broker.host, port=broker.port)
        target = Target(name="broken", endpoint=place, capabilities={"queues": True, **urls})
        options = RunOptions(patience_s=PATIENCE_S, concurrency=48)
        engine = Engine(RunningTarget(target, place), probe(target, place), options)
        outcomes = asyncio.run(engine.run_all(cases, lambda _outcome: None))
    return {each.result.case: (each.result.verdict, each.result.blocked_by) for each in outcomes}


@pytest.mark.parametrize(
    ("spec", "areas", "apply", "root", "least_blocked"),
    [
        ("http", "queues publish", broken("POST", "/api/v1/queues"), "queues/created-is-listed-and-shown", 15),
        ("http", "publish consume", broken("POST", f"{QUEUE}/messages"), "publish/taken-is-200-and-has-a-place", 15),
        (
            "http",
            "publish consume",
            broken("POST", f"{QUEUE}/consume"),
            "consume/once-in-a-group-and-in-every-group",
            15,
        ),
        ("http", "topics groups", broken("POST", "/api/v1/topics"), "topics/created-is-201-and-shown", 15),
        ("http", "groups", broken("POST", "/api/v1/groups/[^/]+/join"), "groups/joining-tells-the-assignment", 8),
        ("grpc", "queues append read", failing(r"fluxmq\..*CreateQueue.*"), "queues/created-shown-listed-deleted", 4),
        ("grpc", "append consume read", failing(r"fluxmq\..*Append.*"), "append/told-where-and-read-as-sent", 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_fault_is_one_failure(spec: str, areas: str, apply: Apply, root: str, least_blocked: int) -> None:
    seen = judged(apply, spec, areas)
    print(seen)
    failed = {name for name, (verdict, _) in seen.items() if verdict not in (CaseVerdict.PASS, CaseVerdict.BLOCKED)}
    assert failed == {f"{spec}/{root}"}
    blocked = [by for verdict, by in seen.values() if verdict is CaseVerdict.BLOCKED]
    assert set(blocked) == failed
    assert len(blocked) >= least_blocked
