"""What a directory is: which broker's files, which queues, which partitions, which segment files.

Four layouts are known. Only one is Assay's own; the others differ in folders, and GoQueue in the files as well:

- ``assay``: ``queues/<queue>/{queue.json, partitions/<id>/*.seg, consumers/<group>/..., delays/*.seg,
  delays_done/*.seg, departures/*.seg}``; ``sessions/*.seg``, ``transactions/log/*.seg`` and ``schemas/log/*.seg`` count
  as queues of one partition with the names ``$sessions``, ``$transactions`` and ``$schemas``
- ``fluxmq-partitions``: the same with FluxMQ's names and its settings in ``config/queues.json``
- ``fluxmq-segments``: ``queues/<queue>/segments/*.seg``, groups in ``groups/<queue>/<group>.json``
- ``goqueue``: ``<topic>/<partition>/*.log``, at any depth
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

import msgspec

from assay.reference_broker.queues.transactions.coordinator import FOLDER as TRANSACTIONS_FOLDER
from assay.reference_broker.schemas.log import FOLDER as SCHEMAS_FOLDER
from assay.reference_broker.storage.description import ROOT, QueueDescription
from assay.reference_broker.storage.file_names import parse_segment_name, parse_swap_name
from assay.reference_broker.storage.queue_store import DELAYS, DELAYS_DONE, DEPARTURES
from assay.reference_broker.storage.session_store import FOLDER as SESSIONS_FOLDER
from assay.reference_broker.storage_tools.foreign.goqueue_message import GoQueueLayout
from assay.reference_broker.storage_tools.read_only_disk import LOCK_NAME, ReadOnlyDisk, join
from assay.reference_broker.trace.described import described

MAX_DEPTH = 8
"""Folders are searched no deeper than this."""
MAX_FOLDERS = 100_000
DESCRIPTION_NAME = "queue.json"
REPAIR_PREFIX = "repair-"
"""Folders with copies that a repair kept; they are no part of the data."""
IMPORTING_SUFFIX = ".importing"
"""A queue whose import has not finished."""
_MAX_DESCRIPTION_BYTES = 64 * 1024
SESSIONS_NAME = "$sessions"
"""What sessions and retained messages are called where queues are listed."""
SCHEMAS_NAME = "$schemas"
"""Likewise, the schema registry."""
TRANSACTIONS_NAME = "$transactions"
"""Likewise, what is remembered of producers and transactions."""
DELAYED, DELAYS_KNOWN, DEPARTED = -1, -2, -3
"""Numbers of what is no partition and kept like one: a queue's delayed messages, what is known of them, and
which messages left without a group that knows it."""
UNREADABLE_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding damaged JSON may raise."""


class LayoutError(ValueError):
    """The directory cannot be read as a data directory. ``str(error)`` says what to do."""


class StoreFormat(StrEnum):
    """Whose files they are."""

    ASSAY = "assay"
    FLUXMQ_PARTITIONS = "fluxmq-partitions"
    FLUXMQ_SEGMENTS = "fluxmq-segments"
    GOQUEUE = "goqueue"

    @property
    def segment_suffix(self) -> str:
        return ".log" if self is StoreFormat.GOQUEUE else ".seg"

    @property
    def index_suffixes(self) -> tuple[str, str]:
        """Of the offset index and of the time index."""
        return (".index", ".timeindex") if self is StoreFormat.GOQUEUE else (".idx", ".tix")


class Codec(msgspec.Struct, frozen=True, kw_only=True):
    """How the bytes of a partition's segments are to be read."""

    format: StoreFormat
    message_layout: GoQueueLayout | None = None
    """Of a GoQueue directory only; None: each segment's own, which the checksum of its first message tells."""


class SegmentPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A segment file."""

    path: str
    """Relative to the data directory."""
    base_offset: int

    @property
    def stem(self) -> str:
        """The path without suffix, which its index files share."""
        return self.path.rpartition(".")[0]


class PartitionPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's folder."""

    queue: str
    partition: int
    folder: str
    codec: Codec
    segments: tuple[SegmentPlace, ...]
    """By base offset."""

    def end_offset_of(self, number: int) -> int | None:
        """Where the offsets of a segment must end: the base of the next one; None for the last."""
        return self.segments[number + 1].base_offset if number + 1 < len(self.segments) else None


class QueuePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's folder."""

    name: str
    folder: str
    partitions: tuple[PartitionPlace, ...]
    """By number."""
    delayed: PartitionPlace | None = None
    """The log of its delayed messages; None where there never was one."""
    delays_done: PartitionPlace | None = None
    """The log that tells which of them fired or were cancelled."""
    departures: PartitionPlace | None = None
    """The log that tells which messages nobody gets any more."""

    @property
    def is_internal(self) -> bool:
        """Not a queue, but the log of sessions and retained messages, of transactions, or of schemas."""
        return self.folder in (SESSIONS_FOLDER, TRANSACTIONS_FOLDER, SCHEMAS_FOLDER)

    @property
    def logs(self) -> tuple[PartitionPlace, ...]:
        """Everything that is kept like a partition."""
        others = (self.delayed, self.delays_done, self.departures)
        return (*self.partitions, *(place for place in others if place is not None))


class StoreLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A whole data directory."""

    format: StoreFormat
    queues: tuple[QueuePlace, ...]

    @property
    def logs(self) -> list[PartitionPlace]:
        """Everything that is kept like a partition: partitions, and the logs of delayed messages."""
        return [place for queue in self.queues for place in queue.logs]

    def select(self, queue: str | None, partition: int | None) -> list[PartitionPlace]:
        """The partitions of one queue or of all. Raises :class:`LayoutError` when there is none of that name.

        Logs that are no partitions only by their numbers: :data:`DELAYED`, :data:`DELAYS_KNOWN`, :data:`DEPARTED`.
        """
        names = [place.name for place in self.queues]
        if queue is not None and queue not in names:
            known = ", ".join(names[:20]) or "none"
            raise LayoutError(f"there is no queue {queue!r} here; queues: {known}")
        chosen = [place for place in self.queues if queue is None or place.name == queue]
        if partition is None:
            found = [one for place in chosen for one in place.partitions]
        else:
            found = [one for place in chosen for one in place.logs if one.partition == partition]
        if partition is not None and not found:
            raise LayoutError(f"no partition {partition} here; `assay storage inspect` lists what there is")
        return found


def open_directory(directory: Path) -> ReadOnlyDisk:
    """Raises :class:`LayoutError` when it is no readable folder."""
    if not directory.exists():
        raise LayoutError(f"{directory} does not exist")
    if not directory.is_dir():
        message = f"{directory} is a file; name the data directory (for one segment: inspect DIR --segment FILE)"
        raise LayoutError(message)
    return ReadOnlyDisk(directory)


def find_layout(disk: ReadOnlyDisk, forced: StoreFormat | None = None) -> StoreLayout:
    """Recognise a directory, or read it as the format that was asked for. Raises :class:`LayoutError`."""
    try:
        found = forced or _recognise(disk)
        if found is None:
            raise LayoutError(_hint(disk))
        queues = _topics(disk) if found is StoreFormat.GOQUEUE else _queues(disk, found)
    except PermissionError as error:
        message = f"cannot read {error.filename}: {error.strerror}; run as the user that owns the data"
        raise LayoutError(message) from error
    return StoreLayout(format=found, queues=tuple(sorted(queues, key=lambda queue: queue.name)))


def _recognise(disk: ReadOnlyDisk) -> StoreFormat | None:
    folders = _queue_folders(disk)
    if any(disk.is_folder(f"{folder}/segments") for folder in folders):
        return StoreFormat.FLUXMQ_SEGMENTS
    if disk.exists("config/queues.json"):
        return StoreFormat.FLUXMQ_PARTITIONS if folders else StoreFormat.FLUXMQ_SEGMENTS
    if disk.exists(LOCK_NAME) or any(read_description(disk, folder) is not None for folder in folders):
        return StoreFormat.ASSAY
    if folders:
        return StoreFormat.FLUXMQ_PARTITIONS
    if disk.is_folder(ROOT):
        return StoreFormat.ASSAY
    return StoreFormat.GOQUEUE if _topics(disk) else None


def _hint(disk: ReadOnlyDisk) -> str:
    below = [name for name in disk.list("") if disk.is_folder(f"{name}/{ROOT}")]
    if below:
        return f"{disk.root} is no data directory, but {disk.root / below[0]} looks like one; name that"
    if disk.root.name == ROOT or any(disk.is_folder(f"{name}/partitions") for name in disk.list("")):
        return f"{disk.root} is inside a data directory; name the folder above it: {disk.root.parent}"
    return (
        f"{disk.root} holds no files of Assay, FluxMQ or GoQueue; name the folder in which `queues` lies "
        "(GoQueue: the folder of the topics), or force a format with --format"
    )


def walk_folders(disk: ReadOnlyDisk, start: str) -> list[str]:
    """Folders below a folder, itself included, bounded in depth and number. Raises :class:`LayoutError`."""
    found = [start]
    level = [start]
    for _ in range(MAX_DEPTH):
        below = [
            join(folder, name)
            for folder in level
            for name in disk.list(folder)
            if not name.startswith((REPAIR_PREFIX, ".")) and disk.is_folder(join(folder, name))
        ]
        found += below
        level = below
        if len(found) > MAX_FOLDERS:
            raise LayoutError(f"more than {MAX_FOLDERS} folders below {disk.root}; name a smaller directory")
        if not level:
            break
    return found


def _queue_folders(disk: ReadOnlyDisk) -> list[str]:
    """Folders of queues. FluxMQ's queue names have slashes (``$queue/orders``), so they lie at any depth."""
    known = ("partitions", "segments", DESCRIPTION_NAME)
    found = (folder for folder in walk_folders(disk, ROOT) if any(disk.exists(f"{folder}/{name}") for name in known))
    return [folder for folder in found if folder != ROOT and not folder.endswith(IMPORTING_SUFFIX)]


