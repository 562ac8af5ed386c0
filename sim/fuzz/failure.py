"""What a fuzzed broker did wrong."""

from __future__ import annotations

import traceback


class FuzzFailureError(Exception):
    """An invariant does not hold. Two failures with one ``signature`` are taken for the same bug."""

    def __init__(self, signature: str, message: str) -> None:
        super().__init__(message)
        self.signature = signature

    def __str__(self) -> str:
        return f"{self.signature}: {super().__str__()}"


def escaped(error: Exception) -> FuzzFailureError:
    """The failure that an exception out of the broker is; its place is the last frame of the broker's own."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "reference_broker" in frame.filename] or frames
    place = f"{ours[-1].filename.rpartition('reference_broker')[2]}:{ours[-1].name}"
    text = "".join(traceback.format_exception(error)[-6:])
    return FuzzFailureError(f"exception {type(error).__name__} in {place}", text)
