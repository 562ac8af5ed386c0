"""Bugs in queues that show where two or three states meet are found by lives of queues, within a few dozen of them.

Each is asked of the life that finds it first, and then of others: when the draw changes, a test takes longer, and
``python -m tests.conformance.explore.test_queue_crossings`` prints numbers anew.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pytest

from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.rules import ViolationError
from assay.conformance.mutants import all_mutants
from assay.conformance.nursery import Nursery
from assay.conformance.targets import load_target
from tests.conformance.explore.test_found_bugs import nursery as nursery

SEED = 1
LIVES = 200
PATIENCE_S = 0.8
FOUND = {
    "wire-abort-settles-retried": 1,
    "wire-delay-of-the-first-nack-only": 254,
    "wire-leaving-spares-a-retry": 1,
    "wire-priority-of-keyless-only": 16,
    "wire-reset-keeps-what-waits": 7,
    "wire-second-attempt-not-acknowledged": 39,
    "wire-attempts-of-waiting-lost": 4,
    "wire-due-together-fire-backwards": 16,
    "wire-latest-is-the-last": 15,
    "wire-letter-of-retried-without-content-type": 48,
    "wire-ranges-end-early": 27,
    "wire-repeats-lose-properties": 1,
    "wire-second-acknowledgement-left-out": 16,
    "wire-several-settled-are-written-but-for-the-last": 133,
    "wire-claims-are-not-written": 17,
    "wire-commit-spares-what-waits": 107,
    "wire-commit-of-one-lane": 98,
    "wire-receipts-of-retried-go-stale": 8,
    "wire-size-without-properties": 20,
    "wire-keys-stay-in-four-partitions": 2,
    "wire-reset-spares-retried": 35,
    "wire-several-settled-count-as-one": 0,
    "wire-priorities-are-counted-as-one": 8,
    "wire-floor-of-the-normal-priority": 2,
    "wire-bytes-of-what-was-aborted-stay": 52,
    "wire-extensions-are-the-timeout": 61,
    "queue-delete-keeps-the-messages": 19,
    "queue-replay-copies": 7,
    "wire-lower-limits-spare-holders": 3,
    "wire-spoilt-changes-taken": 6,
    "wire-limits-of-groups-not-written": 66,
    "wire-lost-deliveries-wait-for-readers": 51,
    "queue-sequences-forgotten": 10,
    "queue-remembers-one-sequence": 10,
    "queue-gap-taken": 10,
    "queue-tenant-name-shows": 2,
    "queue-tenant-name-in-refusals": 26,
}
"""Mutant to the number of a life."""
RARE = {
    "wire-bursts-are-not-traced",
    "wire-claims-of-what-is-used-up",
    "wire-dropped-comes-to-the-next-group",
    "wire-idle-since-the-first-delivery",
    "wire-new-settings-forget-deadlines",
    "wire-reset-of-one-lane-is-written",
    "wire-expired-given-again",
    "wire-limit-of-bytes-counts-what-is-there",
    "wire-limit-of-depth-is-one-less-with-groups",
    "wire-rejected-after-a-retry-discarded",
    "wire-waiting-is-due-after-a-start",
}
"""Not found within the first 65 lives of this seed: docs/findings/explore.md. No life asks for traces."""


def test_each_of_them_is_asked_for() -> None:
    known = {name for name in all_mutants() if name.startswith("wire-")}
    assert known == {name for name in FOUND if name.startswith("wire-")} | RARE


@pytest.fixture(scope="module")
def sound(nursery: Nursery) -> Iterator[Campaign]:
    with Campaign(load_target("reference"), game="queues", nursery=nursery) as campaign:
        yield campaign


def _first(nursery: Nursery, sound: Campaign, mutant: str, numbers: Sequence[int]) -> int | None:
    """The number of the first life that accuses the broken broker, and not the sound one."""
    broken = Campaign(
        load_target("reference"), game="queues", mutant=mutant, nursery=nursery, patience_s=PATIENCE_S, shrink_s=0.0
    )
    with broken as campaign:
        for played, number in enumerate(numbers, 1):
            life = campaign.game.drawn(SEED, number, campaign.capabilities)
            try:
                campaign.play(life)
            except ViolationError:
                try:
                    sound.play(life)
                except ViolationError:
                    sound.renew()  # a busy machine
                    continue
                return number
            if played % 25 == 0:
                campaign.renew()
    return None


@pytest.mark.parametrize("mutant", FOUND)
def test_a_bug_at_a_crossing_is_found(nursery: Nursery, sound: Campaign, mutant: str) -> None:
    number = _first(nursery, sound, mutant, (FOUND[mutant], *range(LIVES)))
    assert number is not None, f"seed {SEED}: {LIVES} lives found nothing"


def main(names: Sequence[str]) -> None:
    """Numbers of lives that find these mutants, or all of them."""
    with Nursery() as forking, Campaign(load_target("reference"), game="queues", nursery=forking) as sound:
        for mutant in names or sorted(name for name in all_mutants() if name.startswith("wire-")):
            print(f'    "{mutant}": {_first(forking, sound, mutant, range(5 * LIVES))},', flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
