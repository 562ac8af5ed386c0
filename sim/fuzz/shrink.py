"""Repeats a life from its actions, and removes from it what the failure does not need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from assay.sim.fuzz.actions import Action, Replay, Send
from assay.sim.fuzz.amqp_world import AmqpWorld
from assay.sim.fuzz.driver import DrivenWorld
from assay.sim.fuzz.failure import FuzzFailureError
from assay.sim.fuzz.setups import AMQP_SETUPS
from assay.sim.fuzz.world import FuzzWorld

Clock = Callable[[], float]


def repeat(replay: Replay) -> FuzzFailureError | None:
    """Carry the actions out; returns the failure they lead to, if any."""
    try:
        make_world = AmqpWorld if replay.setup in AMQP_SETUPS else FuzzWorld
        world: DrivenWorld[Any] = make_world(replay.setup, replay.seed)
        for action in replay.actions:
            world.do(action)
    except FuzzFailureError as failure:
        return failure
    return None


def shrink(replay: Replay, signature: str, *, budget_s: float, clock: Clock) -> Replay:
    """A shorter life with the same failure: delta debugging over actions, then over the chunks of each send.

    ``clock`` counts seconds; after ``budget_s`` the shortest life found so far is returned.
    """
    deadline = clock() + budget_s

    def fails(actions: list[Action]) -> bool:
        failure = repeat(msgspec.structs.replace(replay, actions=tuple(actions)))
        return failure is not None and failure.signature == signature

    actions = _without_spare(list(replay.actions), fails, lambda: clock() >= deadline)
    for index, action in enumerate(actions):
        if isinstance(action, Send) and len(action.chunks) > 1 and clock() < deadline:
            whole = msgspec.structs.replace(action, chunks=(b"".join(action.chunks),))
            tried = [*actions[:index], whole, *actions[index + 1 :]]
            if fails(tried):
                actions = tried
    return msgspec.structs.replace(replay, actions=tuple(actions))


def _without_spare(
    actions: list[Action], fails: Callable[[list[Action]], bool], out_of_time: Callable[[], bool]
) -> list[Action]:
    """Remove ever smaller slices as long as it still fails."""
    size = max(1, len(actions) // 2)
    while not out_of_time():
        start, removed = 0, False
        while start < len(actions) and not out_of_time():
            shorter = actions[:start] + actions[start + size :]
            if shorter and fails(shorter):
                actions, removed = shorter, True
            else:
                start += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2) if not removed or size > 1 else 1
    return actions
