"""Bugs that show where two or three states meet are found by lives, within a few dozen of them.

The seeds are those whose first lives find them, so that the test is short; what is demanded is that :data:`LIVES` do.
When the draw changes, a seed costs lives; ``python -m tests.conformance.explore.test_crossings`` prints better ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pytest

from assay.conformance.explore.campaign import Campaign
from assay.conformance.explore.life import Life
from assay.conformance.explore.rules import ViolationError
from assay.conformance.mutants import all_mutants
from assay.conformance.nursery import Nursery
from assay.conformance.targets import load_target
from tests.conformance.explore.test_found_bugs import nursery as nursery

LIVES = 200
FIRST = 4
"""A recorded seed finds its bug in so many."""
MOST = 1_000
PATIENCE_S = 0.6
FOUND = {
    "cross-takeover-sends-delayed-will": 2,
    "cross-delayed-will-not-cancelled": 2,
    "cross-sent-will-not-written": 36,
    "cross-queued-expiry-forgotten": 56,
    "cross-resent-without-identifiers": 3,
    "cross-takeover-forgets-received-identifiers": 3,
    "cross-takeover-forgets-what-is-in-flight": 4,
    "cross-packet-identifiers-in-use": 17,
    "cross-pubrel-once-more-only": 14,
    "cross-publish-once-more-only": 11,
    "cross-too-large-keeps-its-place": 32,
    "cross-window-of-earlier-connection": 1,
    "cross-expiry-of-first-connection": 1,
    "cross-expiry-in-disconnect-ignored-by-members": 4,
    "cross-read-subscription-not-replaced": 17,
    "cross-share-takes-options-of-own": 1,
    "cross-no-local-of-one-counts-for-all": 1,
    "cross-queued-at-the-lowest-qos": 9,
    "cross-identifiers-of-shares-not-read": 39,
    "cross-resumed-without-no-local": 7,
    "cross-read-retained-not-replaced": 6,
    "cross-retained-expiry-inherited": 6,
    "cross-parent-retained-with-children-only": 4,
    "cross-retain-handling-by-connection": 3,
    "cross-retain-as-published-of-qos-0-lost": 11,
    "cross-will-delay-begins-anew": 12,
    "cross-released-identifiers-come-back": 11,
    "cross-retained-expiry-lost": 5,
    "cross-retained-again-after-a-start": 6,
    "cross-expiry-in-disconnect-not-written": 1,
    "cross-sent-from-the-queue-not-written": 14,
    "cross-identifiers-of-the-highest-qos-only": 7,
    "cross-leaving-one-share-leaves-all": 2,
    "cross-share-skips-its-publisher": 1,
    "cross-dollar-retained-by-wildcards": 8,
    "cross-plus-misses-empty-level": 5,
    "cross-plus-misses-empty-level-of-retained": 45,
    "cross-parent-keeps-its-receivers": 4,
    "cross-expiry-not-counted-down-when-resent": 20,
    "cross-retain-lost-when-resent": 9,
    "cross-one-more-at-resume": 52,
    "cross-new-overtakes-what-waits": 49,
    "cross-expired-sent-beside-others": 14,
    "cross-alias-not-replaced": 2,
    "cross-will-not-sent-at-the-end": 1,
    "cross-delayed-will-not-retained": 12,
    "cross-will-of-earlier-connection-goes-on": 43,
    "cross-keep-alive-of-two": 1,
    "cross-first-acknowledgement-frees-for-all": 303,
    "cross-walk-of-a-replaced-subscription-is-the-first": 175,
}
"""Mutant to seed."""
RARE = {
    "cross-will-of-earlier-connection-kept",
    "cross-removal-at-qos-0-not-written",
    "cross-walk-of-a-replaced-subscription-is-the-last",
    "cross-walk-of-an-unsubscribed-filter-goes-to-the-next",
}
"""Found by some of 1,000 lives, or not at all: docs/findings/explore.md. Cases find the last two."""


def test_each_of_them_is_asked_for() -> None:
    known = {name for name in all_mutants() if name.startswith("cross-")}
    assert known == FOUND.keys() | RARE


@pytest.fixture(scope="module")
def sound(nursery: Nursery) -> Iterator[Campaign]:
    with Campaign(load_target("reference"), nursery=nursery) as campaign:
        yield campaign


def _broken(nursery: Nursery, mutant: str) -> Campaign:
    return Campaign(load_target("reference"), mutant=mutant, nursery=nursery, patience_s=PATIENCE_S, shrink_s=0.0)


def _found(campaign: Campaign, lives: int, seed: int) -> Life | None:
    found = campaign.explore(lives, seed, max_findings=1)
    return next((finding.replay.life for finding in found.findings if finding.counts), None)


@pytest.mark.parametrize("mutant", FOUND)
def test_a_bug_at_a_crossing_is_found(nursery: Nursery, sound: Campaign, mutant: str) -> None:
    with _broken(nursery, mutant) as campaign:
        life = _found(campaign, LIVES, FOUND[mutant])
    assert life is not None, f"seed {FOUND[mutant]}: {LIVES} lives found nothing"
    sound.play(life)


def main(names: Sequence[str]) -> None:
    """Seeds that find these mutants, or all of them; at most :data:`MOST` lives each."""
    with Nursery() as forking, Campaign(load_target("reference"), nursery=forking) as sound:
        for mutant in names or sorted(name for name in all_mutants() if name.startswith("cross-")):
            with _broken(forking, mutant) as campaign:
                seed = next((seed for seed in range(1, MOST // FIRST) if _finds(campaign, sound, seed)), 0)
            print(f'    "{mutant}": {seed},', flush=True)


def _finds(campaign: Campaign, sound: Campaign, seed: int) -> bool:
    life = _found(campaign, FIRST, seed)
    if life is None:
        return False
    try:
        sound.play(life)
    except ViolationError:
        return False  # a busy machine
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
