"""One record of a Locust run, whatever its number of processes: the same events, and the same reports of workers, feed
Locust's figures and ours, so both count the same.

A worker hands its samples to the master with the very report that carries its statistics. The master (or the only
process) adds them up, streams them to ``samples.parquet``, and writes its figures and Locust's own tables when no
report can come any more.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq
from locust import stats
from locust.env import Environment
from locust.runners import WorkerRunner

from assay.loadtests.latency_book import LatencyBook
from assay.loadtests.locust_samples import Page, Samples, Subject, from_wire, table_of, to_wire
from assay.reference_broker.trace.sample_files import SAMPLE_SCHEMA

REPORT_KEY = "assay_samples"
ROWS_PER_GROUP = 50_000
"""Samples that the master keeps in memory before it writes them."""


class _Hook(Protocol):
    """What is used of Locust's event hooks, typed."""

    def add_listener(self, handler: Callable[..., None]) -> object: ...


def listen(hook: _Hook, handler: Callable[..., None]) -> None:
    """Call ``handler`` with each event."""
    hook.add_listener(handler)


class LocustRecord:
    """What one Locust process records. ``folder`` None = print only."""

    def __init__(self, folder: Path | None) -> None:
        self.book = LatencyBook()
        self._folder = folder
        self._samples = Samples()
        self._waiting: list[Page] = []
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def install(self, environment: Environment) -> None:
        """Listen to a Locust process."""
        is_worker = isinstance(environment.runner, WorkerRunner)
        for name in ("clear_all", "reset_all"):
            setattr(environment.stats, name, self._also_clear(getattr(environment.stats, name)))
        if is_worker:
            listen(environment.events.report_to_master, self._hand_over)
        else:
            listen(environment.events.worker_report, self._take_over)
            listen(environment.events.quit, lambda **_: self._finish(environment))

    def add(self, subject: Subject, started_ns: int, completed_ns: int, *, failed: bool) -> None:
        """One request."""
        self._samples.add(subject, started_ns, completed_ns, failed=failed)

    def _also_clear(self, clear: Callable[[], None]) -> Callable[[], None]:
        """When Locust forgets its figures (a new test, the page's reset button), ours are forgotten with them."""

        def both() -> None:
            clear()
            self.book.clear()
            self._samples.take()
            self._waiting.clear()
            if self._writer is not None:
                self._writer.close()
                self._writer, self._rows = None, 0

        return both

    def _hand_over(self, client_id: str, data: dict[str, Any]) -> None:
        data[REPORT_KEY] = to_wire(self._samples.take())

    def _take_over(self, client_id: str, data: dict[str, Any]) -> None:
        self._count(from_wire(data[REPORT_KEY]))

    def _count(self, pages: list[Page]) -> None:
        self.book.add_pages(pages)
        self._waiting += pages
        if sum(map(len, self._waiting)) >= ROWS_PER_GROUP:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if self._folder is None:
            self._waiting.clear()
            return
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._folder / "samples.parquet", SAMPLE_SCHEMA, compression="zstd")
        table = table_of(self._waiting, self._rows)
        self._writer.write_table(table)
        self._rows += table.num_rows
        self._waiting.clear()

    def _finish(self, environment: Environment) -> None:
        self._count(self._samples.take())
        self._write_waiting()
        if self._writer is not None:
            self._writer.close()
        print(self.book.text())
        if self._folder is not None:
            self.book.write(self._folder / "latencies.json")
            write_locust_files(environment, self._folder)


def write_locust_files(environment: Environment, folder: Path) -> None:
    """Locust's own tables, when its figures change no more: what ``--csv`` writes may be a second old."""
    tables = stats.StatsCSV(environment, stats.PERCENTILES_TO_REPORT)
    for name, write in (("stats", tables.requests_csv), ("failures", tables.failures_csv)):
        with (folder / f"locust_{name}.csv").open("w", newline="", encoding="utf-8") as sink:
            write(csv.writer(sink))
    # Last, since Locust resets its figures when it writes them as JSON.
    stats.save_stats_json(environment.stats, str(folder / "locust"))
