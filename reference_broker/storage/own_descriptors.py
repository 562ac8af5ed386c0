"""Descriptors that are this process's own: a forked child has none of them in use.

A child inherits what is open. A lock, a port or a connection would outlive the broker in every child, and a file might
be written by two. So they are exchanged for ``/dev/null`` in the child, under the same numbers, since whoever opened
them will close them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_own: set[int] = set()


def own(descriptor: int) -> None:
    """It was opened by this process."""
    _own.add(descriptor)


def disown(descriptor: int) -> None:
    """It is about to be closed, by whoever opened it."""
    _own.discard(descriptor)


def exchange(descriptors: Iterable[int]) -> None:
    """In a forked child: have it use these no more. Whatever shares them with the parent stays as it is."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _in_child() -> None:
    exchange(_own)
    _own.clear()


os.register_at_fork(after_in_child=_in_child)
