"""Keeps room on a disk for those who must not be refused."""

from __future__ import annotations

from reference_broker.core.queues.errors import LogError
from reference_broker.storage.disk import Disk

_CHECK_EVERY_BYTES = 1024 * 1024
"""At most; of a small reserve a quarter."""


class DiskRoom:
    """Refuses appends while less than a reserve would be left: settlements, which free segments, still find some.

    All logs of a disk share one: what each of them wrote since it last asked would add up to more than the reserve.
    """

    def __init__(self, disk: Disk, reserve_bytes: int) -> None:
        self._disk = disk
        self._reserve_bytes = reserve_bytes
        self._check_every_bytes = min(_CHECK_EVERY_BYTES, reserve_bytes // 4)
        self._unchecked_bytes = self._check_every_bytes

    def check(self, size: int) -> None:
        """Before an append of that size. Asks the disk once in a while, each time while it is nearly full.

        Raises :class:`LogError`. When the disk cannot tell, the append will show.
        """
        self._unchecked_bytes += size
        if self._unchecked_bytes < self._check_every_bytes:
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
