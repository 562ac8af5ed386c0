"""How many files, and so connections, the process may have open."""

from __future__ import annotations

import contextlib
import sys

from assay.reference_broker.storage.open_files import SPARE_FILES, file_limit, reserve_of

__all__ = ["SPARE_FILES", "connection_descriptors", "raise_file_limit"]


def connection_descriptors() -> int | None:
    """Descriptors below it may be those of connections; None = without limit."""
    limit = file_limit()
    return None if limit is None else limit - reserve_of(limit)


def raise_file_limit() -> int | None:
    """Raise the soft limit on open files to the hard one; returns how many connections fit, None = without limit.

    Only for processes of our own: who embeds the broker decides this for itself.
    """
    if sys.platform != "win32":
        import resource  # only POSIX has it

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return connection_descriptors()
