"""A hierarchical timing wheel: 256 slots of 10 ms, then 64 each of 2.56 s, 163.84 s and 10 485.76 s.

Time is an argument, in Unix milliseconds. Timers are named by numbers that mostly ascend (offsets of a log), which lets
one take 16 bytes: its due time in an array over the numbers, and its number in a slot. A timer is moved at most three
times on its way down. Slots that hold something are bits of a number, so a jump over days costs no more than the slots
on the way that are in use.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

TICK_MS = 10
MAX_DELAY_MS = 671_088_640
"""What four levels span, 7.76 days."""
_LEVELS = ((0, 256), (8, 64), (14, 64), (20, 64))
"""Per level: its slots are 2**shift ticks wide, and so many."""
_DEAD = -(2**63)
COMPACT_ABOVE = 4_096
_SPARSE = 8
"""The array is given up for a dict where fewer than one number in so many is alive."""


class TimingWheel:
    """Timers fire in order of their due time to the tick; those of one tick by due time, then by number."""

    def __init__(self, now_ms: int) -> None:
        self._tick = now_ms // TICK_MS
        """Everything due until then has been moved to ``_ready``."""
        self._slots: list[list[array[int] | None]] = [[None] * size for _, size in _LEVELS]
        self._used = [0] * len(_LEVELS)
        """Bit i: slot i of the level holds something."""
        self._ready: array[int] = array("q")
        """Due, in order; entries below ``_ready_at`` are gone."""
        self._ready_at = 0
        self._dues: array[int] = array("q")
        """Due time of the timer ``_base + i``."""
        self._base = 0
        self._old: dict[int, int] = {}
        """Due times of the few timers below ``_base``."""
        self._old_in_order = True
        self._stale = 0
        """Numbers in slots whose timers were cancelled, about."""
        self._count = 0
        self._lowest = 0
        """No timer in ``_dues`` has a lower number."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return self.due_ms(number) is not None

    def due_ms(self, number: int) -> int | None:
        """When a timer is due; None when there is none of that number."""
        at = number - self._base
        if at < 0:
            return self._old.get(number)
        if at >= len(self._dues) or (due_ms := self._dues[at]) == _DEAD:
            return None
        return due_ms

    def numbers(self, after: int = -1) -> Iterator[int]:
        """The timers above a number, ascending. Do not change the wheel meanwhile."""
        self._order_old()
        yield from [number for number in self._old if number > after]
        base = self._base
        for at in range(max(self._lowest, after + 1) - base, len(self._dues)):
            if self._dues[at] != _DEAD:
                yield base + at

    def items(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Timers from a number to below another, ascending, with their due times. Do not change the wheel meanwhile."""
        self._order_old()
        if first < self._base:
            yield from [(number, due_ms) for number, due_ms in self._old.items() if first <= number < end]
        dues, base = self._dues, self._base
        for at in range(max(self._lowest, first) - base, min(len(dues), end - base)):
            if dues[at] != _DEAD:
                yield base + at, dues[at]

    def snapshot(self, first: int, end: int) -> Iterable[int]:
        """The timers from a number to below another as they are now; cheap now, iterated whenever and wherever."""
        old = [number for number in self._old if first <= number < end] if first < self._base else []
        low = max(0, first - self._base)
        some, base = self._dues[low : max(0, end - self._base)], self._base + low
        return chain(old, (number for number, due_ms in enumerate(some, base) if due_ms != _DEAD))

    def count(self, first: int, end: int) -> int:
        """Timers from a number to below another."""
        count = sum(first <= number < end for number in self._old) if first < self._base else 0
        some = self._dues[max(0, first - self._base) : max(0, end - self._base)]
        return count + len(some) - some.count(_DEAD)

    @property
    def lowest(self) -> int | None:
        """The lowest number of all timers; None when there is none."""
        if self._old:
            self._order_old()
            return next(iter(self._old))
        if not self._count:
            return None
        self._skip_dead()
        return self._lowest

    def _order_old(self) -> None:
        if not self._old_in_order:
            self._old = dict(sorted(self._old.items()))
            self._old_in_order = True

    # -- timers --------------------------------------------------------------------------------------------------

    def add(self, number: int, due_ms: int, now_ms: int) -> None:
        """A new timer; cheap where its number is higher than any before. One that is due fires at the next advance.

        Raises :class:`ValueError` when the number is in use.
        """
        dues = self._dues
        if not self._count:
            # Nothing is there: begin anew at this number.
            del dues[:]
            self._base = self._lowest = number
        at = number - self._base
        if at == len(dues):
            dues.append(due_ms)
        elif at - len(dues) > COMPACT_ABOVE:
            self._age(len(dues))
            self._base = self._lowest = number
            dues.append(due_ms)
        elif at > len(dues):
            dues.extend(array("q", [_DEAD]) * (at - len(dues)))
            dues.append(due_ms)
        elif number in self:
            raise ValueError(f"there is a timer {number}")
        elif at < 0:
            self._old[number] = due_ms
            self._old_in_order = False
        else:
            dues[at] = due_ms
            self._lowest = min(self._lowest, number)
        self._count += 1
        now_tick = now_ms // TICK_MS
        if now_tick > self._tick and ((following := self._next_tick()) is None or following > now_tick):
            # Nothing happens until now, so the distance can be counted from here.
            self._tick = now_tick
        self.place(number, -(-due_ms // TICK_MS))

    def load(self, numbers: Sequence[int], dues_ms: Sequence[int], now_ms: int) -> None:
        """Many new timers, ascending and above all that there are: as :meth:`add` for each, only faster."""
        if not numbers:
            return
        self.add(numbers[0], dues_ms[0], now_ms)
        count, dues, base = len(numbers), self._dues, self._base
        span = numbers[-1] - base + 1 - len(dues)
        if span > _SPARSE * count:
            for number, due_ms in zip(numbers[1:], dues_ms[1:], strict=True):
                self.add(number, due_ms, now_ms)
            return
        if span == count - 1:
            dues.extend(dues_ms[1:])
        else:
            dues.extend(array("q", [_DEAD]) * span)
            for number, due_ms in zip(numbers, dues_ms, strict=True):
                dues[number - base] = due_ms
        self._count += count - 1
        tick, place = self._tick, self.place
        held: array[int] | None
        near, far = self._slots[2], self._slots[3]
        for number, due_ms in zip(numbers[1:], dues_ms[1:], strict=True):
            due_tick = -(-due_ms // TICK_MS)
            distance = due_tick - tick
            # Most are hours ahead, in slots that are in use; the rest goes the common way.
            if distance >= 1 << 20:
                held = far[due_tick >> 20 & 63]
            elif distance >= 1 << 14:
                held = near[due_tick >> 14 & 63]
            else:
                held = None
            if held is None:
                place(number, due_tick)
            else:
                held.append(number)

    def place(self, number: int, due_tick: int) -> None:
        """Put a timer into the slot that is looked at when it is due."""
        distance = due_tick - self._tick
        if distance <= 0:
            self._ready.append(number)
            return
        level = 0 if distance < 1 << 8 else 1 if distance < 1 << 14 else 2 if distance < 1 << 20 else 3
        shift, size = _LEVELS[level]
        # What lies beyond the last level comes round early and is placed again.
        slot = due_tick >> shift & size - 1
        held = self._slots[level][slot]
        if held is None:
            self._slots[level][slot] = array("q", (number,))
            self._used[level] |= 1 << slot
        else:
            held.append(number)

    def cancel(self, number: int) -> bool:
        """Take a timer out; True means that it never fires. It may leave its number in a slot until that comes."""
        if self.due_ms(number) is None:
            return False
        self._remove(number)
        self._stale += 1
        if self._stale > self._count + COMPACT_ABOVE:
            self._sweep()
        return True

    def _remove(self, number: int) -> None:
        at = number - self._base
        if at < 0:
            del self._old[number]
        else:
            self._dues[at] = _DEAD
        self._count -= 1
        if not self._count:
            self._clear()
        elif len(self._dues) > COMPACT_ABOVE and number == self._lowest:
            self._skip_dead()
            self._compact()

    def _clear(self) -> None:
        """Nothing is alive: forget what the slots still name."""
        for level, (_, size) in enumerate(_LEVELS):
            if self._used[level]:
                self._slots[level] = [None] * size
                self._used[level] = 0
        del self._ready[:]
        del self._dues[:]
        self._ready_at = self._stale = 0

    def _sweep(self) -> None:
        """Take cancelled timers out of the slots: they are as many as the others."""
        self._stale = 0
        for level, slots in enumerate(self._slots):
            for slot, held in enumerate(slots):
                if held is not None:
                    alive = array("q", [number for number in held if self.due_ms(number) is not None])
                    slots[slot] = alive or None
                    if not alive:
                        self._used[level] &= ~(1 << slot)

    def _skip_dead(self) -> None:
        dues = self._dues
        at = self._lowest - self._base
        while at < len(dues) and dues[at] == _DEAD:
            at += 1
        self._lowest = self._base + at

    def _compact(self) -> None:
        """Let go of the array's dead front once it is the larger half."""
        dead = self._lowest - self._base
        if 2 * dead > len(self._dues):
            del self._dues[:dead]
            self._base = self._lowest

    def thin_out(self) -> None:
        """Call it now and then: where few timers keep a long array, its older half becomes entries of a dict."""
        if len(self._dues) <= COMPACT_ABOVE or self._count - len(self._old) > len(self._dues) // _SPARSE:
            return
        self._age(len(self._dues) // 2)

    def _age(self, count: int) -> None:
        """The first ``count`` numbers of the array leave it for the dict."""
        for at in range(self._lowest - self._base, count):
            if self._dues[at] != _DEAD:
                self._old[self._base + at] = self._dues[at]
        del self._dues[:count]
        self._base += count
        self._lowest = max(self._lowest, self._base)

    # -- time ----------------------------------------------------------------------------------------------------

    def _next_tick(self) -> int | None:
        """The next tick at which a slot is due: its timers fire, or move down."""
        best: int | None = None
        for level, (shift, size) in enumerate(_LEVELS):
            used = self._used[level]
            if not used:
                continue
            turn = self._tick >> shift
            after = (turn & size - 1) + 1
            ahead = used >> after | used << size - after
            at = turn + (ahead & -ahead).bit_length() << shift
            if best is None or at < best:
                best = at
        return best

    def next_deadline_ms(self) -> int | None:
        """When to call :meth:`advance` next; None without timers. It may have nothing to fire then, but moves on."""
        if not self._count:
            return None
        if self._ready_at < len(self._ready):
            return self._tick * TICK_MS
        following = self._next_tick()
        return None if following is None else following * TICK_MS

    def advance(self, now_ms: int, limit: int = 2**31) -> list[int]:
        """Up to ``limit`` timers that are due, each once, in order; with more due, :meth:`next_deadline_ms` is past."""
        target = now_ms // TICK_MS
        while len(self._ready) - self._ready_at < limit:
            following = self._next_tick()
            if following is None or following > target:
                self._tick = max(self._tick, target)
                break
            self._tick = following
            self._turn(following)
        return self._take(limit)

    def _turn(self, tick: int) -> None:
        """Empty the slots that are due at a tick, the widest first since they fill the others."""
        due: list[tuple[int, int]] = []
        for level in (3, 2, 1, 0):
            shift, size = _LEVELS[level]
            if tick & (1 << shift) - 1:
                continue
            for number in self._empty(level, tick >> shift & size - 1):
                due_ms = self.due_ms(number)
                if due_ms is None:
                    self._stale -= 1
                elif (due_tick := -(-due_ms // TICK_MS)) <= tick:
                    due.append((due_ms, number))
                elif level:
                    self.place(number, due_tick)
        due.sort()
        self._ready.extend([number for _, number in due])

    def _empty(self, level: int, slot: int) -> array[int] | tuple[()]:
        held = self._slots[level][slot]
        if held is None:
            return ()
        self._slots[level][slot] = None
        self._used[level] &= ~(1 << slot)
        return held

    def _take(self, limit: int) -> list[int]:
        taken: list[int] = []
        ready, at = self._ready, self._ready_at
        while at < len(ready) and len(taken) < limit:
            number = ready[at]
            at += 1
            due_ms = self.due_ms(number)
            if due_ms is None:
                self._stale -= 1
            elif due_ms <= self._tick * TICK_MS:
                # Otherwise it was cancelled and added anew, and is in its slot.
                taken.append(number)
                self._ready_at = at
                self._remove(number)
                if not self._count:
                    return taken
        self._ready_at = at
        if at == len(ready):
            del ready[:]
            self._ready_at = 0
        return taken
