"""How commands are stopped before their end: SIGTERM does what Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """The first SIGTERM raises ``KeyboardInterrupt``, so that whatever was started is ended; a second one ends all at
    once. Commands that serve, or close a report, have handlers of their own. Outside the main thread, where none
    arrives, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
