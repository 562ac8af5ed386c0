"""What is shown of a consumer group, and where groups lie."""

from __future__ import annotations

import re

import msgspec

from assay.reference_broker.storage.file_names import encode_name
from assay.reference_broker.storage_tools.layout import StoreLayout
from assay.reference_broker.storage_tools.read_only_disk import ReadOnlyDisk

MAX_GROUPS = 100_000
"""Of one queue; more are not looked at."""
_BYTE = re.compile(r"\(byte (\d+)\)")


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group."""

    queue: str
    group: str
    pattern: str = ""
    folder: str
    cursors: dict[int, int]
    """Partition -> next offset to deliver for the first time."""
    pending: int = 0
    pending_by_consumer: dict[str, int] = {}
    """Consumer -> messages it has not settled; "" = given back, waiting for redelivery."""
    log_bytes: int = 0
    """Of its operation logs."""
    problem: str = ""
    """The first thing that is wrong; empty when nothing is. ``verify`` says more."""


class GroupPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of a group below its queue."""

    queue: str
    name: str
    """Of the folder."""
    folder: str

    @property
    def stem(self) -> str:
        return f"{self.folder}/{self.name}"

    def is_of(self, group: str) -> bool:
        """Whether a group's name leads to this folder, in Assay."""
        return bool(group) and encode_name(group) == self.name


def find_group_folders(disk: ReadOnlyDisk, layout: StoreLayout) -> list[GroupPlace]:
    """Groups with a folder below their queue, by queue and name."""
    return [
        GroupPlace(queue=queue.name, name=name, folder=f"{queue.folder}/consumers/{name}")
        for queue in layout.queues
        for name in disk.list(f"{queue.folder}/consumers")[:MAX_GROUPS]
        if disk.is_folder(f"{queue.folder}/consumers/{name}")
    ]


def position_in(message: str) -> int:
    """The byte that a JSON decoder's message names; 0 when it names none."""
    match = _BYTE.search(message)
    return int(match[1]) if match else 0
