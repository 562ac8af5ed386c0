"""Which proxies a fault of the network is made on: those of a side, of all, or of the one client that it names."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from assay.faults.nemesis import Nemesis
from assay.faults.process import BrokerProcess
from assay.faults.pump import Clock
from assay.faults.scenario import parse_scenario
from assay.faults.toxiproxy import ToxiproxyClient
from assay.faults.workload import HistoryRecorder
from assay.reference_broker.trace.schema import HistoryEvent

GOOD: dict[str, Any] = {"name": "x", "workload": [{"queue": "q"}], "contract": {"delivery_timeout_s": 1.0}}
SIDES = {"p0": "producers", "c0": "consumers", "c1": "consumers", "d0": "consumers"}


class Proxies:
    """Notes what is asked of a server."""

    def __init__(self) -> None:
        self.cut: list[str] = []
        self.toxics: list[tuple[str, str]] = []

    def cut_connections(self, proxy: str) -> None:
        self.cut.append(proxy)

    def add_toxic(self, proxy: str, name: str, kind: str, stream: str, attributes: dict[str, Any]) -> None:
        self.toxics.append((proxy, stream))

    def remove_toxic(self, proxy: str, name: str) -> None:
        self.cut.append(f"{proxy} {name}")


def carried_out(**fault: Any) -> tuple[Proxies, list[HistoryEvent]]:
    others = {"at_s": 0.0, "kind": "reset", "target": "c1"}
    faults = [{"at_s": 0.0, **fault}, others]
    scenario = parse_scenario(GOOD | {"faults": faults})
    proxies, events = Proxies(), list[HistoryEvent]()
    names = {proxy: f"the-{proxy}" for proxy in ("producers", "consumers", "c1", "p0")}

    async def run() -> None:
        clock = Clock(asyncio.get_running_loop())
        history = HistoryRecorder(events.append, clock.now())
        broker, server = cast(BrokerProcess, None), cast(ToxiproxyClient, proxies)
        await Nemesis(scenario, broker, server, names, SIDES, history, clock, 1).run(clock.now())

    asyncio.run(run())
    return proxies, events


@pytest.mark.parametrize(
    ("target", "hit"),
    [
        ("c1", ["the-c1"]),
        ("p0", ["the-p0"]),
        ("consumers", ["the-consumers", "the-c1"]),
        ("producers", ["the-producers", "the-p0"]),
        ("clients", ["the-producers", "the-consumers", "the-c1", "the-p0"]),
        ("broker", ["the-producers", "the-consumers", "the-c1", "the-p0"]),
    ],
)
def test_who_is_hit(target: str, hit: list[str]) -> None:
    proxies, _ = carried_out(kind="partition", for_s=0.001, target=target, direction="to_broker")
    assert proxies.toxics == [(proxy, "upstream") for proxy in hit]
    healed = [each for each in proxies.cut if " " in each]
    assert sorted(healed) == sorted(f"{proxy} fault0_upstream" for proxy in hit)
    assert "the-c1" in proxies.cut


def test_the_history_names_the_client() -> None:
    _, events = carried_out(kind="reset", target="p0")
    assert sorted(event.detail for event in events) == ["reset c1", "reset c1", "reset p0", "reset p0"]
