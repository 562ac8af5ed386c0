"""Planted bugs of many kinds are found by lives that nobody wrote for them, shrunk, and booked on the right rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from assay.conformance.explore.campaign import MAX_DOUBTS, Campaign, Finding
from assay.conformance.explore.life import Life
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.nursery import Nursery
from assay.conformance.outcome import TargetUnreachableError
from assay.conformance.targets import load_target

SEED = 3
LIVES = 400
MOST_STEPS = 6
BUGS = {
    "v5-retain-as-published-ignored": {"retain-flag", "queued-message-lost", "undelivered", "no-local"},
    "v3-overlap-takes-the-lowest-qos": {"qos", "queued-message-lost"},
    "v5-no-local-ignored": {
        *("no-local", "delivered-twice", "subscription-identifiers", "properties-changed"),
        *("qos", "undelivered", "retained-unwanted"),
    },
    "v5-offline-messages-dropped": {"queued-message-lost"},
    "v3-unacknowledged-not-resent": {
        *("unacknowledged-not-resent", "delivered-twice", "order", "figures", "packet-identifier-in-use"),
        *("will-unsent", "publish-after-pubrec", "retain-flag-of-retained", "share-delivered-twice"),
    },
    "v5-will-delay-ignored": {"will-before-its-delay", "will-unwanted"},
    "v5-session-present-always-0": {"session-lost", "filter-does-not-match"},
    "v5-retained-not-replaced": {
        *("retained-stale", "retained-unsent", "retain-flag", "retained-for-share"),
        *("subscription-identifiers", "delivered-twice", "qos"),
    },
    "v5-client-receive-maximum-ignored": {"receive-maximum"},
    "v5-hash-misses-parent": {
        *("undelivered", "share-undelivered", "retained-unsent", "will-unsent", "subscription-identifiers", "qos"),
    },
    "v3-deliveries-swapped": {
        *("order", "undelivered", "retained-unsent", "suback"),
        *("will-unsent", "share-undelivered", "queued-message-lost"),
    },
    "v5-unsubscribe-ignored": {
        *("after-unsubscribe", "qos", "subscription-identifiers", "undelivered"),
        *("share-delivered-twice", "retained-for-share"),
    },
}
"""Mutant to all that it was seen as in 150 lives: which comes first is a matter of time, too."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as forking:
        yield forking


@pytest.mark.timeout(400)  # most of it is time to shrink
@pytest.mark.parametrize("mutant", BUGS)
def test_a_planted_bug_is_found(nursery: Nursery, mutant: str) -> None:
    target = load_target("reference")
    # Time to shrink that a slow machine needs; any other has soon tried all that is smaller.
    with Campaign(target, mutant=mutant, nursery=nursery, patience_s=1.0, shrink_s=120.0) as campaign:
        found = campaign.explore(LIVES, SEED, max_findings=1)
    counting = [finding for finding in found.findings if finding.counts]
    assert counting, (
        f"seed {SEED}: {found.lives} lives found nothing; doubts: {[each.replay for each in found.findings]}"
    )
    (finding,) = counting
    assert finding.replay.rule in BUGS[mutant], finding.replay
    assert len(finding.replay.life.steps) <= MOST_STEPS, finding.replay


def test_what_a_busy_machine_explains_neither_ends_the_search_nor_hides_its_like(nursery: Nursery) -> None:
    slow_life, first_bad_life = 3, 60
    played = 0

    class Hasty(Campaign):
        def play(self, life: Life) -> None:
            nonlocal played
            played += 1
            if played == slow_life or played >= first_bad_life:
                raise ViolationError(Rule.UNDELIVERED, 5, "nothing came", waited=True)

    with Hasty(load_target("reference"), nursery=nursery, shrink_s=0.0) as campaign:
        found = campaign.explore(200, SEED, max_findings=1)
    assert [(each.counts, each.replay.rule) for each in found.findings] == [
        (False, "undelivered"),
        (True, "undelivered"),
    ]


def test_a_search_in_which_nothing_comes_again_has_an_end(nursery: Nursery) -> None:
    class Doubtful(Campaign):
        is_repeating = False

        def play(self, life: Life) -> None:
            if not self.is_repeating:
                raise ViolationError(Rule.UNDELIVERED, 5, "nothing came", waited=True)

        def _confirmed(self, *found: Any) -> Finding:
            self.is_repeating = True
            try:
                return super()._confirmed(*found)
            finally:
                self.is_repeating = False

    with Doubtful(load_target("reference"), nursery=nursery, shrink_s=0.0) as campaign:
        found = campaign.explore(1_000, SEED)
    assert len(found.findings) == MAX_DOUBTS
    assert not any(each.counts for each in found.findings)


@pytest.mark.parametrize("cut", [KeyboardInterrupt(), TargetUnreachableError("it is gone")])
def test_a_finding_that_is_being_shrunk_is_not_lost(nursery: Nursery, cut: BaseException) -> None:
    class Hasty(Campaign):
        def play(self, life: Life) -> None:
            raise ViolationError(Rule.RETAIN_FLAG, 5, "it came with RETAIN 1")

        def _shrunk(self, *_found: Any) -> Any:
            raise cut

    kept: list[Finding] = []
    with Hasty(load_target("reference"), nursery=nursery) as campaign:
        with pytest.raises(type(cut)):
            campaign.explore(5, SEED, on_finding=kept.append)
        found = campaign.so_far()
    assert [(each.replay.rule, each.counts, each.repeated) for each in found.findings] == [("retain-flag", True, False)]
    assert list(found.findings) == kept
    assert found.lives
    assert found.seed == SEED


def test_what_follows_of_a_bug_is_shrunk_to_the_bug_and_still_told(nursery: Nursery) -> None:
    """Four steps show what five more hide behind what follows of it."""
    causes, most = 4, 9

    class Broken(Campaign):
        def play(self, life: Life) -> None:
            if len(life.steps) >= most:
                raise ViolationError(Rule.FIGURES, 5, "what follows")
            if len(life.steps) >= causes:
                raise ViolationError(Rule.QOS, 5, "the bug")

    with Broken(load_target("reference"), nursery=nursery) as campaign:
        found = campaign.explore(30, SEED)
    assert [(each.replay.rule, each.seen_as, len(each.replay.life.steps)) for each in found.findings] == [
        ("qos", "figures", causes),
        ("figures", "figures", most),
    ]
    assert len({each.number for each in found.findings}) == 1, "the same life shows both"
