"""What a delivery must be like, and which one must not come before another."""

from __future__ import annotations

from assay.conformance.explore.queues.books import Books, violation
from assay.conformance.explore.queues.life import LANES
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.state import SLACK_S, Copy, Fate, Kind, Member, Message
from assay.conformance.partitioners import fnv1a, murmur3
from assay.conformance.wire import Properties, Publish

RICH = Properties(
    payload_format_indicator=1,
    content_type="text/plain; ü",
    response_topic="answers/here",
    correlation_data=b"\x00\xff\x01",
    user_property=(("x-z", "1"), ("x-a", "2 ü"), ("x-z", "")),
)
NUMBER = "x-number"
KEPT = ("payload_format_indicator", "content_type", "response_topic", "correlation_data")


def judge_content(
    message: Message, packet: Publish, told: dict[str, str], where: str, when: tuple[float, float]
) -> None:
    """``when``: it was sent, at the earliest and latest. Raises :class:`ViolationError`."""
    count = int(told["delivery-count"])
    if packet.payload != message.payload:
        seen = f"{len(packet.payload)} bytes, {packet.payload[:40]!r}"
        raise violation(QueueRule.CHANGED, f"{where} with another payload: {seen}")
    for name in KEPT:
        if getattr(packet.properties, name) != getattr(message.kept, name):
            raise violation(QueueRule.CHANGED, f"{where} with {name} {getattr(packet.properties, name)!r}")
    own = [pair for pair in packet.properties.user_property if pair[0].startswith("x-")]
    if own != [(NUMBER, str(message.number)), *message.kept.user_property]:
        raise violation(QueueRule.CHANGED, f"{where} with the user properties {own}")
    if (told.get("redelivered") == "true") != (count > 1):
        raise violation(QueueRule.REDELIVERED, f"{where} with redelivered {told.get('redelivered')}")
    if message.source is not None:
        _judge_letter(message.source, message.counts_before, told, where)
    if message.queue.is_letters:
        return
    if packet.topic != message.topic:
        raise violation(QueueRule.TOPIC, f"{where} on {packet.topic}, published on {message.topic}")
    named = told.get("priority", "normal")
    if named != LANES[message.lane] and not message.queue.is_strict:
        raise violation(QueueRule.PRIORITY, f"{where} with priority {named}, published as {LANES[message.lane]}")
    if 0 <= message.partition != int(told["partition"]):
        text = f"{where} of partition {told['partition']}, published to {message.partition}"
        raise violation(QueueRule.TELLS, text, "Q-PART-05")
    left = packet.properties.message_expiry_interval
    if message.expiry_s and left is not None:
        few, many = (each - message.published_at for each in when)
        if not message.expiry_s - many - SLACK_S <= left <= message.expiry_s - few + SLACK_S:
            text = f"{where} with an expiry interval of {left}, {many:.1f} s after a publish with {message.expiry_s}"
            raise violation(QueueRule.EXPIRY_INTERVAL, text)


def _judge_letter(source: Copy, before: frozenset[int], told: dict[str, str], where: str) -> None:
    message = source.message
    counts = {str(spot.deliveries) for spot in source.spots if spot.kind is Kind.DEAD}
    counts |= {str(count) for count in before}
    wanted: dict[str, set[str]] = {"_dlq_original_queue": {message.queue.name}}
    wanted["_dlq_original_topic"] = {message.topic}
    if source.may(Kind.DEAD):
        wanted["_dlq_delivery_count"] = counts
        wanted["_dlq_group"] = {source.group.told or source.group.name}
        if consumers := last_consumers(source, before, told):
            wanted["_dlq_consumer"] = consumers
    if message.place is not None:
        wanted["_dlq_original_partition"] = {str(message.place[0])}
        wanted["_dlq_original_offset"] = {str(message.place[1])}
    if source.reason and not before:
        wanted["_dlq_reason"] = {source.reason}
    for name, values in wanted.items():
        if told.get(name) not in values:
            text = f"{where} with {name} {told.get(name)}, not {' or '.join(sorted(values))}"
            raise violation(QueueRule.LETTER_CHANGED, text)


def last_consumers(source: Copy, before: frozenset[int], told: dict[str, str]) -> set[str]:
    """Whom a dead letter may name as the last that had its message; none: it does not say, or it may be anybody."""
    if not source.last_holder or before or told.get("_dlq_delivery_count") == "0":
        return set()
    return {source.last_holder, *([""] if source.crashed else [])}


