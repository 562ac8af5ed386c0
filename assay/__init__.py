"""A reference message broker, and the bench that judges message brokers by it.

:class:`Broker` is a broker inside of your program or test; ``assay --help`` lists what the command line offers. The
parts are the folders at the root of the repository, each imported as ``assay.<folder>``: the links here lead to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.reference_broker.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    """The broker is imported by who asks for it: the command line starts without it."""
    if name == "Broker":
        from assay.reference_broker.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
