"""Inputs that reached something new, to be mutated further: what guides the fuzzer.

Two signals. *Features* are looked at after every send and cost little: the connection's phase, the types of the
packets sent, what the broker answered, the statement it found broken, and how full its session is. *Arcs* are jumps
between lines of the broker's code; tracing them makes Python ten times slower, so only some lives are traced.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

Feature = tuple[object, ...]
Script = tuple[bytes, ...]
"""What one client sent, packet by packet, from its CONNECT on."""
_MAX_SCRIPTS = 3_000
_MAX_SCRIPT_PACKETS = 60
_MAX_FEATURES = 500_000
_TRACED = ("/reference_broker/mqtt/", "/reference_broker/amqp091/", "/reference_broker/core/")


class Corpus:
    """Scripts, and all that was ever reached."""

    def __init__(self) -> None:
        self.features: set[int] = set()
        """Their hashes: the features themselves would take most of the memory."""
        self.arcs: set[tuple[CodeType, int, int]] = set()
        self.scripts: list[Script] = []

    def note(self, feature: Feature, script: list[bytes], rng: random.Random) -> bool:
        """Keep the script if its feature is new."""
        key = hash(feature)
        if key in self.features or len(self.features) >= _MAX_FEATURES:
            return False
        self.features.add(key)
        self.add(script, rng)
        return True

    def add(self, script: list[bytes], rng: random.Random) -> None:
        """Keep a script; once the corpus is full it takes the place of a random one. Empty ones are not kept."""
        if not script:
            return
        kept = tuple(script[:1] + script[1:][-_MAX_SCRIPT_PACKETS:])
        if len(self.scripts) < _MAX_SCRIPTS:
            self.scripts.append(kept)
        else:
            self.scripts[rng.randrange(_MAX_SCRIPTS)] = kept

    def choose(self, rng: random.Random) -> Script | None:
        """A script, newer ones more often; None while there is none."""
        if not self.scripts:
            return None
        return self.scripts[max(rng.randrange(len(self.scripts)), rng.randrange(len(self.scripts)))]

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Collect arcs within the block; not where a debugger or a coverage tool is at work already."""
        if sys.gettrace() is not None:
            yield
            return
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> _LineTracer | None:
        code = frame.f_code
        if not any(part in code.co_filename for part in _TRACED):
            return None
        return _LineTracer(self.arcs, code)


class _LineTracer:
    """Notes the jumps between lines of one call."""

    __slots__ = ("_arcs", "_code", "_last")

    def __init__(self, arcs: set[tuple[CodeType, int, int]], code: CodeType) -> None:
        self._arcs = arcs
        self._code = code
        self._last = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> _LineTracer:
        if event == "line":
            line = frame.f_lineno
            self._arcs.add((self._code, self._last, line))
            self._last = line
        return self
