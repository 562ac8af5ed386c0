"""Short lives of a queue engine, each of which some planted bugs do not survive.

The model finds nearly all planted bugs by chance; a story shows each of them every time, within milliseconds.
``KILLERS`` says which story is the end of which bug. A story fails when the oracle is violated, as do the examples of
:mod:`assay.sim.queue_model.machine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from unittest import mock

import msgspec

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.storage import pending_log
from assay.sim.disk import Persistence
from assay.sim.queue_model.delaying import Delayer
from assay.sim.queue_model.life import LETTERS, QUEUE, Member, QueueLife, Setup, is_of_a_group
from assay.sim.queue_model.producing import Producer
from assay.sim.queue_model.resetting import reset
from assay.sim.queue_model.settling import by_ids, by_ranges, settle_many

Tell = Callable[["StoryLife"], None]


class StoryLife(QueueLife):
    """A life whose figures are looked at whenever it rests."""

    def rest(self) -> None:
        self.check()
        super().rest()
        self.check()

    def publish_and_rest(
        self, count: int = 1, routing_key: str = "", expires_in_s: float = 0.0, dress: str = ""
    ) -> None:
        for _ in range(count):
            self.publish(routing_key=routing_key, expires_in_s=expires_in_s, dress=dress)
        self.rest()

    def enter(self, name: str = "a", group: str = "g", *, queue: str = QUEUE, room: int = 1_000) -> Member:
        """A consumer joins, and is given what there is."""
        member = self.join(queue, group, name, room=room)
        self.rest()
        return member

    def do(self, member: Member, verb: Verb, index: int = -1, wait_s: float | None = None) -> None:
        """A settlement of what a member got, by default the last; a new turn follows."""
        at = index % len(member.got)
        if wait_s is None:
            self.settle(member, at, verb)
        else:
            self.settle_later(member, at, verb, wait_s)
        self.rest()

    def producer(self) -> Producer:
        """One with an open transaction."""
        producer = Producer(self, "s")
        producer.init()
        self.rest()
        producer.begin(60.0)
        self.rest()
        return producer

    def pass_by(self, *seconds: float) -> None:
        """Time passes in steps; the engine looks at its clock after each."""
        for each in seconds:
            self.wait(each)
            self.rest()


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What happens, and what it happens to."""

    tell: Tell
    setup: Setup

    def run(self) -> None:
        """Raises :class:`ViolationError` when the engine does what no specification allows."""
        life = StoryLife(self.setup)
        self.tell(life)
        life.check()
        life.drain()


STORIES: Final[dict[str, Story]] = {}
KILLERS: Final[dict[str, str]] = {}
"""Planted bug -> the story that it does not survive."""


def ends(*mutants: str, setup: Setup = Setup()) -> Callable[[Tell], Tell]:  # noqa: B008 - frozen
    """Register a story with the planted bugs that it ends."""

    def register(tell: Tell) -> Tell:
        STORIES[tell.__name__] = Story(tell=tell, setup=setup)
        KILLERS.update(dict.fromkeys(mutants, tell.__name__))
        return tell

    return register


# -- deliveries --------------------------------------------------------------------------------------------------


@ends("engine-refused-delivery-is-lost", "engine-resume-serves-nobody")
def a_full_consumer_gets_the_rest_once_it_has_room(life: StoryLife) -> None:
    life.publish_and_rest(3)
    member = life.enter(room=1)
    life.make_room(member, 1_000)
    life.rest()