def read_description(disk: ReadOnlyDisk, folder: str) -> QueueDescription | None:
    """A queue's ``queue.json``; None when it is missing, damaged, or another broker's."""
    try:
        return msgspec.json.decode(
            disk.read(f"{folder}/{DESCRIPTION_NAME}", _MAX_DESCRIPTION_BYTES), type=described(QueueDescription)
        )
    except (OSError, *UNREADABLE_JSON):
        return None


class _Named(msgspec.Struct, frozen=True):
    name: str


def _name_in_description(disk: ReadOnlyDisk, folder: str) -> str:
    """The name that FluxMQ's ``queue.json`` gives; empty when there is none."""
    try:
        return msgspec.json.decode(
            disk.read(f"{folder}/{DESCRIPTION_NAME}", _MAX_DESCRIPTION_BYTES), type=described(_Named)
        ).name
    except (OSError, *UNREADABLE_JSON):
        return ""


def _queues(disk: ReadOnlyDisk, store_format: StoreFormat) -> list[QueuePlace]:
    queues = []
    for folder in _queue_folders(disk):
        name = folder.removeprefix(f"{ROOT}/")
        if store_format is StoreFormat.ASSAY:
            description = read_description(disk, folder)
            name = description.name if description is not None else unquote(name)
        else:
            name = _name_in_description(disk, folder) or name
        if store_format is StoreFormat.FLUXMQ_SEGMENTS:
            partitions = [_partition(disk, name, 0, f"{folder}/segments", store_format)]
        else:
            numbers = sorted(int(one) for one in disk.list(f"{folder}/partitions") if one.isdecimal() and one.isascii())
            partitions = [
                _partition(disk, name, number, f"{folder}/partitions/{number}", store_format) for number in numbers
            ]
        logs: list[PartitionPlace | None] = [None, None, None]
        if store_format is StoreFormat.ASSAY:
            logs = [
                _partition(disk, name, number, f"{folder}/{log}", store_format)
                if disk.list(f"{folder}/{log}")
                else None
                for number, log in ((DELAYED, DELAYS), (DELAYS_KNOWN, DELAYS_DONE), (DEPARTED, DEPARTURES))
            ]
        queues.append(
            QueuePlace(
                name=name,
                folder=folder,
                partitions=tuple(partitions),
                delayed=logs[0],
                delays_done=logs[1],
                departures=logs[2],
            )
        )
    if store_format is StoreFormat.ASSAY:
        queues += _internal_logs(disk)
    return queues


