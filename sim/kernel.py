"""The kernel of a simulated world: SimPy's event queue, made reproducible.

One seed decides everything: which of two simultaneous events comes first, and every random stream. A stream has a name
and is derived from (seed, name) alone, so that removing one user of chance (a fault, a client) does not shift the
others; that is what makes a schedule shrinkable. Everything that happens is appended to one running hash: two runs with
the same hash did the same things at the same times.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from simpy import Environment, Event
from simpy.core import EmptySchedule, SimTime
from simpy.events import NORMAL, EventPriority

EPOCH_S: Final = 1_767_225_600.0
"""Where simulated time starts, in Unix seconds: 2026-01-01 00:00 UTC."""
_TIE_BITS: Final = 24
_NUMBER_BITS: Final = 40
_pack_time = struct.Struct("<d").pack


def substream(seed: int, name: str) -> random.Random:
    """A random stream that depends on the seed and the name only, not on the process or on other streams."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "little"))


class SeededEnvironment(Environment):
    """SimPy's environment, whose simultaneous events come in an order drawn from the seed."""

    def __init__(self, ties: random.Random, initial_time: float) -> None:
        super().__init__(initial_time)
        self._draw = ties.getrandbits

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        """As SimPy's; see the class."""
        self.schedule_at(event, self._now + delay, priority)

    def schedule_at(
        self, event: Event | Call, when: SimTime, priority: EventPriority = NORMAL, ties: random.Random | None = None
    ) -> None:
        """Schedule for a time that is not rounded by way of a delay; a past one means now.

        ``ties``: draws its place among simultaneous events, so that those of all others are as they are without it.
        """
        draw = self._draw if ties is None else ties.getrandbits
        tie = draw(_TIE_BITS) << _NUMBER_BITS | next(self._eid)
        now = self._now
        queue: list[tuple[SimTime, EventPriority, int, Event | Call]] = self._queue  # type: ignore[assignment]
        heappush(queue, (when if when > now else now, priority, tie, event))

    def step(self) -> None:
        """As SimPy's, and much quicker for a :class:`Call`, for which nobody waits: those before it are carried out."""
        queue = self._queue
        while queue:
            event: Event | Call = queue[0][3]
            if type(event) is not Call:
                super().step()
                return
            self._now = heappop(queue)[0]
            action = event.action
            if action is not None:
                event.action = None
                action()
        raise EmptySchedule


class Call:
    """A callback at a given time. It stands among SimPy's events, and is none."""

    __slots__ = ("action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Do nothing when the time comes."""
        self.action = None


class Kernel:
    """Time, order, chance and trace of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.env = env = SeededEnvironment(substream(seed, "kernel/ties"), EPOCH_S)
        self._schedule_at = env.schedule_at
        self.trace_count = 0
        """Things that happened so far."""
        self._hash = hashlib.blake2b(digest_size=16)
        self._update = self._hash.update

    @property
    def now(self) -> float:
        """Unix seconds of the simulated world."""
        return self.env._now  # a property less, hundreds of thousands of times

    @property
    def elapsed_s(self) -> float:
        """Simulated seconds since the start."""
        return self.now - EPOCH_S

    def stream(self, name: str) -> random.Random:
        """The random stream of this name, from its start."""
        return substream(self.seed, name)

    def at(self, when: float, action: Callable[[], None], ties: random.Random | None = None) -> Call:
        """Call ``action`` at a time in Unix seconds; a past time means as soon as possible.

        ``ties`` as in :meth:`SeededEnvironment.schedule_at`.
        """
        call = Call(when, action)
        self._schedule_at(call, when, NORMAL, ties)
        return call

    def after(self, delay_s: float, action: Callable[[], None]) -> Call:
        """Call ``action`` after a delay."""
        return self.at(self.now + delay_s, action)

    def trace(self, what: str, data: bytes = b"") -> None:
        """Append to the running hash: the time, what happened, and the bytes involved."""
        self.trace_count += 1
        self._update(_pack_time(self.env._now) + what.encode() + b"\x00" + data)

    @property
    def trace_hash(self) -> str:
        """Hash of all that happened so far, in hex."""
        return self._hash.hexdigest()


class Alarm:
    """One wake-up that is moved often and mostly later: it re-arms itself instead of filling the queue."""

    def __init__(self, kernel: Kernel, action: Callable[[], None]) -> None:
        self._kernel = kernel
        self._action = action
        self._deadline: float | None = None
        self._call: Call | None = None

    def set(self, deadline: float | None) -> None:
        """Wake up at ``deadline`` instead of whenever it was set to before; None = not at all."""
        self._deadline = deadline
        if deadline is None:
            return
        if self._call is None or self._call.when > deadline:
            if self._call is not None:
                self._call.cancel()
            self._call = self._kernel.at(deadline, self._ring)

    def _ring(self) -> None:
        self._call = None
        if self._deadline is None:
            return
        if self._kernel.now < self._deadline:
            self._call = self._kernel.at(self._deadline, self._ring)
        else:
            self._deadline = None
            self._action()
