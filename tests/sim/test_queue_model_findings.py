"""What the model found in the queue engine, each with its smallest example."""

from __future__ import annotations

from functools import partial

import msgspec

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.sim.disk import Persistence
from assay.sim.queue_model.delaying import Delayer
from assay.sim.queue_model.life import LETTERS, QUEUE, QueueLife, Setup
from assay.sim.queue_model.machine import QueueMachine
from assay.sim.queue_model.producing import Producer
from assay.sim.queue_model.resetting import reset
from assay.sim.queue_model.state import DONE


def test_the_state_of_an_idle_group_is_synced_after_a_restart() -> None:
    """Its process was killed before the periodic sync, and an idle group wrote nothing more: its acks stayed unsafe."""
    life = QueueLife(Setup(durability="interval"))
    life.join(QUEUE, "g", "a")
    life.rest()
    life.kill()
    life.turn()
    life.wait(1.0)
    life.rest()
    life.lose_power(Persistence.NONE)
    life.check()


def test_a_nack_that_was_the_last_is_confirmed_with_its_dead_letter() -> None:
    """Its confirm waited for a sync of the group's log, which had nothing to sync, until the next periodic one."""
    life = QueueLife(Setup(max_retries=0))
    life.publish()
    life.rest()
    member = life.join(QUEUE, "g", "a")
    life.rest()
    life.wait(1.0)
    life.rest()
    life.settle(member, 0, Verb.NACK)
    life.rest()
    assert life.engine.stats(LETTERS).depth == 1


def test_a_message_that_expires_behind_others_is_counted_once() -> None:
    """It came back for a group that had it in flight, and was counted again for one that had not got it yet."""
    life = QueueLife(Setup(max_in_flight=3, dead_letters=False))
    for _ in range(8):
        life.publish()
    life.rest()
    life.join(QUEUE, "h", "a")
    life.rest()
    life.publish(expires_in_s=3.0)
    for member in "ab":
        life.join(QUEUE, "g", member, is_eager=member == "a")
        life.rest()
    for _ in range(5):
        life.wait(1.25)
        life.rest()
        life.check()


def test_a_refused_message_costs_no_group_another_one() -> None:
    """One group gave up its oldest message; another had none, so that the publish was refused all the same."""
    life = QueueLife(Setup(max_depth=2, overflow="drop_oldest"))
    life.publish()
    life.publish()
    life.rest()
    slow = life.join(QUEUE, "h", "a", room=0)
    life.join(QUEUE, "g", "a")
    life.rest()
    life.publish()
    assert life.engine.stats(QUEUE).refused == 1
    life.check()
    life.make_room(slow, 1_000)
    life.rest()
    assert [held.sent.label for held in slow.got] == ["m1", "m2"]


def test_settled_messages_of_other_lanes_do_not_come_back_once_their_segment_is_deleted() -> None:
    """The lanes forgot deleted offsets; the cursor of the normal lane stood before them and took them for its own."""
    life = QueueLife(Setup(segment_bytes=150))
    life.join(QUEUE, "g", "a", is_eager=True)
    life.publish(priority=0)
    life.rest()
    life.publish()
    life.rest()
    for _ in range(4):
        life.publish(priority=0)
        life.rest()
        life.wait(1.0)
    life.publish()
    life.rest()
    life.check()
    life.drain()


def begun(life: QueueLife) -> Producer:
    """A producer with an open transaction."""
    producer = Producer(life, "s")
    producer.init()
    life.rest()
    producer.begin(60.0)
    life.rest()
    return producer


def test_a_full_queue_drops_no_message_of_an_open_transaction() -> None:
    """It made room for a newer message, was missing after the commit, and counted twice after an abort."""
    life = QueueLife(Setup(max_depth=2, overflow="drop_oldest", dead_letters=False))
    member = life.join(QUEUE, "g", "a")
    producer = begun(life)
    for _ in range(2):
        producer.publish(QUEUE, None, is_numbered=False)
    life.rest()
    life.publish()
    assert life.engine.stats(QUEUE).refused == 1
    producer.commit()
    life.rest()
    life.check()
    assert [held.sent.label for held in member.got] == ["m1", "m2"]


def test_an_acknowledgement_of_another_lane_survives_in_a_decided_transaction() -> None:
    """After a loss of power it was looked for among messages of normal priority only, and delivered again."""
    life = QueueLife(Setup(max_retries=0))
    life.publish(priority=0)
    life.rest()
    member = life.join(QUEUE, "g", "a")
    life.rest()
    producer = begun(life)
    producer.ack(member, 0)
    producer.commit()
    life.rest()
    life.lose_power(Persistence.NONE)
    life.check()
    life.drain()


