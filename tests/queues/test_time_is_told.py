"""Whoever calls the engine tells it the time, and it goes by that: not by when it was called last."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from assay.reference_broker.queues import Outcome, QueueAddress, SettleRequest
from assay.reference_broker.queues.groups.subscribe_options import LATEST
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.routing.message import Message
from tests.queues.conftest import QueueBench

LATER_S = 5_000.0
_NOT_TOLD = {
    *("priority_figures", "has_room", "received", "capture"),
    *("disk_is_full", "free_settled", "publish", "recover", "step", "tick"),
}
"""They change nothing, or not here, or are done within a turn, which was told."""


def _parts(bench: QueueBench) -> dict[str, object]:
    engine = bench.engine
    return {"engine": engine, "groups": engine.groups, "transactions": engine.transactions}


def _entries() -> Iterator[tuple[str, str]]:
    """Every public function that is told the time."""
    left_out = {(part, name) for name in _NOT_TOLD for part in ("engine", "groups", "transactions")}
    left_out -= {("engine", "publish"), ("engine", "tick")}
    for part, owner in _parts(QueueBench()).items():
        for name, function in inspect.getmembers(owner, inspect.ismethod):
            if (
                not name.startswith("_")
                and "now" in inspect.signature(function).parameters
                and (part, name) not in left_out
            ):
                yield part, name


def _argument(bench: QueueBench, name: str) -> Any:
    """One that is right for a parameter of this name, wherever it is."""
    known: dict[str, Callable[[], Any]] = {
        "address": lambda: QueueAddress(queue="q"),
        "batch": lambda: None,
        "changes": dict,
        "credit": lambda: 1,
        "epoch": lambda: 0,
        "generation": lambda: 0,
        "key": lambda: TransactionKey(0, 0, "t"),
        "limit": lambda: 1,
        "message": lambda: Message(topic="$queue/q", payload=b"m"),
        "messages": lambda: [Message(topic="$queue/q", payload=b"m")],
        "name": lambda: "q",
        "offset": lambda: 0,
        "owner": lambda: None,
        "partition": lambda: 0,
        "position": lambda: LATEST,
        "producer_id": lambda: 0,
        "queue": lambda: "q",
        "request": lambda: SettleRequest(outcome=Outcome.ACCEPT, message_ids=("q:0:0",)),
        "settings": dict,
        "total": lambda: 2,
        "transactional_id": lambda: "t",
        "consumer": lambda: bench.consumer("asker").handle,
    }
    return known.get(name, lambda: "g" if name in ("group", "consumer_id", "pattern") else lambda *_: None)()


@pytest.mark.parametrize(("part", "name"), list(_entries()))
def test_the_engine_goes_by_the_time_that_it_is_told(part: str, name: str) -> None:
    """Whether it does what it is asked for, or refuses that."""
    bench = QueueBench()
    bench.consumer("c", room=0)
    bench.publish("m")
    bench.turn()
    function = getattr(_parts(bench)[part], name)
    needed = {
        each.name: _argument(bench, each.name)
        for each in inspect.signature(function).parameters.values()
        if each.default is inspect.Parameter.empty and each.name != "now"
    }
    now = bench.now + LATER_S
    try:
        function(**needed, now=now)
    except Exception as error:  # whatever is wrong with what it was asked for
        told = error
    else:
        told = None
    assert bench.engine._agenda.now == now, told
