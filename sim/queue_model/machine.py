"""Hypothesis chooses what happens to an engine."""

from __future__ import annotations

import sys
from typing import ClassVar, Final
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from assay.reference_broker.mqtt.queue_topics.addresses import Verb
from assay.reference_broker.storage import pending_log
from assay.sim.disk import Persistence
from assay.sim.queue_model.claiming import claim
from assay.sim.queue_model.contents import DRESSES
from assay.sim.queue_model.delaying import Delayer
from assay.sim.queue_model.life import LETTERS, OTHER, QUEUE, Member, QueueLife, Setup, is_of_a_group
from assay.sim.queue_model.producing import Producer, kinds_of
from assay.sim.queue_model.resetting import reset
from assay.sim.queue_model.settling import by_ids, by_ranges, settle_many

STEPS: Final = 40
"""Steps of an example at most."""
QUIET_STEPS: Final = 3
"""Steps that an engine lives at least, so that it has something to lose."""
_SNAPSHOT_OPERATIONS: Final = 12
GROUPS: Final = (("g", ""), ("h", ""), ("p", "x/#"))
PRODUCERS: Final = ("s", "t")
THEN: Final = st.sampled_from(("rest", "turn", ""))
"""How the loop goes on after a step."""
SETUPS: Final = st.builds(
    Setup,
    durability=st.sampled_from(("fsync", "interval", "memory")),
    ordered=st.booleans(),
    partitions=st.integers(1, 3),
    max_retries=st.integers(0, 2),
    nack_waits=st.booleans(),
    dead_letters=st.booleans(),
    max_depth=st.sampled_from((1_000, 1_000, 6, 2)),
    ttl_s=st.sampled_from((0.0, 0.0, 10.0)),
    max_in_flight=st.sampled_from((1_000, 3, 1)),
    group_limit=st.sampled_from((0, 0, 2)),
    overflow=st.sampled_from(("reject", "drop_oldest")),
    protocol=st.sampled_from(("eager", "cooperative")),
    assignor=st.sampled_from(("range", "round_robin", "sticky")),
    segment_bytes=st.sampled_from((100_000, 400)),
    cache_bytes=st.sampled_from((0, 0, 4_096)),
    to_letters=st.sampled_from((False, False, True)),
)


