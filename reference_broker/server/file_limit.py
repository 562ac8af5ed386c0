"""How many files, and so connections, the process may have open."""

from __future__ import annotations

import contextlib
import sys

SPARE_FILES = 256
"""Of the limit, for everything that is not a connection: logs, listeners, the event loop's own."""


def raise_file_limit() -> int | None:
    """Raise the soft limit on open files to the hard one; returns how many connections fit, None = without limit.

    Only for processes of our own: who embeds the broker decides this for itself.
    """
    if sys.platform == "win32":
        return None
    import resource  # only POSIX has it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return None if soft == resource.RLIM_INFINITY else max(0, soft - SPARE_FILES)
