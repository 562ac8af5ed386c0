"""Bugs that show where two or three states meet are found by lives, within a few dozen of them.

The seeds are those whose first lives find them, so that the test is short; what is demanded is that :data:`LIVES` do.
When the draw changes, a seed costs lives; ``python -m tests.conformance.explore.test_crossings`` prints better ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.life import Life
from assay.conformance.mutants import all_mutants
from assay.conformance.nursery import Nursery
from assay.conformance.targets import load_target
from tests.conformance.explore.test_found_bugs import nursery as nursery

LIVES = 200
FIRST = 4
"""A recorded seed finds its bug in so many."""
FOUND = {
    "cross-takeover-sends-delayed-will": 2,
    "cross-delayed-will-not-cancelled": 10,
    "cross-sent-will-not-written": 11,
    "cross-queued-expiry-forgotten": 14,
    "cross-resent-without-identifiers": 3,
    "cross-takeover-forgets-received-identifiers": 4,
    "cross-takeover-forgets-what-is-in-flight": 3,
    "cross-packet-identifiers-in-use": 14,
    "cross-pubrel-once-more-only": 28,
    "cross-publish-once-more-only": 3,
    "cross-too-large-keeps-its-place": 4,
    "cross-first-acknowledgement-frees-for-all": 14,
    "cross-window-of-earlier-connection": 4,
    "cross-expiry-of-first-connection": 12,
    "cross-expiry-in-disconnect-ignored-by-members": 2,
    "cross-read-subscription-not-replaced": 11,
    "cross-share-takes-options-of-own": 1,
    "cross-no-local-of-one-counts-for-all": 1,
    "cross-queued-at-the-lowest-qos": 9,
    "cross-identifiers-of-shares-not-read": 44,
    "cross-resumed-without-no-local": 33,
    "cross-read-retained-not-replaced": 1,
    "cross-retained-expiry-inherited": 6,
    "cross-parent-retained-with-children-only": 4,
    "cross-retain-handling-by-connection": 3,
}
"""Mutant to seed."""
RARE = {"cross-will-of-earlier-connection-kept"}
"""Found by some of 1,000 lives, or not at all: docs/findings/explore.md."""


def test_each_of_them_is_asked_for() -> None:
    known = {name for name in all_mutants() if name.startswith("cross-")}
    assert known == FOUND.keys() | RARE


@pytest.fixture(scope="module")
def sound(nursery: Nursery) -> Iterator[Campaign]:
    with Campaign(load_target("reference"), nursery=nursery) as campaign:
        yield campaign


def _found(nursery: Nursery, mutant: str, lives: int, seed: int) -> Life | None:
    with Campaign(load_target("reference"), mutant=mutant, nursery=nursery, patience_s=0.6, shrink_s=0.0) as campaign:
        found = campaign.explore(lives, seed, max_findings=1)
    return next((finding.replay.life for finding in found.findings if finding.counts), None)


@pytest.mark.parametrize("mutant", FOUND)
def test_a_bug_at_a_crossing_is_found(nursery: Nursery, sound: Campaign, mutant: str) -> None:
    life = _found(nursery, mutant, LIVES, FOUND[mutant])
    assert life is not None, f"seed {FOUND[mutant]}: {LIVES} lives found nothing"
    sound.play(life)


def main() -> None:
    with Nursery() as forking:
        for mutant in FOUND:
            seed = next(seed for seed in range(1, 1_000) if _found(forking, mutant, FIRST, seed) is not None)
            print(f'    "{mutant}": {seed},', flush=True)


if __name__ == "__main__":
    main()