def test_a_close_answers_the_commit_of_the_same_turn() -> None:
    """Nobody was told, and the transaction was lost although its queues were written."""
    life = QueueLife(Setup())
    producer = begun(life)
    producer.publish(QUEUE, None, is_numbered=False)
    producer.commit()
    life.close()
    life.check()
    life.drain()


def test_an_identity_that_was_told_is_not_given_out_again_after_a_kill_and_a_loss_of_power() -> None:
    """The first sync after a kill ran already; it was taken to cover the new producer, too."""
    life = QueueLife(Setup())
    first, second = Producer(life, "s"), Producer(life, "t")
    first.init()
    life.rest()
    life.kill()
    first.init()
    life.turn(sync=False)
    life.run_syncs()
    second.init()
    life.report_syncs()
    life.lose_power(Persistence.NONE)
    second.init()
    life.rest()


def test_a_commit_of_nothing_is_known_after_a_restart() -> None:
    """Nothing of it was written."""
    life = QueueLife(Setup())
    producer = begun(life)
    producer.commit()
    life.rest()
    life.kill()
    producer.commit()
    life.rest()


def test_a_commit_that_is_told_again_after_a_kill_is_safe_from_a_loss_of_power() -> None:
    """The decision was found, but on no disk: it was confirmed a second time, and then it had never been."""
    life = QueueLife(Setup())
    producer = begun(life)
    producer.commit()
    life.kill()
    producer.commit()
    life.rest()
    life.lose_power(Persistence.NONE)
    producer.commit()
    life.rest()


def test_a_commit_is_answered_although_another_transaction_is_aborted_in_its_turn() -> None:
    """Its partition had a record to write, the end of the other one, so that it waited for a turn that did not come."""
    life = QueueLife(Setup(durability="interval"))
    first, second = begun(life), Producer(life, "t")
    second.init()
    life.rest()
    second.begin(60.0)
    life.rest()
    for producer in (first, second):
        producer.publish(QUEUE, None, is_numbered=False)
        life.rest()
    for producer in (first, second):
        producer.publish(QUEUE, None, is_numbered=False)
    first.commit()
    second.abort()
    life.rest()


def test_what_a_new_group_of_dead_letters_inherits_was_not_delivered_yet() -> None:
    """One letter is settled by all others; the one before it counted as retried, and its first delivery as a second."""
    life = QueueLife(Setup(partitions=1, max_retries=0))
    for routing_key in ("x", ""):
        life.publish(routing_key=routing_key)
    life.rest()
    member = life.join(QUEUE, "g", "a")
    life.rest()
    for index in (0, 1):
        life.settle(member, index, Verb.REJECT)
        life.rest()
    life.join(LETTERS, "p", "a", pattern="x/#")
    life.rest()
    life.join(LETTERS, "h", "a")
    life.check()
    life.rest()
    life.check()
    life.drain()


def test_a_new_group_of_dead_letters_with_a_filter_inherits_only_what_it_wants() -> None:
    """All others had settled a later letter, so that those before it were set to wait, whatever the filter said."""
    life = QueueLife(Setup(partitions=1, max_retries=0))
    for routing_key in ("", "x", "x"):
        life.publish(routing_key=routing_key)
    life.rest()
    failing, reader = life.join(QUEUE, "g", "a"), life.join(LETTERS, "h", "a")
    life.rest()
    for index in range(3):
        life.settle(failing, index, Verb.REJECT)
        life.rest()
    life.settle(reader, 2, Verb.ACK)
    life.rest()
    filtering = life.join(LETTERS, "p", "a", pattern="x/#")
    life.rest()
    assert [held.sent.label for held in filtering.got] == ["g>m2"]
    life.check()
    life.drain()


def test_what_is_due_may_find_full_what_a_timeout_empties_at_that_time() -> None:
    """The model had the timeout first, and then expected the message; it comes when the queue is asked again."""
    life = QueueLife(Setup(max_depth=1, max_retries=0, dead_letters=False))
    life.join(QUEUE, "g", "a")
    life.publish()
    Delayer(life).publish(0.9)
    life.rest()
    life.wait(11.0)
    life.rest()
    life.check()
    assert life.engine.stats(QUEUE).delays.pending == 1
    life.wait(1.5)
    life.rest()
    life.check()
    assert life.engine.stats(QUEUE).delays.pending == 0


def test_many_that_were_delayed_come_through_few_places() -> None:
    """The model gave them 20 turns, whatever their number."""
    life = QueueLife(Setup(max_depth=2, max_retries=0, dead_letters=False))
    delayer = Delayer(life)
    for _ in range(70):
        delayer.publish(0.9)
    life.rest()
    life.drain()
    stats = life.engine.stats(QUEUE)
    assert (stats.delays.pending, stats.delays.fired, stats.depth) == (0, 70, 0)


