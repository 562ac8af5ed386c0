"""As ``kill_worker.py``, for one log of keyed records that is compacted while it is appended to.

``python kill_compaction_worker.py FOLDER --lives N --seed N``: a life appends values and deletion markers of a few
keys, syncs and compacts in threads, and says which offsets are durable. After each kill the parent checks that every
key still has its last confirmed record or a later one, that nothing deleted comes back, and every record's content.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

from kill_fork import Voice, WrongError, live_and_die

from assay.reference_broker.config import Compression
from assay.reference_broker.queues.jobs.store import LogRecord, NewRecord
from assay.reference_broker.storage.batch import BatchEncoder
from assay.reference_broker.storage.compaction import CompactionPolicy, CompactionTask, Compactor
from assay.reference_broker.storage.disk import RealDisk
from assay.reference_broker.storage.log import LogOptions, SegmentedLog

FOLDER = "log"
KEYS = 40
TOMBSTONE_AGE_MS = 30
DELETED_SHARE = 0.2
AHEAD = 100
"""Appended and not durable at most, and appended during one compaction: on a disk of slow syncs a life meets as many of
them as on any other, in more time."""
OPTIONS = LogOptions(segment_bytes=8 * 1024)
LIFE_BYTES = 5 * 1024
_IDENTITY = struct.Struct("<II")
_REPORT = struct.Struct("<BQII")
_APPENDED, _DURABLE = 1, 2


def record_of(life: int, number: int, timestamp_ms: int) -> NewRecord:
    """The record with that number: which key it has, and whether it deletes it, follow from the number."""
    rng = random.Random(life << 32 | number)
    key = b"key-%02d" % rng.randrange(KEYS)
    value = None if rng.random() < DELETED_SHARE else rng.randbytes(rng.randint(0, 400))
    return NewRecord(timestamp_ms, key, value, ((b"identity", _IDENTITY.pack(life, number)),))


def open_log(folder: Path) -> tuple[SegmentedLog, Compactor]:
    """Raises :class:`WrongError` when recovery finds damage other than a torn tail."""

    def note(place: str, problem: str) -> None:
        if "torn tail" not in problem:
            message = f"recovery found damage where only a kill was: {place}: {problem}"
            raise WrongError(message)

    disk, encoder = RealDisk(folder), BatchEncoder(Compression.NONE)
    log = SegmentedLog(disk, FOLDER, options=OPTIONS, encoder=encoder, volatile=False, note=note)
    policy = CompactionPolicy(min_dirty_ratio=0.3, tombstone_age_ms=TOMBSTONE_AGE_MS)
    return log, Compactor(disk, FOLDER, log, encoder, policy)


def live(folder: Path, life: int, seed: int, voice: Voice) -> None:
    """The body of a life: appends, with a sync and a compaction in threads meanwhile. Never ends."""
    rng = random.Random(seed)
    log, compactor = open_log(folder)
    number = compaction_began_at = 0
    syncing: Future[None] | None = None
    compacting: tuple[CompactionTask, Future[None]] | None = None
    with ThreadPoolExecutor(2) as threads:
        while True:
            count = rng.randint(1, 20)
            voice.made(number + count)
            now_ms = int(time.time() * 1000)
            offset = log.append([record_of(life, number + index, now_ms) for index in range(count)])
            for index in range(count):
                voice.say(_REPORT.pack(_APPENDED, offset + index, life, number + index))
            number += count
            if syncing is None and (task := log.start_sync()) is not None:
                syncing = threads.submit(task.run)
            if compacting is None and (started := compactor.start(now_ms)) is not None:
                compacting, compaction_began_at = (started, threads.submit(started.run)), number
            if syncing is not None and (syncing.done() or log.next_offset - log.durable_offset > AHEAD):
                syncing.result()
                syncing = None
                log.finish_sync(None)
                voice.say(_REPORT.pack(_DURABLE, log.durable_offset, 0, 0))
            if compacting is not None and (compacting[1].done() or number - compaction_began_at > AHEAD):
                compacting[1].result()
                compactor.finish(compacting[0], None)
                compacting = None


class Ledger:
    """What the lives said so far."""

    def __init__(self) -> None:
        self.made: dict[int, int] = {}
        self.appended: dict[int, tuple[int, int]] = {}
        """Offset -> life and number, of this and earlier lives."""
        self.durable = 0
        """Every record below it was confirmed."""
        self.newest: dict[bytes, tuple[int, bool]] = {}
        """Key -> offset of its newest confirmed record, and whether that deletes the key."""
        self.compacted = 0
        """Records that are not in the log any more."""
        self._rest = b""

    def hear(self, data: bytes) -> None:
        """Take up what came through the pipe."""
        data = self._rest + data
        whole = len(data) // _REPORT.size * _REPORT.size
        self._rest = data[whole:]
        for kind, offset, life, number in _REPORT.iter_unpack(data[:whole]):
            if kind == _APPENDED:
                self.appended[offset] = (life, number)
                continue
            for confirmed in range(self.durable, offset):
                if (identity := self.appended.get(confirmed)) is not None:
                    record = record_of(*identity, 0)
                    self.newest[record.key or b""] = (confirmed, record.value is None)
            self.durable = max(self.durable, offset)

    def compare(self, folder: Path) -> int:
        """Open the log and compare; returns the number of records in it. Raises :class:`WrongError`."""
        log, _ = open_log(folder)
        if log.next_offset < self.durable:
            raise WrongError(f"the log ends at {log.next_offset}, and all below {self.durable} was confirmed")
        found = read_all(log)
        log.close()
        previous = (-1, -1)
        for record in found:
            identity = self._identity_of(record)
            if identity <= previous:
                raise WrongError(f"record {identity} at offset {record.offset} after {previous}")
            previous = identity
            if self.appended.setdefault(record.offset, identity) != identity:
                raise WrongError(f"offset {record.offset} held {self.appended[record.offset]} and now holds {identity}")
        self._compare_keys({record.key or b"": record.offset for record in found})
        self.compacted = len(self.appended) - len(found)
        return len(found)

    def _identity_of(self, record: LogRecord) -> tuple[int, int]:
        life, number = _IDENTITY.unpack(record.headers[0][1])
        if number >= self.made.get(life, 0):
            raise WrongError(f"record {life}:{number} was never made")
        wanted = record_of(life, number, record.timestamp_ms)
        if (record.key, record.value, record.headers) != (wanted.key, wanted.value, wanted.headers):
            raise WrongError(f"record {life}:{number} is not what was appended")
        return life, number

    def _compare_keys(self, last: dict[bytes, int]) -> None:
        """``last``: key -> offset of its last record in the log."""
        for key, (offset, is_deletion) in self.newest.items():
            at = last.get(key)
            if at is not None and at < offset and is_deletion:
                raise WrongError(f"{key!r} was deleted at {offset}, and its record at {at} came back")
            if at is None and is_deletion:
                continue
            if at is None or at < offset:
                raise WrongError(f"the confirmed record of {key!r} at {offset} is lost")


def read_all(log: SegmentedLog) -> list[LogRecord]:
    """Every record, by increasing offset. Raises :class:`WrongError`."""
    found: list[LogRecord] = []
    offset = log.start_offset
    while records := log.read(offset, 500):
        if records[0].offset < offset:
            raise WrongError(f"offset {records[0].offset} was read in place of {offset}")
        found += records
        offset = records[-1].offset + 1
    return found


def run_lives(folder: Path, lives: int, seed: int) -> dict[str, int]:
    """Returns what happened. Raises :class:`WrongError` at the first thing that is wrong."""
    ledger = Ledger()
    read = 0
    for life in range(lives):
        try:
            rng = random.Random(seed << 32 | life)
            run = partial(live, folder, life, rng.getrandbits(32))
            ledger.made[life] = live_and_die(f"life {life}", rng, run, ledger.hear, LIFE_BYTES)
            read += ledger.compare(folder)
        except WrongError as error:
            raise WrongError(f"seed {seed}, life {life}: {error}") from error
    return {"kills": lives, "confirmed": ledger.durable, "compacted": ledger.compacted, "compared": read}


def main() -> None:
    """Entry of the warm process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lives", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    asked = parser.parse_args()
    sys.stdout.write(json.dumps(run_lives(asked.folder, asked.lives, asked.seed)) + "\n")


if __name__ == "__main__":
    main()
