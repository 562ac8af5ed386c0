"""Raw samples of Locust users, as they travel from a worker to its master and into ``samples.parquet``.

Each worker hands over what came since its last report; what the master has is their sum, sample by sample.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec
import pyarrow as pa

from assay.loadtests.recorder import LOST, OK
from assay.reference_broker.trace.described import described
from assay.reference_broker.trace.sample_files import SAMPLE_SCHEMA
from assay.reference_broker.trace.schema import LatencyOperation

PHASE = "closed_loop"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a latency is of. ``name`` is Locust's: ``MQTT: publish qos1 to ack``."""

    name: str
    operation: LatencyOperation
    workload: str
    qos: int = 0
    queue: str = ""
    client: str = ""


class Page(msgspec.Struct, kw_only=True):
    """Samples of one subject, column by column; ``ok`` 0 is a failure."""

    subject: Subject
    started_ns: array[int]
    completed_ns: array[int]
    ok: array[int]

    def __len__(self) -> int:
        return len(self.ok)


class WirePage(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`Page` as it travels from a worker to its master: native 64-bit integers, and bytes."""

    subject: Subject
    started_ns: bytes
    completed_ns: bytes
    ok: bytes


def new_page(subject: Subject) -> Page:
    """An empty one."""
    return Page(subject=subject, started_ns=array("q"), completed_ns=array("q"), ok=array("B"))


class Samples:
    """Raw samples since they were last taken, by subject."""

    def __init__(self) -> None:
        self._pages: dict[Subject, Page] = {}

    def add(self, subject: Subject, started_ns: int, completed_ns: int, *, failed: bool) -> None:
        page = self._pages.get(subject)
        if page is None:
            page = self._pages[subject] = new_page(subject)
        page.started_ns.append(started_ns)
        page.completed_ns.append(completed_ns)
        page.ok.append(not failed)

    def take(self) -> list[Page]:
        """All of them; none are left."""
        pages, self._pages = list(self._pages.values()), {}
        return pages


def to_wire(pages: list[Page]) -> bytes:
    """Pages as MessagePack."""
    return msgspec.msgpack.encode(
        [
            WirePage(
                subject=page.subject,
                started_ns=page.started_ns.tobytes(),
                completed_ns=page.completed_ns.tobytes(),
                ok=page.ok.tobytes(),
            )
            for page in pages
        ]
    )


def from_wire(data: bytes) -> list[Page]:
    """What :func:`to_wire` wrote. Raises :class:`msgspec.ValidationError`."""
    pages = []
    for wire in msgspec.msgpack.decode(data, type=described(list[WirePage])):
        page = new_page(wire.subject)
        page.started_ns.frombytes(wire.started_ns)
        page.completed_ns.frombytes(wire.completed_ns)
        page.ok.frombytes(wire.ok)
        pages.append(page)
    return pages


def table_of(pages: Iterable[Page], first_seq: int = 0) -> pa.Table:
    """Rows of ``samples.parquet``, numbered. A user waits for each answer, so a request is due when it is sent."""
    tables = []
    for page in pages:
        subject, count = page.subject, len(page)
        columns = {
            "run_id": ["locust"] * count,
            "phase": [PHASE] * count,
            "operation": [subject.operation.value] * count,
            "qos": pa.array([subject.qos] * count, pa.int64()),
            "client": [subject.client] * count,
            "seq": pa.array(range(first_seq, first_seq + count), pa.int64()),
            "intended_ns": pa.array(page.started_ns, pa.int64()),
            "sent_ns": pa.array(page.started_ns, pa.int64()),
            "completed_ns": pa.array(page.completed_ns, pa.int64()),
            "status": [OK if ok else LOST for ok in page.ok],
            "workload": [subject.workload] * count,
            "queue": [subject.queue] * count,
            "protocol": ["mqtt5"] * count,
            "offered_ns": pa.array(page.started_ns, pa.int64()),
        }
        tables.append(pa.table(columns, schema=SAMPLE_SCHEMA))
        first_seq += count
    return pa.concat_tables(tables) if tables else SAMPLE_SCHEMA.empty_table()