def test_what_waited_for_room_is_cancelled_and_another_is_due_soon() -> None:
    """The model forgot that the queue had been asked less than a second ago."""
    life = QueueLife(Setup(max_depth=1))
    delayer = Delayer(life)
    life.join(QUEUE, "g", "a", room=0)
    life.publish()
    delayer.publish(0.9)
    life.rest()
    life.wait(10.0)
    life.rest()
    delayer.publish(0.9)
    delayer.cancel(0)
    life.rest()
    life.check()
    life.drain()


def test_what_expired_behind_an_open_transaction_becomes_a_letter_between_two_turns() -> None:
    """The publish after the start sent it off; the model counted the letter before it was written."""
    life = QueueLife(Setup(max_depth=6, to_letters=True, max_retries=0, segment_bytes=100_000, ordered=False))
    producer = Producer(life, "s")
    producer.init()
    life.rest()
    producer.begin(60.0)
    life.rest()
    producer.publish(QUEUE, None, is_numbered=False)
    life.rest()
    life.publish(expires_in_s=3.0)
    life.join(LETTERS, "g", "a")
    for _ in range(4):
        life.publish()
    life.rest()
    life.wait(5.0)
    life.kill()
    life.check()
    life.publish()
    life.publish()
    life.check()
    life.rest()
    life.check()
    life.drain()


def test_a_publish_that_is_refused_sends_off_what_has_expired_too() -> None:
    """Power was lost, one came back that had been a letter, and again there was no room: the model saw one letter."""
    life = QueueLife(Setup(max_depth=2, to_letters=True))
    life.publish(expires_in_s=3.0)
    life.publish()
    life.rest()
    life.wait(5.0)
    life.publish()
    life.rest()
    life.join(LETTERS, "g", "a")
    life.rest()
    life.lose_power(Persistence.NONE)
    life.publish()
    assert life.engine.stats(QUEUE).refused == 1
    life.check()
    life.rest()
    life.check()
    assert life.engine.stats(LETTERS).depth == 2
    life.drain()


def test_what_is_aborted_over_a_loss_of_power_may_have_failed_for_the_last_time() -> None:
    """One delivery shows that the commit was lost; the other that it held was the last that its message got."""
    life = QueueLife(Setup(dead_letters=False))
    life.publish()
    life.publish()
    life.rest()
    member = life.join(QUEUE, "g", "a", room=1)
    life.rest()
    life.settle(member, 0, Verb.NACK)
    life.make_room(member, 2)
    life.rest()
    producer = begun(life)
    producer.ack(member, 1)
    producer.ack(member, 2)
    producer.commit()
    life.turn(sync=False)
    life.lose_power(Persistence.NONE)
    life.check()
    life.drain()
    assert [copy.spots for copy in life.oracle.queues[QUEUE].groups["g"].copies.values()] == [{DONE}, {DONE}]


def test_what_expired_behind_an_open_transaction_becomes_a_letter_when_that_has_ended() -> None:
    """The model took it for over when its time to live was."""
    life = QueueLife(Setup(to_letters=True))
    begun(life).publish(QUEUE, None, is_numbered=False)
    life.publish(expires_in_s=3.0)
    life.rest()
    life.wait(20.0)
    life.rest()
    life.drain()
    assert life.engine.stats(LETTERS).enqueued == 1


def test_of_two_letters_of_a_message_the_one_that_must_come_is_seen_first() -> None:
    """A reset let it fail twice, a group inherited that the first was settled, and the model took the second for it."""
    life = QueueLife(Setup(max_retries=0, ordered=False))
    life.publish()
    life.rest()
    life.join(QUEUE, "g", "a")
    life.rest()
    life.wait(5.0)
    life.rest()
    reset(life, QUEUE, "g", to_latest=False)
    life.rest()
    life.join(LETTERS, "p", "a", pattern="x/#")
    life.rest()
    life.join(LETTERS, "g", "a")
    life.turn()
    life.drain()


def test_what_was_delayed_and_dropped_does_not_come_although_its_group_is_reset() -> None:
    """The model took it for lost: it had forgotten that it may have been dropped."""
    life = QueueLife(Setup(max_depth=2, overflow="drop_oldest", dead_letters=False))
    life.join(QUEUE, "g", "a", is_eager=True)
    life.join(QUEUE, "h", "b", room=0)
    for _ in range(3):
        Delayer(life).publish(0.9)
    life.rest()
    life.wait(5.0)
    life.rest()
    for _ in range(3):
        life.publish()
        life.rest()
    life.wait(11.0)
    life.rest()
    reset(life, QUEUE, "g", to_latest=False)
    life.drain()


