"""Many lives on one broker: what is outside the model is shrunk, repeated, and kept."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from assay.conformance.explore.games import GAMES, AnyLife, AnyReplay
from assay.conformance.explore.player import PATIENCE_S
from assay.conformance.explore.rules import Rule, ViolationError
from assay.conformance.nursery import Nursery
from assay.conformance.outcome import TargetUnreachableError
from assay.conformance.targets import (
    CapabilityValue,
    Endpoint,
    ProbeError,
    RunningTarget,
    Target,
    TargetStartError,
    probe,
    running,
)
from assay.reference_broker.trace.conformance import WireLine

SHRINK_S = 40.0
"""How long a finding is shrunk at most."""
SHRINK_PATIENCE_S = 0.8
"""While shrinking: a broker whose PINGRESP is quick gets no more time, one that is slow does."""
LONG_STEPS = 8
"""A finding that needs more steps is shrunk to whatever else a part of its life shows: a bug itself needs fewer than
what follows of it."""
REPEATS = 3
"""A finding that nothing but a wait shows must be seen again in one of so many repetitions."""
_OURS: Mapping[str, Any] = {
    "data_dir": "{dir}",
    "sessions": {"segment_bytes": 65_536},
    "listeners": [{"port": 0}],
}
"""It keeps its data, in files so small that lives meet their compaction, too; a start is quicker without WebSocket."""
MAX_FINDINGS = 10
MAX_DOUBTS = 10
"""Findings that did not come again, which end no search for those that do."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something outside the model."""

    replay: AnyReplay
    transcript: tuple[WireLine, ...]
    number: int
    """Of the life, within its seed."""
    seen_as: str
    """The rule that the whole life broke first; it may be another one than that of its smallest form."""
    repeated: bool
    """It was seen again on a broker started for it."""
    waited: bool
    """Something did not come, which a busy machine might explain."""

    @property
    def counts(self) -> bool:
        """What came and must not is proof; what did not come has to stay away a second time."""
        return self.repeated or not self.waited


class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a campaign."""

    target: str
    version: str
    seed: int
    lives: int
    steps: int
    duration_s: float
    findings: tuple[Finding, ...]
    capabilities: dict[str, CapabilityValue]


def is_enough(findings: Sequence[Finding], most: int) -> bool:
    """So many count, or too many do not."""
    counting = sum(each.counts for each in findings)
    return counting >= most or len(findings) - counting >= MAX_DOUBTS


@contextmanager
def broker_of(
    target: Target, mutant: str, nursery: Nursery | None, settings: Mapping[str, Any] = _OURS, *, faces: bool = False
) -> Iterator[RunningTarget]:
    """A broker for a campaign; ours comes from the nursery, and keeps its data, so that it can be killed.

    Raises :class:`TargetStartError`, :class:`ProbeError`.
    """
    if nursery is not None and target.is_ours:
        broker = nursery.broker(target, mutant or _planted(target), settings=settings, faces=faces)
    else:
        broker = running(target)
    with broker as one:
        yield one


def _planted(target: Target) -> str:
    """The mutant that the target's own command asks for."""
    command = target.start.command if target.start is not None else ()
    return command[command.index("--mutant") + 1] if "--mutant" in command else ""


