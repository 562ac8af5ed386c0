"""What a broker with queues is allowed to show, in plain Python without clock or socket.

The player tells it everything that clients send and see, in that order. Nothing is demanded where a broker has a
choice: it may give a consumer one delivery at a time, any member of a group what others failed with, and everything
late; so what may be under way when a client goes, the broker dies or the clock is moved counts as delivered or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from assay.conformance.explore.queues.books import Books, spots_of, violation
from assay.conformance.explore.queues.deliveries import judge_content, judge_order
from assay.conformance.explore.queues.life import GroupPlan
from assay.conformance.explore.queues.rules import QueueRule
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
    Transaction,
)
from assay.conformance.explore.rules import ViolationError
from assay.conformance.wire import Publish

BY_ITSELF = ("TTL_EXPIRED", "QUEUE_FULL")
"""Reasons of dead letters that nobody has given up."""
_RULE_OF = {"nack": "Q-NACK-1", "reject": "Q-REJECT-1", "ack": "Q-ACK-1", "extend": "Q-SETTLE-06"}
Undo = Callable[[bool | None], None]
"""Called with whether what was asked for was accepted; None: nobody knows."""


class Oracle(Books):
    """Told everything, it raises :class:`ViolationError`."""

    # Publishing

    def publish(self, queue: Queue, message: Message, transaction: Transaction | None = None) -> Undo:
        """A message was sent; the answer is told to what this returns."""
        self.serial += 1
        before = self.held(queue)
        message.since = message.until = float(self.serial) if not message.delay_s else NEVER
        message.round, message.published_at = self.round, self.now
        if message.delay_s:  # one that finds no room is tried again
            message.at = self.now + message.delay_s - SLACK_S
            message.by = NEVER if queue.is_limited else self.now + message.delay_s + SLACK_S
        self._set_expiry(queue, message)
        self._add(queue, message)
        if transaction is not None:
            message.transaction = transaction
            transaction.messages.append(message)

        def answered(accepted: bool | None) -> None:
            if accepted is None:
                return
            # What others sent meanwhile may have come first.
            least, (count, size) = before[0], self.held(queue)[1]
            most = count - 1, size - message.size[1]
            full = self._is_full(queue, message, least, 0), self._is_full(queue, message, most, 1)
            what = f"{queue.name}: message {message.number}"
            if accepted and all(full) and queue.plan.overflow == "reject" and not message.delay_s:
                raise violation(QueueRule.FULL, f"{what} was taken, although it holds {least}", *self._limits(queue))
            if accepted:
                message.sure = message.confirmed = True
                if full[1] and not message.delay_s:
                    self._drop_oldest(queue, message)
                return
            has_room = not full[1] or self._could_make_room(queue, message, size)
            is_fine = transaction is None or transaction.fate is Fate.OPEN
            if has_room and is_fine and not self._never_fits(message):
                numbers = [each.number for each in self._droppable(queue, message, certain=True)]
                text = f"{what} was refused, although it holds {most} at most; nobody was given {numbers}"
                raise violation(QueueRule.REFUSED, text)
            self.end(message, "was refused", "Q-LIMIT-01")

        return answered

    def _set_expiry(self, queue: Queue, message: Message) -> None:
        times = [message.expiry_s] if message.expiry_s else []
        message.expires_at = min([self.now + each for each in times], default=NEVER) - SLACK_S
        message.expires_by = min([self.now + each for each in times], default=NEVER) + SLACK_S
        if queue.plan.ttl_s:  # from when it fires (Q-DELAY-15)
            message.expires_at = min(message.expires_at, self.now + message.delay_s + queue.plan.ttl_s - SLACK_S)
            fired_by = NEVER if message.delay_s else self.now
            message.expires_by = min(message.expires_by, fired_by + queue.plan.ttl_s + SLACK_S)

    def _add(self, queue: Queue, message: Message) -> None:
        queue.messages[message] = None
        queue.by_number.setdefault(message.number, []).append(message)
        for group in queue.groups.values():
            group.copies[message] = Copy(group, message, Spot(Kind.READY, 0, message.at, message.by))

    def _limits(self, queue: Queue) -> tuple[str, ...]:
        return ("Q-LIMIT-01",) * bool(queue.plan.max_depth) + ("Q-LIMIT-02",) * bool(queue.plan.max_bytes)

    def _is_full(self, queue: Queue, message: Message, held: tuple[int, int], most: int) -> bool:
        """With so many messages and bytes; ``most``: 1 where these, and the message's, are counted at most, else 0."""
        plan = queue.plan
        return bool(plan.max_depth and held[0] >= plan.max_depth) or bool(
            plan.max_bytes and held[1] + message.size[most] > plan.max_bytes
        )

    def _could_make_room(self, queue: Queue, message: Message, size: int) -> bool:
        """By dropping what nobody was given; ``size``: of all, with this one, at most."""
        dropped = self._droppable(queue, message, certain=True) if queue.plan.overflow != "reject" else []
        if self.restarts and queue.plan.overflow == "dead_letter_oldest":
            return False  # what was on its way to the dead letters may be there again, and count
        freed = sum(each.size[0] for each in dropped)
        return bool(dropped) and (not queue.plan.max_bytes or size - freed <= queue.plan.max_bytes)

    @staticmethod
    def _never_fits(message: Message) -> bool:
        most = message.queue.plan.max_bytes
        return bool(most) and message.size[1] > most

    def _droppable(self, queue: Queue, newest: Message | None, *, certain: bool) -> list[Message]:
        """What nobody was given."""
        found = []
        if certain and any(m.transaction is not None and m.transaction.fate is Fate.OPEN for m in queue.messages):
            return []  # what is behind its messages may have to stay
        for message in queue.messages:
            copies = [group.copies[message] for group in queue.groups.values() if message in group.copies]
            if message is newest or message.ended or message.cancelled or (certain and not message.is_there):
                continue
            new = [spot.kind is Kind.READY and not spot.deliveries for copy in copies for spot in copy.spots]
            is_live = message.is_shown and message.by <= self.now < message.expires_at
            is_live = is_live and not any(self._may_be_sent(copy) for copy in copies)
            if (is_live or not certain) and (not new or (all(new) if certain else any(new))):
                found.append(message)
        return found

    def _may_be_sent(self, copy: Copy) -> bool:
        return any(self.may_flow(copy, spot, copy.group.members.values()) for spot in copy.spots)

    def _drop_oldest(self, queue: Queue, newest: Message | None) -> None:
        """Something made room."""
        if queue.plan.overflow == "reject":
            return
        perhaps = self._droppable(queue, newest, certain=False)
        held = self.held(queue)
        is_known = held[0][0] == held[1][0] == queue.plan.max_depth + 1 and not queue.plan.max_bytes
        is_known = is_known and len(queue.groups) < 2  # each has an oldest of its own
        if is_known and newest is not None and perhaps and perhaps == self._droppable(queue, newest, certain=True):
            oldest = perhaps[0]
            oldest.left_by_limit = oldest.unneeded = True
            for group in queue.groups.values():
                group.copies[oldest].clauses = ("Q-LIMIT-04", "Q-LIMIT-16")
                self._become(group.copies[oldest], {GONE})
            if not queue.groups:
                self.end(oldest, "was given up for a newer one", "Q-LIMIT-04", "Q-LIMIT-16")
            return
        for message in perhaps:
            message.unneeded = True
            for group in queue.groups.values():
                copy = group.copies.get(message)
                if copy is not None and copy.is_open:
                    copy.clauses = ("Q-LIMIT-04",)
                    self._become(copy, copy.spots | {GONE})

    def end(self, message: Message, why: str, *clauses: str) -> None:
        """Nobody may get it from now on."""
        message.ended, message.why = clauses, why

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
        member = group.members[number] = make(group)
        return member

    def _first_copy(self, group: Group, message: Message, *, latest: bool) -> Copy:
        copy = Copy(group, message, Spot(Kind.READY, 0, message.at, message.by))
        if latest:
            later = message.delay_s and self.now < message.by
            copy.spots = frozenset({*copy.spots, GONE}) if later else frozenset({GONE})
            copy.clauses = ("Q-CURSOR-02",)
        elif message.unneeded or not message.sure:
            copy.spots |= {GONE}
        self._expire(copy)
        return copy

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
        member.left = self.round
        for copy in group.open_copies():
            spots: set[Spot] = set()
            for spot in copy.spots:
                if spot.kind is Kind.FLIGHT and spot.holder is member:
                    spots |= self._failed(copy, spot.deliveries, self.now, self.now)
                else:
                    spots.add(spot)
                    if self.may_flow(copy, spot, [member]):
                        spots |= self._failed(copy, spot.deliveries + 1, self.now, self.now)
            if spots != copy.spots:
                copy.failed_round = self.round
                copy.last_holder = copy.last_holder if copy.may_be_held_by(member) else ""
                self._become(copy, spots)

    def _failed(self, copy: Copy, count: int, at: float, by: float) -> set[Spot]:
        """What a failed delivery may become."""
        plan = copy.group.queue.plan
        if copy.group.is_dead or count <= plan.max_retries:
            return {Spot(Kind.READY, count, at, by)}
        return {Spot(Kind.DEAD, count) if plan.dead_letters else GONE}

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
        message = self._locate(queue, number, place, told, where)
        where += f" at {place}, count {count}"
        if member.left is not None:
            if message.round > member.left and not message.delay_s:
                raise violation(QueueRule.HELD, f"{where}, who has left before it was published", "Q-LIFE-10")
            return None
        copy = group.copies[message]
        self._judge_state(copy, where)
        possible = {
            spot
            for spot in copy.spots
            if spot.kind is Kind.READY and spot.deliveries + 1 == count and (spot.at <= self.now)
        }
        if not possible:
            raise self._why_not(copy, count, where)
        if not group.wants(message):
            raise violation(QueueRule.UNWANTED, f"{where}, whose routing key is {message.route!r}")
        if message.expires_by <= max(self.now if copy.in_time_at < 0 else copy.in_time_at, 0.0):
            raise violation(QueueRule.EXPIRED, f"{where}, which has expired")
        plan = queue.plan
        if sum(other.is_held_by(member) for other in group.open_copies()) >= member.certain_limit:
            clauses = ("Q-SETTLE-18" if member.limit != plan.max_in_flight else "Q-SETTLE-13",)
            raise violation(QueueRule.CONSUMER_LIMIT, f"{where}, who holds {member.limit} already", *clauses)
        if sum(other.must(Kind.FLIGHT) for other in group.open_copies()) >= group.most_in_flight():
            raise violation(QueueRule.GROUP_LIMIT, f"{where}: its group holds {group.most_in_flight()} already")
        judge_content(message, packet, told, where, (self.now if copy.in_time_at < 0 else copy.in_time_at, self.now))
        judge_order(self, copy, member, count, where)
        self._seen(message, copy, place)
        timeout, sent = queue.timeout_s(), self.now if copy.in_time_at < 0 else copy.in_time_at
        flight = Spot(Kind.FLIGHT, count, sent + timeout[0] - SLACK_S, self.now + timeout[1] + SLACK_S, member)
        copy.overtaken, copy.last_holder = None, member.client_id
        copy.in_time_at = -NEVER
        self._become(copy, {flight})
        return message

    def _locate(self, queue: Queue, number: int, place: tuple[int, int], told: dict[str, str], where: str) -> Message:
        known = [each for each in queue.by_number.get(number, []) if each.place in (None, place)]
        if queue.source is not None:
            of = told.get("_dlq_group", "")
            known = [m for m in known if m.source is None or not of or of in (m.source.group.name, m.source.group.told)]
            if told.get("_dlq_reason") in BY_ITSELF:
                known = [m for m in known if m.source is None]
                known = known or self._left_by_itself(queue, queue.source, number)
        known.sort(key=lambda each: (each.place is None, bool(each.ended)))
        other = queue.places.get(place)
        if known and (other is None or other is known[0]):
            return known[0]
        if number in queue.forgotten:
            raise violation(QueueRule.AGAIN, f"{where}, of a queue in memory, before a restart", "Q-DURA-03")
        if queue.by_number.get(number):
            raise violation(QueueRule.TELLS, f"{where} at {place}, where it has not been, or another is", "Q-DELIVER-1")
        rule = QueueRule.LETTER_UNWANTED if queue.is_letters else QueueRule.UNKNOWN
        raise violation(rule, f"{where}, which is none of it")

    def _left_by_itself(self, letters: Queue, queue: Queue, number: int) -> list[Message]:
        """The dead letter of a message that left for a limit, or by time, of a group or of all."""
        plan, found = queue.plan, []
        for message in queue.by_number.get(number, []) or [queue.forgotten[number]] * (number in queue.forgotten):
            expired = plan.to_letters and message.expires_at <= self.now
            is_dropped = message.unneeded or message.left_by_limit
            if expired or (plan.overflow == "dead_letter_oldest" and is_dropped):
                message.left = True
                letter = self._letter(letters, message, None)
                for group in letters.groups.values():  # some may have been given it, and have gone before they read it
                    group.copies[letter].spots = frozenset(Spot(Kind.READY, count) for count in range(3))
                found.append(letter)
        return found

    def _judge_state(self, copy: Copy, where: str) -> None:
        message = copy.message
        if message.ended:
            raise violation(QueueRule.AGAIN, f"{where}, which {message.why}", *message.ended)
        if message.source is not None and not message.sure and not message.source.may(Kind.DEAD):
            raise violation(QueueRule.LETTER_UNWANTED, f"{where}, which is {spots_of(message.source)} in its queue")
        own = message.transaction
        if own is not None and own.fate is Fate.OPEN:
            raise violation(QueueRule.OPEN, f"{where}, whose transaction is open", "Q-TXN-01")

    def _why_not(self, copy: Copy, count: int, where: str) -> ViolationError:
        text = f"{where}; it may only be {spots_of(copy)}"
        if copy.must(Kind.GONE, Kind.DEAD):
            clauses = copy.clauses or (("Q-REJECT-1",) if copy.may(Kind.DEAD) else ("Q-ACK-1",))
            return violation(QueueRule.AGAIN, text, *clauses, *(("Q-DURA-04",) * bool(self.restarts)))
        if copy.must(Kind.FLIGHT, Kind.HELD):
            return violation(QueueRule.HELD, text)
        ready = [spot for spot in copy.spots if spot.kind is Kind.READY]
        if all(spot.deliveries + 1 != count for spot in ready):
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
        if message.source is not None:
            dead = frozenset(spot for spot in message.source.spots if spot.kind is Kind.DEAD)
            message.source.spots = dead or message.source.spots
        for transaction in self.transactions:
            if transaction.fate is Fate.EITHER and copy in transaction.held:
                self._decide(transaction, Fate.ABORTED)

    # Settlements

    def settle(
        self, member: Member, copies: list[Copy], verb: str, delay_s: int, reason: str, into: Transaction | None
    ) -> Callable[[bool | None, Iterable[str]], None]:
        """Settlements were sent; the answer, and what it says was not pending, is told to what this returns."""
        asked: list[tuple[Copy, frozenset[Spot], frozenset[Spot], bool]] = []
        for copy in copies:
            pending = frozenset(s for s in copy.spots if s.kind is Kind.FLIGHT and s.holder is member)
            outcomes: set[Spot] = set()
            for spot in pending:
                outcomes |= self._outcomes(copy, spot, verb, delay_s, into)
            certain = pending == copy.spots
            asked.append((copy, pending, frozenset(outcomes) - copy.spots, certain))
            copy.reason = ""
            if outcomes:
                self._become(copy, copy.spots | outcomes)
        where = f"{member.name}: ${verb} of {[copy.message.number for copy in copies]}"

        def answered(accepted: bool | None, told: Iterable[str]) -> None:
            if accepted is None:
                return
            listed = set(told)
            for copy, pending, outcomes, certain in asked:
                named = _message_id(copy) in listed
                copy.reason = reason if accepted and verb == "reject" else ""
                if accepted and not pending:
                    clauses = ("Q-SETTLE-07",) if verb == "extend" else ("Q-LIFE-05", "Q-LIFE-06", "Q-LIFE-07")
                    raise violation(
                        QueueRule.SETTLEMENT_TAKEN,
                        f"{where} is accepted; message {copy.message.number} is {spots_of(copy)}",
                        *clauses,
                    )
                if named and certain:
                    text = f"{where} says that message {copy.message.number} is not pending, which it is"
                    raise violation(QueueRule.NOT_PENDING, text)
                if accepted or (listed and not named):
                    if not pending:
                        text = f"{where} does not say that message {copy.message.number} is not pending"
                        raise violation(QueueRule.NOT_PENDING, text)
                    self._take(copy, copy.spots - pending, verb, into)
                elif named or len(asked) == 1:
                    self._take(copy, copy.spots - outcomes, "", None)
            if not accepted and all(certain for *_, certain in asked):
                several = ("Q-SETTLE-01",) if len(asked) > 1 else ()
                text = f"{where} is refused; it holds all of them"
                raise violation(QueueRule.SETTLEMENT_REFUSED, text, _RULE_OF[verb], *several)

        return answered

    def _take(self, copy: Copy, spots: frozenset[Spot], verb: str, into: Transaction | None) -> None:
        if verb == "ack" and into is None:
            copy.clauses = ("Q-ACK-1",)
        if verb and verb != "extend":
            copy.failed_round = self.round
        if verb:
            copy.is_safe = verb == "reject"
        if into is not None and copy not in into.held:
            into.held.append(copy)
        self._become(copy, spots or copy.spots)

    def _outcomes(self, copy: Copy, spot: Spot, verb: str, delay_s: int, into: Transaction | None) -> set[Spot]:
        queue = copy.group.queue
        match verb:
            case "ack":
                return {Spot(Kind.HELD, spot.deliveries) if into is not None else GONE}
            case "extend":
                timeout = queue.timeout_s()
                return {spot._replace(at=self.now + timeout[0] - SLACK_S, by=self.now + timeout[1] + SLACK_S)}
            case "reject":
                return {
                    Spot(Kind.DEAD, spot.deliveries) if queue.plan.dead_letters and not copy.group.is_dead else GONE
                }
        wait: tuple[float, float] = (delay_s, delay_s)
        if not delay_s and queue.plan.backoff_s and not queue.is_letters:
            wait = queue.wait_s(spot.deliveries)
        slack = SLACK_S if wait[1] else 0.0
        return self._failed(copy, spot.deliveries, self.now + wait[0] - slack, self.now + wait[1] + slack)

    # Transactions

    def begin(self, timeout_s: int) -> Transaction:
        self.transactions.append(Transaction(self.now + timeout_s - SLACK_S, self.now + timeout_s + SLACK_S))
        return self.transactions[-1]

    def ending(self, transaction: Transaction, *, commit: bool) -> Undo:
        """Its end was asked for."""
        was = transaction.fate
        if was is Fate.OPEN:
            self._decide(transaction, Fate.EITHER)
        may_be_over = self.now >= transaction.ends_at

        def answered(accepted: bool | None) -> None:
            if accepted is None:
                return
            wanted = Fate.COMMITTED if commit else Fate.ABORTED
            text = f"a {'commit' if commit else 'abort'} of a transaction that is {was.value}"
            if was in (Fate.COMMITTED, Fate.ABORTED):
                if transaction.is_old and not accepted and was is Fate.ABORTED:
                    return  # a restart need not remember what it has aborted
                if accepted != (was is wanted):
                    raise violation(QueueRule.TRANSACTION, f"{text} is {'accepted' if accepted else 'refused'}")
                return
            if not accepted and was is Fate.OPEN and not may_be_over and not transaction.is_old:
                raise violation(QueueRule.TRANSACTION, f"{text} is refused")
            if not accepted and was is Fate.EITHER and transaction.is_old:
                return  # nor how it ended
            if not accepted:
                wanted = Fate.ABORTED if commit else Fate.COMMITTED if was is Fate.EITHER else Fate.ABORTED
            if transaction.fate is not Fate.EITHER:
                if transaction.fate is not wanted:
                    text += f" is {'accepted' if accepted else 'refused'}, and it shows as {transaction.fate.value}"
                    raise violation(QueueRule.HALF, text)
                return
            self._decide(transaction, wanted)

        return answered

    def _decide(self, transaction: Transaction, fate: Fate) -> None:
        transaction.fate = fate
        for message in transaction.messages:
            if fate is Fate.ABORTED:
                self.end(message, "belongs to a transaction that was aborted", "Q-TXN-03")
            elif fate is Fate.COMMITTED:
                message.round = self.round
        for copy in transaction.held:
            spots = set(copy.spots)
            for spot in [spot for spot in copy.spots if spot.kind is Kind.HELD]:
                spots.discard(spot)
                if fate is not Fate.ABORTED:
                    spots.add(GONE)
                if fate is not Fate.COMMITTED:
                    spots |= self._failed(copy, spot.deliveries, self.now, self.now)
                    copy.failed_round = self.round
                if fate is Fate.EITHER:
                    spots.add(spot)
            if fate is Fate.COMMITTED:
                left = {spot for spot in spots if spot.kind is Kind.GONE}
                if not left and not copy.message.ended:
                    text = f"message {copy.message.number} was acknowledged in a transaction that shows as committed"
                    raise violation(QueueRule.HALF, f"{text}, and is {spots_of(copy)}", "Q-TXN-05", "Q-TXN-09")
                spots, copy.clauses = left or spots, ("Q-TXN-05",)
            elif self.now < copy.message.expires_at and fate is Fate.ABORTED:
                spots = {spot for spot in spots if spot.kind is not Kind.GONE} or spots
            self._become(copy, spots)

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
        before: list[tuple[Copy, frozenset[Spot], frozenset[Spot]]] = []
        for message, copy in group.copies.items():
            new = self._first_copy(group, message, latest=latest)
            if copy.letter is not None:  # it stays one, if it is one already, whatever becomes of the message now
                then = copy.letter.source = Copy(group, message, *copy.spots)
                then.last_holder, then.reason, then.crashed = copy.last_holder, copy.reason, copy.crashed
                then.letter, copy.letter = copy.letter if copy.is_safe else None, None
            copy.clauses, copy.overtaken, copy.in_time_at = new.clauses, None, -NEVER
            both = {spot for spot in copy.spots if spot.kind is not Kind.DEAD} | new.spots
            before.append((copy, new.spots, frozenset(both)))
            self._become(copy, both)

        def answered(accepted: bool | None) -> None:
            if accepted is False:
                raise violation(QueueRule.REQUEST, f"a reset of {group.name} is refused", "Q-CURSOR-11")
            for copy, new, both in before if accepted else ():
                # What has come since may have been sent before, and so may what a member has not read yet.
                self._become(copy, new if copy.spots == both and not group.members else copy.spots | new)

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
                if message.delay_s and message.until == NEVER and now >= message.by and not queue.is_limited:
                    self.serial += 1
                    message.until, message.round = float(self.serial), self.round
            limits = queue.is_limited and queue.plan.overflow != "reject"
            if limits and any(m.delay_s and m.until == NEVER and now >= m.at and not m.ended for m in queue.messages):
                self._drop_oldest(queue, None)
        for transaction in self.transactions:
            if transaction.fate is Fate.OPEN and now >= transaction.ends_at:
                self._decide(transaction, Fate.ABORTED if now >= transaction.ends_by else Fate.EITHER)
        for copy in list(self.every()):
            spots: set[Spot] = set()
            for spot in copy.spots:
                if spot.kind is not Kind.FLIGHT or spot.at > now:
                    spots.add(spot)
                    continue
                wait = copy.group.queue.wait_s(spot.deliveries)
                spots |= self._failed(copy, spot.deliveries, spot.at + wait[0], now + wait[1] + SLACK_S)
                if spot.by > now:
                    spots.add(spot)
                copy.failed_round = self.round
            if spots != copy.spots:
                self._become(copy, spots)
            self._expire(copy)

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
        message.unneeded = True
        self._become(copy, left | {GONE})

    def about_to_move(self) -> None:
        """The clock is moved next: what may be under way is in time."""
        for copy in self.every():
            members = list(copy.group.members.values())
            if any(self.may_flow(copy, spot, members) for spot in copy.spots):
                copy.in_time_at = self.now

    def killed(self, now: float) -> None:
        """The process was killed and started again."""
        self.now = now
        self.restarts += 1
        for queue in self.all_queues():
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
                for copy in group.copies.values():
                    if copy.is_open and not copy.message.ended:
                        copy.crashed = True
                        self._become(copy, self._after_death(copy))
                    if copy.may(Kind.DEAD) and not copy.is_safe and queue.letters is not None:
                        # It may have been killed between a dead letter and the end of its message.
                        copy.may_be_back = True
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
            spots.add(spot)
            if self.may_flow(copy, spot, members):
                spots |= self._failed(copy, spot.deliveries + 1, self.now, self.now)
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

    # Spots

    def _become(self, copy: Copy, spots: Iterable[Spot]) -> None:
        copy.spots = frozenset(spots)
        if not copy.may(Kind.DEAD) or copy.letter is not None:
            return
        letters = copy.group.queue.letters
        if letters is None:
            return
        copy.letter = self._letter(letters, copy.message, copy)
        copy.is_safe = False

    def _letter(self, letters: Queue, message: Message, source: Copy | None) -> Message:
        letter = Message(letters, message.number, self.serial)
        letter.source = source
        letter.since, letter.until = 0.0, NEVER
        letter.payload, letter.rich, letter.round, letter.confirmed = message.payload, message.rich, self.round, True
        self._add(letters, letter)
        return letter


def _message_id(copy: Copy) -> str:
    place = copy.message.place
    return f"{copy.group.queue.name}:{place[0]}:{place[1]}" if place else ""