def test_what_had_left_before_it_was_lost_is_passed_once() -> None:
    """A disk lost what a full queue had dropped: a group that came to it counted it once more, and its lag was -1."""
    machine = QueueMachine()
    setup = Setup(durability="interval", ordered=False, max_retries=0, dead_letters=False, max_depth=2)
    machine.open(setup=msgspec.structs.replace(setup, overflow="drop_oldest", segment_bytes=100_000), seed=0)
    machine.join(group=("g", ""), is_eager=False, name="a", queue="r", room=1_000, then="rest")
    machine.transact(acks=0, key=None, name="s", queues=(QUEUE,), rests=False, then="rest", verb="commit")
    machine.stream(dress="", pace="slow", rounds=2, then="rest", wait_s=5.0)
    machine.publish_some(count=2, dress="", key="a", then="rest")
    machine.produce(begins=True, is_numbered=False, key=None, name="s", queues=(QUEUE,), then="rest", timeout_s=60.0)
    machine.end(again="", how=Persistence.ALL_BUT_ONE)
    machine.teardown()


def test_a_full_queue_may_be_asked_again_earlier_than_the_model_can_know() -> None:
    """One of two that waited was cancelled: what asked the queue again did so before, and next time so much later."""
    life = QueueLife(Setup(max_retries=0, ordered=False, dead_letters=False, max_depth=2))
    life.join(QUEUE, "h", "b", room=0)
    for _ in range(2):
        life.publish()
    delayer = Delayer(life)
    delayer.publish(0.9)
    for wait_s in (0.5, 1.0):
        life.rest()
        life.wait(wait_s)
    life.rest()
    delayer.publish(0.9)
    for wait_s in (0.25, 0.25):
        life.rest()
        life.wait(wait_s)
    delayer.cancel(0)
    for wait_s in (0.25, 0.25, 1.0, 1.0):
        life.rest()
        life.wait(wait_s)
    life.rest()
    life.drain()


def test_what_an_abort_gives_up_is_written_with_the_next_turn() -> None:
    """A kill between the two had it again, and the model had it over."""
    machine = QueueMachine()
    machine.open(setup=Setup(ordered=False, max_retries=0, dead_letters=False, segment_bytes=100_000), seed=0)
    machine.settle_several(
        any_group=False, member=0, picks=[0], ranges=False, then="rest", verb=Verb.ACK, wait_s=None, within=None
    )
    machine.ack_within(begins=True, member=0, name="s", then="rest", which=0)
    machine.init(name="s", then="turn")
    machine.end(again="", how="kill")
    machine.teardown()


def test_what_may_have_left_and_did_not_may_leave_later_and_be_on_its_way_at_a_kill() -> None:
    """The model took it for arrived, if it had left at all, from the first rest on."""
    machine = QueueMachine()
    setup = Setup(ordered=False, max_retries=0, max_depth=2, overflow="drop_oldest", to_letters=True)
    machine.open(setup=msgspec.structs.replace(setup, segment_bytes=100_000), seed=0)
    several = {"any_group": False, "member": 0, "picks": [0], "ranges": False, "wait_s": None, "within": None}
    machine.settle_several(**several, verb=Verb.ACK, then="rest")
    machine.publish_some(count=2, dress="", key=None, then="")
    machine.turn(sync="all")
    machine.end(again="", how="kill")
    machine.settle_several(**several, verb=Verb.ACK, then="rest")
    machine.teardown()


def test_a_letter_where_one_was_lost_is_that_or_the_one_that_was_written_since() -> None:
    """The model took it for the lost one, and waited for a second one of the same message."""
    machine = QueueMachine()
    setup = Setup(durability="interval", ordered=False, partitions=1, max_retries=0, max_depth=6, ttl_s=10.0)
    machine.open(setup=msgspec.structs.replace(setup, segment_bytes=100_000), seed=0)
    machine.produce(begins=True, is_numbered=False, key=None, name="s", queues=(QUEUE,), then="rest", timeout_s=60.0)
    machine.limit(max_depth=2, then="rest")
    machine.join(group=("g", ""), is_eager=False, name="a", queue=LETTERS, room=1_000, then="rest")
    machine.publish(dress="", expires_in_s=0.0, key=None, priority=None, routing_key="", then="rest")
    machine.end_transaction(name="s", then="rest", verb="commit")
    nacked = partial(machine.settle_several, any_group=False, member=0, picks=[0], ranges=False, verb=Verb.NACK)
    nacked(then="rest", wait_s=None, within=None)
    machine.end(again="", how=Persistence.NONE)
    for _ in range(3):
        machine.wait(seconds=0.0)
    nacked(then="rest", wait_s=None, within=None)
    machine.teardown()
