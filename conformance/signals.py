"""Ctrl-C and SIGTERM end a run in an orderly way: its report is closed, and its children end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Within the block the first signal calls ``stop`` with its name; a further one raises ``KeyboardInterrupt``.

    A signal that is ignored (as SIGHUP is under nohup) stays so. Outside the main thread, where none arrives, nothing
    changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal told
        if told:
            raise KeyboardInterrupt
        told = True
        stop(signal.Signals(number).name)

    before = {number: signal.getsignal(number) for number in _STOPPING}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
