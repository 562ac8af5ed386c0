"""Credit: how many deliveries a consumer gets, whatever it settles; and deliveries that are given back untried."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.queues import Consumer, Delivery, Outcome, QueueError
from assay.reference_broker.queues.groups.subscribe_options import SubscribeOptions
from assay.reference_broker.queues.operations.group_operations import Claim
from assay.reference_broker.storage.memory_disk import MemoryDisk

if TYPE_CHECKING:
    from tests.queues.conftest import QueueBench

BenchWith = Callable[..., "QueueBench"]
_WAITS = SubscribeOptions()


class Link:
    """A consumer that has no room of its own: it gets what it has credit for."""

    def __init__(
        self, bench: QueueBench, credit: int, name: str = "c", *, group: str = "g", options: SubscribeOptions = _WAITS
    ) -> None:
        self.bench, self.name, self.group = bench, name, group
        self.got: list[Delivery] = []
        self.drained: list[int] = []
        self.has_room = True
        self.handle: Consumer = bench.engine.subscribe(
            "q",
            pattern="",
            group=group,
            consumer_id=name,
            deliver=self.deliver,
            now=bench.now,
            options=options,
            credit=credit,
        )

    def deliver(self, delivery: Delivery) -> bool:
        if self.has_room:
            self.got.append(delivery)
        return self.has_room

    def grant(self, credit: int, *, drain: bool = False) -> None:
        on_drained = self.drained.append if drain else None
        self.bench.engine.grant(self.handle, credit, self.bench.now, on_drained)

    def settle(self, delivery: Delivery, outcome: Outcome) -> None:
        self.bench.engine.settle_delivery(delivery, outcome, consumer_id=self.name, now=self.bench.now)

    @property
    def values(self) -> list[str]:
        return [delivery.message.payload.decode() for delivery in self.got]


def fill(bench: QueueBench, count: int) -> None:
    for number in range(count):
        bench.publish(str(number))
    bench.turn()


def test_a_consumer_gets_what_it_has_credit_for(bench: QueueBench) -> None:
    link = Link(bench, 3)
    fill(bench, 10)
    assert link.values == ["0", "1", "2"]
    for delivery in link.got:
        link.settle(delivery, Outcome.ACCEPT)
    bench.turn()
    assert len(link.got) == 3, "settling gives no credit"
    link.grant(2)
    bench.turn()
    assert link.values == ["0", "1", "2", "3", "4"]
    link.grant(5)
    link.grant(0)
    bench.turn()
    assert len(link.got) == 5, "revoked before the turn"


def test_what_it_may_hold_is_a_bound_of_its_own(bench_with: BenchWith) -> None:
    bench = bench_with(max_in_flight=2)
    link = Link(bench, 5)
    fill(bench, 10)
    assert len(link.got) == 2
    link.settle(link.got[0], Outcome.ACCEPT)
    bench.turn()
    assert len(link.got) == 3


def test_a_claim_takes_credit_as_well(bench: QueueBench) -> None:
    holder = Link(bench, 2)
    fill(bench, 2)
    claimant = Link(bench, 1, "claimant")

    def claim() -> int:
        wanted = Claim(min_idle_s=0.0, limit=10)
        taken = bench.engine.groups.claim("q", "g", wanted, consumer_id="claimant", now=bench.now)
        bench.turn()
        return taken

    bench.advance(1)
    assert (claim(), len(claimant.got)) == (1, 1)
    with pytest.raises(QueueError, match="room"):
        claim()
    assert len(holder.got) == 2


def test_draining_gives_back_what_the_turn_cannot_use(bench: QueueBench) -> None:
    link = Link(bench, 0)
    fill(bench, 3)
    link.grant(5, drain=True)
    bench.turn()
    assert (link.values, link.drained) == (["0", "1", "2"], [2])
    fill(bench, 1)
    assert len(link.got) == 3, "there is no credit left"
    link.grant(1, drain=True)
    bench.turn()
    assert (len(link.got), link.drained) == (4, [2, 0])


def test_a_drain_waits_for_all_the_turns_that_its_credit_needs(bench_with: BenchWith) -> None:
    bench = bench_with(max_in_flight=20_000)
    link = Link(bench, 0)
    for number in range(9_000):
        bench.publish(str(number))
    bench.turn()
    link.grant(10_000, drain=True)
    bench.turn()
    assert (len(link.got), link.drained) == (9_000, [1_000])


def test_a_drain_of_a_consumer_that_has_left_is_told_once(bench: QueueBench) -> None:
    link = Link(bench, 0)
    link.grant(5, drain=True)
    bench.engine.unsubscribe(link.handle, bench.now)
    bench.turn()
    assert link.drained in ([], [5])


def test_a_later_grant_ends_a_drain_that_waits_for_room(bench: QueueBench) -> None:
    """What is granted then stays granted, also behind the turn in which there is room again."""
    link = Link(bench, 0, options=SubscribeOptions(waits=False))
    fill(bench, 1)
    link.has_room = False
    link.grant(5, drain=True)
    bench.turn()
    link.grant(3)
    bench.turn()
    assert (link.values, link.drained) == ([], [])
    link.has_room = True
    bench.engine.resume(link.handle, bench.now)
    bench.turn()
    fill(bench, 4)
    assert (link.values, link.drained) == (["0", "0", "1"], [])


@pytest.mark.parametrize("ordering", ["none", "partition"])
@pytest.mark.parametrize("priorities", [False, True])
def test_no_consumer_ever_gets_more_than_it_was_granted(
    bench_with: BenchWith, ordering: str, *, priorities: bool
) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    bench = bench_with(partitions=3, ordering=ordering, priority={"enabled": priorities})
    links = [Link(bench, 0, f"c{number}") for number in range(3)]
    granted = dict.fromkeys(links, 0)
    used = dict.fromkeys(links, 0)
    published = 0
    for _ in range(200):
        link = rng.choice(links)
        match rng.randrange(4):
            case 0:
                credit = rng.randrange(6)
                link.grant(credit)
                granted[link], used[link] = credit, len(link.got)
            case 1:
                for _ in range(rng.randrange(8)):
                    lane = (("priority", rng.choice(("high", "low"))),) if priorities and rng.random() < 0.5 else ()
                    bench.publish(str(published), user_properties=lane)
                    published += 1
            case 2:
                held = [each for each in link.got if each.message_id in _held(bench, link)]
                if held:
                    link.settle(rng.choice(held), rng.choice((Outcome.ACCEPT, Outcome.RELEASE)))
            case _:
                bench.turn()
        for each in links:
            assert len(each.got) - used[each] <= granted[each]
    for link in links:
        link.grant(10_000)
    bench.advance(1)
    assert {value for link in links for value in link.values} == {str(number) for number in range(published)}


def _held(bench: QueueBench, link: Link) -> set[str]:
    group = bench.engine._queues["q"].groups["g"]
    return {
        f"q:{entry.place.index}:{entry.offset}"
        for place in group.every_place
        for entry in place.pending.values()
        if entry.consumer is link.handle
    }


def test_a_release_does_not_count(bench_with: BenchWith) -> None:
    bench = bench_with(retry={"max_retries": 2, "initial_backoff_s": 1.0})
    link = Link(bench, 100)
    fill(bench, 1)
    for _ in range(10):
        link.settle(link.got[-1], Outcome.RELEASE)
        bench.turn()
    assert [delivery.delivery_count for delivery in link.got] == [1] * 11
    assert [delivery.redelivered for delivery in link.got] == [False] + [True] * 10
    link.settle(link.got[-1], Outcome.FAIL)
    bench.advance(2)
    link.settle(link.got[-1], Outcome.RELEASE)
    bench.turn()
    assert [delivery.delivery_count for delivery in link.got[-2:]] == [2, 2]
    stats = bench.engine.stats("q").groups[0]
    assert (stats.released, stats.nacked, stats.dead_lettered) == (11, 1, 0)


def test_a_release_is_no_failure_where_there_may_be_none(bench_with: BenchWith) -> None:
    bench = bench_with(retry={"max_retries": 0})
    link = Link(bench, 100)
    fill(bench, 1)
    for _ in range(3):
        link.settle(link.got[-1], Outcome.RELEASE)
        bench.turn()
    assert link.values == ["0"] * 4
    link.settle(link.got[-1], Outcome.FAIL)
    bench.turn()
    assert bench.engine.stats("q").dead_letters == 1


def test_a_release_comes_at_once_and_in_its_place(bench: QueueBench) -> None:
    link = Link(bench, 2)
    fill(bench, 4)
    link.settle(link.got[0], Outcome.RELEASE)
    link.grant(10)
    bench.turn()
    assert link.values == ["0", "1", "0", "2", "3"]


@pytest.mark.parametrize("count", [2, 3])
def test_releases_after_the_first_failure_do_not_count_over_a_restart(bench_with: BenchWith, count: int) -> None:
    durable = bench_with(MemoryDisk(), retry={"initial_backoff_s": 0.5, "multiplier": 1.0})
    link = Link(durable, 100)
    fill(durable, 1)
    for _ in range(count - 1):
        link.settle(link.got[-1], Outcome.FAIL)
        durable.advance(1)
    assert link.got[-1].delivery_count == count
    link.grant(0)
    link.settle(link.got[-1], Outcome.RELEASE)
    durable.turn()
    durable.restart()
    again = Link(durable, 1)
    durable.turn()
    (delivery,) = again.got
    assert (delivery.delivery_count, delivery.redelivered) == (count, True)


def test_bytes_are_counted_over_releases(bench_with: BenchWith) -> None:
    bench = bench_with(MemoryDisk(), max_bytes=10_000)
    link = Link(bench, 100)
    fill(bench, 3)
    for delivery in link.got[:3]:
        link.settle(delivery, Outcome.RELEASE)
    bench.turn()
    assert bench.engine.stats("q").held_bytes == 3
    for delivery in link.got[3:]:
        link.settle(delivery, Outcome.ACCEPT)
    bench.turn()
    assert bench.engine.stats("q").held_bytes == 0