class Campaign:
    """Plays lives on brokers of one target; a context manager that ends them."""

    def __init__(
        self,
        target: Target,
        *,
        game: str = "mqtt",
        mutant: str = "",
        nursery: Nursery | None = None,
        patience_s: float = PATIENCE_S,
        shrink_s: float = SHRINK_S,
        shrink_patience_s: float = SHRINK_PATIENCE_S,
        report: Callable[[int, str], None] = lambda _lives, _what: None,
    ) -> None:
        """``game``: of :data:`GAMES`. ``mutant`` breaks the reference broker; ``report`` gets the number of lives and
        what is going on."""
        self.game = GAMES[game]
        self.target, self.mutant, self._nursery = target, mutant, nursery
        self.patience_s, self.shrink_s, self.shrink_patience_s = patience_s, shrink_s, shrink_patience_s
        self._report = report
        self._whole, self._stack = ExitStack(), ExitStack()
        """What lives as long as this, and as long as one broker."""
        self._over_at = float("inf")
        self.lives = self.steps = 0
        self.known: set[tuple[str, int]] = set()
        """What was found, and is not found again."""
        self._next_at = 0
        """The broker has had its share of lives when there were so many."""
        self.seed = self._number = 0
        self._began = time.monotonic()
        self._findings: list[Finding] = []
        self._found: tuple[AnyLife, ViolationError, list[WireLine]] | None = None
        """Seen by the search that is under way, and neither shrunk nor repeated yet."""
        self.version = ""
        self._signal, self._may_be_cut = "", False
        self._settings = {**_OURS, **self.game.settings}
        self.capabilities: dict[str, CapabilityValue] = {}
        self.broker: RunningTarget
        self.player: Any
        self._last_words: list[WireLine] | None = None
        """What was said in the last life, if its broker was replaced."""

    def interrupt(self, signal_name: str) -> None:
        """Of a signal: raise ``KeyboardInterrupt`` at once within a life or a start, else where the next one begins.

        What is between them, Hypothesis above all, is not made to be cut.
        """
        self._signal = signal_name
        if self._may_be_cut:
            raise KeyboardInterrupt(signal_name)

    @contextmanager
    def _cut_by_signals(self) -> Iterator[None]:
        self._may_be_cut = True
        try:
            if self._signal:
                raise KeyboardInterrupt(self._signal)
            yield
        finally:
            self._may_be_cut = False

    def __enter__(self) -> Campaign:
        with ExitStack() as stack:
            if self.target.is_ours and self._nursery is None:
                with self._cut_by_signals():
                    self._nursery = stack.enter_context(Nursery())
            self._start()
            self._whole = stack.pop_all()
        return self

    def __exit__(self, *_exc: object) -> None:
        with self._whole:
            self._stop()

    def _start(self) -> None:
        """A broker in the state of its first start. Raises :class:`TargetStartError`, :class:`ProbeError`."""
        with ExitStack() as stack, self._cut_by_signals():
            self.broker = stack.enter_context(
                broker_of(self.target, self.mutant, self._nursery, self._settings, faces=self.game.faces)
            )
            self.version = self.broker.version
            if not self.capabilities:  # which do not change from one broker of a target to the next
                self.capabilities = probe(self.broker.target, self.broker.endpoint)
            if not self.capabilities.get("persistence", False) and not self.target.is_ours:
                self.capabilities["restart"] = False
            self._note_places()
            self.player = self.game.player(
                self.broker.endpoint,
                self.capabilities,
                run_token=f"{secrets.randbelow(36**3):x}x",
                patience_s=self.patience_s,
                restart=self._restart_broker if self.capabilities.get("restart", False) else None,
                **(self.game.options if self.target.is_ours else {}),
            )
            self._stack = stack.pop_all()

    def _note_places(self) -> None:
        """Each start of a broker of ours has other ports."""
        told = self.broker.target.capabilities
        self.capabilities |= {name: value for name, value in told.items() if name.endswith("_url")}

    def _restart_broker(self, ahead_s: float) -> Endpoint:
        try:
            endpoint = self.broker.restart(ahead_s)
            self._note_places()
            return endpoint
        except TargetStartError as error:
            message = f"it was ended, and does not start again on its data: {error}"
            raise TargetUnreachableError(message) from error

    def _stop(self) -> None:
        self.player.control.close()
        self._stack.close()

    def renew(self) -> None:
        """Another broker in place of this one; one that runs by itself stays."""
        self._stop()
        self._start()

    def play(self, life: AnyLife) -> None:
        """Raises :class:`ViolationError`; a broker that is gone is one, and is replaced."""
        self._last_words = None
        try:
            with self._cut_by_signals():
                self.player.play(life)
        except TargetUnreachableError as error:
            if self.target.start is None:
                raise
            status = self.broker.ending()
            self._last_words = self.transcript()
            self.renew()
            text = f"{error}; the broker {status or 'does not answer'}"
            raise ViolationError(Rule.DIED, 5, text) from error

    def transcript(self) -> list[WireLine]:
        """The last life; with another broker, its player knows nothing of it."""
        return self.player.transcript() if self._last_words is None else self._last_words

    def explore(
        self,
        examples: int,
        seed: int,
        *,
        max_findings: int = MAX_FINDINGS,
        limit_s: float = float("inf"),
        on_finding: Callable[[Finding], None] = lambda _finding: None,
        numbers: Iterable[int] | None = None,
    ) -> Exploration:
        """Play so many lives, or as many as the time allows. What was found is not found again.

        ``numbers``: which lives of the seed, in place of the first ones.

        One that does not count, since a busy machine may explain it, is no reason to stop or to pass over its like.
        What :meth:`so_far` says holds after an interruption, too.

        Raises :class:`TargetStartError`, :class:`ProbeError`, :class:`TargetUnreachableError`.
        """
        self._begin(seed, limit_s)
        try:
            self._search_all(range(examples) if numbers is None else numbers, max_findings, on_finding)
        except (KeyboardInterrupt, TargetStartError, ProbeError, TargetUnreachableError):
            if self._found is not None:
                self._note(self._as_seen(*self._found, seed), on_finding)
            raise
        return self.so_far()

    def replay(self, life: AnyLife, seed: int, on_finding: Callable[[Finding], None]) -> Exploration:
        """Play one life; what is outside the model is its only finding. Raises as :meth:`explore` does."""
        self._begin(seed, float("inf"))
        self.lives, self.steps = 1, len(life.steps)
        try:
            self.play(life)
        except ViolationError as error:
            self._note(self._as_seen(life, error, self.transcript(), seed, repeated=True), on_finding)
        return self.so_far()

    def so_far(self) -> Exploration:
        """What was played and seen until now."""
        return Exploration(
            target=self.target.name,
            version=self.version,
            seed=self.seed,
            lives=self.lives,
            steps=self.steps,
            duration_s=time.monotonic() - self._began,
            findings=tuple(self._findings),
            capabilities=self.capabilities,
        )

    def _begin(self, seed: int, limit_s: float) -> None:
        self.seed, self._began = seed, time.monotonic()
        self._over_at = self._began + limit_s

    def _note(self, finding: Finding, on_finding: Callable[[Finding], None]) -> None:
        self._findings.append(finding)
        on_finding(finding)

    def _search_all(self, numbers: Iterable[int], most: int, on_finding: Callable[[Finding], None]) -> None:
        self._next_at = self.lives + self.game.lives_a_broker
        for number in numbers:
            again = True
            while again:
                finding = self._new_finding(number)
                if finding is not None:
                    self._note(finding, on_finding)
                if is_enough(self._findings, most) or time.monotonic() >= self._over_at:
                    return
                # What became another one by shrinking is still to be found.
                again = finding is not None and finding.counts and finding.seen_as != finding.replay.rule

    def _new_finding(self, number: int) -> Finding | None:
        """Play a life; the smallest form of a finding that is not ``known``, which gets it if it counts."""
        if self.lives >= self._next_at and self.target.is_ours:
            self.renew()
            self._next_at = self.lives + self.game.lives_a_broker
        life = self.game.drawn(self.seed, number, self.capabilities)
        self._number = number
        self.lives += 1
        self.steps += len(life.steps)
        self._report(self.lives, "lives")
        try:
            self.play(life)
        except ViolationError as error:
            if error.key in self.known:
                return None
            found = self._found = life, error, self.transcript()
        else:
            return None
        small = self._shrunk(*found)
        finding = self._confirmed(*small, self.seed)
        if not finding.counts:  # what the lives before had left let something pass for smaller
            small = self._shrunk(*found, afresh=True)
            finding = self._confirmed(*small, self.seed)
        if not finding.counts:  # what a busy machine let pass for smaller may be none: the whole life has to show it
            small = found
            finding = self._confirmed(*small, self.seed)
        if finding.counts:
            self.known.add(small[1].key)
        self._found = None
        return finding

    def _shrunk(
        self, life: AnyLife, error: ViolationError, transcript: list[WireLine], *, afresh: bool = False
    ) -> tuple[AnyLife, ViolationError, list[WireLine]]:
        """The smallest life with the same finding, or with another new one while it is long; ``afresh``: each is played
        on a new broker."""
        over_at = time.monotonic() + self.shrink_s
        last = life, error, transcript

        def fails(smaller: AnyLife) -> bool:
            nonlocal last
            if afresh:
                self.renew()
            try:
                self.play(smaller)
            except ViolationError as seen:
                may_differ = len(last[0].steps) > LONG_STEPS and not seen.waited and seen.key not in self.known
                if seen.key == last[1].key or may_differ:
                    last = smaller, seen, self.transcript()
                    return True
            return False

        self._report(self.lives, f"shrinking {error.rule.label}")
        self.player.patience_s = self.shrink_patience_s
        try:
            smallest = self.game.shrink(life, fails, lambda: time.monotonic() < over_at)
        finally:
            self.player.patience_s = self.patience_s
        return smallest, *last[1:]

    def _confirmed(self, life: AnyLife, error: ViolationError, transcript: list[WireLine], seed: int) -> Finding:
        """Play the smallest form on a new broker, with all the patience there is."""
        repeated = False
        self._report(self.lives, f"repeating {error.rule.label}")
        for _ in range(REPEATS):
            self.renew()
            try:
                self.play(life)
            except ViolationError as again:
                if again.key == error.key:
                    error, transcript, repeated = again, self.transcript(), True
                    break
        return self._as_seen(life, error, transcript, seed, repeated=repeated)

    def _as_seen(
        self, life: AnyLife, error: ViolationError, transcript: list[WireLine], seed: int, *, repeated: bool = False
    ) -> Finding:
        replay = self.game.replay(
            target=self.target.name,
            rule=error.rule.label,
            version=error.version,
            clauses=error.clauses,
            text=error.text,
            seed=seed,
            life=life,
        )
        return Finding(
            replay=replay,
            transcript=tuple(transcript),
            number=self._number,
            seen_as=error.rule.label if self._found is None else self._found[1].rule.label,
            repeated=repeated,
            waited=error.waited,
        )
