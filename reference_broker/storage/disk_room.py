"""Keeps room on a disk for those who must not be refused."""

from __future__ import annotations

from collections.abc import Callable

from assay.reference_broker.queues.jobs.errors import LogError
from assay.reference_broker.storage.disk import Disk

_CHECK_EVERY_BYTES = 1024 * 1024
"""At most; of a small reserve a quarter."""
_UNKNOWN_BYTES = 2**62


class DiskRoom:
    """Refuses appends while less than a reserve would be left: settlements, which free segments, still find some.

    All logs of a disk share one: what each of them wrote since it last asked would add up to more than the reserve.
    """

    def __init__(self, disk: Disk, reserve_bytes: int, note: Callable[[str, str], None] | None = None) -> None:
        """``note`` is told (place, problem) when something is refused."""
        self._disk = disk
        self.reserve_bytes = reserve_bytes
        self._note = note
        self.check_every_bytes = min(_CHECK_EVERY_BYTES, reserve_bytes // 4)
        self.written_bytes = self.check_every_bytes
        """Since the disk was asked. Who writes what is never refused here adds to it."""
        self._known_bytes = 0
        """Below it the disk need not be asked: little was written, and it is not nearly full."""
        self.look_at_bytes = 0
        """With so many of these, somebody is to see what is spare."""
        self._free_bytes = 0
        """When the disk was last asked."""

    def check(self, size: int) -> None:
        """Before an append of that size. Asks the disk once in a while, each time while it is nearly full.

        Raises :class:`LogError`. When the disk cannot tell, the append will show.
        """
        self.written_bytes += size
        if self.written_bytes < self._known_bytes:
            return
        free_bytes = self._ask()
        self.written_bytes = size
        if free_bytes - size < self.reserve_bytes:
            self.written_bytes = 0
            message = (
                f"the disk is nearly full: {free_bytes} bytes are free and {self.reserve_bytes} are kept for "
                "settlements; consume messages or make room"
            )
            if self._note is not None:
                self._note("disk", f"{message}; publishes are refused until then")
            raise LogError(message)

    def spare_bytes(self) -> int:
        """How much may be written before the reserve is touched; negative within it."""
        if not self.reserve_bytes:
            return _UNKNOWN_BYTES
        if self.written_bytes >= self._known_bytes:
            self._ask()
        return self._free_bytes - self.written_bytes - self.reserve_bytes

    def sure_bytes(self) -> int:
        """Likewise, and it stays true until :attr:`written_bytes` comes to :attr:`look_at_bytes`."""
        spare_bytes = self.spare_bytes()
        sure_bytes = spare_bytes - self.check_every_bytes
        if sure_bytes >= self.reserve_bytes // 4:
            self.look_at_bytes = self.check_every_bytes if self.reserve_bytes else _UNKNOWN_BYTES
            return sure_bytes
        self.look_at_bytes = 0
        return spare_bytes

    def _ask(self) -> int:
        """Bytes that are free now."""
        try:
            self._free_bytes = self._disk.free_bytes()
        except OSError:
            self._free_bytes = _UNKNOWN_BYTES
        self.written_bytes = self.look_at_bytes = 0
        little_bytes = self.check_every_bytes
        self._known_bytes = min(little_bytes, self._free_bytes - self.reserve_bytes - little_bytes)
        return self._free_bytes
