"""Partition folders of GoQueue as a whole, written and walked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.segment_scan import Damage
from assay.reference_broker.storage_tools.foreign.goqueue_files import SEGMENT_BYTES, file_name, segment_bases
from assay.reference_broker.storage_tools.foreign.goqueue_log import (
    GoQueueLogWriter,
    SoundMessage,
    walk_messages,
)
from assay.reference_broker.storage_tools.foreign.goqueue_message import GoQueueLayout, GoQueueMessage, detect_layout


class SegmentPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a walk over the segments of a folder meets."""

    path: str
    """Of the segment file."""
    layout: GoQueueLayout
    found: SoundMessage | Damage


def walk_folder(disk: Disk, folder: str, *, layout: GoQueueLayout | None = GoQueueLayout.V34) -> Iterator[SegmentPart]:
    """All messages of a partition in the order of their offsets, and the damage between them. Raises OSError.

    ``layout`` None: each segment's own, found by the checksum of its first message (the 34-byte layout if that is
    damaged), since a GoQueue that was upgraded leaves older segments as they are.
    """
    bases = segment_bases(disk, folder)
    least_offset = 0
    for number, base_offset in enumerate(bases):
        path = f"{folder}/{file_name(base_offset)}"
        least_offset = max(least_offset, base_offset)
        end_offset = bases[number + 1] if number + 1 < len(bases) else None
        file = disk.open(path)
        try:
            used = layout or detect_layout(file.read_at(0, GoQueueLayout.V34.max_message_bytes)) or GoQueueLayout.V34
            for found in walk_messages(file, layout=used, base_offset=least_offset, end_offset=end_offset):
                if isinstance(found, SoundMessage):
                    least_offset = found.message.offset + 1
                yield SegmentPart(path=path, layout=used, found=found)
        finally:
            file.close()


def write_folder(
    disk: Disk,
    folder: str,
    messages: Iterable[GoQueueMessage],
    *,
    layout: GoQueueLayout = GoQueueLayout.V34,
    segment_bytes: int = SEGMENT_BYTES,
) -> list[int]:
    """A partition folder with these messages, whose offsets grow, synced; gives the base offsets of its segments.

    Raises as :class:`GoQueueLogWriter`.
    """
    writer = GoQueueLogWriter(disk, folder, layout=layout, segment_bytes=segment_bytes)
    for message in messages:
        writer.add(message)
    writer.close()
    return segment_bases(disk, folder)
