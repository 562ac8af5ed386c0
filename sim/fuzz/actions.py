"""What can happen to a fuzzed broker, as values; and the file that repeats it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from assay.reference_broker.trace.described import described


class Open(msgspec.Struct, frozen=True, kw_only=True, tag="open"):
    """A client connects the transport of ``slot``, which must be free."""

    slot: int


class Send(msgspec.Struct, frozen=True, kw_only=True, tag="send"):
    """The client of ``slot`` sends these chunks, one after another. ``packets`` were meant by the bytes."""

    slot: int
    chunks: tuple[bytes, ...]
    packets: int = 1


class Lose(msgspec.Struct, frozen=True, kw_only=True, tag="lose"):
    """The transport of ``slot`` ends without a word."""

    slot: int


class Advance(msgspec.Struct, frozen=True, kw_only=True, tag="advance"):
    """Time passes. ``jump``: at once, as on a machine that slept; else every timer fires at its own time."""

    seconds: float
    jump: bool = False


class Sync(msgspec.Struct, frozen=True, kw_only=True, tag="sync"):
    """The disk finishes, or fails, what was to be synced."""

    fails: bool = False


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """The control client publishes and must be served."""


class Restart(msgspec.Struct, frozen=True, kw_only=True, tag="restart"):
    """The broker stops (``clean``) or is killed, and starts again on the same disk."""

    clean: bool = True


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """The end: every client goes, every session expires, and nothing may be left."""


Action = Open | Send | Lose | Advance | Sync | Probe | Restart | Drain


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """All it takes to repeat a life."""

    setup: str
    """Name of the broker's configuration, see :mod:`assay.sim.fuzz.setups`."""
    seed: int
    """Of the broker's own random numbers."""
    failure: str = ""
    """What went wrong, for people."""
    actions: tuple[Action, ...]


class ReplayError(ValueError):
    """A file that is no replay."""


def save_replay(path: Path, replay: Replay) -> None:
    """Write a replay as JSON, one action a line. Raises :class:`OSError`."""
    head = msgspec.json.encode(msgspec.structs.replace(replay, actions=()))
    lines = b",\n  ".join(msgspec.json.encode(action) for action in replay.actions)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.removesuffix(b"[]}") + b"[\n  " + lines + b"\n]}\n")


def load_replay(path: Path) -> Replay:
    """Read a replay. Raises :class:`ReplayError`, :class:`OSError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=described(Replay))
    except msgspec.MsgspecError as error:
        message = f"{path} is no replay of `assay fuzz`: {error}"
        raise ReplayError(message) from error
