"""To forget what is settled changes no judgement, and bounds what is held."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.conformance.checkers import anomalies, build_tables, forgetting, relations
from assay.conformance.checkers.planting import PLANTERS, plant
from assay.conformance.checkers.specimens import CONTRACT, right_history
from assay.faults.scenario import find_scenario, shipped_scenarios
from assay.reference_broker.trace.schema import Contract, HistoryEvent, OpKind, OpType
from assay.sim.runner import simulate


@pytest.fixture(autouse=True)
def _few_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended lives are judged soon, as in a long history."""
    monkeypatch.setattr(forgetting, "_TOGETHER", 2)


def assert_same(events: list[HistoryEvent], contract: Contract) -> int:
    """Rows, scopes and what was claimed; returns how many sends were forgotten."""
    whole = build_tables(events)
    tables, kept = relations(events, contract, few=0)
    expected = anomalies(whole, contract)
    assert anomalies(tables, contract) == expected
    assert tables.scopes() == whole.scopes()
    assert tables.events == whole.events
    forgotten = tables.forgotten
    assert len(tables.sends) + forgotten.sends == len(whole.sends)
    assert sum(map(len, tables.main.values())) + forgotten.deliveries == sum(map(len, whole.main.values()))
    assert len(tables.main) + forgotten.subjects == len(whole.main)
    assert len(tables.dead) + forgotten.dead == len(whole.dead)
    assert [event.index for event in kept] == sorted(event.index for event in kept)
    return forgotten.sends


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), messages=st.integers(1, 80), groups=st.integers(1, 3), faults=st.booleans())
def test_right_histories_are_judged_alike(seed: int, messages: int, groups: int, faults: bool) -> None:
    events = right_history(random.Random(seed), messages=messages, groups=groups, consumers=2, faults=faults)
    assert_same(events, CONTRACT)


@pytest.mark.parametrize("anomaly", sorted(PLANTERS))
def test_planted_anomalies_are_judged_alike(anomaly: str) -> None:
    for seed in range(40):
        rng = random.Random(f"{anomaly}/{seed}")
        events = right_history(rng, messages=40, groups=1 + seed % 2, consumers=1 + seed % 3, faults=seed % 4 == 0)
        broken = plant(anomaly, rng, events)
        if broken is not None:
            assert_same(broken, CONTRACT)


@pytest.mark.parametrize("name", shipped_scenarios())
def test_simulated_histories_are_judged_alike(name: str) -> None:
    scenario = find_scenario(name)
    events = simulate(scenario, 1).run.events
    forgotten = assert_same(events, scenario.contract)
    if name in ("crash-restart", "power-loss", "slow-consumer", "flaky-network"):
        assert forgotten > 100, "nearly everything went well"


class Endless:
    """A history of so many messages that can be read again and again and is held nowhere: some are delivered twice,
    some are rejected, whose letters are read."""

    def __init__(self, messages: int, *, returns: int = -1) -> None:
        self._messages = messages
        self._returns = returns
        self.most_blocks = 0
        self._index = 0

    def _event(self, process: str, f: OpKind, type_: OpType, **fields: object) -> HistoryEvent:
        self._index += 1
        if self._index % 5_000 == 0:
            self.most_blocks = max(self.most_blocks, sys.getallocatedblocks())
        return HistoryEvent(index=self._index, time_ns=self._index * 50_000, process=process, f=f, type=type_, **fields)  # type: ignore[arg-type]

    def _settle(self, kind: OpKind, **fields: object) -> Iterator[HistoryEvent]:
        asked = self._event("c", kind, OpType.INVOKE, **fields)
        yield asked
        yield self._event("c", kind, OpType.OK, op=asked.index, **fields)

    def __iter__(self) -> Iterator[HistoryEvent]:
        self._index = 0
        scope = {"queue": "q", "group": "g"}
        asked = self._event("c", OpKind.SUBSCRIBE, OpType.INVOKE, **scope)
        yield asked
        yield self._event("c", OpKind.SUBSCRIBE, OpType.OK, op=asked.index, **scope)
        for number in range(self._messages):
            named = {"queue": "q", "value": f"p-{number}", "key": f"k{number % 8}"}
            sent = named | {"producer": "p", "seq": number}
            asked = self._event("p", OpKind.PUBLISH, OpType.INVOKE, **sent)
            yield asked
            yield self._event("p", OpKind.PUBLISH, OpType.OK, op=asked.index, **sent)
            place = {"group": "g", "partition": number % 4, "offset": number // 4}
            again = number % 10 == 3
            yield self._event("c", OpKind.DELIVER, OpType.OK, delivery_count=1, **named, **place)
            if again:
                yield from self._settle(OpKind.NACK, **named, **place)
                yield self._event("c", OpKind.DELIVER, OpType.OK, delivery_count=2, redelivered=True, **named, **place)
            if number % 20 == 7:
                yield from self._settle(OpKind.REJECT, **named, **place)
                letter = {**named, "queue": "$dlq/q", "group": "watch", "reason": "rejected"}
                yield self._event("w", OpKind.DELIVER, OpType.OK, **letter)
            else:
                yield from self._settle(OpKind.ACK, **named, **place)
        if self._returns >= 0:
            number = self._returns
            named = {"queue": "q", "value": f"p-{number}", "key": f"k{number % 8}"}
            place = {"group": "g", "partition": number % 4, "offset": number // 4}
            yield self._event("c", OpKind.DELIVER, OpType.OK, delivery_count=2, redelivered=True, **named, **place)
        for queue in ("q", "$dlq/q"):
            yield self._event("drain", OpKind.DRAIN, OpType.OK, queue=queue)


def held_blocks(messages: int) -> int:
    """Blocks of memory that are held at most, beyond those before."""
    history = Endless(messages)
    gc.collect()
    before = sys.getallocatedblocks()
    tables, kept = relations(history, CONTRACT)
    assert anomalies(tables, CONTRACT) == []
    assert len(kept) < 10
    return history.most_blocks - before


@pytest.mark.timeout(600)
def test_memory_is_bounded_by_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand events, and a million: the same is held."""
    monkeypatch.undo()
    small, large = held_blocks(19_000), held_blocks(190_000)
    print(small, large)
    assert large < 1.1 * small + 1_000, (small, large)


def test_what_was_forgotten_and_shows_again_is_judged_whole() -> None:
    history = Endless(200, returns=12)
    assert_same(list(history), CONTRACT)
    tables, _ = relations(history, CONTRACT, few=0)
    assert [(row.anomaly, row.value) for row in anomalies(tables, CONTRACT)] == [("A15", "p-12")]
