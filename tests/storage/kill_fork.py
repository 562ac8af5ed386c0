"""A forked process that is killed: its life ends at a random moment, and what it said until then is heard."""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable

OPENING_S = 0.02
"""About the time that opening the store takes; a fifth of the lives are killed within it."""
LIFE_BYTES = 24 * 1024
"""The others are killed when they have said so much at most: on a slow machine a life does as much, in more time."""
MOMENT_S = 0.005
"""Most that they live on then: what they say comes at certain points of their work, and they may die at any."""
_COUNT_BYTES = 4
_READ_BYTES = 4_096


class WrongError(AssertionError):
    """Something is lost, invented, out of order or changed."""


class Voice:
    """What a life has to tell its parent, safely past its death."""

    def __init__(self, pipe: int, shared: mmap.mmap) -> None:
        self._pipe = pipe
        self._shared = shared

    def say(self, report: bytes) -> None:
        """So short a write to a pipe is whole or not at all, and stays in the pipe when the writer dies."""
        os.write(self._pipe, report)

    def made(self, count: int) -> None:
        """So much is made by now. In shared memory: the parent knows it though the next instruction be the last."""
        self._shared[:_COUNT_BYTES] = count.to_bytes(_COUNT_BYTES, "little")


def live_and_die(
    name: str,
    rng: random.Random,
    live: Callable[[Voice], None],
    hear: Callable[[bytes], None],
    life_bytes: int = LIFE_BYTES,
) -> int:
    """Fork a process that runs ``live``, which never ends, and kill it at a random moment; ``hear`` gets what it said.

    Returns what it last told :meth:`Voice.made`. Raises :class:`WrongError` when it ended by itself.
    """
    reader, writer = os.pipe()
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    is_early = rng.random() < 0.2
    heard_bytes = 0 if is_early else rng.randint(1, life_bytes)
    wait_s = rng.uniform(0.0, OPENING_S if is_early else MOMENT_S)
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            live(Voice(writer, shared))
        except BaseException as error:
            sys.stderr.write(f"{name}: {error!r}\n")
            sys.stderr.flush()
        finally:
            os._exit(1)
    os.close(writer)
    try:
        while heard_bytes > 0 and (data := os.read(reader, _READ_BYTES)):
            hear(data)
            heard_bytes -= len(data)
        _hear_until(reader, hear, time.monotonic() + wait_s)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        _hear_until(reader, hear, None)
    finally:
        os.close(reader)
    made = int.from_bytes(shared[:_COUNT_BYTES], "little")
    shared.close()
    if not os.WIFSIGNALED(status):
        message = f"{name} ended by itself, with status {os.waitstatus_to_exitcode(status)}"
        raise WrongError(message)
    return made


def _hear_until(reader: int, hear: Callable[[bytes], None], deadline: float | None) -> None:
    """Take up what comes until a moment, or until the end."""
    while deadline is None or (left_s := deadline - time.monotonic()) > 0:
        if deadline is not None and not select.select((reader,), (), (), left_s)[0]:
            return
        data = os.read(reader, _READ_BYTES)
        if not data:
            return
        hear(data)
