"""Consumers that take over what they or others have had for long, each told to the oracle as it happens."""

from __future__ import annotations

from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.operations.group_operations import Claim
from assay.sim.queue_model.life import Member, QueueLife
from assay.sim.queue_model.state import DONE, Kind, Spot, ViolationError


def claim(life: QueueLife, claimant: Member, holder: Member, index: int, min_idle_s: float) -> None:
    """Claim one of the deliveries that a member of the group got, be it settled or lost by now."""
    held = holder.got[index]
    oracle, sent = life.oracle, held.sent
    queue = oracle.queues[claimant.queue]
    group = queue.groups[claimant.group]
    copy = group.copies[sent]
    what = f"{claimant.name} claims {sent.label}"
    spots, is_idle = copy.spots, copy.delivered_at <= life.now - min_idle_s
    if is_held := copy.may(Kind.FLIGHT):
        (spot,) = spots
        # The engine gives it back and delivers it again within the call.
        copy.spots, copy.is_claimed = {Spot(Kind.READY, spot.deliveries, life.now)}, True
    outcome = life.outcome(what)
    place = (held.delivery.partition, held.delivery.offset)
    try:
        life.engine.groups.claim(
            claimant.queue,
            claimant.group,
            Claim(place=place, min_idle_s=min_idle_s),
            consumer_id=claimant.name,
            now=life.now,
            on_done=outcome,
        )
    except QueueError as error:
        copy.spots = spots
        if not is_held or not is_idle:
            is_right = error.code is (QueueErrorCode.NOT_IDLE if is_held else QueueErrorCode.NOT_PENDING)
        elif error.code is QueueErrorCode.LIMIT:
            is_right = not claimant.takes or len(group.held_by(claimant.name)) >= queue.rules.max_in_flight
        else:
            is_right = error.code is QueueErrorCode.NOT_PENDING
            if spot.deliveries > queue.rules.max_retries:
                oracle.give_up(queue, claimant.group, copy)
            elif sent.expires_at <= life.now:
                oracle.become(copy, DONE)
            else:
                is_right = False
        if not is_right:
            raise ViolationError(f"{what}, which is {spots}: {error}") from error
    else:
        if not is_held or not is_idle or copy.may(Kind.READY):
            raise ViolationError(f"{what}, which was {spots} and is {copy.spots}")
        outcome.accepted(lambda: None)
    finally:
        copy.is_claimed = False
