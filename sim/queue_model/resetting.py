"""An administrator lets a group begin anew, which is told to the oracle."""

from __future__ import annotations

from assay.reference_broker.queues.groups.subscribe_options import EARLIEST, LATEST
from assay.sim.queue_model.life import QueueLife
from assay.sim.queue_model.state import DONE, NEW, NONE, Kind


def reset(life: QueueLife, name: str, group_id: str, *, to_latest: bool) -> None:
    """Begin at the earliest message that is kept, or behind the last.

    It takes some time: what is delivered again is told from what a transaction acknowledged by the millisecond.
    """
    life.wait(0.002)
    life.rest()
    oracle = life.oracle
    group = oracle.queues[name].groups[group_id]
    if any(copy.may(Kind.MOVING) for copy in group.copies.values()):
        return
    # What every group is through with may be deleted.
    oracle.note_unneeded(oracle.queues[name])
    outcome = life.outcome(f"reset of {group_id}")
    life.engine.groups.reset(
        name, group_id, LATEST if to_latest else EARLIEST, partition=None, now=life.now, on_done=outcome
    )
    for transaction in oracle.transactions.all:
        transaction.held = [each for each in transaction.held if group.copies.get(each[2].message) is not each[2]]
    for copy in group.copies.values():
        if to_latest:
            oracle.become(copy, DONE, *((NEW, NONE) if copy.message.is_late and copy.may(Kind.NONE) else ()))
        elif copy.may(Kind.DEAD, Kind.DONE, Kind.NONE):
            oracle.become(copy, NEW, NONE)
        else:
            oracle.become(copy, NEW)
    group.reached = {}
    outcome.accepted(lambda: None)
