"""The judges that see no more of the broker than any client: cases of the suites, and lives.

``python -m mutation.black_box cases ID...`` runs cases on reference brokers that are forked from this process, so that
they have the mutant that it has, and ends at the first case that fails, and fails again on a broker of its own.
``lives EXAMPLES SEED`` plays lives until one is outside the model, ``queues EXAMPLES SEED`` lives of queues, ``http
EXAMPLES SEED`` these over HTTP, ``amqp EXAMPLES SEED`` those of AMQP 0.9.1, ``tiny EXAMPLES SEED`` and ``tiny-lives
EXAMPLES SEED`` those of queues and of MQTT on a broker whose turns end early and whose caches hold next to nothing.
Exit status: 0 all is well, 1 somebody noticed.

``ASSAY_TESTS`` names a file: ``cases`` then runs each case on a broker of its own, tells the probes in it which case it
is for, and writes a line for each as :mod:`mutation.contexts` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn, cast
from unittest import mock

from assay.conformance import adapter
from assay.conformance.case import Case, load_cases
from assay.conformance.engine import DEFAULT_CONCURRENCY, Engine, RunOptions
from assay.conformance.explore.campaign import Campaign
from assay.conformance.nursery import Nursery, Settings
from assay.conformance.self_check import PATIENCE_S, Group, groups_of
from assay.conformance.targets import ProbeError, Target, TargetStartError, load_target, probe
from assay.reference_broker.trace.conformance import CaseVerdict
from mutation import probes

_BROKERS_AT_ONCE = 8
_ON_DISK = {
    "data_dir": "{dir}",
    "queues": {"segment_bytes": 4_096, "segment_age_s": 5},
    "sessions": {"segment_bytes": 16_384},
}
"""Of every broker: what no case restarts is written, sealed, indexed and read back all the same."""
_TIDY_SOON = {
    "storage.pending_log": {"SNAPSHOT_OPERATIONS": 30},
    "storage.queue_store": {"STATE_SNAPSHOT_RECORDS": 10},
    "queues.partitions.departures": {"RESTATE_ABOVE_BYTES": 200},
    "queues.delays.done_log": {"RESTATE_ABOVE_BYTES": 200},
}
"""From how much on snapshots replace logs, and logs are stated anew: no case lives long enough for the real numbers."""
_LIFE_PATIENCE_S = 2.0
_REFERENCE = "reference"
"""The target of lives."""
_LIVES = {
    "lives": ("mqtt", ""),
    "queues": ("queues", ""),
    "amqp": ("amqp091", ""),
    "http": ("http", ""),
    "tiny": ("queues", "any-tiny-insides"),
    "tiny-lives": ("mqtt", "any-tiny-insides"),
}
"""What to call them, to their game and the group of variations that the broker has."""


class _Forked:
    """What a nursery needs of a process, forked from this one."""

    def __init__(self) -> None:
        requests, ask = os.pipe()
        answers, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ask)
            os.close(answers)
            os.dup2(requests, 0)
            os.dup2(answer, 1)
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            os._exit(adapter.main(["--fork"]))
        os.close(requests)
        os.close(answer)
        self.stdin, self.stdout = os.fdopen(ask, "w"), os.fdopen(answers)
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("nursery", timeout)
            time.sleep(0.005)  # a blocking wait has no time limit
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@cache
def _target(name: str) -> Target:
    return load_target(name)


def _nursery(*targets: str, settings: Settings = _ON_DISK) -> Nursery:
    """It must be entered before there are threads: its process is a fork of this one. ``targets`` are read now."""
    for module, numbers in _TIDY_SOON.items():
        for name, number in numbers.items():
            patcher = mock.patch(f"assay.reference_broker.{module}.{name}", number)
            patcher.start()  # for good: brokers are forks of this process
    for target in targets:
        _target(target)  # two threads that read one at once, the first ever, ended the process (seen with msgspec 0.22)
    return Nursery(lambda: cast("subprocess.Popen[str]", _Forked()), settings)


def _end(said: str) -> NoReturn:
    """Somebody noticed. What still runs is ended by whoever started this."""
    print(said, flush=True)
    os._exit(1)


def groups_by_target(cases: Sequence[Case]) -> list[Group]:
    """As :func:`groups_of`, each of cases that are judged on the same configuration of the broker."""
    targets = dict.fromkeys(case.judged_on for case in cases)
    return [group for name in targets for group in groups_of([case for case in cases if case.judged_on == name])]


def _suspect(nursery: Nursery, group: Group) -> str:
    """The first case of a group that does not pass, or what the broker did; empty if all pass."""
    owner, cases = group

    async def run(engine: Engine) -> str:
        if owner is not None:
            outcomes = await engine.run_together(cases)
            return next((each.result.case for each in outcomes if each.result.verdict is not CaseVerdict.PASS), "")
        await engine.invite_bystander()
        tasks = [asyncio.ensure_future(engine.judge(case)) for case in engine.in_order(cases)]
        try:
            for task in asyncio.as_completed(tasks):
                if (outcome := await task).result.verdict is not CaseVerdict.PASS:
                    return outcome.result.case
            return ""
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            engine.dismiss_bystander()

    try:
        faces = any(case.is_about_a_face for case in cases)
        with nursery.broker(_target(cases[0].judged_on), "", owner, faces=faces) as broker:
            options = RunOptions(
                patience_s=PATIENCE_S, concurrency=max(DEFAULT_CONCURRENCY, len(cases) if owner else 0)
            )
            engine = Engine(broker, probe(broker.target, broker.endpoint), options, solo=True)
            return asyncio.run(run(engine))
    except (TargetStartError, ProbeError):
        return cases[0].id


def _passes(nursery: Nursery, case: Case, name: str = "") -> tuple[bool, str, float]:
    """Whether a case passes on a broker of its own, with all the patience there is; what it says; and what it took.

    That is in seconds of a processor, of this thread and of the broker that was there at last.
    """
    began_s, broker_s = time.thread_time(), 0.0
    try:
        owner = case if case.is_private else None
        with nursery.broker(_target(case.judged_on), name, owner, faces=case.is_about_a_face) as broker:
            engine = Engine(broker, probe(broker.target, broker.endpoint), RunOptions(), solo=True)
            result = asyncio.run(engine.run(case)).result
            broker_s = _processor_s(broker.pid)
    except (TargetStartError, ProbeError) as error:
        return False, str(error), time.thread_time() - began_s
    return result.verdict is CaseVerdict.PASS, result.detail, time.thread_time() - began_s + broker_s


def _processor_s(pid: int | None) -> float:
    """What a process used so far; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def judge_cases(cases: Sequence[Case]) -> None:
    """Ends this process at the first case that notices something, twice.

    Those that share a broker are judged on one without a disk as well: what writes nothing goes other ways.
    """
    _judge_on(_ON_DISK, cases)
    _judge_on({}, [case for case in cases if not case.is_private])


