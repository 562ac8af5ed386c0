"""A campaign in several processes, each with a broker of its own; this one hands out the lives."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from assay.conformance.explore.campaign import MAX_FINDINGS, Campaign, Exploration, Finding, is_enough
from assay.conformance.outcome import TargetUnreachableError
from assay.conformance.signals import stopped_by_signals
from assay.conformance.targets import ProbeError, Target, TargetStartError

_SHARE = 8
"""Lives that are handed out at a time."""
_END_S = 20.0
"""What a process has to end its broker."""
_FAILURES = (TargetStartError, ProbeError, TargetUnreachableError)


class _Ask(msgspec.Struct, frozen=True):
    """A process has played what it was given."""


class _Told(msgspec.Struct, frozen=True):
    """What a process is doing, and how many lives it has played."""

    lives: int
    what: str


class _Share(msgspec.Struct, frozen=True):
    """Numbers of lives to play, none at the end, and what need not be found again."""

    numbers: range
    known: frozenset[tuple[str, int]]


class _Failed(msgspec.Struct, frozen=True):
    """A process ends, for one of :data:`_FAILURES`."""

    kind: str
    text: str


def _given(pipe: Connection, campaign: Campaign) -> Iterator[int]:
    while True:
        pipe.send(_Ask())
        share: _Share = pipe.recv()
        campaign.known |= share.known
        if not share.numbers:
            return
        yield from share.numbers


def _work(pipe: Connection, target: Target, options: dict[str, Any], seed: int, limit_s: float) -> None:
    """The life of a process. SIGTERM cuts it, and it says what it has seen until then."""
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal tells all of us; who hands out decides
        signal.signal(number, signal.SIG_IGN)
    campaign = Campaign(target, report=lambda lives, what: pipe.send(_Told(lives, what)), **options)
    campaign.seed = seed
    with contextlib.suppress(EOFError, BrokenPipeError):  # nobody is there to be told
        try:
            with stopped_by_signals(campaign.interrupt), campaign:
                campaign.explore(0, seed, limit_s=limit_s, on_finding=pipe.send, numbers=_given(pipe, campaign))
        except KeyboardInterrupt:
            pass
        except _FAILURES as error:
            pipe.send(_Failed(type(error).__name__, str(error)))
        pipe.send(campaign.so_far())


class Team:
    """Plays lives on several brokers of a target that can be started more than once; a context manager.

    Which lives are played does not depend on how many play them: each goes by its number.
    """

    def __init__(self, target: Target, jobs: int, *, report: Callable[[int, str], None], **options: Any) -> None:
        """``options`` as those of :class:`Campaign`."""
        self._target, self._jobs, self._report, self._options = target, jobs, report, options
        self._spawning = multiprocessing.get_context("spawn")  # who forks would copy threads of a progress bar
        self._processes: dict[Connection, BaseProcess] = {}
        self._told: dict[Connection, int] = {}
        self._ended: list[Exploration] = []
        self._findings: list[Finding] = []
        self._failure: _Failed | None = None
        self._signal = ""
        self._began = time.monotonic()
        self.seed = 0

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_exc: object) -> None:
        for pipe, process in self._processes.items():
            process.terminate()
            process.join(_END_S)
            process.kill()
            process.join()
            pipe.close()

    def interrupt(self, signal_name: str) -> None:
        """Of a signal: all of them end, and say what they have seen."""
        self._signal = signal_name
        for process in self._processes.values():
            process.terminate()

    def explore(
        self,
        examples: int,
        seed: int,
        *,
        max_findings: int = MAX_FINDINGS,
        limit_s: float = float("inf"),
        on_finding: Callable[[Finding], None] = lambda _finding: None,
    ) -> Exploration:
        """As :meth:`Campaign.explore`. Raises :class:`KeyboardInterrupt` after an interruption."""
        self.seed, self._began = seed, time.monotonic()
        for _ in range(min(self._jobs, examples)):
            ours, theirs = self._spawning.Pipe()
            arguments = (theirs, self._target, self._options, seed, limit_s)
            process = self._spawning.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes[ours], self._told[ours] = process, 0
        given, known = 0, set[tuple[str, int]]()
        playing = dict(self._processes)
        while playing:
            for ready in wait(list(playing)):
                pipe = next(pipe for pipe in playing if pipe is ready)
                try:
                    said = pipe.recv()
                except EOFError:
                    del playing[pipe]
                    if not self._signal and self._failure is None:
                        self._failure = _Failed("TargetStartError", "a process that plays lives has ended")
                    continue
                match said:
                    case _Ask():
                        # Where it takes all the time until somebody can play, nobody would have judged anything.
                        late = given and time.monotonic() - self._began >= limit_s
                        over = self._signal or self._failure or late or is_enough(self._findings, max_findings)
                        share = range(given, given if over else min(examples, given + _SHARE))
                        given = share.stop
                        pipe.send(_Share(share, frozenset(known)))
                    case _Told():
                        self._told[pipe] = said.lives
                        self._report(sum(self._told.values()), said.what)
                    case Finding():
                        self._findings.append(said)
                        known |= {(said.replay.rule, said.replay.version)} if said.counts else set()
                        on_finding(said)
                    case _Failed():
                        self._failure = said
                    case Exploration():
                        self._ended.append(said)
                        del playing[pipe]
        if self._signal:
            raise KeyboardInterrupt(self._signal)
        if self._failure is not None:
            raise next(kind for kind in _FAILURES if kind.__name__ == self._failure.kind)(self._failure.text)
        return self.so_far()

    def so_far(self) -> Exploration:
        """What was played and seen until now."""
        first = self._ended[0] if self._ended else None
        return Exploration(
            target=self._target.name,
            version=first.version if first else "",
            seed=self.seed,
            lives=sum(each.lives for each in self._ended),
            steps=sum(each.steps for each in self._ended),
            duration_s=time.monotonic() - self._began,
            findings=tuple(self._findings),
            capabilities=first.capabilities if first else {},
        )