def _internal_logs(disk: ReadOnlyDisk) -> list[QueuePlace]:
    """What is no queue and kept like one."""
    logs = (
        (SESSIONS_NAME, SESSIONS_FOLDER, SESSIONS_FOLDER),
        (TRANSACTIONS_NAME, TRANSACTIONS_FOLDER, f"{TRANSACTIONS_FOLDER}/log"),
        (SCHEMAS_NAME, SCHEMAS_FOLDER, f"{SCHEMAS_FOLDER}/log"),
    )
    return [
        QueuePlace(name=name, folder=folder, partitions=(_partition(disk, name, 0, log, StoreFormat.ASSAY),))
        for name, folder, log in logs
        if disk.is_folder(log)
    ]


def _topics(disk: ReadOnlyDisk) -> list[QueuePlace]:
    """GoQueue: a folder with a number for a name and segment files in it is a partition, its parent the topic."""
    partitions: dict[str, list[PartitionPlace]] = {}
    for folder in walk_folders(disk, ""):
        above, _, number = folder.rpartition("/")
        if not (number.isdecimal() and number.isascii()):
            continue
        topic = above.rpartition("/")[2] or disk.root.resolve().name
        place = _partition(disk, topic, int(number), folder, StoreFormat.GOQUEUE)
        if place.segments:
            partitions.setdefault(above, []).append(place)
    return [
        QueuePlace(
            name=places[0].queue, folder=folder, partitions=tuple(sorted(places, key=lambda place: place.partition))
        )
        for folder, places in partitions.items()
    ]


def _partition(
    disk: ReadOnlyDisk, queue: str, partition: int, folder: str, store_format: StoreFormat
) -> PartitionPlace:
    names = disk.list(folder)
    segments = [
        SegmentPlace(path=f"{folder}/{name}", base_offset=base)
        for name in names
        if (base := segment_base(name, store_format)) is not None
    ]
    if store_format is StoreFormat.ASSAY:
        segments = _with_swaps(folder, names, segments)
    ordered = tuple(sorted(segments, key=lambda segment: segment.base_offset))
    return PartitionPlace(
        queue=queue, partition=partition, folder=folder, codec=Codec(format=store_format), segments=ordered
    )


def _with_swaps(folder: str, names: list[str], segments: list[SegmentPlace]) -> list[SegmentPlace]:
    """A compacted segment that is complete counts in place of those it replaces, as when a broker opens the log."""
    for name in names:
        swap = parse_swap_name(name)
        if swap is not None:
            base_offset, end_offset = swap
            segments = [one for one in segments if not base_offset <= one.base_offset < end_offset]
            segments.append(SegmentPlace(path=f"{folder}/{name}", base_offset=base_offset))
    return segments


def segment_base(name: str, store_format: StoreFormat) -> int | None:
    """Base offset that a file's name says; None for any other file."""
    suffix = store_format.segment_suffix
    return parse_segment_name(f"{name.removesuffix(suffix)}.seg") if name.endswith(suffix) else None
