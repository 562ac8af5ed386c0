"""Settlements of several deliveries at once, in part of others' or of none, each told to the oracle as it happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.mqtt.queue_topics.settle_properties import parse_settlement
from assay.reference_broker.queues import QueueError, QueueErrorCode
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.sim.queue_model.life import Held, Member, QueueLife
from assay.sim.queue_model.state import Sent, ViolationError

Place = tuple[int, int]
_WAITS: Final = {Verb.NACK: "delay", Verb.EXTEND: "extend"}


class Named(msgspec.Struct, frozen=True):
    """What a settlement names: places, and as user properties."""

    places: frozenset[Place]
    properties: tuple[tuple[str, str], ...]


def by_ids(picks: Sequence[Held]) -> Named:
    """Each by its message id; one may be named twice."""
    places = frozenset((held.delivery.partition, held.delivery.offset) for held in picks)
    return Named(places, tuple(("message-id", held.delivery.message_id) for held in picks))


def by_ranges(picks: Sequence[Held]) -> Named:
    """Of the first one's partition: all from the first to the second, then single ones; as a rule not ascending."""
    partition = picks[0].delivery.partition
    offsets = [held.delivery.offset for held in picks if held.delivery.partition == partition]
    low, high, rest = min(offsets[:2]), max(offsets[:2]), offsets[2:]
    text = ",".join([*map(str, rest), f"{low}-{high}"])
    places = frozenset((partition, offset) for offset in (*range(low, high + 1), *rest))
    return Named(places, (("partition", str(partition)), ("offsets", text)))


def settle_many(
    life: QueueLife,
    member: Member,
    verb: Verb,
    named: Named,
    *,
    any_group: bool = False,
    wait_s: float | None = None,
    within: TransactionKey | None = None,
) -> list[tuple[str, Sent]] | None:
    """Settle them as far as the consumer holds them; returns what was, None when the engine refused as it had to.

    ``within``: acknowledge them in this transaction; then the caller tells the oracle. Raises :class:`QueueError` when
    it cannot be.
    """
    queue = life.oracle.queues[member.queue]
    found: list[tuple[str, Sent]] = []
    missing, is_ambiguous = set[Place](), False
    for place in sorted(named.places):
        sent = queue.places.get(place)
        holders = life.oracle.holders(member.queue, sent, member.name) if sent in queue.messages else []
        holders = holders if any_group else [group for group in holders if group == member.group]
        is_ambiguous |= len(holders) > 1
        if sent is None or not holders:
            missing.add(place)
        else:
            found.append((holders[0], sent))
    options: tuple[tuple[str, str], ...] = () if any_group else (("group-id", member.group),)
    if wait_s is not None and verb in _WAITS:
        options += ((_WAITS[verb], f"{wait_s * 1000:.0f}ms"),)
    what = f"{verb} of {named.properties} by {member.name} of {member.group}"
    outcome = life.outcome(what, fails=bool(missing), told=_told(queue.name, len(found), missing))
    request = msgspec.structs.replace(parse_settlement(verb, named.properties + options), within=within)
    try:
        life.engine.settle(member.queue, request, consumer_id=member.name, now=life.now, on_done=outcome)
    except QueueError as error:
        if within is not None and found and not is_ambiguous:
            raise
        if error.code is not (QueueErrorCode.AMBIGUOUS if is_ambiguous else QueueErrorCode.NOT_PENDING) or (
            found and not is_ambiguous
        ):
            raise ViolationError(f"{what}: {error}; it holds {found}") from error
        return None
    if is_ambiguous or not found:
        raise ViolationError(f"{what} is accepted; held are {found}, ambiguous: {is_ambiguous}")
    if within is not None:
        outcome.accepted(lambda: None)
    else:
        confirms = [life.oracle.settle(member.queue, group, sent, verb.value, wait_s) for group, sent in found]
        outcome.accepted(lambda: [confirm() for confirm in confirms])
    return found


def _told(queue: str, settled: int, missing: set[Place]) -> frozenset[str]:
    """What an answer must say when some were missing."""
    told = {f"settled {settled}"}
    for partition in {partition for partition, _ in missing}:
        runs: list[list[int]] = []
        for offset in sorted(offset for at, offset in missing if at == partition):
            if runs and runs[-1][-1] == offset - 1:
                runs[-1].append(offset)
            else:
                runs.append([offset])
        text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
        told.add(f"not-pending {queue}:{partition}:{text}")
    return frozenset(told)