class QueueMachine(RuleBasedStateMachine):
    """Rules name what happened, so that a counter-example reads as a story."""

    covered: ClassVar[dict[str, int]] = {}
    """Rule -> steps of all examples so far."""
    ends: ClassVar[dict[str, int]] = {}
    """What became of transactions -> how many."""
    examples: ClassVar[int] = 0

    life: QueueLife
    producers: dict[str, Producer]
    delayer: Delayer
    may_delay: bool
    may_limit: bool
    is_limited: bool
    """Its queue is, in depth or time to live."""

    @initialize(setup=SETUPS, seed=st.integers(0, 255))
    def open(self, setup: Setup, seed: int) -> None:
        QueueMachine.examples += 1
        self.life = QueueLife(setup, seed)
        self.producers = {name: Producer(self.life, name) for name in PRODUCERS}
        self.delayer = Delayer(self.life)
        # A full queue takes what is due at some later time, which nobody sees, and from then on it has so long to live.
        limits = (setup.max_depth < 1_000) + bool(setup.ttl_s)
        self.is_limited = limits > 0
        self.may_limit = setup.max_depth < 1_000 and setup.durability != "memory" and not setup.to_letters
        self.may_delay = limits < (1 if setup.to_letters else 2)

    def _did(self, what: str, then: str = "") -> None:
        self.covered[what] = self.covered.get(what, 0) + 1
        self.life.check()
        if then == "turn":
            self.life.turn()
        elif then == "rest":
            self.life.rest()
        if then:
            self.life.check()

    def _member(self, number: int) -> Member:
        members = list(self.life.members.values())
        return members[number % len(members)]

    def _has_members(self) -> bool:
        return bool(self.life.members)

    def _has_deliveries(self) -> bool:
        return any(member.got for member in self.life.members.values())

    # -- clients -------------------------------------------------------------------------------------------------

    @rule(
        key=st.sampled_from((None, "a", "b")),
        routing_key=st.sampled_from(("", "x", "x/y")),
        expires_in_s=st.sampled_from((0.0, 0.0, 3.0)),
        priority=st.sampled_from((None, None, 0, 2, 4)),
        dress=st.sampled_from(DRESSES),
        then=THEN,
    )
    def publish(
        self, key: str | None, routing_key: str, expires_in_s: float, priority: int | None, dress: str, then: str
    ) -> None:
        self.life.publish(key, routing_key, expires_in_s, priority, dress=dress)
        self._did("publish", then)

    @rule(count=st.integers(2, 4), key=st.sampled_from((None, "a")), dress=st.sampled_from(DRESSES), then=THEN)
    def publish_some(self, count: int, key: str | None, dress: str, then: str) -> None:
        for _ in range(count):
            self.life.publish(key, dress=dress)
        self._did("publish", then)

    @rule(
        queue=st.sampled_from((QUEUE, QUEUE, QUEUE, OTHER, LETTERS)),
        group=st.sampled_from(GROUPS),
        name=st.sampled_from(("a", "b", "c")),
        room=st.sampled_from((1_000, 1, 2)),
        is_eager=st.sampled_from((False, False, True)),
        then=THEN,
    )
    def join(self, queue: str, group: tuple[str, str], name: str, room: int, is_eager: bool, then: str) -> None:
        if self.life.to_letters and queue == QUEUE:
            queue = LETTERS
        self.life.join(queue, group[0], name, pattern=group[1], room=room, is_eager=is_eager)
        self._did("join", then)

    @precondition(lambda self: self.may_limit)
    @rule(max_depth=st.sampled_from((2, 4, 6)), then=THEN)
    def limit(self, max_depth: int, then: str) -> None:
        self.life.limit(max_depth)
        self._did("limit", then)

    @precondition(lambda self: not self.life.to_letters)
    @rule(
        rounds=st.integers(2, 6),
        pace=st.sampled_from(("slow", "stopped", "absent")),
        wait_s=st.sampled_from((0.25, 5.0, 11.0)),
        dress=st.sampled_from(DRESSES),
        then=THEN,
    )
    def stream(self, rounds: int, pace: str, wait_s: float, dress: str, then: str) -> None:
        """A group keeps up with what is published, another does not, over as much time as freeing segments takes."""
        self.life.join(QUEUE, "g", "a", is_eager=True)
        member = self.life.join(QUEUE, "h", "b", room=pace == "slow")
        if pace == "absent":
            self.life.leave(member)
        for _ in range(rounds):
            for _ in range(3):
                self.life.publish(dress=dress)
            self.life.rest()
            self.life.wait(wait_s)
            self.life.rest()
        self._did(f"stream past who is {pace}", then)

    @precondition(_has_members)
    @rule(member=st.integers(0, 5), then=THEN)
    def leave(self, member: int, then: str) -> None:
        self.life.leave(self._member(member))
        self._did("leave", then)

    @precondition(_has_members)
    @rule(member=st.integers(0, 5), room=st.sampled_from((1_000, 1, 0)), then=THEN)
    def make_room(self, member: int, room: int, then: str) -> None:
        self.life.make_room(self._member(member), room)
        self._did("make_room", then)

    def _settle(self, member: int, which: int, verb: Verb, then: str, **how: bool) -> None:
        consumer, index = self._delivery(member, which)
        self.life.settle(consumer, index, verb, **how)
        self._did(verb.value, then)

    def _delivery(self, member: int, which: int) -> tuple[Member, int]:
        """``which``: 0 = the newest that is not settled, 1 = the newest that the member got, and so on."""
        held = self.life.held()
        if held and not which % 2:
            return held[len(held) - 1 - which // 2 % len(held)]
        which //= 2
        members = [each for each in self.life.members.values() if each.got]
        consumer = members[member % len(members)]
        return consumer, len(consumer.got) - 1 - which % len(consumer.got)

    @precondition(_has_deliveries)
    @rule(member=st.integers(0, 5), which=st.integers(0, 7), then=THEN)
    def ack(self, member: int, which: int, then: str) -> None:
        self._settle(member, which, Verb.ACK, then)

    @precondition(_has_deliveries)
    @rule(member=st.integers(0, 5), which=st.integers(0, 7), then=THEN)
    def nack(self, member: int, which: int, then: str) -> None:
        self._settle(member, which, Verb.NACK, then)

    @precondition(_has_deliveries)
    @rule(member=st.integers(0, 5), which=st.integers(0, 7), then=THEN)
    def release(self, member: int, which: int, then: str) -> None:
        self.life.release(*self._delivery(member, which))
        self._did("release", then)

    @precondition(_has_members)
    @rule(member=st.integers(0, 5), credit=st.sampled_from((1_000, 3, 1, 0)), drain=st.booleans(), then=THEN)
    def grant(self, member: int, credit: int, drain: bool, then: str) -> None:
        self.life.grant(self._member(member), credit, drain=drain)
        self._did("drain" if drain else "grant", then)

    @precondition(_has_deliveries)
    @rule(member=st.integers(0, 5), which=st.integers(0, 7), by_place=st.booleans(), any_group=st.booleans(), then=THEN)
    def reject(self, member: int, which: int, by_place: bool, any_group: bool, then: str) -> None:
        self._settle(member, which, Verb.REJECT, then, by_place=by_place, any_group=any_group)

    @precondition(_has_deliveries)
    @rule(
        member=st.integers(0, 5),
        which=st.integers(0, 7),
        verb=st.sampled_from((Verb.NACK, Verb.EXTEND)),
        wait_s=st.sampled_from((1.0, 6.0)),
        then=THEN,
    )
    def settle_later(self, member: int, which: int, verb: Verb, wait_s: float, then: str) -> None:
        consumer, index = self._delivery(member, which)
        self.life.settle_later(consumer, index, verb, wait_s)
        self._did(f"{verb.value} for a time", then)

    @precondition(_has_deliveries)
    @rule(member=st.integers(0, 5), then=THEN)
    def ack_all(self, member: int, then: str) -> None:
        self.life.ack_all(self._delivery(member, 0)[0])
        self._did("ack_all", then)

    @rule(
        member=st.integers(0, 5),
        picks=st.lists(st.integers(0, 11), min_size=1, max_size=5),
        verb=st.sampled_from((Verb.ACK, Verb.NACK, Verb.REJECT, Verb.EXTEND)),
        ranges=st.booleans(),
        any_group=st.booleans(),
        wait_s=st.sampled_from((None, None, 1.0, 6.0)),
        within=st.sampled_from((None, None, *PRODUCERS)),
        then=THEN,
    )
    def settle_several(
        self,
        member: int,
        picks: list[int],
        verb: Verb,
        ranges: bool,
        any_group: bool,
        wait_s: float | None,
        within: str | None,
        then: str,
    ) -> None:
        """Deliveries of the whole queue, its own and others', pending or not; acks also ``within`` a transaction."""
        self._serve()
        if not self._has_deliveries():
            return
        consumer, _ = self._delivery(member, 0)
        pool = [held for each in self.life.members.values() if each.queue == consumer.queue for held in each.got]
        picked = [pool[len(pool) - 1 - pick % len(pool)] for pick in picks]
        named = (by_ranges if ranges else by_ids)(picked)
        if within and verb is Verb.ACK:
            self._within(within, begins=True).ack_several(consumer, named, any_group=any_group)
        else:
            settle_many(self.life, consumer, verb, named, any_group=any_group, wait_s=wait_s)
        self._did(f"{verb.value} several", then)

    def _serve(self) -> None:
        """Two consumers of a group and an eager one of another are given something, unless somebody holds something."""
        if self.life.held():
            return
        queue = LETTERS if self.life.to_letters else QUEUE
        for _ in range(3):
            self.life.publish()
        self.life.rest()
        self.life.join(queue, "g", "a", room=3)
        self.life.rest()
        self.life.join(queue, "g", "b")
        self.life.join(queue, "h", "c", is_eager=True)
        for _ in range(3):
            self.life.publish()
        self.life.rest()

    @precondition(_has_deliveries)
    @rule(
        claimant=st.integers(0, 5),
        member=st.integers(0, 5),
        which=st.integers(0, 7),
        min_idle_s=st.sampled_from((0.0, 0.0, 1.0, 3.0)),
        then=THEN,
    )
    def claim(self, claimant: int, member: int, which: int, min_idle_s: float, then: str) -> None:
        holder, index = self._delivery(member, which)
        others = [
            each for each in self.life.members.values() if (each.queue, each.group) == (holder.queue, holder.group)
        ]
        claim(self.life, others[claimant % len(others)], holder, index, min_idle_s)
        self._did("claim", then)

    @precondition(lambda self: bool(self.life.oracle.queues[QUEUE].groups))
    @rule(group=st.integers(0, 2), to_latest=st.sampled_from((False, False, True)), then=THEN)
    def reset(self, group: int, to_latest: bool, then: str) -> None:
        groups = list(self.life.oracle.queues[QUEUE].groups)
        reset(self.life, QUEUE, groups[group % len(groups)], to_latest=to_latest)
        self._did("reset", then)

    # -- delayed messages ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.may_delay)
    @rule(
        delays_s=st.sampled_from(((0.9,), (2.9, 0.9), (7.9, 0.9, 2.9))),
        key=st.sampled_from((None, "a")),
        priority=st.sampled_from((None, None, 0)),
        dress=st.sampled_from(DRESSES),
        then=THEN,
    )
    def delay(self, delays_s: tuple[float, ...], key: str | None, priority: int | None, dress: str, then: str) -> None:
        for delay_s in delays_s:
            self.delayer.publish(delay_s, key, priority, dress)
        self._did("delay", then)

    @precondition(lambda self: bool(self.delayer.kept))
    @rule(which=st.integers(0, 3), then=THEN)
    def cancel(self, which: int, then: str) -> None:
        self.delayer.cancel(which)
        self._did("cancel", then)

    # -- transactions --------------------------------------------------------------------------------------------

    def _producer(self, name: str) -> Producer:
        """One that was initialised, and told so."""
        producer = self.producers[name]
        if producer.identity is None:
            producer.init()
            self.life.rest()
        return producer

    def _within(self, name: str, begins: bool, timeout_s: float = 60.0) -> Producer:
        """One with a transaction, which it begins unless one is open."""
        producer = self._producer(name)
        if begins and not producer.has_open:
            producer.begin(timeout_s)
            self.life.rest()
        return producer

    @rule(
        name=st.sampled_from(PRODUCERS),
        queues=st.sampled_from(((QUEUE,), (QUEUE, OTHER), (OTHER, QUEUE, QUEUE), ())),
        key=st.sampled_from((None, "a")),
        acks=st.integers(0, 2),
        rests=st.booleans(),
        verb=st.sampled_from(("commit", "commit", "commit", "abort")),
        then=THEN,
    )
    def transact(
        self, name: str, queues: tuple[str, ...], key: str | None, acks: int, rests: bool, verb: str, then: str
    ) -> None:
        """A whole transaction, or the rest of one that is open."""
        producer = self._within(name, begins=True)
        for queue in queues:
            producer.publish(queue, key, is_numbered=False)
        for member, index in self.life.held()[:acks]:
            producer.ack(member, index)
        if rests:
            self.life.rest()
        getattr(producer, verb)()
        self._did(f"transact and {verb}", then)

    @rule(name=st.sampled_from(PRODUCERS), then=THEN)
    def init(self, name: str, then: str) -> None:
        self.producers[name].init()
        self._did("init", then)

    def _has_begun(self) -> bool:
        return any(producer.transaction for producer in self.producers.values())

    @rule(
        name=st.sampled_from(PRODUCERS),
        begins=st.sampled_from((True, True, False)),
        timeout_s=st.sampled_from((60.0, 60.0, 3.0)),
        queues=st.sampled_from(((QUEUE,), (OTHER,), (QUEUE, OTHER), ())),
        key=st.sampled_from((None, "a")),
        is_numbered=st.booleans(),
        then=THEN,
    )
    def produce(
        self,
        name: str,
        begins: bool,
        timeout_s: float,
        queues: tuple[str, ...],
        key: str | None,
        is_numbered: bool,
        then: str,
    ) -> None:
        producer = self._within(name, begins, timeout_s)
        for queue in queues:
            producer.publish(queue, key, is_numbered=is_numbered)
        self._did("produce", then)

    @precondition(_has_begun)
    @rule(name=st.sampled_from(PRODUCERS), then=THEN)
    def repeat(self, name: str, then: str) -> None:
        self.producers[name].repeat()
        self._did("repeat", then)

    @precondition(_has_deliveries)
    @rule(
        name=st.sampled_from(PRODUCERS),
        begins=st.sampled_from((True, True, False)),
        member=st.integers(0, 5),
        which=st.integers(0, 7),
        then=THEN,
    )
    def ack_within(self, name: str, begins: bool, member: int, which: int, then: str) -> None:
        self._within(name, begins).ack(*self._delivery(member, which))
        self._did("ack_within", then)

    @precondition(_has_begun)
    @rule(name=st.sampled_from(PRODUCERS), verb=st.sampled_from(("commit", "commit", "abort")), then=THEN)
    def end_transaction(self, name: str, verb: str, then: str) -> None:
        getattr(self.producers[name], verb)()
        self._did(verb, then)

    # -- time ----------------------------------------------------------------------------------------------------

    @rule(sync=st.sampled_from(("all", "none", "run", "groups")))
    def turn(self, sync: str) -> None:
        self.life.turn(sync=sync == "all")
        if sync == "run":
            # The disk is done, but the engine does not know it yet.
            self.life.run_syncs()
        elif sync == "groups":
            self.life.run_syncs(only=is_of_a_group)
        self._did("turn")

    @rule(seconds=st.sampled_from((0.0, 0.25, 1.0, 2.0, 5.0, 20.0)))
    def wait(self, seconds: float) -> None:
        self.life.wait(seconds)
        self._did("wait", "rest")

    # -- disasters -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.life.steps >= QUIET_STEPS)
    @rule(
        how=st.sampled_from(("kill", "rest and kill", "close", *Persistence, *Persistence)),
        again=st.sampled_from(("", "", "kill")),
    )
    def end(self, how: str, again: str) -> None:
        if self.life.delays.all and self.is_limited and isinstance(how, Persistence):
            # What fires again lives longer or finds no room, and nobody can tell the two from each other.
            how = "kill"
        if how == "kill":
            self.life.kill()
        elif how == "rest and kill":
            self.life.kill(rested=True)
        elif how == "close":
            self.life.close()
        else:
            self.life.lose_power(Persistence(how))
        self.delayer.crashed(power=isinstance(how, Persistence))
        if again:
            # Before it did anything after the start.
            self.life.kill()
        self._did("lose_power" if isinstance(how, Persistence) else how)

    def teardown(self) -> None:
        if hasattr(self, "life") and sys.exc_info()[0] is None:
            self.life.drain()
            for transaction in self.life.oracle.transactions.all:
                for kind in kinds_of(transaction):
                    self.ends[kind] = self.ends.get(kind, 0) + 1


def run(examples: int, *, seed: int, steps: int = STEPS, shrink: bool = True) -> None:
    """Run examples; the same seed makes the same ones. Raises what the first failing one raised, after shrinking."""
    machine = seeded(seed)(type("QueueMachine", (QueueMachine,), {}))
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        print_blob=False,
        report_multiple_bugs=False,
    )
    # Groups write snapshots within a short life, too.
    operations = min(_SNAPSHOT_OPERATIONS, pending_log.SNAPSHOT_OPERATIONS)
    with mock.patch.object(pending_log, "SNAPSHOT_OPERATIONS", operations):
        run_state_machine_as_test(machine, settings=profile)
