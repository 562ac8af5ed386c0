"""``assay bench storage``: prepare, measure round by round, judge, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from assay.loadtests.bench.storage.appending import append_cases, single_cases
from assay.loadtests.bench.storage.delivery_cost import decision, delivery_cases
from assay.loadtests.bench.storage.filesystem import filesystem_of
from assay.loadtests.bench.storage.group_commit import group_commit_cases
from assay.loadtests.bench.storage.measurement import Case, MeasuredRow
from assay.loadtests.bench.storage.plan import Progress, StoragePlan
from assay.loadtests.bench.storage.queued import measure_queued
from assay.loadtests.bench.storage.reading import read_cases, write_big_logs

_QUEUED_SHARE, _PREPARED_SHARE = 0.35, 0.5
"""Shares of the run that are over once the queued messages are measured, and once the big logs are written."""


class NoRoomError(OSError):
    """The directory has too little free space for the run."""


class StorageRun(msgspec.Struct, kw_only=True):
    """All rows of a run, by key, in the order of the table."""

    plan: StoragePlan
    filesystem: str
    started_at: str
    load_before: float = 0.0
    """Processes that wanted a processor in the minute before: the figures are theirs too."""
    duration_s: float = 0.0
    rows: dict[str, MeasuredRow] = {}
    decision: str = ""
    """Whether a sendfile path would pay."""


def run_storage_bench(plan: StoragePlan, directory: Path, progress: Progress) -> StorageRun:
    """Measure everything in a new folder below ``directory``, which is removed whatever happens.

    Raises :class:`NoRoomError`, :class:`OSError`, :class:`assay.loadtests.bench.storage.queued.QueuedMessagesError`,
    :class:`assay.loadtests.bench.storage.log_files.LogNoteError`.
    """
    free = shutil.disk_usage(directory).free
    if free < plan.needed_bytes:
        message = (
            f"{directory} has {free / 1e9:.1f} GB free and the bench needs {plan.needed_bytes / 1e9:.1f} GB: "
            "choose another place by --directory, or a small run by --quick"
        )
        raise NoRoomError(message)
    began = time.monotonic()
    run = StorageRun(
        plan=plan,
        filesystem=filesystem_of(directory),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        load_before=os.getloadavg()[0],
    )
    with tempfile.TemporaryDirectory(prefix="assay-bench-", dir=directory) as name:
        _measure(run, Path(name), progress)
    run.duration_s = time.monotonic() - began
    return run


def _measure(run: StorageRun, folder: Path, progress: Progress) -> None:
    plan = run.plan

    def queued_progress(text: str, share: float) -> None:
        progress(text, _QUEUED_SHARE * share)

    def prepared_progress(text: str, share: float) -> None:
        progress(text, _QUEUED_SHARE + (_PREPARED_SHARE - _QUEUED_SHARE) * min(1.0, share))

    queued = measure_queued(plan, folder / "queued", queued_progress)
    shutil.rmtree(folder / "queued")
    logs = write_big_logs(plan, folder, prepared_progress)
    cases = [
        *append_cases(plan, folder),
        *single_cases(plan, folder),
        *group_commit_cases(plan, folder),
        *read_cases(plan, logs),
    ]
    delivery = delivery_cases(plan, folder)
    for case in (*cases, *delivery):
        for spec in case.rows:
            run.rows[spec.key] = MeasuredRow(spec=spec)
    _measure_rounds(run, [*cases, *delivery], progress)
    # The table ends with the decision; the queue's rows, measured once, come before its figures.
    costs = {spec.key: run.rows.pop(spec.key) for case in delivery for spec in case.rows}
    run.rows |= {row.spec.key: row for row in queued} | costs
    run.decision = decision(run.rows)


def _measure_rounds(run: StorageRun, cases: Sequence[Case], progress: Progress) -> None:
    """Every round measures each case in turn, so that a slow minute of the machine hits all of them."""
    rounds = run.plan.rounds
    for number in range(rounds):
        for index, case in enumerate(cases):
            share = (number + index / len(cases)) / rounds
            title = case.rows[0].title.strip()
            progress(f"round {number + 1} of {rounds}: {title}", _PREPARED_SHARE + (1 - _PREPARED_SHARE) * share)
            for spec, sample in zip(case.rows, case.measure(), strict=True):
                run.rows[spec.key].add(sample)