def _judge_on(settings: Settings, cases: Sequence[Case]) -> None:
    left = {case.id: case for case in cases}
    targets = dict.fromkeys(case.judged_on for case in cases)
    with _nursery(*targets, settings=settings) as nursery, ThreadPoolExecutor(_BROKERS_AT_ONCE) as pool:
        while left:
            asked = {pool.submit(_suspect, nursery, group): group for group in groups_by_target(list(left.values()))}
            innocent = set[str]()
            try:
                for done in as_completed(asked):
                    name = done.result()
                    if name:
                        passes, detail, _spent_s = _passes(nursery, left[name])
                        if not passes:
                            _end(f"{name}: {detail}")
                        innocent.add(name)
                    else:
                        innocent.update(case.id for case in asked[done][1])
            finally:
                for each in asked:
                    each.cancel()
            left = {name: case for name, case in left.items() if name not in innocent}


def judge_lives(examples: int, seed: int, game: str = "mqtt", insides: str = "") -> None:
    """Ends this process at the first finding."""
    with (
        _nursery(_REFERENCE) as nursery,
        Campaign(
            _target(_REFERENCE), game=game, mutant=insides, nursery=nursery, patience_s=_LIFE_PATIENCE_S, shrink_s=0.0
        ) as campaign,
    ):
        found = campaign.explore(examples, seed, max_findings=1).findings
        for each in found:
            if each.counts:
                _end(f"{each.replay.rule}: {each.replay.text}")


def _map(cases: Sequence[Case], record: Path) -> None:
    """Run each case on a broker of its own, and write down how it went; one that fails once more, alone."""

    def run(nursery: Nursery, case: Case) -> dict[str, object]:
        passes, _detail, spent_s = _passes(nursery, case, case.id)
        return {"test": case.id, "ok": passes, "duration_s": round(spent_s, 3)}

    adapter.applied = _recorded  # type: ignore[attr-defined, assignment]
    with _nursery(*(case.judged_on for case in cases)) as nursery, ThreadPoolExecutor(_BROKERS_AT_ONCE // 2) as pool:
        done: list[Future[dict[str, object]]] = [pool.submit(run, nursery, case) for case in cases]
        found = [each.result() for each in done]
        # A map outlives the hour it was made in: who failed for want of a processor would never be asked.
        found = [each if each["ok"] else run(nursery, case) for each, case in zip(found, cases, strict=True)]
    lines = [json.dumps(each) for each in found]
    record.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@contextmanager
def _recorded(case: str) -> Iterator[None]:
    """In a broker, in the place of a mutant: from now on probes are hit for the case."""
    probes.begin(case)
    yield


def main(what: str, *words: str) -> int:
    """Returns the exit status."""
    if what in _LIVES:
        judge_lives(int(words[0]), int(words[1]), *_LIVES[what])
    else:
        known = load_cases()
        cases = [known[name] for name in words]
        if "ASSAY_TESTS" in os.environ:
            _map(cases, Path(os.environ["ASSAY_TESTS"]))
            return 0
        judge_cases(cases)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
