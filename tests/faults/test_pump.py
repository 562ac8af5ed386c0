"""The pump between sockets and sans-IO clients, against servers that misbehave at the level of TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import assay.faults.workload.plan as plan_module
from assay.conformance.wire import Connack, Connect, Decoder, Packet, Puback, Publish, Suback, Subscribe, encode
from assay.faults.pump import Clock, Pump
from assay.faults.scenario import Scenario
from assay.faults.workload import HistoryRecorder, WorkloadPlan
from assay.reference_broker.trace.schema import HistoryEvent, OpKind, OpType

pytestmark = pytest.mark.usefixtures("impatient")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers wait for consumers that cannot subscribe; not as long as in earnest."""
    monkeypatch.setattr(plan_module, "SUBSCRIBE_PATIENCE_S", 0.5)


def small(scenario_of: Any, **workload: Any) -> Scenario:
    scenario: Scenario = scenario_of(
        workload={"messages_per_producer": 12, "publish_timeout_s": 0.3, "handshake_timeout_s": 0.3, **workload},
        contract={"delivery_timeout_s": 0.2, "dead_letters": False},
        drain_timeout_s=0.8,
        drain_quiet_s=0.5,
    )
    return scenario


async def drive(scenario: Scenario, serve: Serve) -> tuple[WorkloadPlan, list[HistoryEvent]]:
    """Run the plan against a server; fails when it does not end."""
    events: list[HistoryEvent] = []
    clock = Clock(asyncio.get_running_loop())
    plan = WorkloadPlan(scenario, HistoryRecorder(events.append, clock.now()))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=4_096)
    address = server.sockets[0].getsockname()
    async with asyncio.timeout(20):
        await Pump(plan, clock, lambda client: (str(address[0]), int(address[1]))).run()
    server.close()
    assert plan.finished
    return plan, events


async def packets(reader: asyncio.StreamReader, decoder: Decoder) -> list[Packet]:
    """The packets of the next chunk; none at the end."""
    while data := await reader.read(65_536):
        if found := decoder.feed(data):
            return found
    return []


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, confirm: bool) -> None:
    """Say yes to everything; without ``confirm``, stop reading at the first publish and keep the socket open."""
    decoder = Decoder(5)
    while found := await packets(reader, decoder):
        for packet in found:
            match packet:
                case Connect():
                    writer.write(encode(Connack(), 5))
                    if packet.client_id.startswith("p") and not confirm:
                        await asyncio.Event().wait()
                case Subscribe():
                    writer.write(encode(Suback(packet_id=packet.packet_id, reason_codes=(1,)), 5))
                case Publish():
                    writer.write(encode(Puback(packet_id=packet.packet_id), 5))
    writer.close()


def test_a_peer_that_never_reads_cannot_hold_the_run(scenario_of: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, confirm=False)

    _, events = asyncio.run(drive(small(scenario_of, payload_bytes=1_000_000), serve))
    unknown = [event for event in events if event.f is OpKind.PUBLISH and event.type is OpType.INFO]
    assert len(unknown) == 12


def test_a_peer_that_confirms_and_drops_everything(scenario_of: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accept(reader, writer, confirm=True)

    plan, events = asyncio.run(drive(small(scenario_of), serve))
    assert plan.drained
    assert plan.open_count == 12
    assert sum(event.f is OpKind.PUBLISH and event.type is OpType.OK for event in events) == 12


def test_a_peer_that_accepts_and_says_nothing(scenario_of: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    _, events = asyncio.run(drive(small(scenario_of), serve))
    connects = [event.type for event in events if event.f is OpKind.CONNECT]
    assert OpType.INFO in connects
    assert OpType.OK not in connects


def test_a_peer_that_sends_garbage(scenario_of: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"\xff\xff\xff\xff\xff")
        await reader.read()
        writer.close()

    _, events = asyncio.run(drive(small(scenario_of), serve))
    failed = [event for event in events if event.f is OpKind.CONNECT and event.type is OpType.INFO]
    assert any("malformed packet" in event.detail for event in failed)