@ends("engine-refused-redelivery-is-lost", setup=Setup(max_retries=2))
def a_full_consumer_gets_a_redelivery_once_it_has_room(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter(room=1)
    life.do(member, Verb.NACK)
    life.make_room(member, 1_000)
    life.rest()


@ends("engine-room-never-comes-back", "engine-one-too-many-in-flight", setup=Setup(max_in_flight=1))
def one_delivery_at_a_time(life: StoryLife) -> None:
    life.publish_and_rest(3)
    member = life.enter()
    life.do(member, Verb.ACK)
    life.do(member, Verb.ACK)


@ends("engine-shared-limit-ignored", setup=Setup(group_limit=2))
def a_group_shares_two_deliveries(life: StoryLife) -> None:
    life.publish_and_rest(4)
    life.enter("a")
    life.enter("b")


@ends("engine-filter-ignored", "engine-filter-asked-once", "engine-passed-over-not-logged")
def a_group_with_a_filter_passes_over_the_rest(life: StoryLife) -> None:
    life.join(QUEUE, "p", "a", pattern="x/#")
    life.publish_and_rest(routing_key="x/y")
    life.publish_and_rest(2)
    life.close()
    life.check()


@ends("engine-new-group-starts-late")
def a_new_group_gets_what_is_there(life: StoryLife) -> None:
    life.publish_and_rest()
    life.enter()


# -- contents ----------------------------------------------------------------------------------------------------


@ends("engine-large-payload-cut", setup=Setup(cache_bytes=4_096))
def large_messages_are_read_back(life: StoryLife) -> None:
    life.publish_and_rest(3, dress="100 KB")
    life.enter()


@ends("engine-own-property-taken-for-a-brokers")
def a_property_with_a_name_of_the_broker_outlives_a_restart(life: StoryLife) -> None:
    life.publish_and_rest(dress="repeated")
    life.kill()
    life.enter()


@ends("engine-letter-keeps-the-last-of-a-name")
def a_dead_letter_says_all_that_the_message_said(life: StoryLife) -> None:
    life.publish_and_rest(dress="repeated")
    life.do(life.enter(), Verb.REJECT)
    life.enter(queue=LETTERS)


# -- members -----------------------------------------------------------------------------------------------------


@ends("engine-leaving-keeps-deliveries")
def who_leaves_gives_back_what_it_holds(life: StoryLife) -> None:
    life.publish_and_rest()
    life.leave(life.enter("a"))
    life.enter("b")


@ends("engine-successor-leaves-deliveries")
def a_successor_gets_what_its_predecessor_held(life: StoryLife) -> None:
    life.publish_and_rest()
    life.enter("a")
    life.enter("a")


@ends(
    "engine-partitions-stay-with-the-lost",
    "engine-last-partition-unassigned",
    setup=Setup(partitions=2, assignor="round_robin"),
)
def every_partition_is_somebodys(life: StoryLife) -> None:
    first = life.enter("a")
    life.enter("b")
    for key in "abcd":
        life.publish(key)
    life.rest()
    life.leave(first)
    life.rest()


# -- settlements -------------------------------------------------------------------------------------------------


@ends("engine-ambiguity-picks-the-first")
def a_settlement_must_say_which_group_is_meant(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter(group="g")
    life.enter(group="h")
    life.settle(member, 0, Verb.ACK, any_group=True)


@ends("engine-nack-delay-ignored", "engine-nack-unanswered")
def a_nack_with_a_delay(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter()
    life.do(member, Verb.NACK, wait_s=6.0)
    life.pass_by(6.0)


@ends("engine-given-back-twice")
def a_message_is_given_back_once(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter()
    life.do(member, Verb.NACK, 0, wait_s=6.0)
    life.do(member, Verb.NACK, 0)
    life.pass_by(6.0)


@ends("engine-extension-ignored", "engine-extension-never-ends")
def an_extension_and_its_end(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter()
    life.do(member, Verb.EXTEND, wait_s=6.0)
    life.pass_by(5.0, 1.0)


@ends("engine-batch-settles-the-first", "engine-batch-hides-what-is-missing")
def an_ack_of_all_of_which_one_is_settled(life: StoryLife) -> None:
    life.publish_and_rest(3)
    member = life.enter()
    life.do(member, Verb.ACK, 0)
    life.ack_all(member)
    life.rest()


def _shared(life: StoryLife) -> tuple[Member, Member]:
    """Two consumers that hold messages in turn: the first those at offsets 0, 1, 4, 5, the other 2, 3, 6, 7."""
    first, other = life.join(QUEUE, "g", "a", room=0), life.join(QUEUE, "g", "b", room=0)
    for member in (first, other, first, other):
        life.make_room(member, 2)
        life.publish_and_rest(2)
        life.make_room(member, 0)
    return first, other


@ends("engine-range-takes-others", "engine-missing-told-as-one-range", setup=Setup(ordered=False))
def a_range_over_what_others_hold(life: StoryLife) -> None:
    first, other = _shared(life)
    settle_many(life, first, Verb.ACK, by_ranges([first.got[0], other.got[3]]))
    life.rest()


@ends("engine-range-ends-early", "engine-last-range-only", setup=Setup(ordered=False))
def ranges_are_settled_whole(life: StoryLife) -> None:
    first, _ = _shared(life)
    settle_many(life, first, Verb.ACK, by_ranges([first.got[0], first.got[1], first.got[3]]))
    life.rest()


@ends("engine-list-ends-at-what-is-missing", setup=Setup(ordered=False))
def a_list_that_begins_with_what_others_hold(life: StoryLife) -> None:
    first, other = _shared(life)
    settle_many(life, first, Verb.NACK, by_ids([other.got[0], first.got[2], first.got[0]]))
    life.rest()


@ends("engine-several-rejected-one-letter", setup=Setup(ordered=False))
def several_are_rejected_together(life: StoryLife) -> None:
    first, _ = _shared(life)
    settle_many(life, first, Verb.REJECT, by_ids(first.got))
    life.rest()


@ends("engine-abort-gives-back-the-first", "engine-commit-forgets-a-lists-end", setup=Setup(ordered=False))
def a_transaction_that_acknowledged_several_is_aborted(life: StoryLife) -> None:
    first, other = _shared(life)
    producer = life.producer()
    named = by_ranges([first.got[0], other.got[3]])
    producer.ack_several(first, named, any_group=False)
    settle_many(life, first, Verb.NACK, named)
    producer.abort()
    life.rest()
    settle_many(life, first, Verb.ACK, named)
    life.rest()


@ends("engine-decision-settles-what-is-given-anew", setup=Setup(durability="interval"))
def a_group_is_reset_behind_a_commit(life: StoryLife) -> None:
    """What the transaction acknowledged is delivered anew before every part of it knows durably of the commit."""
    life.publish_and_rest()
    member = life.enter()
    producer = life.producer()
    producer.ack(member, 0)
    producer.publish(QUEUE, None, is_numbered=False)
    producer.commit()
    life.rest()
    reset(life, QUEUE, "g", to_latest=False)
    life.rest()
    life.kill()


@ends("engine-entry-by-stale-position", setup=Setup(max_retries=2))
def deliveries_are_settled_out_of_order(life: StoryLife) -> None:
    life.publish_and_rest(4)
    member = life.enter()
    life.do(member, Verb.ACK, 0)
    life.do(member, Verb.NACK, 1)
    life.do(member, Verb.ACK, 2)
    life.do(member, Verb.ACK, 3)


@ends("engine-floor-forgets-offset-0")
def a_message_at_offset_0_holds_its_segment(life: StoryLife) -> None:
    """All behind it is settled, over several segments; then it is delivered again."""
    for _ in range(12):
        life.publish_and_rest()
    member = life.enter()
    for index in range(1, 12):
        life.do(member, Verb.ACK, index)
        life.wait(0.25)
    life.leave(member)
    life.kill()
    life.enter()


# -- time --------------------------------------------------------------------------------------------------------


@ends("engine-redeliveries-never-time-out", "engine-clock-not-watched", setup=Setup(max_retries=2))
def each_delivery_times_out(life: StoryLife) -> None:
    life.publish_and_rest()
    life.enter()
    life.pass_by(4.0, 2.0, 4.0)


@ends("engine-wakes-for-the-first-only", setup=Setup(ordered=False))
def three_times_to_wake_up_at(life: StoryLife) -> None:
    """The retry that is due last is left alone with the clock once the redelivery between has been settled."""
    life.publish_and_rest(2)
    member = life.enter()
    life.do(member, Verb.NACK, 0, wait_s=6.0)
    life.do(member, Verb.NACK, 1, wait_s=1.0)
    life.pass_by(1.0)
    life.do(member, Verb.ACK)
    life.pass_by(4.0, 1.0)


@ends("engine-own-expiry-ignored")
def a_message_expires_by_itself(life: StoryLife) -> None:
    life.publish_and_rest(expires_in_s=3.0)
    life.pass_by(5.0)
    life.enter()


@ends("engine-queue-ttl-ignored", setup=Setup(ttl_s=10.0))
def a_message_expires_with_its_queue(life: StoryLife) -> None:
    life.publish_and_rest()
    life.pass_by(20.0)
    life.enter()


@ends("engine-expired-counted-again", setup=Setup(ordered=False, max_retries=0, dead_letters=False))
def a_message_expires_behind_others(life: StoryLife) -> None:
    life.publish_and_rest(3)
    life.publish_and_rest(expires_in_s=3.0)
    life.enter(room=1)
    life.enter(group="h")
    life.pass_by(5.0, 0.25)


# -- limits ------------------------------------------------------------------------------------------------------


@ends(
    "engine-depth-off-by-one",
    "engine-depth-without-pending",
    "engine-room-counted-once",
    setup=Setup(max_depth=2),
)
def a_queue_is_full_and_then_is_not(life: StoryLife) -> None:
    life.publish_and_rest(3)
    member = life.enter()
    life.publish_and_rest()
    life.do(member, Verb.ACK)
    life.publish_and_rest()


@ends("engine-dropped-in-silence", setup=Setup(max_depth=2, overflow="drop_oldest"))
def the_oldest_makes_room(life: StoryLife) -> None:
    life.enter(room=0)
    life.publish_and_rest(2)
    life.publish_and_rest()


@ends(
    "engine-due-over-the-limit",
    "engine-refused-when-due-is-lost",
    "engine-refused-when-due-waits-for-a-start",
    setup=Setup(max_depth=2),
)
def what_is_due_waits_for_room(life: StoryLife) -> None:
    delayer, member = Delayer(life), life.enter(room=0)
    life.publish_and_rest(2)
    delayer.publish(0.9)
    life.pass_by(1.0)
    life.make_room(member, 1)
    life.rest()
    life.do(member, Verb.ACK)
    life.pass_by(2.0)


@ends("engine-refused-when-due-comes-singly", setup=Setup(max_depth=2))
def what_is_due_takes_all_the_room_there_is(life: StoryLife) -> None:
    """Many through few places: each time as many as there are places, the last of them, too."""
    delayer, member = Delayer(life), life.enter(room=0)
    life.publish_and_rest(2)
    for _ in range(5):
        delayer.publish(0.9)
    life.pass_by(1.0)
    life.make_room(member, 1_000)
    life.rest()
    life.ack_all(member)
    life.pass_by(2.0)


@ends("engine-refused-when-due-holds-back-others", setup=Setup(max_depth=2))
def what_is_due_finds_room_although_others_wait(life: StoryLife) -> None:
    """There was none for the first, and there is again when the second is due."""
    delayer, member = Delayer(life), life.enter()
    life.publish_and_rest(2)
    delayer.publish(0.9)
    delayer.publish(1.4)
    life.pass_by(1.0)
    life.ack_all(member)
    life.pass_by(0.5)


@ends("engine-end-takes-a-place", setup=Setup(max_depth=2))
def the_end_of_a_transaction_takes_no_place(life: StoryLife) -> None:
    """Not even before it is written."""
    producer = life.producer()
    producer.publish(QUEUE, None, is_numbered=False)
    producer.commit()
    while life.waiting:
        life.turn()
        life.check()
    life.publish_and_rest()


@ends("engine-new-limit-from-the-next-start", "engine-new-limit-until-the-next-start", setup=Setup(max_depth=6))
def a_limit_is_changed_in_use(life: StoryLife) -> None:
    life.enter(room=0)
    life.limit(2)
    life.publish_and_rest(3)
    life.kill()
    life.publish_and_rest()


def _stream(life: StoryLife, rounds: int = 6) -> None:
    """A fast group takes and acknowledges segment after segment, over as much time as freeing them takes."""
    life.join(QUEUE, "g", "a", is_eager=True)
    for _ in range(rounds):
        life.publish_and_rest(3)
        life.pass_by(11.0)


@ends("engine-absent-group-needs-nothing")
def an_absent_group_comes_back_to_a_fast_one(life: StoryLife) -> None:
    life.leave(life.enter(group="h"))
    _stream(life)
    life.kill()
    life.enter(group="h")


@ends("engine-slow-group-loses-its-pace", setup=Setup(cache_bytes=4_096))
def a_slow_group_gets_all_in_the_end(life: StoryLife) -> None:
    member = life.enter(group="h", room=1)
    _stream(life)
    life.do(member, Verb.ACK)
    life.make_room(member, 1_000)
    life.rest()


@ends("engine-departures-never-synced", setup=Setup(to_letters=True))
def power_is_lost_after_what_expired_has_left(life: StoryLife) -> None:
    """The periodic sync covers that it has; a second letter would be one too many."""
    life.publish_and_rest(expires_in_s=3.0)
    life.publish_and_rest()
    life.enter(queue=LETTERS)
    life.pass_by(5.0, 2.0, 2.0, 2.0)
    life.lose_power(Persistence.NONE)
    life.pass_by(1.0)


# -- dead letters ------------------------------------------------------------------------------------------------


@ends("engine-source-settled-first")
def power_is_lost_before_a_dead_letter_is_safe(life: StoryLife) -> None:
    """The group's log is synced, since another settlement waits for that; the log of the dead letters is not yet."""
    life.publish_and_rest(3)
    member = life.enter()
    life.do(member, Verb.ACK)
    life.settle(member, 0, Verb.REJECT)
    life.settle(member, 1, Verb.ACK)
    life.turn(sync=False)
    life.run_syncs(only=is_of_a_group)
    life.lose_power(Persistence.NONE)


@ends("engine-exhausted-is-discarded", setup=Setup(max_retries=0))
def the_last_try_fails(life: StoryLife) -> None:
    life.publish_and_rest()
    life.do(life.enter(), Verb.NACK)
    life.enter(queue=LETTERS)


@ends("engine-dead-letters-chain", setup=Setup(max_retries=0))
def a_dead_letter_fails_again_and_again(life: StoryLife) -> None:
    life.publish_and_rest()
    life.do(life.enter(), Verb.REJECT)
    reader = life.enter(queue=LETTERS)
    life.do(reader, Verb.NACK)
    life.do(reader, Verb.NACK)


# -- starts ------------------------------------------------------------------------------------------------------


@ends("engine-call-not-logged", "engine-recovery-forgets-cursors")
def what_was_settled_stays_settled(life: StoryLife) -> None:
    life.publish_and_rest()
    life.join(QUEUE, "g", "a", is_eager=True)
    life.rest()
    life.kill()
    life.enter()


@ends("engine-redeliveries-not-logged", setup=Setup(max_retries=2))
def a_start_knows_how_often_a_message_was_delivered(life: StoryLife) -> None:
    life.publish_and_rest()
    life.do(life.enter(), Verb.NACK)
    life.kill()
    life.enter()


@ends("engine-retries-not-logged")
def a_start_knows_when_a_retry_is_due(life: StoryLife) -> None:
    life.publish_and_rest()
    life.do(life.enter(), Verb.NACK, wait_s=6.0)
    life.kill()
    life.enter()


@ends("engine-recovery-forgets-pending", "engine-recovery-forgets-offset-0")
def a_start_knows_what_was_in_flight(life: StoryLife) -> None:
    life.publish_and_rest()
    life.enter()
    life.kill()
    life.enter()


@ends("engine-recovery-trusts-the-group", setup=Setup(durability="interval"))
def power_is_lost_and_with_it_what_a_group_had_settled(life: StoryLife) -> None:
    life.join(QUEUE, "g", "a", is_eager=True)
    life.publish_and_rest()
    life.wait(1.0)
    life.turn(sync=False)
    life.run_syncs(only=is_of_a_group)
    life.lose_power(Persistence.NONE)
    life.publish_and_rest()
    life.enter()


@ends("engine-last-try-lost-at-restart", "engine-last-try-repeated-at-restart", setup=Setup(max_retries=0))
def a_process_ends_during_the_last_try(life: StoryLife) -> None:
    life.publish_and_rest()
    life.enter()
    life.kill()
    life.enter()


@ends("engine-settled-before-sync")
def power_is_lost_before_a_settlement_is_safe(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter()
    life.settle(member, 0, Verb.ACK)
    life.turn(sync=False)
    life.lose_power(Persistence.NONE)
    life.enter()


@ends("engine-shown-before-sync")
def nobody_sees_what_is_not_safe(life: StoryLife) -> None:
    life.enter()
    life.publish()
    life.turn(sync=False)


@ends("engine-never-synced-by-time", setup=Setup(durability="interval"))
def power_is_lost_after_the_periodic_sync(life: StoryLife) -> None:
    life.publish_and_rest()
    life.pass_by(1.0, 1.0)
    life.lose_power(Persistence.NONE)
    life.enter()


@ends("engine-idle-groups-unsynced", setup=Setup(durability="interval"))
def an_idle_group_is_synced_after_a_start(life: StoryLife) -> None:
    life.enter()
    life.kill()
    life.turn()
    life.pass_by(1.0)
    life.lose_power(Persistence.NONE)


@ends("engine-rotated-segment-unsynced")
def power_is_lost_behind_a_rotation(life: StoryLife) -> None:
    """Until the engine hears of a sync, more is written behind what that covered, and then to the next segment."""
    life.publish()
    life.turn(sync=False)
    life.run_syncs()
    for _ in range(11):
        life.publish()
        life.turn(sync=False)
    life.report_syncs()
    life.rest()
    life.lose_power(Persistence.NONE)
    life.enter()


@ends("engine-end-leaves-messages-unwritten")
def an_orderly_end_within_a_turn(life: StoryLife) -> None:
    life.publish()
    life.close()
    life.enter()


# -- credit ------------------------------------------------------------------------------------------------------


def _granted(life: StoryLife, member: Member, credit: int, *, drain: bool = False) -> None:
    life.grant(member, credit, drain=drain)
    life.rest()


@ends("engine-credit-ignored", "engine-grant-serves-nobody", "engine-grants-add-up", "engine-settling-gives-credit")
def a_consumer_is_given_what_it_was_granted(life: StoryLife) -> None:
    member = life.enter()
    _granted(life, member, 2)
    life.publish_and_rest(5)
    life.do(member, Verb.ACK)
    life.do(member, Verb.ACK, 0)
    life.publish_and_rest()
    _granted(life, member, 1)
    _granted(life, member, 3)
    _granted(life, member, 1_000)


@ends("engine-redeliveries-cost-no-credit")
def a_redelivery_costs_credit(life: StoryLife) -> None:
    member = life.enter()
    _granted(life, member, 2)
    life.publish_and_rest(2)
    life.do(member, Verb.NACK)
    _granted(life, member, 1)
    life.publish_and_rest(2)
    _granted(life, member, 1_000)


@ends("engine-drained-credit-stays", "engine-drain-untold")
def a_drained_credit_is_told_and_gone(life: StoryLife) -> None:
    member = life.enter()
    life.publish_and_rest(2)
    _granted(life, member, 5, drain=True)
    life.publish_and_rest(2)
    _granted(life, member, 1_000)


def _released(life: StoryLife, member: Member) -> None:
    life.release(member, len(member.got) - 1)
    life.rest()


@ends("engine-release-counts", "engine-release-counts-from-then-on", setup=Setup(max_retries=1))
def a_release_counts_for_nothing_and_a_failure_does(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter()
    _released(life, member)
    _released(life, member)
    life.do(member, Verb.NACK)
    life.pass_by(1.0, 5.0, 30.0)
    _released(life, member)
    life.do(member, Verb.NACK)
    life.pass_by(1.0, 5.0, 30.0)


@ends("engine-release-fails-for-good", setup=Setup(max_retries=1))
def what_is_released_after_its_last_failure_comes_again(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter()
    life.do(member, Verb.NACK)
    life.pass_by(1.0, 5.0, 30.0)
    _released(life, member)


@ends("engine-release-not-logged", setup=Setup(max_retries=3))
def a_release_is_remembered_over_a_start(life: StoryLife) -> None:
    life.publish_and_rest()
    member = life.enter()
    life.do(member, Verb.NACK)
    life.pass_by(1.0, 5.0, 30.0)
    _granted(life, member, 0)
    _released(life, member)
    life.kill()
    life.enter()


@ends("engine-snapshot-counts-releases", setup=Setup(max_retries=1))
def a_release_is_remembered_over_a_snapshot(life: StoryLife) -> None:
    """The log of its group has been replaced by what was pending."""
    life.publish_and_rest()
    member = life.enter()
    life.do(member, Verb.NACK)
    _granted(life, member, 0)
    with mock.patch.object(pending_log, "SNAPSHOT_OPERATIONS", 1):
        _released(life, member)
        life.pass_by(*[1.0] * 6)
    life.kill()
    life.enter()