def judge_order(books: Books, copy: Copy, member: Member, count: int, where: str) -> None:
    """Nothing that is ahead of it, and could come, comes to the same consumer later; nothing overtakes a retry.

    What two consumers get is read from two connections, and says nothing of an order. Raises :class:`ViolationError`.
    """
    if copy.overtaken is not None:
        by, when = copy.overtaken
        if by is member or member.joined > when:
            clauses: tuple[str, ...] = ("Q-ORDER-04", "Q-ORDER-05") if count > 1 else ("Q-DELIVER-3", "Q-PRIO-06")
            if books.restarts:
                clauses = (*clauses, "Q-ORDER-06")
            raise violation(QueueRule.ORDER, f"{where}, behind one that is behind it in its partition", *clauses)
    message, queue = copy.message, copy.message.queue
    if queue.is_letters:
        return
    for other in copy.group.open_copies():
        ahead = other.message
        if other is copy or not ahead.is_before(message) or not ahead.shares_partition(message):
            continue
        if any(spot.holder is not None for spot in other.spots):
            continue  # whom its holder claims it from, and when, is up to that
        own = ahead.transaction
        is_open = own is not None and own.fate is Fate.OPEN and own is not message.transaction
        if count == 1 and is_open and ahead.sure and not copy.crashed:
            text = f"{where}, behind message {ahead.number} of an open transaction"
            raise violation(QueueRule.OPEN, text, "Q-TXN-04")
        if not (ahead.shares_lane(message) and other.must(Kind.READY) and ahead.is_there and ahead.is_shown):
            continue
        if not copy.group.wants(ahead) or books.now >= ahead.expires_at or ahead.cancelled is None:
            continue
        is_due = all(spot.by <= books.now for spot in other.spots)
        if not other.is_retry:
            if count == 1 and is_due and all(not spot.deliveries for spot in other.spots):
                _note(other, member, books.round)
            continue
        # What was on its way already when the other one failed overtakes nothing.
        is_later = copy.failed_round >= other.failed_round if count > 1 else message.round > other.failed_round
        if not queue.holds_back or not (is_later or member.joined > other.failed_round):
            continue
        if count == 1 and all(spot.at > books.now for spot in other.spots):
            text = f"{where}, ahead of message {ahead.number}, which is to be tried again before it"
            raise violation(QueueRule.OVERTAKEN, text)
        if is_due:
            _note(other, member, books.round)


def _note(other: Copy, member: Member, when: int) -> None:
    if other.overtaken is None:
        other.overtaken = member, when


def judge_partition(books: Books, copy: Copy, member: Member, partition: int, count: int, where: str) -> None:
    """It is in the partition that its key leads to, and that is served by one consumer at a time.

    Raises :class:`ViolationError`.
    """
    message, queue, group = copy.message, copy.message.queue, copy.group
    if queue.is_letters:
        return
    hashed = {"fnv1a": fnv1a, "murmur3": murmur3}.get(queue.plan.partitioner)
    if hashed is not None and message.key and message.partition < 0 and message.of_partitions:
        wanted = hashed(message.key.encode()) % message.of_partitions
        if partition != wanted:
            text = f"{where}; its key {message.key!r} leads to partition {wanted} of {message.of_partitions}"
            clause = "Q-PART-01" if queue.plan.partitioner == "fnv1a" else "Q-PART-02"
            raise violation(QueueRule.PARTITION, text, clause)
    if queue.plan.ordering == "none" or count > 1:
        return
    last, when, changes = group.served.get(partition, (member, 0, 0))
    if last is not member:
        if message.round <= when or message.delay_s or message.transaction is not None:
            return  # it may have been sent before
        changes += 1
        if changes > 1:  # once it may change hands, when what was in flight is settled
            text = f"{where}; partition {partition} was served by others since, and nobody came or left"
            raise violation(QueueRule.PARTITION, text, "Q-ASSIGN-01")
    group.served[partition] = member, books.round, changes


def judge_receipt(
    books: Books, copy: Copy, told: dict[str, str], place: tuple[int, int], count: int, where: str
) -> None:
    """Raises :class:`ViolationError`."""
    queue = copy.message.queue
    if not queue.plan.receipts or queue.is_letters:
        return
    receipt = told.get("receipt", "")
    *named, nonce = receipt.rsplit(":", 4)
    if named != [queue.name, *map(str, place), str(count)] or not nonce:
        raise violation(QueueRule.RECEIPT, f"{where} with the receipt {receipt!r}", "Q-SETTLE-10")
    if nonce in books.nonces:
        raise violation(QueueRule.RECEIPT, f"{where} with the nonce {nonce} of another delivery", "Q-SETTLE-12")
    books.nonces.add(nonce)
    copy.receipts.append(receipt)
