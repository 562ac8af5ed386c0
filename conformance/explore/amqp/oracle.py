"""The model: what was sent makes copies that queues may hold, what comes must be one of them. No clock, no socket.

A copy is *sure* once its publish has been handled, unless the standard leaves open whether it is there; one that is not
sure may come, and need not. A copy that came back may stand at its old place or behind. After a kill what was confirmed
and persistent is sure, and all else may be back, what was acknowledged as well: nobody is told that an acknowledgement
has been written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from assay.conformance.explore.amqp.letters import deaths_of, is_cycle, with_death
from assay.conformance.explore.amqp.rules import AmqpRule, violation
from assay.conformance.explore.amqp.state import (
    NEVER,
    Consumer,
    Copy,
    Link,
    Message,
    Place,
    Publication,
    Queue,
)
from assay.conformance.explore.amqp.topology import Binding, Exchange, route
from assay.conformance.explore.rules import ViolationError
from assay.conformance.wire.amqp091 import Arrival

MARGIN_S = 0.5
_ELECTION_SLOWNESS = 20
"""Of patience, which is 2 s: RabbitMQ holds a request for 30 s while a queue has no leader, and ends it with 541 then.
Before that nobody can tell a slow election from one that never comes."""
"""How late a broker may notice that time has passed."""
_ADDED = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count")
"""Headers that brokers add to what comes back."""


class Oracle:
    """Told of all that is sent and comes; objects by raising :class:`ViolationError`."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.links: list[Link] = []
        self.messages: dict[int, Message] = {}
        self.moment = 0
        self.now = 0.0
        self._orders = 0
        self._dying: list[Copy] = []
        """Those whose dead letters are being made."""

    # Publishing

    def routed(self, message: Message) -> set[str]:
        return route(self.exchanges, self.queues, message.exchange, message.keys, message.headers)

    def publish(self, link: Link, message: Message, *, mandatory: bool) -> Publication:
        """It is sent; in a transaction nothing comes of it before the commit."""
        self.moment += 1
        self.messages[message.number] = message
        publication = Publication(message, routed=frozenset(self.routed(message)))
        publication.returns = mandatory and not publication.routed
        if link.mode == "confirm":
            link.published += 1
            publication.tag = link.published
        if link.mode == "tx":
            publication.returns = None if publication.returns else False
            link.publications.append(publication)
        else:
            self._put(publication, publication.routed, publication.routed)
        link.open_publishes.append(publication)
        link.touched = True
        return publication

    def _put(self, publication: Publication, certain: Collection[str], possible: Collection[str]) -> None:
        message = publication.message
        for name in sorted(possible):
            if name not in self.queues:
                continue
            copy = self._copy(self.queues[name], message, message.exchange, message.key)
            copy.likely = name in certain
            taken = self._enqueue(copy)
            if taken is not False:
                publication.copies.append(copy)
            if taken is not True and publication.accepted is not False:
                publication.accepted = taken

    def _copy(self, queue: Queue, message: Message, exchange: str, key: str) -> Copy:
        self._orders += 1
        copy = Copy(message, queue, self._orders, self.moment, exchange, key)
        copy.expires_at = copy.expires_by = self.now + min(message.ttl_s, queue.ttl_s)
        return copy

    def _enqueue(self, copy: Copy, *, late: bool = False) -> bool | None:
        """Whether the queue takes it; None: it may. What makes room for it goes.

        ``late``: it may come behind what is published after this.
        """
        queue = copy.queue
        limit = queue.plan.max_length
        if not limit:
            queue.copies.append(copy)
            return True
        least, most = self.ready_range(queue)
        held = len(queue.copies) - len(queue.ready)
        if queue.plan.overflow.startswith("reject"):
            dies = queue.plan.overflow == "reject-publish-dlx"
            if least >= limit:
                if dies:
                    self._die(copy, "maxlen", certain=True)
                return False
            queue.copies.append(copy)
            if most + held < limit and not late:
                return True
            copy.likely, copy.may_be_refused = False, True
            if dies:
                self._die(copy, "maxlen", certain=False)
            return None
        queue.copies.append(copy)
        self._drop_head(queue)
        return True

    def _drop_head(self, queue: Queue) -> None:
        limit = queue.plan.max_length
        if not limit or queue.plan.overflow.startswith("reject") or len(queue.copies) <= limit:
            return
        ready = queue.ready
        known = all((copy.sure or copy.likely) and not copy.free for copy in ready) and not queue.plan.max_priority
        if known and len(ready) == len(queue.copies) and not queue.is_read and not any(map(self.may_be_over, ready)):
            for copy in ready[: len(ready) - limit]:
                self._die(copy, "maxlen", certain=True)
            return
        for copy in ready:  # which of them is the head, or how many count, is not known
            copy.sure = copy.likely = False
            self._die(copy, "maxlen", certain=False)

    def may_be_over(self, copy: Copy) -> bool:
        """Its time may be over."""
        return copy.expires_at <= self.now

    def ready_range(self, queue: Queue) -> tuple[int, int]:
        """How many messages are ready, at least and at most."""
        ready = queue.ready
        sure = [copy for copy in ready if copy.sure and not self.may_be_over(copy)]
        expired = [copy for copy in queue.ghosts if copy.why_gone == "expired"]  # they may be tidied up later
        return 0 if queue.is_read else len(sure), len(ready) + len(expired)

    def handled(self, link: Link) -> None:
        """All that was sent on this channel has been handled."""
        link.touched = False
        for publication in link.open_publishes:
            if publication not in link.publications:
                self._settle_copies(publication, is_there=False)
        if link.mode != "confirm":
            link.open_publishes = [
                each
                for each in link.open_publishes
                if each in link.publications or (each.returns and not each.has_returned)
            ]

    def _settle_copies(self, publication: Publication, *, is_there: bool) -> None:
        """They must come. Only of what was confirmed or committed is known that it can be got."""
        self.moment += 1
        for copy in publication.copies:
            if copy.likely:
                copy.sure = True
                copy.sure_at = min(copy.sure_at, self.moment if is_there else NEVER)
                for letter in copy.letters or () if copy.place is Place.GONE else ():
                    letter.sure = letter.likely

    def counted(self, queue: Queue) -> None:
        """The queue has told that it has all that it must have."""
        self.moment += 1
        for copy in queue.ready:
            if copy.sure:
                copy.sure_at = min(copy.sure_at, self.moment)

    def uncounted(self) -> list[Queue]:
        """Queues of which nobody knows whether they have all yet that they must have."""
        return [
            queue
            for queue in self.queues.values()
            if not queue.is_read
            and not queue.counts_late
            and any(each.sure and each.sure_at == NEVER and not self.may_be_over(each) for each in queue.ready)
        ]

    def confirmed(self, link: Link, tag: int, *, multiple: bool, accepted: bool) -> None:
        """basic.ack or basic.nack of the server."""
        named = [each for each in link.open_publishes if each.tag == tag or (multiple and 0 < each.tag <= tag)]
        if link.mode != "confirm" or not named:
            raise violation(
                AmqpRule.CONFIRM,
                f"a confirm for the tag {tag}{' and all before' if multiple else ''}: "
                f"{link.published} were published, and none of them waits for it",
            )
        for publication in named:
            link.open_publishes.remove(publication)
            number = publication.message.number
            if publication.returns and not publication.has_returned:
                raise violation(AmqpRule.RETURN_LATE, f"message {number} is confirmed before it comes back")
            electing = [copy for copy in publication.copies if copy.queue.is_electing]
            if accepted:
                for copy in electing:
                    copy.queue.is_electing = False
            elif electing:
                publication.accepted = None
                for copy in electing:
                    copy.likely = False
            if publication.accepted is not None and publication.accepted is not accepted:
                text = f"message {number} is {'confirmed' if accepted else 'refused'}"
                raise violation(AmqpRule.REJECTED, f"{text}, and must not be")
            for copy in publication.copies if accepted else ():
                if copy.may_be_refused:
                    copy.likely = True
                    if not self.may_be_over(copy):
                        self._alive(copy)
            self._settle_copies(publication, is_there=True)
            for copy in publication.copies:
                copy.durable = copy.is_there = accepted and copy.likely

    def returned(self, link: Link, arrival: Arrival) -> None:
        """basic.return."""
        for publication in link.open_publishes:
            message = publication.message
            if publication.returns is False or publication.has_returned or number_of(arrival) != message.number:
                continue
            if arrival["reply-code"] != 312:
                raise violation(AmqpRule.RETURN, f"message {message.number} comes back with {arrival['reply-code']}")
            self._same(message, arrival, message.exchange, message.key, deaths=False)
            publication.has_returned = True
            return
        raise violation(AmqpRule.RETURN, f"message {number_of(arrival)} comes back, and must not")

    # Deliveries

    def delivered(self, link: Link, queue: Queue, consumer: Consumer | None, arrival: Arrival, *, no_ack: bool) -> None:
        """basic.deliver, or basic.get-ok."""
        self.moment += 1
        queue.is_electing = False
        tag = arrival.tag
        if tag <= link.last_tag:
            raise violation(AmqpRule.TAG, f"the delivery tag {tag} behind {link.last_tag}")
        link.last_tag = tag
        if consumer is not None:
            self._check_room(consumer)
        message = self.messages.get(number_of(arrival))
        if message is None:
            raise violation(AmqpRule.UNROUTED, f"{queue.name}: {arrival.body[:20]!r}, which nobody published")
        if consumer is not None and consumer.told:  # it was on its way when its queue went
            if not no_ack:
                link.unsettled[tag] = next(copy for copy in queue.ghosts if copy.message is message)
            return
        known = [copy for copy in (*queue.copies, *queue.ghosts) if copy.message is message]
        if not known:
            raise violation(AmqpRule.UNROUTED, f"message {message.number} is in {queue.name}, which it does not reach")
        known.sort(key=lambda each: each.place is not Place.READY)
        objections = [self._objection(copy, link, consumer, arrival) for copy in known]
        alike = [copy for copy, objection in zip(known, objections, strict=True) if objection is None]
        if not alike and objections[0] is not None:
            raise objections[0]
        least, most = min(copy.least for copy in alike), max(copy.most for copy in alike)
        for copy in alike:  # any of them may be the one that came
            copy.least, copy.most = least, most
        self._take(alike[0], link, consumer, tag, no_ack=no_ack)

    def _check_room(self, consumer: Consumer) -> None:
        link = consumer.link
        shared = sum(len(each.held) for each in link.consumers.values())
        if consumer.no_ack:
            return
        if consumer.prefetch and len(consumer.held) >= consumer.prefetch:
            text = f"consumer {consumer.tag} is given more than {consumer.prefetch} at a time"
            raise violation(AmqpRule.PREFETCH, text)
        if link.shared and shared >= link.shared:
            raise violation(AmqpRule.PREFETCH, f"channel {link.number} is given more than {link.shared} at a time")

    def _objection(self, copy: Copy, link: Link, consumer: Consumer | None, arrival: Arrival) -> ViolationError | None:
        number, queue = copy.message.number, copy.queue
        text = f"message {number} of {queue.name}"
        if copy.place is Place.OUT:
            return violation(AmqpRule.HELD, f"{text} is delivered while somebody holds it")
        if copy.place is Place.GONE:
            kind = AmqpRule.TWICE if copy.why_gone == "delivered" else AmqpRule.AGAIN
            return violation(kind, f"{text} comes, and is gone: {copy.why_gone}")
        if copy.redelivered is not None and arrival["redelivered"] is not copy.redelivered:
            if copy.redelivered:
                return violation(AmqpRule.NOT_REDELIVERED, f"{text} was recovered and is not marked as redelivered")
            return violation(AmqpRule.REDELIVERED, f"{text} is marked as redelivered, and was not delivered before")
        if copy.expires_by + MARGIN_S < self.now and not self._waited_for(copy, consumer):
            return violation(AmqpRule.EXPIRED, f"{text} comes {self.now - copy.expires_by:.1f} s after its time")
        try:
            self._same(copy.message, arrival, copy.exchange, copy.key, deaths=copy.deaths != ())
            self._check_deaths(copy, arrival)
        except ViolationError as error:
            return error
        return self._order_objection(copy, link, is_get=consumer is None)

    def _order_objection(self, copy: Copy, link: Link, *, is_get: bool) -> ViolationError | None:
        queue = copy.queue
        before = link.told if not is_get else [*link.told, *queue.seen]
        for other in before:
            if other.queue is queue and copy.precedes(other):
                text = f"{queue.name}: message {copy.message.number} comes behind {other.message.number}"
                return violation(AmqpRule.ORDER, text)
        if not is_get or queue.is_read:
            return None
        for other in queue.ready:
            if other is copy or not (other.sure and other.is_there) or self.may_be_over(other):
                continue
            text = f"{queue.name}: message {copy.message.number} comes before {other.message.number}"
            if other.lane > copy.lane:
                return violation(AmqpRule.PRIORITY, f"{text}, whose priority is higher")
            if not copy.free and other.precedes(copy):
                return violation(AmqpRule.ORDER, text)
        return None

    def _same(self, message: Message, arrival: Arrival, exchange: str, key: str, *, deaths: bool) -> None:
        """Everything as it was published. Raises :class:`ViolationError`."""
        number = message.number
        if arrival.body != message.body:
            size = f"{len(arrival.body)} bytes in place of {len(message.body)}"
            raise violation(AmqpRule.CHANGED, f"message {number} has another body: {size}")
        if (arrival["exchange"], arrival["routing-key"]) != (exchange, key):
            came = f"{arrival['exchange']!r} with {arrival['routing-key']!r}"
            text = f"message {number} comes from {came}, and went to {exchange!r} with {key!r}"
            raise violation(AmqpRule.ADDRESS, text)
        is_return = arrival.name == "basic.return"
        value: Any
        for name, value in message.properties.items():
            seen: Any = arrival.properties.get(name)
            if name == "expiration" and deaths:
                continue
            if name == "headers":
                left = {"CC", "BCC"} if deaths else {"BCC"}
                value = {each: value[each] for each in value if each not in left}
                seen = {each: seen[each] for each in value if each in seen} if isinstance(seen, Mapping) else seen
                if not value and seen is None:
                    continue
            if seen != value:
                raise violation(AmqpRule.CHANGED, f"message {number} has {name} {seen!r} in place of {value!r}")
        added = set(arrival.properties) - set(message.properties) - {"headers"}
        names = set(arrival.headers) - set(message.headers)
        strange = added | {name for name in names if not name.startswith(_ADDED)}
        if strange:
            raise violation(
                AmqpRule.CHANGED, f"message {number} has {sorted(strange)}, which its publisher did not say"
            )
        if "BCC" in arrival.headers and not is_return:
            text = f"message {number} tells to whom blind copies went"
            raise violation(AmqpRule.CHANGED, text, "rmq.sender-selected")

    def _check_deaths(self, copy: Copy, arrival: Arrival) -> None:
        if not copy.tells:
            return
        seen = deaths_of(arrival.headers)
        if seen != copy.deaths:
            text = f"message {copy.message.number} of {copy.queue.name} has x-death {seen}, expected {copy.deaths}"
            raise violation(AmqpRule.LETTER, text)
        if copy.deaths and "expiration" in arrival.properties:
            raise violation(AmqpRule.LETTER, "a dead letter has an expiration", "rmq.dlx.expiration-removed")

    def _take(self, copy: Copy, link: Link, consumer: Consumer | None, tag: int, *, no_ack: bool) -> None:
        queue = copy.queue
        if copy in queue.ghosts:
            queue.ghosts.remove(copy)
            queue.copies.append(copy)
        self._alive(copy)
        source = copy.source
        if source is not None and copy not in (source.letters or ()):
            self._doubt(source)
        copy.sure, copy.sure_at = True, min(copy.sure_at, self.moment)
        if not copy.free:
            copy.seen_at = self.moment
            queue.seen.append(copy)
            link.told.append(copy)
        copy.consumer = consumer
        if no_ack:
            self._leave(copy, "delivered")
            return
        copy.place = Place.OUT
        link.unsettled[tag] = copy
        if consumer is not None:
            consumer.held[copy] = None

    def _alive(self, copy: Copy) -> None:
        """It has not died: what might have become of it did not."""
        for letter in copy.letters or ():
            if letter in letter.queue.copies and letter.place is Place.READY:
                self._alive(letter)
                letter.queue.copies.remove(letter)
        copy.letters = None

    def _doubt(self, copy: Copy) -> None:
        """A letter of it is from before a kill: it need not have come back, nor become a letter again."""
        copy.sure = copy.likely = False
        for letter in copy.letters or ():
            self._doubt(letter)

    def _leave(self, copy: Copy, why: str) -> None:
        copy.place, copy.why_gone = Place.GONE, why
        if copy in copy.queue.copies:
            copy.queue.copies.remove(copy)
        copy.queue.ghosts.append(copy)

    # Settling

    def settle(self, link: Link, tags: Iterable[int], verb: str, *, requeue: bool) -> None:
        """What is acknowledged or rejected; in a transaction nothing comes of it before the commit."""
        self.moment += 1
        link.touched = True
        for tag in sorted(tags, reverse=verb != "ack"):
            copy = link.unsettled.pop(tag)
            link.settled = tag
            if copy.consumer is not None:
                copy.consumer.held.pop(copy, None)
            if link.mode == "tx":
                link.given_back.append((tag, copy, verb, requeue))
            else:
                self._settled(copy, verb, requeue=requeue)

    def _settled(self, copy: Copy, verb: str, *, requeue: bool) -> None:
        if copy.place is not Place.OUT:  # its queue is gone
            return
        if verb == "ack":
            self._leave(copy, "acknowledged")
        elif requeue:
            self._requeue(copy, counted=True)
        else:
            self._die(copy, "rejected", certain=True)

    def _requeue(self, copy: Copy, *, counted: bool, marked: bool = False) -> None:
        if copy.place is not Place.OUT:
            return
        copy.place, copy.free, copy.sure_at, copy.is_there = Place.READY, True, NEVER, False
        copy.redelivered = True if marked else None
        copy.least += counted
        copy.most += 1
        limit = copy.queue.plan.delivery_limit
        if 0 <= limit < copy.least:
            self._die(copy, "delivery_limit", certain=True)
        elif 0 <= limit < copy.most:
            copy.sure = copy.likely = False
            self._die(copy, "delivery_limit", certain=False)
        self._drop_head(copy.queue)

    def recover(self, link: Link) -> None:
        """Everything that is unacknowledged on this channel is ready again."""
        self.moment += 1
        for copy in reversed(link.unsettled.values()):
            if copy.consumer is not None:
                copy.consumer.held.pop(copy, None)
            self._requeue(copy, counted=True, marked=True)
        link.unsettled.clear()

    def commit(self, link: Link) -> list[Publication]:
        """It is asked for: from now on its effects may be seen. Returns what is sure once it is answered."""
        self.moment += 1
        publications, link.publications = link.publications, []
        for publication in publications:
            now = self.routed(publication.message)
            self._put(publication, now & publication.routed, now | publication.routed)
        settlements, link.given_back = link.given_back, []
        for _, copy, verb, requeue in settlements:
            self._settled(copy, verb, requeue=requeue)
        return publications

    def committed(self, publications: Iterable[Publication]) -> None:
        """It has been answered."""
        for publication in publications:
            self._settle_copies(publication, is_there=True)
            for copy in publication.copies:
                copy.durable = copy.is_there = copy.likely

    def rollback(self, link: Link) -> None:
        """What was published is forgotten; what was settled is not."""
        self.moment += 1
        dropped, link.publications = link.publications, []
        link.open_publishes = [each for each in link.open_publishes if each not in dropped]
        back = {tag: copy for tag, copy, _, _ in link.given_back if copy.place is Place.OUT}
        link.given_back = []
        link.unsettled = dict(sorted({**link.unsettled, **back}.items()))
        for copy in back.values():
            if copy.consumer is not None:
                copy.consumer.held[copy] = None

    # Dying

    def _die(self, copy: Copy, reason: str, *, certain: bool) -> None:
        is_first = copy.letters is None
        if copy.letters is None:
            copy.dying, copy.letters = reason, []
        elif copy.dying != reason:
            for letter in copy.letters:
                letter.tells = False
        if copy not in self._dying:  # a circle ends here
            self._dying.append(copy)
            reached = self._reached_by_letters(copy)
            for letter in copy.letters:
                # It may not have died before the way went.
                letter.likely = letter.likely and letter.queue.name in reached
            made = self._letters(copy, reason, {letter.queue.name for letter in copy.letters})
            for letter in copy.letters:
                if letter.letters is not None and letter.place is Place.READY:
                    # What it leads to may have a way by now, too.
                    self._die(letter, letter.dying, certain=False)
            self._dying.pop()
            for letter in [] if is_first else made:
                # It may have died before there was this way.
                letter.likely = False
            copy.letters += made
        if certain:
            for letter in copy.letters:
                letter.sure = copy.sure and letter.likely
                letter.expires_by = self.now + MARGIN_S + letter.queue.ttl_s
            self._leave(copy, reason)

    def _letters(self, copy: Copy, reason: str, known: Collection[str]) -> list[Copy]:
        """What becomes of it, where it has not been seen to lead yet."""
        queue, message = copy.queue, copy.message
        if queue.letters is None:
            return []
        deaths = with_death(copy.deaths, queue.name, reason)
        key = queue.letter_key or copy.key
        every = [key] if queue.letter_key else [key, *message.keys]
        certain = self._reached_by_letters(copy)
        made = []
        for name in sorted(route(self.exchanges, self.queues, queue.letters, every, message.headers)):
            if name in known or is_cycle(name, deaths):
                continue
            target = self.queues[name]
            letter = self._copy(target, message, queue.letters, key)
            letter.expires_at, letter.expires_by = self.now + target.ttl_s, NEVER  # the time of its death is not known
            letter.free, letter.deaths = True, deaths
            letter.tells = copy.tells
            letter.likely = name in certain
            letter.source = copy
            if self.now - target.left_at < 2 * MARGIN_S:
                letter.redelivered = None
                letter.likely = letter.likely and not target.was_read_greedily
            if self._enqueue(letter, late=True) is not False:
                made.append(letter)
                self._take_places(target)
        return made

    def _reached_by_letters(self, copy: Copy) -> set[str]:
        """Queues that a letter of it comes to, as bindings are now."""
        queue = copy.queue
        if queue.letters is None:
            return set()
        key = queue.letter_key or copy.key
        return route(self.exchanges, self.queues, queue.letters, [key], copy.message.headers)

    def _take_places(self, queue: Queue) -> None:
        """A letter may be ahead of what was published before it, and is not yet confirmed: that may be refused now."""
        if not queue.plan.overflow.startswith("reject"):
            return
        for publication in [each for link in self.links for each in link.open_publishes]:
            for copy in publication.copies:
                if copy.queue is queue and not copy.sure:
                    copy.likely, copy.may_be_refused = False, True
                    publication.accepted = None if publication.accepted else publication.accepted

    @property
    def slowness(self) -> int:
        """How many times as long as else an answer may take after a restart."""
        return _ELECTION_SLOWNESS if any(queue.counts_late for queue in self.queues.values()) else 1

    def expire(self) -> None:
        """What has become of messages whose time is over: at the head of a queue they go."""
        for queue in list(self.queues.values()):
            is_head = not queue.is_read and not queue.is_going
            for copy in queue.ready:
                if not self.may_be_over(copy):
                    is_head = False
                    continue
                self._die(copy, "expired", certain=is_head and copy.expires_by + MARGIN_S < self.now)

    @staticmethod
    def _waited_for(copy: Copy, consumer: Consumer | None) -> bool:
        """Whether it is to live for no time at all, and was on its way to the disk while a consumer waited for it: that
        may take as long as it takes, until the publisher is told that it is there."""
        lives_s = min(copy.message.ttl_s, copy.queue.ttl_s)
        return not lives_s and not copy.is_there and consumer is not None and consumer.began < copy.sent_at

    def moved_clock(self, now: float) -> None:
        """The broker's clock was moved to ``now``: what somebody had room for may have been on its way by then.

        So may what is to live for no time at all, on its way to the disk: it is for who waits once it is there.
        """
        for queue in self.queues.values():
            for copy in queue.ready:
                if queue.is_read or not min(copy.message.ttl_s, queue.ttl_s):
                    copy.expires_by = max(copy.expires_by, now)

    def waits_until(self) -> float:
        """When the last of what is about to expire has, by the broker's clock; 0 = nothing is."""
        soon = [
            copy.expires_by + MARGIN_S
            for queue in self.queues.values()
            for copy in queue.ready
            if copy.expires_by <= self.now + 2 * MARGIN_S
        ]
        return max(soon, default=0.0)

    # Consumers, channels, queues

    def consume(self, consumer: Consumer) -> None:
        self.moment += 1
        consumer.began = self.moment
        consumer.link.consumers[consumer.tag] = consumer
        consumer.queue.consumers[consumer] = None
        consumer.queue.had_consumer = True

    def cancelled(self, consumer: Consumer, *, unseen: bool = False) -> bool:
        """It is no more; whether its queue goes with it. ``unseen``: it may have been given what nobody saw."""
        queue = consumer.queue
        if unseen:
            queue.left_at = self.now
            queue.was_read_greedily = consumer.no_ack
        if unseen and consumer.has_room:
            self.unseen(consumer)
        consumer.link.consumers.pop(consumer.tag, None)
        queue.consumers.pop(consumer, None)
        queue.used_at = self.now
        return queue.plan.auto_delete and queue.had_consumer and not queue.consumers

    def unseen(self, consumer: Consumer) -> None:
        """What is ready may have gone to a consumer that is no more, without that anybody saw it."""
        for copy in consumer.queue.ready:
            copy.redelivered, copy.free = None, True
            copy.most += 1
            if consumer.no_ack:
                copy.sure = copy.likely = False
            elif 0 <= consumer.queue.plan.delivery_limit < copy.most:
                copy.sure = copy.likely = False
                self._die(copy, "delivery_limit", certain=False)

    def swallowed(self, link: Link, consumer: Consumer, arrival: Arrival) -> None:
        """A delivery to a channel that is being closed: it comes again."""
        for copy in consumer.queue.copies:
            if copy.message.number == number_of(arrival):
                copy.redelivered, copy.free = None, True
                copy.most += 1
                if consumer.no_ack:
                    copy.sure = copy.likely = False

    def closed(self, link: Link) -> list[Queue]:
        """The channel is no more, or about to be: what it held is ready again.

        Returns the queues that go with their last consumer.
        """
        self.moment += 1
        over = [each.queue for each in list(link.consumers.values()) if self.cancelled(each, unseen=True)]
        link.open = False
        held = [*link.unsettled.values(), *(copy for _, copy, _, _ in link.given_back)]
        for copy in reversed(held):
            self._requeue(copy, counted=False)
        link.unsettled.clear()
        link.given_back.clear()
        self.links.remove(link)
        return over

    def removed(self, queue: Queue) -> list[Exchange]:
        """The queue is no more. Returns the exchanges that go with their last binding."""
        self.queues.pop(queue.name, None)
        for copy in queue.ready:
            if self.may_be_over(copy):
                self._die(copy, "expired", certain=False)
        for copy in [*queue.copies, *queue.ghosts]:
            copy.place, copy.why_gone = Place.GONE, "its queue is gone"
            if copy.consumer is not None:
                copy.consumer.held.pop(copy, None)
        queue.ghosts += queue.copies
        queue.copies = []
        for consumer in queue.consumers:
            consumer.told = True
        return self._unbound(queue.name, to_exchange=False)

    def removed_exchange(self, exchange: Exchange) -> list[Exchange]:
        """Likewise."""
        self.exchanges.pop(exchange.name, None)
        exchange.bindings.clear()
        return self._unbound(exchange.name, to_exchange=True)

    def _unbound(self, name: str, *, to_exchange: bool) -> list[Exchange]:
        return [
            exchange
            for exchange in list(self.exchanges.values())
            if self.unbind(exchange, [b for b in exchange.bindings if b.name == name and b.to_exchange is to_exchange])
        ]

    def unbind(self, exchange: Exchange, bindings: Iterable[Binding]) -> bool:
        """Whether the exchange goes with them."""
        before = len(exchange.bindings)
        for binding in bindings:
            exchange.bindings.pop(binding, None)
        lost = len(exchange.bindings) < before
        return lost and not exchange.bindings and exchange.plan.auto_delete

    def purged(self, queue: Queue) -> None:
        self.moment += 1
        for copy in queue.ready:
            if (
                queue.is_read or not copy.sure or copy.sure_at == NEVER
            ):  # it may be on its way to a consumer, or to here
                copy.sure = copy.likely = False
            else:  # what might have died before has died, or not
                self._leave(copy, "purged")

    def killed(self) -> None:
        """Killed, and started again on its data."""
        self.moment += 1
        for queue in list(self.queues.values()):
            if not queue.plan.durable or queue.plan.exclusive:
                self.removed(queue)
        for exchange in list(self.exchanges.values()):
            if not exchange.plan.durable:
                self.removed_exchange(exchange)
        for queue in self.queues.values():
            self._after_kill(queue)
        self.links.clear()

    def _after_kill(self, queue: Queue) -> None:
        was_read = queue.is_read
        queue.is_electing = queue.counts_late
        queue.consumers.clear()
        for copy in queue.ghosts:
            copy.sure = False
        queue.copies += queue.ghosts
        queue.ghosts = []
        for copy in list(queue.copies):
            copy.letters = None  # it may be there beside what became of it
            # A broker may not know any more what it had delivered.
            copy.redelivered, copy.sure_at, copy.is_there = None, NEVER, False
            if was_read or copy.place is not Place.READY:  # as often as it was delivered, it may be given back now
                copy.place, copy.free = Place.READY, True
                copy.most += 1
            copy.sure = copy.sure and copy.durable and copy.message.persistent
            copy.likely = False
            if 0 <= queue.plan.delivery_limit < copy.most:
                copy.sure = False
                self._die(copy, "delivery_limit", certain=False)
        self._drop_head(queue)  # what was with consumers counts again

    # What must come

    def missing(self) -> ViolationError | None:
        """The first thing that must come and has not."""
        for link in self.links:
            for publication in link.open_publishes:
                number = publication.message.number
                if publication.returns and not publication.has_returned:
                    return violation(AmqpRule.NO_RETURN, f"message {number} does not come back", waited=True)
                if publication.tag:
                    return violation(AmqpRule.UNCONFIRMED, f"message {number} is not confirmed", waited=True)
            for consumer in link.consumers.values():
                if consumer.told:
                    text = f"consumer {consumer.tag} is not told that its queue is gone"
                    return violation(AmqpRule.NO_NOTICE, text, waited=True)
        for queue in self.queues.values():
            copy = next((copy for copy in queue.ready if copy.sure and not self.may_be_over(copy)), None)
            if copy is not None and self._is_starving(queue):
                text = f"message {copy.message.number} of {queue.name} does not come to a consumer that waits for it"
                return violation(AmqpRule.UNDELIVERED, text, waited=True)
        return None

    def _is_starving(self, queue: Queue) -> bool:
        idle = [each.link.holds_nothing or (each.no_ack and not each.link.shared) for each in queue.consumers]
        return bool(idle) and (all(idle) if queue.plan.single_active else any(idle))

    def is_due(self) -> bool:
        """Whether something may well come soon."""
        return any(queue.ready and queue.is_read for queue in self.queues.values())


def number_of(arrival: Arrival) -> int:
    """Of the message that this is; -1 = none of ours."""
    head = arrival.body.partition(b";")[0] if arrival.body else str(arrival.properties.get("message-id", "")).encode()
    return int(head) if head.isdigit() else -1
