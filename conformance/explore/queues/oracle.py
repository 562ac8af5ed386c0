"""What a broker with queues is allowed to show, in plain Python without clock or socket.

The player tells it everything that clients send and see, in that order. Nothing is demanded where a broker has a
choice: it may give a consumer one delivery at a time, any member of a group what others failed with, and everything
late; so what may be under way when a client goes, the broker dies or the clock is moved counts as delivered or not.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.conformance.explore.queues.books import Undo, spots_of, violation
from assay.conformance.explore.queues.deliveries import (
    judge_content,
    judge_order,
    judge_partition,
    judge_receipt,
    last_consumers,
)
from assay.conformance.explore.queues.life import GroupPlan, QueuePlan
from assay.conformance.explore.queues.limits import Limits
from assay.conformance.explore.queues.rules import QueueRule
from assay.conformance.explore.queues.settlements import Settlements
from assay.conformance.explore.queues.state import (
    GONE,
    NEVER,
    SLACK_S,
    Copy,
    Fate,
    Group,
    Kind,
    Member,
    Message,
    Queue,
    Spot,
)
from assay.conformance.explore.rules import ViolationError
from assay.conformance.wire import Publish

BY_ITSELF = ("TTL_EXPIRED", "QUEUE_FULL")
"""Reasons of dead letters that nobody has given up."""


class Oracle(Limits, Settlements):
    """Told everything, it raises :class:`ViolationError`."""

    # Groups and members

    def join(self, queue: Queue, name: str, plan: GroupPlan, make: Callable[[Group], Member], number: int) -> Member:
        """A consumer subscribes."""
        self.serial += 1
        group = queue.groups.get(name)
        if group is None:
            self.note_unneeded(queue)
            group = queue.groups[name] = Group(queue, name, plan)
            for message in queue.messages:
                group.copies[message] = self._first_copy(group, message, latest=plan.latest)
        group.served = {}
        member = group.members[number] = make(group)
        return member

    def _first_copy(self, group: Group, message: Message, *, latest: bool) -> Copy:
        copy = Copy(group, message, Spot(Kind.READY, 0, message.at, message.by))
        if latest:
            later = message.delay_s and self.now < message.by
            copy.put({*copy.spots, GONE} if later else {GONE})
            copy.clauses = ("Q-CURSOR-02",)
        elif message.unneeded or not message.sure:
            copy.put({*copy.spots, GONE})
        self._expire(copy)
        return copy

    def sent_again(self, message: Message) -> None:
        """It may come by that for the first time, if nobody knows of it: to groups, too, that have come meanwhile."""
        if message.sure:
            return
        self.serial += 1
        message.until = max(message.until, float(self.serial))
        for copy in [group.copies[message] for group in message.queue.groups.values()]:
            if copy.clauses == ("Q-CURSOR-02",):
                self._become(copy, {*copy.spots, Spot(Kind.READY, 0, message.at, message.by)})

    def note_unneeded(self, queue: Queue) -> None:
        """What no group needs may be deleted."""
        for message in queue.messages:
            copies = [group.copies[message] for group in queue.groups.values() if message in group.copies]
            if copies and all(
                copy.may(Kind.GONE) or copy.may(Kind.DEAD) or not copy.group.wants(message) for copy in copies
            ):
                message.unneeded = True

    def leave(self, member: Member) -> None:
        """A consumer is gone: what it held has failed, and is ready at once."""
        group = member.group
        group.members = {number: each for number, each in group.members.items() if each is not member}
        group.served = {}
        member.left = self.round
        # What may be on its way to it was sent while it held all that it has held.
        for copy, spots in [(copy, self._without(member, copy)) for copy in group.open_copies()]:
            if spots != copy.spots:
                copy.failed_round = self.round
                copy.last_holder = copy.last_holder if copy.may_be_held_by(member) else ""
                self._become(copy, spots)

    def _without(self, member: Member, copy: Copy) -> set[Spot]:
        """What is true of a copy once a consumer has gone."""
        spots: set[Spot] = set()
        for spot in copy.spots:
            if spot.kind is Kind.FLIGHT and spot.holder is member:
                spots |= self._failed(copy, spot.deliveries, self.now, self.now)
                continue
            if spot.holder is not member:
                spots.add(spot)
            if self.may_flow(copy, spot, [member]):
                spots |= self._failed(copy, spot.next_count, self.now, self.now)
        return spots

    # Deliveries

    def delivered(self, member: Member, packet: Publish, number: int) -> Message | None:
        """A consumer was given a message. None: it has left, and it says nothing."""
        group, queue = member.group, member.group.queue
        told = dict(reversed(packet.properties.user_property))
        where = f"{queue.name}/{group.name} gives {member.name} message {number}"
        needed = ("message-id", "group-id", "queue", "partition", "offset", "delivery-count")
        missing = [name for name in needed if name not in told]
        if missing or not all(told[name].isdecimal() for name in ("partition", "offset", "delivery-count")):
            raise violation(QueueRule.TELLS, f"{where}, and does not tell {missing or 'numbers'}: {told}")
        place, count = (int(told["partition"]), int(told["offset"])), int(told["delivery-count"])
        if queue.source is None:
            wanted = {"queue": queue.name, "message-id": f"{queue.name}:{place[0]}:{place[1]}"}
            if wrong := {name: told[name] for name, value in wanted.items() if told[name] != value}:
                raise violation(QueueRule.TELLS, f"{where}, with {wrong}", "Q-DELIVER-1", "Q-TENANT-01")
        message = self._locate(queue, number, place, told, where)
        where += f" at {place}, count {count}"
        if member.left is not None:
            if message.round > member.left and not message.delay_s:
                raise violation(QueueRule.HELD, f"{where}, who has left before it was published", "Q-LIFE-10")
            return None
        copy = group.copies[message]
        is_stale = (member, count) in copy.stale
        if not is_stale:
            self._judge_state(copy, where)
        possible = {
            spot
            for spot in copy.spots
            if spot.kind is Kind.READY
            and spot.next_count == count
            and spot.at <= self.now
            and spot.holder in (None, member)
        }
        if not possible and not is_stale:
            raise self._why_not(copy, member, count, where)
        if not group.wants(message):
            raise violation(QueueRule.UNWANTED, f"{where}, whose routing key is {message.route!r}")
        if message.expires_by <= max(self.now if copy.in_time_at < 0 else copy.in_time_at, 0.0):
            raise violation(QueueRule.EXPIRED, f"{where}, which has expired")
        if not is_stale:
            # What is claimed was in flight: it takes no more room of the group, nor of whoever held it before.
            is_claimed = all(spot.holder is member for spot in possible)
            if not (is_claimed and copy.last_holder == member.client_id):
                self._judge_room(member, where, of_group=not is_claimed)
            judge_order(self, copy, member, count, where)
            judge_partition(self, copy, member, place[0], count, where)
        timeout, sent = queue.timeout_s(), self.now if copy.in_time_at < 0 else copy.in_time_at
        judge_content(message, packet, told, where, (message.published_at if is_stale else sent, self.now))
        judge_receipt(self, copy, told, place, count, where)
        self._seen(message, copy, place)
        copy.delivered_at = sent, self.now
        flight = Spot(Kind.FLIGHT, count, sent + timeout[0] - SLACK_S, self.now + timeout[1] + SLACK_S, member)
        copy.overtaken, copy.last_holder = None, member.client_id
        copy.in_time_at = -NEVER
        if is_stale:  # whether it was sent before or after the reset, nobody can tell
            copy.stale.remove((member, count))
            self._become(copy, {*copy.spots, flight} if possible else copy.spots)
            return message
        self._become(copy, {flight})
        self._time_out(copy)  # it may have been sent long ago by the broker's clock
        return message

    @staticmethod
    def _judge_room(member: Member, where: str, *, of_group: bool) -> None:
        group, plan = member.group, member.group.queue.plan
        if sum(other.is_held_by(member) for other in group.open_copies()) >= member.certain_limit:
            clauses = ("Q-SETTLE-18" if member.limit != plan.max_in_flight else "Q-SETTLE-13",)
            raise violation(QueueRule.CONSUMER_LIMIT, f"{where}, who holds {member.limit} already", *clauses)
        if of_group and sum(other.must(Kind.FLIGHT) for other in group.open_copies()) >= group.most_in_flight():
            raise violation(QueueRule.GROUP_LIMIT, f"{where}: its group holds {group.most_in_flight()} already")

    def _locate(self, queue: Queue, number: int, place: tuple[int, int], told: dict[str, str], where: str) -> Message:
        if number in queue.deleted:
            clauses = ("Q-ADMIN-07", *(("Q-ADMIN-08",) * bool(self.restarts)))
            raise violation(QueueRule.AGAIN, f"{where}, of a queue that was deleted", *clauses)
        known = [each for each in queue.by_number.get(number, []) if each.place in (None, place)]
        if queue.source is not None:
            of = told.get("_dlq_group", "")
            known = [m for m in known if m.source is None or not of or of in (m.source.group.name, m.source.group.told)]
            if told.get("_dlq_reason") in BY_ITSELF:
                known = [m for m in known if m.source is None]
                known = known or self._left_by_itself(queue, queue.source, number)
        known.sort(key=lambda each: (each.place is None, bool(each.ended), *_is_another(each, told)))
        other = queue.places.get(place)
        if known and (other is None or other is known[0]):
            return known[0]
        if number in queue.forgotten:
            raise violation(QueueRule.AGAIN, f"{where}, of a queue in memory, before a restart", "Q-DURA-03")
        is_there = bool(queue.by_number.get(number))
        if is_there and (other is not None or not queue.is_letters):
            raise violation(QueueRule.TELLS, f"{where} at {place}, where it has not been, or another is", "Q-DELIVER-1")
        rule = QueueRule.LETTER_UNWANTED if queue.is_letters else QueueRule.UNKNOWN
        raise violation(rule, f"{where} at {place}, which is {'one more than' if is_there else 'none of'} it")

    def _left_by_itself(self, letters: Queue, queue: Queue, number: int) -> list[Message]:
        """The dead letter of a message that left for a limit, or by time, of a group or of all."""
        plan, found = queue.plan, []
        for message in queue.by_number.get(number, []) or [queue.forgotten[number]] * (number in queue.forgotten):
            expired = plan.to_letters and message.expires_at <= self.now
            is_dropped = message.unneeded or message.left_by_limit or queue.unanswered
            if expired or (plan.overflow == "dead_letter_oldest" and is_dropped):
                message.left = message.unneeded = True
                for group in queue.groups.values():
                    copy = group.copies.get(message)
                    if copy is not None and copy.may(Kind.READY):
                        self._become(copy, copy.spots | {GONE})
                letter = self._letter(letters, message, None)
                for group in letters.groups.values():  # some may have been given it, and have gone before they read it
                    group.copies[letter].put(Spot(Kind.READY, count) for count in range(3))
                    group.copies[letter].in_time_at = group.moved_at
                found.append(letter)
        return found

    def _judge_state(self, copy: Copy, where: str) -> None:
        message = copy.message
        if message.ended:
            raise violation(QueueRule.AGAIN, f"{where}, which {message.why}", *message.ended)
        is_letter = message.source is None or message.source.may(Kind.DEAD) or message.counts_before
        if not message.sure and not is_letter:
            assert message.source is not None
            raise violation(QueueRule.LETTER_UNWANTED, f"{where}, which is {spots_of(message.source)} in its queue")
        own = message.transaction
        if own is not None and own.fate is Fate.OPEN:
            raise violation(QueueRule.OPEN, f"{where}, whose transaction is open", "Q-TXN-01")

    def _why_not(self, copy: Copy, member: Member, count: int, where: str) -> ViolationError:
        text = f"{where}; it may only be {spots_of(copy)}"
        if copy.must(Kind.GONE, Kind.DEAD):
            clauses = copy.clauses or (("Q-REJECT-1",) if copy.may(Kind.DEAD) else ("Q-ACK-1",))
            return violation(QueueRule.AGAIN, text, *clauses, *(("Q-DURA-04",) * bool(self.restarts)))
        ready = [spot for spot in copy.spots if spot.kind is Kind.READY and spot.holder in (None, member)]
        if not ready:
            return violation(QueueRule.HELD, text)
        if all(spot.next_count != count for spot in ready):
            clauses = ("Q-LIFE-04", "Q-DURA-05") if copy.crashed else ("Q-LIFE-04",)
            return violation(QueueRule.COUNT, text, *clauses)
        clauses = ("Q-DELAY-01",) if copy.message.delay_s and count == 1 else ("Q-RETRY-03", "Q-SETTLE-04")
        return violation(QueueRule.EARLY, text, *clauses)

    def _seen(self, message: Message, copy: Copy, place: tuple[int, int]) -> None:
        """It is there, for everybody."""
        message.place = place
        message.queue.places[place] = message
        if message.until == NEVER:
            message.until = float(self.serial)
        message.sure = True
        own = message.transaction
        if own is not None and own.fate is Fate.EITHER:
            self._decide(own, Fate.COMMITTED)
        if message.source is not None and not message.counts_before:
            dead = frozenset(spot for spot in message.source.spots if spot.kind is Kind.DEAD)
            message.source.put(dead or message.source.spots)
        for transaction in self.transactions:
            if transaction.fate is Fate.EITHER and copy in transaction.held:
                self._decide(transaction, Fate.ABORTED)

    # Other requests

    def cancel(self, message: Message) -> Undo:
        """A cancellation was sent."""
        was, may_have_fired, has_fired = message.cancelled, self.now >= message.at, self.now >= message.by
        message.cancelled = None if not was and not (has_fired and not message.queue.is_limited) else was

        def answered(accepted: bool | None) -> None:
            text = f"{message.queue.name}: $cancel of message {message.number}"
            if accepted and (was is True or (message.place is not None)):
                raise violation(QueueRule.CANCEL, f"{text} is accepted, which fired or was cancelled", "Q-DELAY-10")
            if accepted is False and was is False and message.sure and not may_have_fired:
                raise violation(QueueRule.CANCEL, f"{text} is refused, which waits", "Q-DELAY-09")
            if accepted:
                message.cancelled = True
                self.end(message, "was cancelled", "Q-DELAY-09")
            elif accepted is False:
                message.cancelled = was
            elif message.cancelled is None:
                message.sure = False

        return answered

    def reset(self, group: Group, *, latest: bool) -> Undo:
        """A group was asked to go back to the beginning, or to the end."""
        self.note_unneeded(group.queue)
        for message in group.queue.messages:
            message.expired_unsettled &= message.left  # it may have been taken before it was a dead letter
        before: list[tuple[Copy, frozenset[Spot], frozenset[Spot]]] = []
        for message, copy in group.copies.items():
            new = self._first_copy(group, message, latest=latest)
            if copy.letter is not None:  # it stays one, if it is one already, whatever becomes of the message now
                then = Copy(group, message, *copy.spots)
                then.last_holder, then.reason, then.crashed = copy.last_holder, copy.reason, copy.crashed
                for (
                    letter
                ) in copy.letter.queue.messages:  # there are several where a kill came before its message ended
                    letter.source = then if letter.source is copy else letter.source
                then.letter, copy.letter = copy.letter if copy.is_safe else None, None
            copy.clauses, copy.overtaken, copy.in_time_at = new.clauses, None, -NEVER
            copy.stale |= {
                (member, spot.next_count)
                for member in group.members.values()
                for spot in copy.spots
                if self.may_flow(copy, spot, [member])
            }
            both = {spot for spot in copy.spots if spot.kind is not Kind.DEAD} | new.spots
            before.append((copy, new.spots, frozenset(both)))
            self._become(copy, both)

        def answered(accepted: bool | None) -> None:
            if accepted is False:
                raise violation(QueueRule.REQUEST, f"a reset of {group.name} is refused", "Q-CURSOR-11")
            for copy, new, both in before if accepted else ():
                self._become(copy, new if copy.spots == both else copy.spots | new)  # what has come since is of either

        return answered

    def delete_group(self, group: Group) -> Undo:
        """A group was asked to be gone for good; nothing of it is on its way to the dead letters."""
        queue = group.queue
        is_used = bool(group.members) or any(copy.must(Kind.HELD) for copy in group.open_copies())
        for message in queue.messages:
            message.expired_unsettled &= message.left  # it may be gone before it is a dead letter

        def answered(accepted: bool | None) -> None:
            if accepted and is_used:
                clause = "Q-GROUP-16" if group.members else "Q-GROUP-17"
                raise violation(QueueRule.REQUEST, f"the deletion of {group.name}, which is used, is accepted", clause)
            if accepted:
                self.note_unneeded(queue)
                del queue.groups[group.name]
                self.note_unneeded(queue)

        return answered

    @staticmethod
    def is_unused(group: Group) -> bool:
        """For certain: nobody is in it, and no transaction."""
        return not group.members and not any(copy.may(Kind.HELD) for copy in group.open_copies())

    def is_in_transaction(self, queue: Queue) -> bool:
        """Some transaction that may not have ended knows of it."""
        return any(
            any(message.queue is queue for message in each.messages)
            or any(copy.group.queue in (queue, queue.letters) for copy in each.held)
            for each in self.transactions
            if each.fate in (Fate.OPEN, Fate.EITHER)
        )

    @staticmethod
    def deleted(queue: Queue) -> None:
        """It is gone, with its dead letters and all who read them, and about to be made anew."""
        queue.deleted |= queue.by_number.keys() | queue.forgotten.keys()
        for each in (queue, queue.letters):
            if each is not None:
                each.messages, each.by_number, each.groups, each.places = {}, {}, {}, {}
                each.forgotten, each.deleted, each.dropped = {}, queue.deleted, 0

    def replay(self, letters: Queue) -> Undo:
        """Its dead letters were asked to go back to their queue, which takes all of them."""
        assert letters.source is not None
        certain: list[tuple[Message, list[Copy], Message]] = []
        self.serial += 1
        for letter in [letter for letter in letters.messages if not letter.ended]:
            source = letter.source
            if source is not None and not (source.crashed or source.may(Kind.DEAD) or source.may(Kind.GONE)):
                continue  # it was none after all: its message was given to somebody again
            copies = [group.copies[letter] for group in letters.groups.values()]
            is_settled = bool(copies) and all(copy.must(Kind.GONE) for copy in copies)
            if is_settled or any(copy.must(Kind.FLIGHT) for copy in copies):
                continue
            again = self._again(letters.source, letter)
            if letter.is_there and not any(self._may_be_sent(copy) or not copy.must(Kind.READY) for copy in copies):
                certain.append((letter, copies, again))
            for copy in copies:
                copy.clauses = ("Q-DLQ-03",)
                self._become(copy, copy.spots | {GONE})
            letter.unneeded = True

        def answered(accepted: bool | None) -> None:
            numbers = [letter.number for letter, _, _ in certain]
            if accepted is False and certain:
                raise violation(QueueRule.REQUEST, f"a replay of {letters.name} with {numbers} is refused", "Q-DLQ-02")
            for letter, copies, again in certain if accepted else ():
                again.sure = again.confirmed = True
                again.round = self.round
                for copy in copies:
                    self._become(copy, {GONE})
                if not copies:
                    self.end(letter, "was sent back to its queue", "Q-DLQ-03")

        return answered

    def _again(self, queue: Queue, letter: Message) -> Message:
        """What a dead letter is, perhaps, in its own queue."""
        assert letter.source is not None
        first, message = letter.source.message, Message(queue, letter.number, self.serial)
        for name in ("topic", "route", "key", "lane", "payload", "kept", "size", "most_bytes"):
            setattr(message, name, getattr(first, name))
        message.of_partitions, message.is_replayed = 0, True
        message.burst, message.client, message.round, message.published_at = self.round, -2, self.round, self.now
        message.expires_at, message.expires_by = NEVER, NEVER
        self._add(queue, message)
        return message

    def change(self, queue: Queue, changed: QueuePlan | None) -> Undo:
        """A queue was asked for other settings, nothing of it being on its way; None: for some that it cannot have."""
        was, where = queue.plan, f"{queue.name}: other settings"
        if changed is not None:
            # Either of them holds until the answer.
            self._set(queue, was if _is_looser(was, changed) else changed)

        def answered(accepted: bool | None) -> None:
            if accepted and changed is None:
                raise violation(QueueRule.REQUEST, f"{where} are taken, one of which is fixed for life", "Q-ADMIN-06")
            if accepted is False and changed is not None:
                raise violation(QueueRule.REQUEST, f"{where} are refused: {changed}", "Q-ADMIN-04")
            if changed is not None:
                self._set(queue, changed)

        return answered

    @staticmethod
    def _set(queue: Queue, settings: QueuePlan) -> None:
        queue.plan = settings
        for group in queue.groups.values():
            for member in group.members.values():
                member.set_limits()

    def grow(self, queue: Queue, partitions: int) -> Undo:
        """A queue was asked to have so many partitions."""
        was = queue.partitions
        for message in queue.messages:
            if message.delay_s and message.place is None:
                message.of_partitions = 0
        for group in queue.groups.values():
            group.served = {}

        def answered(accepted: bool | None) -> None:
            text = f"{queue.name}: a request for {partitions} partitions, of which it has {was},"
            if accepted and partitions < was:
                raise violation(QueueRule.REQUEST, f"{text} is accepted", "Q-PART-10")
            if accepted is False and partitions > was and not queue.is_strict:
                raise violation(QueueRule.REQUEST, f"{text} is refused", "Q-PART-07")
            if accepted:
                queue.partitions = partitions

        return answered

    def purge(self, queue: Queue) -> Undo:
        """What is ready for every group is to be taken away."""

        def answered(accepted: bool | None) -> None:
            if accepted is False:
                raise violation(QueueRule.REQUEST, f"a purge of {queue.name} is refused", "Q-ADMIN-11")
            open_ones = any(m.transaction is not None and m.transaction.fate is Fate.OPEN for m in queue.messages)
            for message in queue.messages:
                copies = [group.copies[message] for group in queue.groups.values() if message in group.copies]
                waits = self.now < message.by or (message.transaction is not None and not message.is_shown)
                ready = all(copy.must(Kind.READY) and not copy.is_retry for copy in copies)
                if ready and not waits and not open_ones and accepted and message.is_there and not message.ended:
                    self.end(message, "was purged", "Q-ADMIN-11", "Q-ADMIN-12")
                    continue
                message.unneeded = True
                message.expired_unsettled &= message.left
                for copy in copies:
                    if copy.may(Kind.READY) or (copy.may(Kind.DEAD) and not copy.is_safe):
                        self._become(copy, copy.spots | {GONE})

        return answered

    # Time and death

    def tick(self, now: float) -> None:
        """Deliveries time out, messages fire and expire, transactions are aborted."""
        self.now = now
        for queue in self.queues:
            for message in queue.messages:
                if message.delay_s and message.since == NEVER and now >= message.at:
                    message.since = float(self.serial)
                if message.delay_s and not message.is_due and now >= message.by and not queue.is_limited:
                    # Where it comes into its partition shows when it is read: a broker may fire it a moment late.
                    message.is_due, message.round = True, self.round
            limits = queue.is_limited and queue.plan.overflow != "reject"
            if limits and any(m.delay_s and m.until == NEVER and now >= m.at and not m.ended for m in queue.messages):
                self._drop_oldest(queue, None)
        for transaction in self.transactions:
            if transaction.fate is Fate.OPEN and now >= transaction.ends_at:
                self._decide(transaction, Fate.ABORTED if now >= transaction.ends_by else Fate.EITHER)
        for copy in list(self.every()):
            self._time_out(copy)
            self._expire(copy)

    def _time_out(self, copy: Copy) -> None:
        """What is in flight for too long has failed."""
        spots: set[Spot] = set()
        for spot in copy.spots:
            if spot.kind is not Kind.FLIGHT or spot.at > self.now:
                spots.add(spot)
                continue
            wait = copy.group.queue.wait_s(spot.deliveries)
            late_by = self.now + wait[1] + SLACK_S
            spots |= self._failed(copy, spot.deliveries, spot.at + wait[0], late_by, spot.at)
            if spot.by > self.now:
                spots.add(spot)
            copy.failed_round = self.round
        if spots != copy.spots:
            self._become(copy, spots)

    def _expire(self, copy: Copy) -> None:
        message = copy.message
        if message.expires_at > self.now or not copy.may(Kind.READY) or copy.group.is_dead:
            return
        if copy.must(Kind.READY) and message.expires_by <= self.now and message.is_there and message.is_shown:
            is_own = copy.group.copies.get(message) is copy  # not one of a group that comes now
            message.expired_unsettled |= is_own and copy.in_time_at < 0 and copy.group.wants(message)
        left = {
            spot
            for spot in copy.spots
            # One that waits for a retry may hold others back until that is over.
            if spot.kind is not Kind.READY or message.expires_by > self.now or (spot.deliveries and spot.by > self.now)
        }
        if copy.in_time_at >= 0 or not copy.group.wants(message):
            left = set(copy.spots)
        copy.clauses = ("Q-LIMIT-07",)
        copy.lingers = message.unneeded = True
        self._become(copy, left | {GONE})

    def about_to_move(self) -> None:
        """The clock is moved next: what may be under way is in time."""
        for queue in self.all_queues():
            for group in queue.groups.values():
                group.moved_at = self.now if group.members else -NEVER
        for copy in self.every():
            members = list(copy.group.members.values())
            if any(self.may_flow(copy, spot, members) for spot in copy.spots):
                copy.in_time_at = self.now

    def killed(self, now: float) -> None:
        """The process was killed and started again."""
        self.now = now
        self.restarts += 1
        for queue in self.all_queues():
            if queue.plan.durability == "memory":
                for transaction in self.transactions:
                    transaction.held = [copy for copy in transaction.held if copy.group.queue is not queue]
            if queue.plan.durability == "memory" and queue.is_letters:
                self._may_be_empty(queue)
            elif queue.plan.durability == "memory":
                queue.forgotten |= {number: every[0] for number, every in queue.by_number.items()}
                for message in queue.messages:
                    message.sure = False
                queue.messages, queue.by_number, queue.groups, queue.places = {}, {}, {}, {}
                continue
            self.note_unneeded(queue)
            for message in queue.messages:
                if message.source is None and not message.confirmed:
                    message.sure = False
                if message.left_by_limit and queue.plan.overflow == "dead_letter_oldest":
                    message.ended, message.unneeded = (), True  # it leaves once it is a dead letter, perhaps not yet
                    for group in queue.groups.values():
                        self._become(group.copies[message], {*group.copies[message].spots, Spot(Kind.READY), GONE})
            for group in queue.groups.values():
                for copy, spots in [(copy, self._after_death(copy)) for copy in group.open_copies()]:
                    copy.crashed = True
                    self._become(copy, spots)
                for copy in group.copies.values():
                    if copy.may(Kind.DEAD) and not copy.is_safe and queue.letters is not None:
                        # It may have been killed between a dead letter and the end of its message.
                        copy.may_be_back = True
                        if copy.letter is not None:
                            counts = {spot.deliveries for spot in copy.spots if spot.kind is Kind.DEAD}
                            copy.letter.counts_before |= counts
                        self._letter(queue.letters, copy.message, copy)
                for member in group.members.values():
                    member.left = self.round
                group.members = {}
        for transaction in self.transactions:
            transaction.is_old = True
            if transaction.fate is Fate.OPEN:
                self._decide(transaction, Fate.ABORTED)
            for copy in transaction.held:  # decided it is, if nobody knows how
                self._become(copy, {spot for spot in copy.spots if spot.kind is not Kind.HELD} or copy.spots)

    def _may_be_empty(self, letters: Queue) -> None:
        """Dead letters of a queue in memory may be in memory, too."""
        letters.places = {}
        for message in letters.messages:
            message.place = None
        for group in letters.groups.values():
            for copy in group.open_copies():
                self._become(copy, {*self._after_death(copy), GONE})
            group.members = {}

    def _after_death(self, copy: Copy) -> set[Spot]:
        spots: set[Spot] = set()
        members = list(copy.group.members.values())
        for spot in copy.spots:
            if spot.kind is Kind.FLIGHT:
                spots |= self._failed(copy, spot.deliveries, self.now, self.now)
                copy.failed_round = self.round
                continue
            if spot.holder is None:
                spots.add(spot)
            if spot.released:  # it may count after all, and have been the last one
                spots |= self._failed(copy, spot.deliveries, self.now, self.now)
            if self.may_flow(copy, spot, members):
                spots |= self._failed(copy, spot.next_count, self.now, self.now)
                copy.failed_round = self.round
        return spots

    def waiting_for_room(self) -> int:
        """Delayed messages that may not have found room yet."""
        return sum(copy.may(Kind.READY) and copy.message.by == NEVER for copy in self.every())

    def rest(self) -> None:
        """Everything was taken, and time has passed: what found no room has found it."""
        for queue in self.queues:
            # One that can never fit may be in the way of others.
            is_free = not any(self._never_fits(message) and not message.ended for message in queue.messages)
            for message in queue.messages if queue.groups and is_free else ():
                if message.by == NEVER and self.now >= message.at + 2 * SLACK_S:
                    message.by, message.since = self.now, min(message.since, float(self.serial))
                    for group in queue.groups.values():
                        copy = group.copies[message]
                        spots = {spot._replace(by=self.now) if spot.by == NEVER else spot for spot in copy.spots}
                        self._become(copy, spots)

    def finish(self) -> None:
        """Nothing comes any more: a transaction of which nobody knows shows as a whole, or not at all."""
        for each in self.transactions:
            shown = [message for message in each.messages if message.place is not None]
            settled = [copy for copy in each.held if copy.must(Kind.GONE) and self.now < copy.message.expires_at]
            absent = [message for message in each.messages if message not in shown and self._would_show(message)]
            if each.fate is Fate.EITHER and settled and absent:
                text = f"a transaction settled {[copy.message.number for copy in settled]}"
                raise violation(QueueRule.HALF, f"{text}, and {[m.number for m in absent]} do not show", "Q-TXN-09")

    def missing_letter(self) -> ViolationError | None:
        """Of a message that expired before some group had settled it, where such become dead letters."""
        for queue in self.queues:
            # A restart may come between the letter and the end of its message, which then expires once more.
            demands = queue.plan.to_letters and queue.plan.dead_letters and not self.restarts
            for message in queue.messages if demands else ():
                if message.expired_unsettled and not message.left and not message.ended:
                    text = f"{queue.name}: message {message.number} has expired, and is no dead letter"
                    return violation(QueueRule.LETTER_LOST, text, "Q-LIMIT-11", waited=True)
        return None

    def _would_show(self, message: Message) -> bool:
        groups = [group for group in message.queue.groups.values() if message in group.copies and group.members]
        return message.expires_at > self.now and any(
            group.wants(message) and group.copies[message].must(Kind.READY) for group in groups
        )


def _is_another(letter: Message, told: dict[str, str]) -> tuple[bool, ...]:
    """Of several dead letters of one message: its count does not fit, its reason, its place, its consumer; it need not
    be there."""
    source = letter.source
    if source is None:
        return (False,) * 5
    counts = letter.counts_before | {spot.deliveries for spot in source.spots if spot.kind is Kind.DEAD}
    is_of_another_reason = bool(source.reason) and told.get("_dlq_reason") != source.reason
    is_of_another_count = told.get("_dlq_delivery_count", "") not in {str(count) for count in counts}
    place = source.message.place
    is_of_another_place = place is not None and told.get("_dlq_original_offset") != str(place[1])
    consumers = last_consumers(source, letter.counts_before, told)
    is_of_another_consumer = bool(consumers) and told.get("_dlq_consumer") not in consumers
    fits = is_of_another_count, is_of_another_reason, is_of_another_place, is_of_another_consumer
    return *fits, not letter.is_there


def _is_looser(one: QueuePlan, other: QueuePlan) -> bool:
    """Of two that differ in limits on what is in flight alone, if in those: whether it lets more of it be."""

    def limits(settings: QueuePlan) -> list[float]:
        return [each or NEVER for each in (settings.max_in_flight, settings.group_max_in_flight)]

    return limits(one) >= limits(other)
