"""Keeps room on a disk for those who must not be refused."""

from __future__ import annotations

from reference_broker.core.queues.errors import LogError
from reference_broker.storage.disk import Disk

_CHECK_EVERY_BYTES = 1024 * 1024


class DiskRoom:
    """Refuses appends while less than a reserve would be left: settlements, which free segments, still find some."""

    def __init__(self, disk: Disk, reserve_bytes: int) -> None:
        self._disk = disk
        self._reserve_bytes = reserve_bytes
        self._unchecked_bytes = _CHECK_EVERY_BYTES

    def check(self, size: int) -> None:
        """Before an append of that size. Asks the disk once in a while, each time while it is nearly full.

        Raises :class:`LogError`. When the disk cannot tell, the append will show.
        """
        self._unchecked_bytes += size
        if self._unchecked_bytes < _CHECK_EVERY_BYTES:
            return
        try:
            free_bytes = self._disk.free_bytes()
        except OSError:
            return
        if free_bytes - size < self._reserve_bytes:
            message = (
                f"the disk is nearly full: {free_bytes} bytes are free and {self._reserve_bytes} are kept for "
                "settlements; consume messages or make room"
            )
            raise LogError(message)
        self._unchecked_bytes = 0
